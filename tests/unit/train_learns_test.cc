// Two ranks learn the real thing: Fashion-MNIST above 84% after a short run, and the characters of a text below what their frequencies say.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "mlrunner/data/text.h"
#include "tests/unit/sample_values.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::TrainOnThreads;

TEST(Learns, FashionMnist) {
  TrainJob job = JobOf({"model.hidden=128", "train.batch=64", "train.epochs=2", "optimizer.learning_rate=0.03", "train.threads=1"});
  auto ranks = TrainOnThreads(job, 2);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  const TrainSummary& summary = ranks[0].summary;
  EXPECT_EQ(summary.steps, 1876);
  EXPECT_EQ(summary.held_out_labels, 10'000);
  EXPECT_GT(static_cast<double>(summary.held_out_hits) / 10'000, .84);
  EXPECT_LT(summary.held_out_loss, .5);
  EXPECT_FALSE(ranks[0].lines.empty());  // the progress bar was told
  EXPECT_TRUE(ranks[1].lines.empty());
}

// A control: without a step nothing is known.
TEST(Learns, NothingWithoutTraining) {
  TrainJob job = JobOf({"model.hidden=128", "train.batch=64", "train.steps=1", "optimizer.learning_rate=0", "train.threads=1"});
  auto ranks = TrainOnThreads(job, 2);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  EXPECT_LT(static_cast<double>(ranks[0].summary.held_out_hits) / 10'000, .3);
}

// The first chapters of Genesis, from Debian's package bible-kjv.
TEST(Learns, TheBiblesCharacters) {
  testing::TempFolder folder;
  const std::string path = folder.path() + "/bible.txt";
  ASSERT_EQ(std::system(("bible -f gen1:1-gen20:18 > " + path).c_str()), 0);
  auto data = LoadText(path, 32, .1);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  // What who knows the frequencies alone pays for a character.
  std::vector<std::int64_t> ids(static_cast<std::size_t>(data->held_out->count()));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  const std::vector<std::int32_t> labels = testing::ValuesOf<std::int32_t>(*data->held_out, "next", ids);
  std::array<double, 256> counts{};
  for (std::int32_t label : labels) ++counts[static_cast<std::size_t>(label)];
  double frequencies = 0;
  for (double count : counts) {
    if (count > 0) frequencies -= count / static_cast<double>(labels.size()) * std::log(count / static_cast<double>(labels.size()));
  }
  TrainJob job = JobOf({"model.kind=gpt", "model.layers=2", "model.width=32", "model.heads=2", "model.length=32", "data.kind=text",
                        "data.path=" + path, "train.batch=16", "train.steps=250", "train.threads=1", "optimizer.kind=adamw",
                        "optimizer.learning_rate=0.01", "optimizer.warmup_steps=20"});
  auto ranks = TrainOnThreads(job, 2);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  EXPECT_LT(ranks[0].summary.held_out_loss, .85 * frequencies) << "the frequencies alone give " << frequencies;
}

}  // namespace
}  // namespace ropewalk::mlrunner
