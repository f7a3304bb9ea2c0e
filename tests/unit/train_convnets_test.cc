// Convolutional models by the trainer: one rank and several are one training, in the layouts that the kernels are fastest with; and what
// depth a residual network may have.
#include <gtest/gtest.h>

#include <cmath>

#include "mlrunner/train/family.h"
#include "tests/unit/bands.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::Bands;
using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

testing::RunOptions Over(testing::Sums sums) {
  testing::RunOptions options{.sums = sums};
  options.load = [](testing::ThreadGang&) -> Result<DataSet> { return DataSet{std::make_unique<Bands>(53), std::make_unique<Bands>(31)}; };
  return options;
}

// Of 53 samples in batches of 14: three ranks have 5, 5 and 4 of them, so that one row only fills up; and the last batch of an epoch
// has 11.
TEST(TrainConvnets, RanksAreOne) {
  for (const char* kind : {"lenet", "cnn", "resnet"}) {
    SCOPED_TRACE(kind);
    const TrainJob job = JobOf({std::string("model.kind=") + kind, "train.batch=14", "train.steps=10", "train.threads=1",
                                "train.bucket_bytes=8K", "optimizer.learning_rate=0.02"});
    const std::vector<RankResult> one = TrainOnThreads(job, 1, Over(testing::Sums::kInMemory));
    ASSERT_TRUE(one[0].status.ok()) << one[0].status.ToString();
    EXPECT_LT(one[0].losses.back(), one[0].losses.front());
    for (testing::Sums sums : {testing::Sums::kInMemory, testing::Sums::kSharedMemory}) {
      const std::vector<RankResult> three = TrainOnThreads(job, 3, Over(sums));
      for (const RankResult& rank : three) ASSERT_TRUE(rank.status.ok()) << rank.status.ToString();
      ASSERT_EQ(three[0].losses.size(), 10u);
      for (std::size_t step = 0; step < 10; ++step)
        EXPECT_NEAR(three[0].losses[step], one[0].losses[step], 1e-5 * one[0].losses[step]) << step;
      EXPECT_EQ(three[0].summary.held_out_labels, 31);
      EXPECT_NEAR(three[0].summary.held_out_loss, one[0].summary.held_out_loss, 1e-4 * one[0].summary.held_out_loss);
    }
  }
}

// With micro-batches each has moments of its own: another training, of which several ranks make the same.
TEST(TrainConvnets, MicroBatchesAreNormalisedOneByOne) {
  const TrainJob job = JobOf({"model.kind=cnn", "train.batch=14", "train.micro_batches=2", "train.steps=6", "train.threads=1",
                              "train.bucket_bytes=8K", "optimizer.learning_rate=0.02"});
  const std::vector<RankResult> two = TrainOnThreads(job, 2, Over(testing::Sums::kSharedMemory));
  for (const RankResult& rank : two) {
    ASSERT_TRUE(rank.status.ok()) << rank.status.ToString();
    EXPECT_EQ(rank.losses, two[0].losses);
  }
  EXPECT_LT(two[0].losses.back(), two[0].losses.front());
}

TEST(TrainConvnets, DepthsThatThereAre) {
  const ModelFamily* family = FindModelFamily("resnet");
  ASSERT_NE(family, nullptr);
  for (const auto& [depth, is_one] : std::vector<std::pair<int, bool>>{
           {8, true}, {14, true}, {20, true}, {110, true}, {18, true}, {34, true}, {50, true}, {9, false}, {10, false}, {101, false}}) {
    ModelSpec spec{.kind = "resnet"};
    spec.more["depth"] = std::to_string(depth);
    const Result<KeyValues> keys = KeyValues::Of(spec, family->keys);
    ASSERT_TRUE(keys.ok()) << keys.status().ToString();
    const Status status = family->check(*keys);
    EXPECT_EQ(status.ok(), is_one) << depth << " " << status.ToString();
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
