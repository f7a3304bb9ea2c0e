// What lies between backward and the updates: micro-batches, the norm of all gradients, and rates that a resumed training finds again.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <stdexcept>

#include "base/random.h"
#include "mlrunner/train/checkpoint.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

class TrainGradients : public ::testing::Test {
 protected:
  TrainGradients() {
    std::string text;
    Random random(7);
    for (int i = 0; i < 200; ++i) text += random.OneIn(2) ? "the cat sat. " : "a dog ran! ";
    std::ofstream(folder_.path() + "/text") << text;
  }
  std::vector<std::string> Gpt(int steps, std::vector<std::string> more = {}) {
    return testing::TinyGpt(folder_.path() + "/text", steps, {{"train.batch=22", "train.dtype=f64", "optimizer.learning_rate=0.1"}, more});
  }
  std::vector<double> Losses(const std::vector<std::string>& settings, std::int32_t ranks) {
    std::vector<RankResult> results = TrainOnThreads(JobOf(settings), ranks);
    for (const RankResult& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status.ToString();
      EXPECT_EQ(result.losses, results[0].losses);
    }
    return results[0].losses;
  }
  // The parameters after one step.
  std::map<std::string, Tensor> AfterAStep(std::vector<std::string> settings, std::int32_t ranks) {
    const std::string folder = folder_.path() + "/checkpoints" + std::to_string(folders_++);
    settings.push_back("checkpoint.folder=" + folder);
    Losses(settings, ranks);
    storage::LocalFileSystem files;
    std::vector<Status> passed_over;
    auto checkpoint = LoadNewestCheckpoint(files, folder, &passed_over);
    EXPECT_TRUE(checkpoint.ok() && checkpoint->step == 1);
    return checkpoint.ok() ? std::move(checkpoint->tensors) : std::map<std::string, Tensor>();
  }

  testing::TempFolder folder_;
  int folders_ = 0;
};

double WorstDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]) / std::fabs(b[i]));
  return worst;
}

double Distance(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  double squares = 0;
  for (const auto& [name, tensor] : a) {
    const RefTensor x = ToRef(tensor), y = ToRef(b.at(name));
    for (std::size_t i = 0; i < x.data.size(); ++i) squares += (x.data[i] - y.data[i]) * (x.data[i] - y.data[i]);
  }
  return std::sqrt(squares);
}

// 22 samples in 3 or 4 parts, on 1 to 3 ranks: parts differ in length, and the last batch of an epoch is shorter still.
TEST_F(TrainGradients, MicroBatchesAreOneBatch) {
  const std::vector<double> whole = Losses(Gpt(60), 1);
  EXPECT_LT(whole.back(), .9 * whole.front());
  for (auto [ranks, parts] : {std::pair(1, 4), {2, 3}, {3, 4}})
    EXPECT_LE(WorstDifference(Losses(Gpt(60, {"train.micro_batches=" + std::to_string(parts)}), ranks), whole), 1e-9)
        << ranks << " ranks, " << parts << " parts";
  const std::vector<std::string> adamw = {"optimizer.kind=adamw", "optimizer.learning_rate=0.01", "optimizer.clip_norm=0.5"};
  std::vector<std::string> cut = adamw;
  cut.push_back("train.micro_batches=5");
  EXPECT_LE(WorstDifference(Losses(Gpt(40, cut), 4), Losses(Gpt(40, adamw), 1)), 1e-9);
}

TEST_F(TrainGradients, TheNormIsThatOfAllRanksGradients) {
  const std::vector<std::string> clipped = Gpt(60, {"optimizer.clip_norm=0.3"});
  const std::vector<double> one = Losses(clipped, 1);
  EXPECT_LE(WorstDifference(Losses(clipped, 4), one), 1e-9);
  // The controls: it does clip, and a bound that no gradient reaches changes nothing.
  EXPECT_GT(WorstDifference(Losses(Gpt(60), 1), one), 1e-3);
  EXPECT_LE(WorstDifference(Losses(Gpt(60, {"optimizer.clip_norm=1e6"}), 1), Losses(Gpt(60), 1)), 1e-12);
}

// The real communicator gets the sums where they are asked for: behind the last micro-batch, and before the norm.
TEST_F(TrainGradients, OverSharedMemoryWithTheSameBits) {
  const TrainJob job = JobOf(Gpt(12, {"train.micro_batches=3", "optimizer.clip_norm=0.3"}));
  const std::vector<RankResult> expected = TrainOnThreads(job, 3), real = TrainOnThreads(job, 3, {.sums = testing::Sums::kSharedMemory});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(real[rank].status.ok()) << real[rank].status.ToString();
    EXPECT_EQ(real[rank].losses, expected[rank].losses);
  }
}

// With plain descent a step is as long as its gradient: rate * clip_norm where that binds.
TEST_F(TrainGradients, AClippedStepHasTheLengthThatItMayHave) {
  const std::vector<std::string> plain = {"optimizer.momentum=0", "optimizer.learning_rate=0.5"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plain.begin(), plain.end());
    return Gpt(1, more);
  };
  const auto start = AfterAStep(with({"optimizer.learning_rate=0"}), 1);
  EXPECT_GT(Distance(AfterAStep(with({}), 1), start), .5 * .05);
  for (std::int32_t ranks : {1, 3}) EXPECT_NEAR(Distance(AfterAStep(with({"optimizer.clip_norm=0.05"}), ranks), start), .5 * .05, 1e-12);
  EXPECT_NEAR(Distance(AfterAStep(with({"optimizer.clip_norm=0.05", "train.micro_batches=3"}), 2), start), .5 * .05, 1e-12);
}

// Stopped between two checkpoints in the middle of the fall: what follows is bit for bit what would have been.
TEST_F(TrainGradients, AResumedTrainingGoesOnWithItsRate) {
  const std::vector<std::string> settings =
      Gpt(24, {"optimizer.schedule=cosine", "optimizer.warmup_steps=6", "train.micro_batches=2", "optimizer.clip_norm=0.4"});
  const std::vector<double> whole = Losses(settings, 2);
  ASSERT_EQ(whole.size(), 24u);
  std::vector<std::string> saved = settings;
  saved.insert(saved.end(), {"checkpoint.folder=" + folder_.path() + "/kept", "checkpoint.every_steps=4"});
  const TrainJob job = JobOf(saved);
  TrainOnThreads(job, 2, {.on_step = [](testing::ThreadGang&, std::int64_t step) {
                   if (step == 13) throw std::runtime_error("the power is gone");
                 }});
  const std::vector<RankResult> rest = TrainOnThreads(job, 2);
  ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
  EXPECT_EQ(rest[0].summary.resumed_from, 12);
  EXPECT_EQ(rest[0].losses, std::vector<double>(whole.begin() + 12, whole.end()));
  // The control: it is the schedule that is found again.
  EXPECT_NE(Losses(Gpt(24, {"train.micro_batches=2", "optimizer.clip_norm=0.4"}), 2), whole);
}

}  // namespace
}  // namespace ropewalk::mlrunner
