// What is chosen by predicted times: in made-up worlds of which it is known what is best; and that what must not be chosen never is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

// Rounds are dear, bytes are cheap.
LinkModel FarAway() {
  LinkModel world;
  world.call_ns = 1'000;
  world.latency_ns = 500'000;
  world.overhead_ns = 20'000;
  world.ns_per_byte = world.alone_ns_per_byte = .01;
  world.reduce_ns_per_byte = .01;
  world.copy_ns_per_byte = .01;
  return world;
}
// Rounds are cheap, bytes are dear.
LinkModel Narrow() {
  LinkModel world = FarAway();
  world.latency_ns = 1'000;
  world.overhead_ns = 100;
  world.ns_per_byte = world.alone_ns_per_byte = 8;
  return world;
}
// As it is on one machine.
LinkModel Usual() {
  LinkModel world;
  world.call_ns = 2'000;
  world.latency_ns = 9'000;
  world.overhead_ns = 1'500;
  world.ns_per_byte = .4;
  world.alone_ns_per_byte = .25;
  world.reduce_ns_per_byte = .06;
  world.copy_ns_per_byte = .04;
  world.beyond = {{1 << 20, .6, .1, .1}, {32 << 20, .9, .3, .4}};
  return world;
}
std::vector<LinkModel> Worlds() { return {FarAway(), Narrow(), Usual()}; }

Costs Measured(LinkModel world) { return {.model = std::move(world), .from = CostsFrom::kMeasured}; }

CollectiveCall CallOf(Collective collective, std::int64_t bytes, bool deterministic = false) {
  return {.collective = collective, .count = bytes / 4, .deterministic = deterministic};
}

const Algorithm& Known(std::string_view name) { return **FindAlgorithm(Algorithms(), name); }

Cost CostOf(const Chosen& chosen, std::int64_t count) {
  Request request = chosen.request;
  auto plan = BuildPlan(chosen.algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  auto cost = EstimateCost(*plan, {.sizes = {.count = count}});
  EXPECT_TRUE(cost.ok()) << cost.status().ToString();
  return *cost;
}

constexpr Collective kPredicted[] = {Collective::kAllreduce, Collective::kReduceScatter, Collective::kAllgather, Collective::kBroadcast,
                                     Collective::kReduce,    Collective::kGather,        Collective::kScatter};

TEST(Chooser, WhereRoundsAreDearTakesFewOfFewMessages) {
  for (const bool shares_memory : {true, false}) {
    const Chooser by_costs({.ranks = 4, .shares_memory = shares_memory}, Measured(FarAway()));
    // Both have two rounds; the direct one has three times the messages.
    EXPECT_EQ(by_costs.For(CallOf(Collective::kAllreduce, 1'024)).algorithm, "recursive_doubling");
    const Chooser of_eight({.ranks = 8, .shares_memory = shares_memory}, Measured(FarAway()));
    EXPECT_EQ(of_eight.For(CallOf(Collective::kBroadcast, 1'024)).algorithm, "broadcast_tree");
    EXPECT_LE(CostOf(of_eight.For(CallOf(Collective::kAllreduce, 1'024)), 256).rounds, 3);
  }
}

TEST(Chooser, WhereBytesAreDearSendsAsFewAsCanBe) {
  for (const std::int32_t ranks : {2, 3, 4, 5, 8}) {
    SCOPED_TRACE(ranks);
    const std::int64_t bytes = 4 << 20;
    const Chooser narrow({.ranks = ranks}, Measured(Narrow())), far({.ranks = ranks}, Measured(FarAway()));
    const double least = 2.0 * (ranks - 1) / ranks * static_cast<double>(bytes);
    // A pipeline that is full sends 2N of which halves overlap both ways: what counts is the time on a link, so up to N more is no loss.
    const Cost cost = CostOf(narrow.For(CallOf(Collective::kAllreduce, bytes)), bytes / 4);
    EXPECT_LE(static_cast<double>(cost.sent_bytes_max), std::max(1.01 * least, 2.01 * static_cast<double>(bytes)));
    EXPECT_NE(narrow.For(CallOf(Collective::kAllreduce, bytes)).algorithm, ranks == 2 ? "" : "recursive_doubling");
    EXPECT_NE(narrow.For(CallOf(Collective::kAllreduce, bytes)).algorithm, "central_ps");
    if (ranks == 8) {
      EXPECT_EQ(narrow.For(CallOf(Collective::kBroadcast, 16 << 20)).algorithm, "broadcast_chain");
    }
    // The control: the same call of the other world.
    if (ranks == 4) {
      EXPECT_EQ(far.For(CallOf(Collective::kAllreduce, 4'096)).algorithm, "recursive_doubling");
    }
  }
}

TEST(Chooser, GoesThroughTheNodesWhereLinksBetweenThemAreSlow) {
  LinkModel world = Usual();
  world.beyond.clear();
  // In turn on two nodes: whoever pairs neighbours sends everything across.
  const Nodes in_turn = {7, 3, 7, 3, 7, 3, 7, 3}, in_blocks = {0, 0, 0, 0, 1, 1, 1, 1};
  auto chosen = [&](const Nodes& nodes, std::int64_t bytes) {
    return Chooser({.ranks = 8, .nodes = nodes}, Measured(world)).For(CallOf(Collective::kAllreduce, bytes));
  };
  // What the call should take, with the nodes as they are.
  auto ns = [&](std::string_view algorithm, const Nodes& nodes, std::int64_t bytes) {
    auto plan = BuildPlan(algorithm, {.ranks = 8, .channels = 2, .segment_bytes = 512 << 10, .nodes = nodes});
    EXPECT_TRUE(plan.ok());
    auto predicted = PredictNs(world, *plan, {.count = bytes / 4});
    EXPECT_TRUE(predicted.ok());
    return *predicted;
  };
  constexpr std::int64_t kBytes = 256 << 10;
  // The control: links that are all alike.
  EXPECT_LT(ns("direct", in_turn, kBytes), 1.2 * ns("hierarchical_direct_direct", in_turn, kBytes));
  world.across_latency_ns = 50'000;
  world.across_ns_per_byte = 8;
  EXPECT_GT(ns("direct", in_turn, kBytes), 2 * ns("hierarchical_direct_direct", in_turn, kBytes));
  EXPECT_TRUE(IsHierarchical(Known(chosen(in_turn, kBytes).algorithm))) << chosen(in_turn, kBytes).algorithm;
  EXPECT_TRUE(IsHierarchical(Known(chosen(in_blocks, 16 << 10).algorithm))) << chosen(in_blocks, 16 << 10).algorithm;
  // What they cannot do, or what would be nothing else than its half.
  const Nodes unequal = {0, 0, 0, 0, 0, 1, 1, 1}, alone = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const Nodes& nodes : {unequal, alone, Nodes{}, Nodes(8, 5)}) EXPECT_FALSE(IsHierarchical(Known(chosen(nodes, kBytes).algorithm)));
  CollectiveCall exact = CallOf(Collective::kAllreduce, kBytes);
  exact.deterministic = true;
  EXPECT_TRUE(Known(Chooser({.ranks = 8, .nodes = in_turn}, Measured(world)).For(exact).algorithm).deterministic);
}

TEST(Chooser, InDeterministicModeTakesLeftFoldsOnly) {
  std::set<std::string> others;
  for (const LinkModel& world : Worlds())
    for (const std::int32_t ranks : {2, 3, 5})
      for (const bool shares_memory : {true, false}) {
        if (shares_memory && ranks == 5) continue;
        const Chooser chooser({.ranks = ranks, .shares_memory = shares_memory}, Measured(world));
        for (const Collective collective : kPredicted)
          for (std::int64_t bytes = 4; bytes <= 64 << 20; bytes *= 8) {
            const Chosen chosen = chooser.For(CallOf(collective, bytes, true));
            EXPECT_TRUE(Known(chosen.algorithm).deterministic) << chosen.algorithm << " of " << bytes;
            EXPECT_TRUE(chosen.request.deterministic);
            const Chosen free = chooser.For(CallOf(collective, bytes));
            if (!Known(free.algorithm).deterministic) others.emplace(free.algorithm);
          }
      }
  // The control: the same calls take others where they may.
  EXPECT_GE(others.size(), 3u);
}

// Every candidate is a plan that can be built for every root and operation, by no more channels than a communicator has.
TEST(Chooser, CandidatesAreDifferentPlansOfPlainCalls) {
  for (const bool shares_memory : {true, false})
    for (const Collective collective : kPredicted) {
      const Ground ground{.ranks = 4, .shares_memory = shares_memory, .nodes = {0, 0, 1, 1}};
      std::set<std::string> names;
      for (const Candidate& candidate : CandidatesFor({.collective = collective}, ground)) {
        EXPECT_TRUE(names.insert(Describe(candidate.choice)).second) << Describe(candidate.choice);
        EXPECT_EQ(WhyNoPlainCall(candidate.plan), "");
        EXPECT_LE(candidate.plan.header.channel_count, 2);
        for (const std::int32_t root : {0, 3})
          EXPECT_TRUE(BuildPlan(candidate.choice.algorithm,
                                RequestOf({.collective = collective, .op = ReduceOp::kAvg, .root = root}, candidate.choice, ground))
                          .ok());
      }
      EXPECT_GE(names.size(), 1u);
      if (collective == Collective::kAllreduce) {
        EXPECT_GE(names.size(), shares_memory ? 20u : 30u);
      }
      // Those that need more than a call, and those that encode.
      for (const char* none : {"native", "eager", "sra"}) EXPECT_EQ(names.count(none), 0u);
    }
  // Where the caller has said how long segments are, nothing else is.
  for (const Candidate& candidate : CandidatesFor({}, {.ranks = 4, .segment_bytes = 12'345}))
    EXPECT_EQ(candidate.choice.segment_bytes, 12'345);
}

// Between the lengths that a table is made from, too.
TEST(Chooser, IsNowhereFarFromTheBestByTheSamePredictions) {
  constexpr std::uint64_t kSeed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  for (const LinkModel& world : Worlds())
    for (const std::int32_t ranks : {2, 3, 4}) {
      const Ground ground{.ranks = ranks};
      const Chooser chooser(ground, Measured(world));
      const auto candidates = CandidatesFor({}, ground);
      for (int i = 0; i < 5; ++i) {
        const auto count = static_cast<std::int64_t>(std::exp2(4 + 18 * random.Unit()));
        const Chosen chosen = chooser.For({.count = count});
        double least = 0, taken = 0;
        for (const Candidate& candidate : candidates) {
          const auto ns = NsOf(world, candidate, count);
          if (!ns.ok()) continue;
          if (least == 0 || *ns < least) least = *ns;
          if (candidate.choice == Choice{chosen.algorithm, chosen.request.segment_bytes, chosen.request.channels}) taken = *ns;
        }
        EXPECT_GT(taken, 0) << chosen.algorithm << " is no candidate";
        EXPECT_LE(taken, 1.1 * least) << chosen.algorithm << " of " << count << " elements, " << ranks << " ranks";
      }
    }
}

// Ranks have nothing but the same costs: they need not ask each other.
TEST(Chooser, IsTheSameForAllWhoHaveTheSameCosts) {
  constexpr std::uint64_t kSeed = 77;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  const Ground ground{.ranks = 4, .nodes = {0, 0, 1, 1}};
  const std::string said = Encode(Usual());
  auto heard = DecodeLinkModel(said);
  ASSERT_TRUE(heard.ok()) << heard.status().ToString();
  const Chooser first(ground, Measured(Usual())), other(ground, {.model = *heard, .from = CostsFrom::kFile});
  // One of them has made other calls before, and from several threads at once.
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&other] {
      for (const Collective collective : kPredicted) (void)other.For(CallOf(collective, 5'000));
    });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 2'000; ++i) {
    const CollectiveCall call =
        CallOf(kPredicted[random.Below(std::size(kPredicted))], static_cast<std::int64_t>(std::exp2(28 * random.Unit())), random.OneIn(2));
    const Chosen a = first.For(call), b = other.For(call);
    EXPECT_EQ(a.algorithm, b.algorithm);
    EXPECT_EQ(a.request.segment_bytes, b.request.segment_bytes);
    EXPECT_EQ(a.request.channels, b.request.channels);
  }
  // The control: other costs, other choices.
  const Chooser stranger(ground, Measured(FarAway()));
  EXPECT_NE(first.For(CallOf(Collective::kAllreduce, 1 << 20)).algorithm, stranger.For(CallOf(Collective::kAllreduce, 1 << 20)).algorithm);
}

TEST(Chooser, WithoutCostsAndForManyRanksGoesByFixedSizes) {
  for (const std::int32_t ranks : {1, 4, kPredictedRanksMax + 1})
    for (const bool shares_memory : {true, false}) {
      const Chooser none({.ranks = ranks, .shares_memory = shares_memory});
      const Chooser far({.ranks = ranks, .shares_memory = shares_memory}, Measured(FarAway()));
      int differ = 0;
      for (int c = 0; c <= static_cast<int>(kLastCollective); ++c)
        for (std::int64_t bytes : {4, 100'000, 100'000'000}) {
          const CollectiveCall call = CallOf(static_cast<Collective>(c), bytes);
          const Chosen fixed = ChooseFor(call, ranks, shares_memory, 0), chosen = none.For(call), by_costs = far.For(call);
          EXPECT_EQ(chosen.algorithm, fixed.algorithm);
          EXPECT_EQ(chosen.request.segment_bytes, fixed.request.segment_bytes);
          EXPECT_EQ(chosen.request.channels, fixed.request.channels);
          EXPECT_FALSE(by_costs.algorithm.empty());
          differ += by_costs.algorithm != fixed.algorithm ? 1 : 0;
        }
      EXPECT_EQ(differ > 0, ranks == 4);
    }
}

// A rank must not run out of memory for what nobody asked for.
TEST(Chooser, NeverTakesWhatNeedsMuchScratch) {
  const LinkModel world = FarAway();  // where recursive doubling is the best, which has whole vectors of scratch
  const Chooser chooser({.ranks = 4}, Measured(world));
  EXPECT_EQ(chooser.For(CallOf(Collective::kAllreduce, 64 << 10)).algorithm, "recursive_doubling");
  for (const std::int64_t bytes : {16 << 20, 256 << 20}) {
    const Chosen chosen = chooser.For(CallOf(Collective::kAllreduce, bytes));
    EXPECT_LE(CostOf(chosen, bytes / 4).scratch_bytes_max, kChosenScratchBytesMax) << chosen.algorithm;
  }
  const auto candidates = CandidatesFor({}, {.ranks = 4});
  const auto doubling = std::find_if(candidates.begin(), candidates.end(),
                                     [](const Candidate& candidate) { return candidate.choice.algorithm == "recursive_doubling"; });
  ASSERT_NE(doubling, candidates.end());
  EXPECT_EQ(NsOf(world, *doubling, 64 << 20).status().tag(), "COLL13");
}

TEST(Chooser, WhatACallNamesWins) {
  const Chooser chooser({.ranks = 4}, Measured(FarAway()));
  const Chosen named = chooser.For({.count = 1'000'000, .algorithm = "chain", .segment_bytes = 4'096, .channels = 2});
  EXPECT_EQ(named.algorithm, "chain");
  EXPECT_EQ(named.request.segment_bytes, 4'096);
  EXPECT_EQ(named.request.channels, 2);
  const Chosen by_name = chooser.For({.count = 1'000'000, .algorithm = "chain"});
  EXPECT_EQ(by_name.request.segment_bytes, ChooseFor({.count = 1'000'000}, 4, false, 0).request.segment_bytes);
}

TEST(Chooser, SaysWhatItChoseAndWhy) {
  const Chooser by_costs({.ranks = 4}, Measured(FarAway())), fixed({.ranks = 4});
  const Decision decision = by_costs.Explain(CallOf(Collective::kAllreduce, 1'024));
  EXPECT_EQ(decision.choice.algorithm, "recursive_doubling");
  EXPECT_GT(decision.ns, 1e6);
  EXPECT_FALSE(decision.next.algorithm.empty());
  EXPECT_NE(decision.next.algorithm, decision.choice.algorithm);
  EXPECT_GE(decision.next_ns, decision.ns);
  const std::string text = Explain(decision);
  for (const std::string& part :
       {std::string("recursive_doubling"), std::string(" us predicted by measured costs; next "), std::string(decision.next.algorithm)})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_NE(Explain(fixed.Explain(CallOf(Collective::kAllreduce, 1'024))).find("by fixed sizes: costs of messages are not known"),
            std::string::npos);
  EXPECT_NE(Explain(by_costs.Explain({.count = 5, .algorithm = "ring"})).find("by the call"), std::string::npos);
  const Chooser kept({.ranks = 4}, {.model = FarAway(), .from = CostsFrom::kFile});
  EXPECT_NE(Explain(kept.Explain(CallOf(Collective::kBroadcast, 1'024))).find("by costs of an earlier run"), std::string::npos);
  const Chooser many({.ranks = 64}, Measured(FarAway()));
  EXPECT_NE(Explain(many.Explain(CallOf(Collective::kAllreduce, 8))).find("too many ranks"), std::string::npos);
}

}  // namespace
}  // namespace ropewalk::collective::testing
