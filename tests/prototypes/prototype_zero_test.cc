// ZeRO-1 (zero.h). With sums in the order of the ranks it is data parallelism bit for bit.
#include "mlrunner/collective/check/check.h"
#include "tests/prototypes/zero.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

TEST(Zero, ItsCollectivesAreProved) {
  for (std::int32_t ranks : {1, 2, 3, 8}) {
    for (const collective::Algorithm* algorithm : {&kDirectReduceScatter, &kDirectAllGather}) {
      auto plan = collective::BuildPlan(*algorithm, Asked(*algorithm, ranks));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      Status status = collective::CheckAll(*plan);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
}

std::vector<Trained> Train(std::int32_t ranks, Update update, bool overlaps = false) {
  std::vector<std::int32_t> members;
  for (std::int32_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
  World world(ranks, {{"data", members}});
  std::vector<Trained> trained(ranks);
  Status status = world.Run([&](std::int32_t rank) { return TrainRank(world, rank, ranks, update, overlaps, &trained[rank]); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

std::size_t OptimizerBytes(const Trained& trained) {
  std::size_t bytes = 0;
  for (const StateInfo& state : trained.graph.states) {
    if (state.kind == StateKind::kOptimizer) bytes += trained.states.Get(state.name).bytes.size();
  }
  return bytes;
}

TEST(Zero, EqualsDataParallelBitForBit) {
  std::vector<Trained> one = Train(1, Update::kReplicated);
  for (std::int32_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    std::vector<Trained> replicated = Train(ranks, Update::kReplicated), sharded = Train(ranks, Update::kSharded, ranks == 4);
    double mean = 0;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(sharded[rank].losses, replicated[rank].losses);
      EXPECT_EQ(Different(sharded[0].graph, sharded[rank].states, replicated[rank].states), std::vector<std::string>());
      mean += sharded[rank].losses.back() / ranks;
      // Two moments of four parameters, 31·8, 31, 31·4 and 4 numbers, each padded to whole shares.
      std::int64_t shares = 0;
      for (std::int64_t count : {31 * 8, 31, 31 * 4, 4}) shares += (count + ranks - 1) / ranks;
      EXPECT_EQ(OptimizerBytes(sharded[rank]), 2u * sizeof(float) * static_cast<std::size_t>(shares));
    }
    EXPECT_EQ(OptimizerBytes(replicated[0]), 2u * sizeof(float) * (31 * 8 + 31 + 31 * 4 + 4));
    EXPECT_NEAR(mean, one[0].losses.back(), 1e-3 * mean);
  }
  EXPECT_LT(MeanOfLast(one[0].losses, 10), .5 * one[0].losses.front());
}

// The control: without the gather each rank goes on with old values of the others' shares.
TEST(Zero, WithoutTheGatherRanksDriftApart) {
  std::vector<Trained> right = Train(2, Update::kSharded), wrong = Train(2, Update::kWithoutGather);
  EXPECT_EQ(Different(right[0].graph, right[0].states, right[1].states), std::vector<std::string>());
  EXPECT_EQ(Different(wrong[0].graph, wrong[0].states, wrong[1].states).size(), 4u);
  EXPECT_GT(std::fabs(wrong[0].losses.back() - right[0].losses.back()), 1e-3);
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
