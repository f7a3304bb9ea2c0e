// What messages cost: constants that are put into virtual time come out of the fit, and what is measured is the same on all ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

#include "base/random.h"
#include "mlrunner/collective/calibrate.h"
#include "mlrunner/collective/run/call_steps.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

// What Calibrate() would measure in a world of these constants, each time up to `noise` too long or too short.
LinkTimings MeasuredIn(const LinkModel& world, std::int32_t ranks, bool shares_memory, double noise = 0, std::uint64_t seed = 0,
                       const Nodes& nodes = {}) {
  Random random(seed);
  auto timed = [&](std::string_view algorithm, Request request, Sizes sizes) {
    request.ranks = ranks;
    request.nodes = nodes;
    auto plan = BuildPlan(algorithm, request);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    auto ns = PredictNs(world, *plan, sizes);
    EXPECT_TRUE(ns.ok()) << ns.status().ToString();
    return *ns * (1 + noise * (2 * random.Unit() - 1));
  };
  LinkTimings timings{.ranks = ranks, .nodes = nodes, .shares_memory = shares_memory, .copy_ns_per_byte = world.copy_ns_per_byte};
  timings.fold_ns_per_byte = world.reduce_ns_per_byte + (shares_memory ? world.copy_ns_per_byte : 0);
  timings.chain_ns = timed("ring", {}, {.count = ranks});
  timings.fan_ns = timed("direct", {}, {.count = ranks});
  timings.doubling_ns = timed("recursive_doubling", {}, {.count = ranks});
  auto next = [&](std::int32_t rank) {
    for (std::int32_t steps = 1; steps < ranks && !nodes.empty(); ++steps)
      if (nodes[static_cast<std::size_t>((rank + steps) % ranks)] == nodes[static_cast<std::size_t>(rank)]) return (rank + steps) % ranks;
    return (rank + 1) % ranks;
  };
  auto shift = [&](std::int64_t bytes) {
    Sizes sizes{.table = std::vector<std::int64_t>(static_cast<std::size_t>(ranks * ranks))};
    for (std::int32_t rank = 0; rank < ranks; ++rank) sizes.table[static_cast<std::size_t>(rank * ranks + next(rank))] = bytes;
    return timed("all_to_all_v", {.collective = Collective::kAllToAllV, .dtype = Dtype::kU8}, sizes);
  };
  for (std::int64_t bytes : {std::int64_t{16} << 10, std::int64_t{64} << 10, kNearBytes}) timings.shift.push_back({bytes, shift(bytes)});
  for (const ByteCosts& costs : world.beyond)
    timings.longs.push_back({.bytes = costs.bytes,
                             .shift_ns = shift(costs.bytes),
                             .fold_ns_per_byte = costs.reduce_ns_per_byte + (shares_memory ? costs.copy_ns_per_byte : 0),
                             .copy_ns_per_byte = costs.copy_ns_per_byte});
  timings.one_way.resize(static_cast<std::size_t>(ranks));
  for (std::int32_t peer = 1; peer < ranks; ++peer)
    for (std::int64_t bytes : {8, 4 << 10, 32 << 10, 256 << 10})
      timings.one_way[static_cast<std::size_t>(peer)].push_back(
          {bytes, timed("send_recv", {.collective = Collective::kSendRecv, .dtype = Dtype::kU8, .peer = peer}, {.count = bytes})});
  return timings;
}

LinkModel Network() {
  LinkModel world;
  world.call_ns = 3'000;
  world.latency_ns = 20'000;
  world.overhead_ns = 1'200;
  world.ns_per_byte = .4;
  world.alone_ns_per_byte = .4;
  world.reduce_ns_per_byte = .05;
  world.copy_ns_per_byte = .03;
  return world;
}
LinkModel Memory() {
  LinkModel world;
  world.call_ns = 1'500;
  world.latency_ns = 400;
  world.overhead_ns = 60;
  world.ns_per_byte = .1;
  world.alone_ns_per_byte = .07;
  world.reduce_ns_per_byte = .04;
  world.copy_ns_per_byte = .1;
  return world;
}

void ExpectFitted(const LinkModel& fitted, const LinkModel& world, std::int32_t ranks, double tolerance) {
  const double hop = world.latency_ns + 2 * world.overhead_ns;
  EXPECT_NEAR(fitted.latency_ns + 2 * fitted.overhead_ns, hop, tolerance * hop);
  EXPECT_NEAR(fitted.call_ns, world.call_ns, tolerance * (world.call_ns + hop));
  EXPECT_NEAR(fitted.ns_per_byte, world.ns_per_byte, tolerance * world.ns_per_byte);
  EXPECT_NEAR(fitted.alone_ns_per_byte, world.alone_ns_per_byte, 2 * tolerance * world.ns_per_byte);
  EXPECT_NEAR(fitted.reduce_ns_per_byte, world.reduce_ns_per_byte, 1e-9);
  EXPECT_EQ(fitted.copy_ns_per_byte, world.copy_ns_per_byte);
  // Two ranks wait for every message of each other: there is nothing that would tell overhead from latency.
  EXPECT_NEAR(fitted.overhead_ns, ranks == 2 ? 0 : world.overhead_ns, tolerance * hop);
  ASSERT_EQ(fitted.from_first.size(), static_cast<std::size_t>(ranks));
  for (std::int32_t peer = 1; peer < ranks; ++peer) {
    EXPECT_NEAR(fitted.from_first[peer].ns, world.call_ns + hop, 2 * tolerance * (world.call_ns + hop));
    EXPECT_NEAR(fitted.from_first[peer].ns_per_byte, world.alone_ns_per_byte, 2 * tolerance * world.ns_per_byte);
  }
}

TEST(LinkModel, ConstantsOfAWorldComeOutOfTheFit) {
  for (std::int32_t ranks : {2, 3, 4, 8}) {
    SCOPED_TRACE(ranks);
    ExpectFitted(FitLinks(MeasuredIn(Network(), ranks, false)), Network(), ranks, .01);
    ExpectFitted(FitLinks(MeasuredIn(Memory(), ranks, true)), Memory(), ranks, .01);
  }
}

// From calls of few bytes that differ in their rounds only; and where nobody measured those by pairs, from messages of one pair.
TEST(LinkModel, ComesOutOfEitherWayToTellACallFromAHop) {
  for (std::int32_t ranks : {2, 3, 4, 8}) {
    SCOPED_TRACE(ranks);
    LinkTimings timings = MeasuredIn(Network(), ranks, false);
    for (auto& link : timings.one_way)
      for (Timing& timing : link) timing.ns *= 3;  // the pair was slow for a moment
    const LinkModel fitted = FitLinks(timings);
    EXPECT_NEAR(fitted.call_ns, Network().call_ns, 300);
    EXPECT_NEAR(fitted.latency_ns + 2 * fitted.overhead_ns, Network().latency_ns + 2 * Network().overhead_ns, 300);
    timings = MeasuredIn(Network(), ranks, false);
    timings.doubling_ns = 0;
    ExpectFitted(FitLinks(timings), Network(), ranks, .01);
  }
}

LinkModel BeyondCaches() {
  LinkModel world = Memory();
  world.beyond = {{1 << 20, .15, .05, .2}, {4 << 20, .3, .06, .3}, {32 << 20, .45, .07, .4}};
  return world;
}

TEST(LinkModel, ALongVectorsBytesCostWhatTheyWereMeasuredToCost) {
  for (const bool shares_memory : {true, false}) {
    const LinkModel fitted = FitLinks(MeasuredIn(BeyondCaches(), 4, shares_memory));
    ExpectFitted(fitted, BeyondCaches(), 4, .03);
    ASSERT_EQ(fitted.beyond.size(), 3u);
    const LinkModel world = BeyondCaches();
    for (std::size_t i = 0; i < 3; ++i) {
      const ByteCosts &is = fitted.beyond[i], &should = world.beyond[i];
      EXPECT_EQ(is.bytes, should.bytes);
      EXPECT_NEAR(is.ns_per_byte, should.ns_per_byte, .02 * should.ns_per_byte);
      EXPECT_NEAR(is.reduce_ns_per_byte, should.reduce_ns_per_byte, 1e-9);
      EXPECT_EQ(is.copy_ns_per_byte, should.copy_ns_per_byte);
    }
  }
}

// Never less in all for more bytes, through what was measured, and with the last slope beyond it.
TEST(LinkModel, BetweenMeasuredLengthsTheTimeOfAVectorIsALine) {
  const LinkModel world = BeyondCaches();
  EXPECT_EQ(CostsAt(world, 1).ns_per_byte, world.ns_per_byte);
  EXPECT_EQ(CostsAt(world, kNearBytes).copy_ns_per_byte, world.copy_ns_per_byte);
  for (const ByteCosts& costs : world.beyond) EXPECT_EQ(CostsAt(world, costs.bytes), costs);
  auto ns = [&](std::int64_t bytes) { return CostsAt(world, bytes).ns_per_byte * static_cast<double>(bytes); };
  EXPECT_NEAR(ns(18 << 20), (ns(4 << 20) + ns(32 << 20)) / 2, 1);
  EXPECT_NEAR(ns(60 << 20) - ns(32 << 20), ns(32 << 20) - ns(4 << 20), 1);
  for (std::int64_t bytes = 1'000; bytes < 1 << 30; bytes += bytes / 8) EXPECT_LE(ns(bytes), ns(bytes + bytes / 8));
  // The control, and a plan: without lengths all cost the same; with them a long vector takes longer than its part of the bytes.
  EXPECT_EQ(CostsAt(Memory(), 1 << 30).ns_per_byte, Memory().ns_per_byte);
  auto plan = BuildPlan("direct", {.ranks = 2, .segment_bytes = 256 << 10});
  ASSERT_TRUE(plan.ok());
  auto took = [&](const LinkModel& of, std::int64_t bytes) {
    auto predicted = PredictNs(of, *plan, {.count = bytes / 4});
    EXPECT_TRUE(predicted.ok()) << predicted.status().ToString();
    return *predicted;
  };
  EXPECT_EQ(took(world, kNearBytes), took(Memory(), kNearBytes));
  EXPECT_GT(took(world, 32 << 20), 3 * took(Memory(), 32 << 20));
}

TEST(LinkModel, LinksWithinAndBetweenNodesAreToldApart) {
  LinkModel world = Network();
  world.across_latency_ns = 70'000;
  world.across_ns_per_byte = 4;
  const Nodes nodes = {0, 0, 1, 1};
  const LinkModel fitted = FitLinks(MeasuredIn(world, 4, false, 0, 0, nodes));
  EXPECT_NEAR(fitted.across_latency_ns, world.across_latency_ns, 500);
  EXPECT_NEAR(fitted.across_ns_per_byte, world.across_ns_per_byte, .1);
  EXPECT_NEAR(fitted.ns_per_byte, world.ns_per_byte, .02);
  EXPECT_NEAR(fitted.alone_ns_per_byte, world.alone_ns_per_byte, .02);
  EXPECT_NEAR(fitted.latency_ns + 2 * fitted.overhead_ns, world.latency_ns + 2 * world.overhead_ns, 2'000);
  // The controls: nodes that are alike, and every rank on one of its own, where one kind of link is all there is.
  EXPECT_EQ(FitLinks(MeasuredIn(world, 4, false)).across_ns_per_byte, 0);
  const LinkModel apart = FitLinks(MeasuredIn(world, 4, false, 0, 0, {0, 1, 2, 3}));
  EXPECT_EQ(apart.across_ns_per_byte, 0);
  EXPECT_NEAR(apart.ns_per_byte, world.across_ns_per_byte, .1);
}

TEST(LinkModel, NoiseOfAFewPercentMovesThemByAFew) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ExpectFitted(FitLinks(MeasuredIn(Network(), 4, false, .02, seed)), Network(), 4, .15);
  }
}

TEST(LinkModel, WhatIsFittedPredictsWhatWasNotMeasured) {
  for (std::int32_t ranks : {2, 4, 5}) {
    const LinkModel fitted = FitLinks(MeasuredIn(Network(), ranks, false));
    for (const char* algorithm : {"direct", "ring", "recursive_doubling", "chain"})
      for (std::int64_t count : {1, 1000, 1'000'000}) {
        auto plan = BuildPlan(algorithm, {.ranks = ranks, .segment_bytes = 512 << 10});
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        auto predicted = PredictNs(fitted, *plan, {.count = count}), truth = PredictNs(Network(), *plan, {.count = count});
        ASSERT_TRUE(predicted.ok() && truth.ok());
        // With two ranks overhead counts as latency, and is not seen where a rank has several messages to handle.
        EXPECT_NEAR(*predicted, *truth, (ranks == 2 ? .1 : .02) * *truth) << algorithm << " " << count << " " << ranks;
      }
  }
}

// Of a broadcast by a tree of eight the root sends three vectors, and there are seven: between one rank at a time and all of them.
TEST(LinkModel, ABytesCostLiesBetweenThatOfOneAndOfAllRanks) {
  LinkModel model;
  auto took = [&](const char* algorithm, Collective collective) {
    auto plan = BuildPlan(algorithm, {.collective = collective, .ranks = 8, .peer = 7});
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    model.ns_per_byte = 3;
    model.alone_ns_per_byte = 1;
    auto between = PredictNs(model, *plan, {.count = 8'000});
    model.ns_per_byte = 1;
    auto alone = PredictNs(model, *plan, {.count = 8'000});
    EXPECT_TRUE(between.ok() && alone.ok());
    return *between / *alone;
  };
  EXPECT_NEAR(took("send_recv", Collective::kSendRecv), 1, .01);
  EXPECT_NEAR(took("ring", Collective::kAllreduce), 3, .01);
  EXPECT_NEAR(took("broadcast_tree", Collective::kBroadcast), 1 + 2 * (7. / 3 - 1) / 7, .01);
}

// Of a central sum all others take the root's vector: over links one after the other, from its memory each at its own rate.
TEST(LinkModel, WhatIsReadInPlaceLeavesARankAsOftenAsItIsTaken) {
  for (const std::int32_t ranks : {3, 5}) {
    auto took = [&](const char* algorithm, bool reads_in_place) {
      auto plan = BuildPlan(algorithm, {.ranks = ranks});
      EXPECT_TRUE(plan.ok()) << plan.status().ToString();
      LinkModel model = Memory();
      model.latency_ns = model.overhead_ns = model.call_ns = 0;
      model.ns_per_byte = model.alone_ns_per_byte = 1;
      model.reduce_ns_per_byte = 0;
      model.reads_in_place = reads_in_place;
      auto ns = PredictNs(model, *plan, {.count = 25'000 * ranks});
      EXPECT_TRUE(ns.ok()) << ns.status().ToString();
      return *ns / (100'000 * ranks);
    };
    // The root takes P - 1 vectors, and then it is 1 or P - 1 again.
    EXPECT_NEAR(took("central_ps", true), ranks, .01 * ranks);
    EXPECT_NEAR(took("central_ps", false), 2 * (ranks - 1), .02 * ranks);
    // The control: here each takes from as many as it sends to.
    EXPECT_NEAR(took("direct", true), took("direct", false), .01);
  }
  EXPECT_TRUE(FitLinks(MeasuredIn(Memory(), 4, true)).reads_in_place);
  EXPECT_FALSE(FitLinks(MeasuredIn(Network(), 4, false)).reads_in_place);
}

// A machine so busy that more bytes seem to take less time.
TEST(LinkModel, WhereNoiseHidesABytesCostTheBestRateCounts) {
  LinkTimings timings{.ranks = 2, .chain_ns = 3e3};
  timings.one_way = {{}, {{8, 9e3}, {1'000, 4e3}}};
  timings.shift = {{1'000, 8e3}, {10'000, 7e3}};
  const LinkModel model = FitLinks(timings);
  EXPECT_DOUBLE_EQ(model.ns_per_byte, .7);
  EXPECT_DOUBLE_EQ(model.alone_ns_per_byte, 4);
}

TEST(LinkModel, TimesThatMakeNoSenseGiveNoNegativeNumber) {
  for (double chain : {0.0, 1.0, 1e9})
    for (double fan : {0.0, 1.0, 1e9}) {
      LinkTimings timings{
          .ranks = 4, .shares_memory = true, .chain_ns = chain, .fan_ns = fan, .fold_ns_per_byte = .1, .copy_ns_per_byte = .3};
      timings.one_way = {{}, {{8, 5e3}, {1 << 20, 1e3}}, {{8, 0}, {16, 0}}, {{8, 1e3}}};
      timings.shift = {{64, 1e6}, {1 << 20, 1e3}};
      const LinkModel model = FitLinks(timings);
      for (double number : {model.call_ns, model.latency_ns, model.overhead_ns, model.ns_per_byte, model.reduce_ns_per_byte})
        EXPECT_TRUE(std::isfinite(number) && number >= 0) << number << " for " << chain << ", " << fan;
      for (const Line& line : model.from_first) EXPECT_TRUE(line.ns >= 0 && line.ns_per_byte >= 0);
      // Longer ones were faster: no slope, but bytes are not free.
      EXPECT_EQ(model.ns_per_byte, 1e3 / (1 << 20));
    }
  EXPECT_EQ(FitLinks({.ranks = 1, .chain_ns = 700}).call_ns, 700);
}

class Calibrations : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Calibrations, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

TEST_P(Calibrations, GiveAllRanksTheSameNumbers) {
  for (std::int32_t ranks : {1, 2, 3}) {
    std::mutex mutex;
    std::set<std::vector<double>> models;
    WithRanks(ranks, Over(GetParam()), [&](Communicator& all, Meeting&) {
      auto model = Calibrate(&all);
      ASSERT_TRUE(model.ok()) << model.status().ToString();
      EXPECT_GT(model->copy_ns_per_byte, 0);
      EXPECT_GE(model->reduce_ns_per_byte, 0);
      std::vector<double> numbers = {model->call_ns,          model->latency_ns,         model->overhead_ns,
                                     model->ns_per_byte,      model->reduce_ns_per_byte, model->copy_ns_per_byte,
                                     model->alone_ns_per_byte};
      EXPECT_EQ(model->from_first.size(), ranks == 1 ? 0u : static_cast<std::size_t>(ranks));
      // This pool may have no room for the longest ones.
      EXPECT_TRUE(ranks == 1 ? model->beyond.empty() : model->beyond.size() >= 2);
      for (const ByteCosts& costs : model->beyond)
        numbers.insert(numbers.end(), {costs.ns_per_byte, costs.reduce_ns_per_byte, costs.copy_ns_per_byte});
      for (const Line& line : model->from_first) numbers.insert(numbers.end(), {line.ns, line.ns_per_byte});
      if (ranks > 1) {
        // Where ranks share processors, what a message costs may be all overhead.
        EXPECT_GT(model->latency_ns + model->overhead_ns, 0);
        EXPECT_GT(model->ns_per_byte, 0);
      }
      std::lock_guard lock(mutex);
      models.insert(numbers);
    });
    EXPECT_EQ(models.size(), 1u) << "ranks that choose by them must choose the same";
  }
}

// The plan that is predicted is the one that runs.
TEST_P(Calibrations, APlanOfACallHasItsSteps) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    for (const char* algorithm : {"", "ring", "chain"})
      for (std::int64_t count : {7, 300'000}) {
        std::vector<float> vector(static_cast<std::size_t>(count));
        const CollectiveCall call{.in = vector.data(), .out = vector.data(), .count = count, .name = "x", .algorithm = algorithm};
        auto plan = PlanOf(all, call);
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        auto steps = CountSteps(plan->header, plan->programs[static_cast<std::size_t>(all.rank())], {.count = count});
        ASSERT_TRUE(steps.ok()) << steps.status().ToString();
        const std::uint64_t before = all.steps();
        ASSERT_TRUE(all.Run(call).ok());
        EXPECT_EQ(all.steps() - before, *steps) << plan->header.algorithm << " of " << count;
      }
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
