// Virtual time: the sanity figures of the α-β model, what pipelining, incast and stragglers do, and plans as text.
#include <gtest/gtest.h>

#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

SimulateReport Ran(std::string_view algorithm, const Request& request, const SimulateOptions& options) {
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return {};
  auto report = Simulate(*plan, options);
  EXPECT_TRUE(report.ok()) << algorithm << ": " << report.status().ToString();
  return report.ok() ? *report : SimulateReport{};
}

// α = 50 µs, 1 Gb/s, P = 8, 10 KB.
TEST(Simulate, GivesTheKnownTimesOfSmallAllreduces) {
  SimulateOptions options{.sizes = {.count = 2500}, .network = {.latency_ns = 50'000, .ns_per_byte = 8}};
  auto ms = [&](const char* algorithm) { return static_cast<double>(Ran(algorithm, {.ranks = 8}, options).end_ns) / 1e6; };
  EXPECT_NEAR(ms("direct"), .24, .005);
  EXPECT_NEAR(ms("recursive_doubling"), .39, .005);
  EXPECT_NEAR(ms("halving_doubling"), .44, .005);
  EXPECT_NEAR(ms("ring"), .84, .005);
}

TEST(Simulate, LargeRingsReachTheBandwidthBound) {
  const std::int64_t count = 25'000'000;  // 100 MB
  SimulateOptions options{.sizes = {.count = count}, .network = {.latency_ns = 50'000, .ns_per_byte = 8}, .reduce_ns_per_byte = .1};
  const double bound = 2.0 * static_cast<double>(count) * 4 * 7 / 8 * 8;
  auto ring = Ran("ring", {.ranks = 8, .channels = 2, .segment_bytes = 1 << 20}, options);
  EXPECT_LT(static_cast<double>(ring.end_ns), bound * 1.05);
  EXPECT_GE(static_cast<double>(ring.end_ns), bound);
  // One segment at a time leaves the link idle while it is added and while the latency passes.
  auto alone = Ran("ring", {.ranks = 8, .channels = 1, .segment_bytes = 1 << 20}, options);
  EXPECT_GT(alone.end_ns, ring.end_ns);
}

TEST(Simulate, ThePipelinedChainHidesItsLength) {
  SimulateOptions options{.sizes = {.count = 2'500'000}, .network = {.latency_ns = 20'000, .ns_per_byte = 8}};
  auto whole = Ran("chain", {.ranks = 8, .deterministic = true}, options);
  auto segments = Ran("chain", {.ranks = 8, .deterministic = true, .segment_bytes = 1 << 17, .slots = 4}, options);
  EXPECT_LT(segments.end_ns * 4, whole.end_ns);
}

TEST(Simulate, AnEagerSumDoesNotWaitForAStraggler) {
  SimulateOptions options{
      .sizes = {.count = 1000}, .network = {.latency_ns = 50'000, .ns_per_byte = 8}, .start_ns = {1, 1, 1, 500'000'000}};
  auto quorum = Ran("eager", {.ranks = 4, .quorum = 3}, options);
  EXPECT_EQ(quorum.contributed, 3);
  for (int rank = 0; rank < 3; ++rank) EXPECT_LT(quorum.ends_ns[rank], 1'000'000) << rank;
  auto everybody = Ran("eager", {.ranks = 4, .quorum = 4}, options);
  EXPECT_EQ(everybody.contributed, 4);
  EXPECT_GT(everybody.end_ns, 500'000'000);
}

TEST(Simulate, ARelaxedWindowWaitsForNobodyAndAnOrderedOneDoes) {
  SimulateOptions options{
      .sizes = {.count = 1000}, .network = {.latency_ns = 50'000, .ns_per_byte = 8}, .start_ns = {1, 500'000'000, 1, 1}};
  Request request{.collective = Collective::kMix, .ranks = 4, .mixing = RingOfNeighbours(4)};
  EXPECT_LT(Ran("window_relaxed", request, options).ends_ns[0], 1'000'000);
  EXPECT_GT(Ran("window", request, options).ends_ns[0], 500'000'000);
}

TEST(Simulate, EveryAlgorithmEndsAndItsCostIsCounted) {
  for (const Case& one : AllCases(5, 4096)) {
    auto plan = BuildPlan(one.algorithm, one.request);
    ASSERT_TRUE(plan.ok());
    Sizes sizes{.count = 10'000};
    for (int i = 0; i < 25; ++i) sizes.table.push_back(i);
    auto report =
        Simulate(*plan, {.sizes = sizes, .overhead_ns = 1000, .reduce_ns_per_byte = .1, .copy_ns_per_byte = .1, .code_ns_per_byte = 1});
    ASSERT_TRUE(report.ok()) << Name(one) << ": " << report.status().ToString();
    EXPECT_GT(report->end_ns, 0) << Name(one);
    auto cost = EstimateCost(*plan, {.sizes = sizes, .latency_ns = 50'000, .ns_per_byte = 8});
    ASSERT_TRUE(cost.ok());
    EXPECT_GT(cost->rounds, 0) << Name(one);
    EXPECT_NE(Explain(*plan, 1).find(one.algorithm), std::string::npos);
  }
}

TEST(Cost, RoundsAndBytesAreThoseOfTheTable) {
  auto cost = [](const char* algorithm, std::int32_t ranks) {
    auto plan = BuildPlan(algorithm, {.ranks = ranks, .channels = 1});
    EXPECT_TRUE(plan.ok());
    auto cost = EstimateCost(*plan, {.sizes = {.count = 1600}, .latency_ns = 1000, .ns_per_byte = 1});
    EXPECT_TRUE(cost.ok());
    return *cost;
  };
  EXPECT_EQ(cost("direct", 8).rounds, 2);
  EXPECT_EQ(cost("direct", 8).sent_messages_max, 14);
  EXPECT_EQ(cost("ring", 8).rounds, 14);
  EXPECT_EQ(cost("ring", 8).sent_bytes_max, 2 * 6400 * 7 / 8);
  EXPECT_EQ(cost("ring", 8).scratch_bytes_max, 0);
  EXPECT_EQ(cost("recursive_doubling", 8).rounds, 3);
  EXPECT_EQ(cost("recursive_doubling", 8).scratch_bytes_max, 3 * 6400);
  // The rank that hands in is waited for by the far ranks only, and the one that gets the result back is near.
  EXPECT_EQ(cost("recursive_doubling", 9).rounds, 4);
  EXPECT_EQ(cost("chain", 8).rounds, 14);
}

TEST(Explain, ReadsLikeTheAlgorithm) {
  auto plan = BuildPlan("ring", {.ranks = 3, .channels = 1, .segment_bytes = 4096});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(Explain(*plan, 1),
            "allreduce by ring: f32 sum, 3 ranks, same bits everywhere\n"
            "  in (in)\n"
            "  out (out), may be in\n"
            "rank 1\n"
            "  channel 0, 2 slots to 2\n"
            "   0  for each segment of at most 4096 bytes\n"
            "   1    send             in[part 1/3, segment] → rank 2\n"
            "   2    recv_reduce_send out[part 0/3, segment] = rank 0's in[part 0/3, segment] + in[part 0/3, segment] → rank 2\n"
            "   3    recv_reduce_send out[part 2/3, segment] = rank 0's out[part 2/3, segment] + in[part 2/3, segment] → rank 2\n"
            "   4    recv_copy_send   out[part 1/3, segment] = rank 0's out[part 1/3, segment] → rank 2\n"
            "   5    recv             out[part 0/3, segment] = rank 0's out[part 0/3, segment]\n"
            "   6  end\n");
}

}  // namespace
}  // namespace ropewalk::collective::testing
