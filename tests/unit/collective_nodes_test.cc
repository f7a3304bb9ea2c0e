// Hierarchical allreduces as calls of a communicator, whose nodes are the machines that its ranks say they are on; and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/run/call_steps.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

// Runs `body` on a rank for each of `machines`, as if on that machine.
void OnMachines(const std::vector<std::string>& machines, const std::function<void(Communicator&)>& body) {
  Meeting meeting(static_cast<std::int32_t>(machines.size()));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < machines.size(); ++rank)
    threads.emplace_back([&, rank] {
      Rendezvous rendezvous = meeting.Of(static_cast<std::int32_t>(rank));
      rendezvous.machine = machines[rank];
      auto connected = Communicator::Connect(std::move(rendezvous), Over(Wire::kByMachine));
      ASSERT_TRUE(connected.ok()) << connected.status().ToString();
      body(**connected);
    });
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::string> HierarchicalNames() {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : Algorithms())
    if (IsHierarchical(algorithm)) names.emplace_back(algorithm.name);
  return names;
}

TEST(Nodes, AreTheMachinesOfACommunicatorsRanks) {
  ASSERT_EQ(HierarchicalNames().size(), 8u);
  OnMachines({"b", "a", "b", "c", "a", "c"}, [](Communicator& all) {
    EXPECT_FALSE(all.shares_memory());
    EXPECT_EQ(all.nodes(), (Nodes{1, 0, 1, 2, 0, 2}));
    for (const std::string& algorithm : HierarchicalNames())
      for (std::int64_t count : {0, 1, 5003}) {
        std::vector<float> vector(static_cast<std::size_t>(count), static_cast<float>(all.rank() + 1));
        const CollectiveCall call{.in = vector.data(), .out = vector.data(), .count = count, .name = "x", .algorithm = algorithm};
        const std::uint64_t before = all.steps();
        const Status status = all.Run(call);
        ASSERT_TRUE(status.ok()) << algorithm << ": " << status.ToString();
        EXPECT_EQ(std::count(vector.begin(), vector.end(), 21.0F), count) << algorithm;
        auto steps = StepsOf(all, call);
        ASSERT_TRUE(steps.ok()) << steps.status().ToString();
        EXPECT_EQ(all.steps() - before, *steps) << algorithm << ", " << count << " elements";
      }
  });
}

TEST(Nodes, OfDifferentSizesAreRefused) {
  OnMachines({"a", "a", "b"}, [](Communicator& all) {
    float one = 1;
    const Status status = all.Run({.in = &one, .out = &one, .count = 1, .name = "x", .algorithm = "hierarchical_ring_direct"});
    EXPECT_EQ(status.tag(), "COLL10");
    EXPECT_NE(status.why().find("node 0 has 2 ranks and node 1 has 1"), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.fix().empty());
    EXPECT_TRUE(all.Run({.in = &one, .out = &one, .count = 1, .name = "x", .algorithm = "halving_doubling"}).ok());
  });
}

TEST(Nodes, EverySizeOfThemIsProved) {
  for (std::int32_t ranks : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16})
    for (std::int32_t size = 1; size <= ranks; ++size)
      for (const std::string& algorithm : HierarchicalNames()) {
        if (ranks % size != 0) continue;
        auto plan = BuildPlan(algorithm, {.dtype = Dtype::kF16,
                                          .op = ReduceOp::kAvg,
                                          .ranks = ranks,
                                          .channels = size % 2 + 1,
                                          .segment_bytes = 1 << 18,
                                          .nodes = NodesOf(ranks, size)});
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        const Status status = CheckAll(*plan);
        EXPECT_TRUE(status.ok()) << algorithm << " P=" << ranks << ", nodes of " << size << "\n" << status.ToString();
      }
}

TEST(Nodes, WhatNoHierarchyCanDoIsRefusedWithAReason) {
  for (const std::string& algorithm : HierarchicalNames()) {
    auto tag = [&](const Request& request) {
      auto plan = BuildPlan(algorithm, request);
      EXPECT_TRUE(plan.ok() || !plan.status().fix().empty());
      return plan.ok() ? "built" : plan.status().tag();
    };
    EXPECT_EQ(tag({.ranks = 4}), "built") << algorithm;  // all on one node
    EXPECT_EQ(tag({.ranks = 4, .nodes = {7, 3, 3, 7}}), "built") << algorithm;
    EXPECT_EQ(tag({.ranks = 4, .nodes = {0, 0, 0, 1}}), "COLL10") << algorithm;
    EXPECT_EQ(tag({.ranks = 4, .nodes = {0, 0, 1, 1, 2, 2}}), "COLL10") << algorithm;
    EXPECT_EQ(tag({.ranks = 4, .deterministic = true, .nodes = {0, 0, 1, 1}}), "COLL10") << algorithm;
    EXPECT_EQ(tag({.ranks = 4, .slots = 1, .nodes = {0, 0, 1, 1}}), algorithm.find("ring") != std::string::npos ? "COLL10" : "built")
        << algorithm;
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
