// Graphs of nodes: what is refused, who hears whom, and samples of neighbourhoods.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "base/random.h"
#include "mlrunner/data/node_graph.h"

namespace ropewalk::mlrunner {
namespace {

// 0 - 1 - 2, 1 - 3, and 4 alone; an edge twice, one to itself.
NodeGraph Small() {
  return {.features = 2,
          .x = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
          .labels = {0, 1, 0, 2, 1},
          .classes = 3,
          .edges = {{0, 1}, {2, 1}, {1, 2}, {3, 3}, {1, 3}}};
}
std::vector<std::int32_t> Heard(const Neighbours& neighbours, std::int32_t node) {
  const auto all = neighbours.Of(node);
  return {all.begin(), all.end()};
}

TEST(NodeGraph, EachNeighbourOnceInBothDirections) {
  ASSERT_TRUE(Check(Small()).ok());
  const Neighbours neighbours(Small());
  EXPECT_EQ(neighbours.nodes(), 5);
  EXPECT_EQ(neighbours.edges(), 6);
  EXPECT_EQ(Heard(neighbours, 0), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(Heard(neighbours, 1), (std::vector<std::int32_t>{0, 2, 3}));
  EXPECT_EQ(Heard(neighbours, 3), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(Heard(neighbours, 4), (std::vector<std::int32_t>{}));
  const Subgraph whole = WholeOf(neighbours);
  EXPECT_EQ(whole.nodes, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(whole.to, (std::vector<std::int32_t>{0, 1, 1, 1, 2, 3}));
  EXPECT_EQ(whole.from, (std::vector<std::int32_t>{1, 0, 2, 3, 1, 1}));
}

TEST(NodeGraph, WhatIsWrongIsNamed) {
  auto refused = [](const std::function<void(NodeGraph*)>& spoil, const std::string& what) {
    NodeGraph graph = Small();
    spoil(&graph);
    const Status status = Check(graph);
    EXPECT_EQ(status.tag(), "DATA19");
    EXPECT_NE(status.what().find(what), std::string::npos) << status.ToString();
  };
  refused([](NodeGraph* g) { *g = {}; }, "no nodes");
  refused([](NodeGraph* g) { g->features = 0; }, "5 nodes and 10 features");
  refused([](NodeGraph* g) { g->x.pop_back(); }, "5 nodes and 9 features");
  refused([](NodeGraph* g) { g->x[7] = std::numeric_limits<float>::quiet_NaN(); }, "feature 1 of node 3 is nan");
  refused([](NodeGraph* g) { g->labels[3] = 3; }, "node 3 has the label 3");
  refused([](NodeGraph* g) { g->labels[0] = -1; }, "node 0 has the label -1");
  refused([](NodeGraph* g) { g->edges[2] = {1, 5}; }, "edge 2 is of the nodes 1 and 5");
  refused([](NodeGraph* g) { g->edges[4] = {-1, 0}; }, "edge 4 is of the nodes -1 and 0");
}

TEST(NodeGraph, SamplesAreNeighboursAndNoMoreThanAsked) {
  const std::uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 23;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  constexpr std::int32_t kNodes = 200;
  NodeGraph graph{.features = 1, .x = std::vector<float>(kNodes), .labels = std::vector<std::int32_t>(kNodes), .classes = 1, .edges = {}};
  for (int i = 0; i < 1200; ++i)
    graph.edges.emplace_back(static_cast<std::int32_t>(random.Below(kNodes)), static_cast<std::int32_t>(random.Below(kNodes)));
  const Neighbours neighbours(graph);
  const std::vector<std::int32_t> targets{5, 17, 3, 100, 199};
  const std::vector<std::int64_t> fan_out{4, 3};
  const Subgraph part = SampleNeighbours(neighbours, targets, fan_out, &random);
  EXPECT_TRUE(std::equal(targets.begin(), targets.end(), part.nodes.begin()));
  EXPECT_EQ(std::set<std::int32_t>(part.nodes.begin(), part.nodes.end()).size(), part.nodes.size());
  std::vector<std::set<std::int32_t>> heard(part.nodes.size());
  for (std::size_t i = 0; i < part.to.size(); ++i) {
    const std::int32_t to = part.nodes[static_cast<std::size_t>(part.to[i])], from = part.nodes[static_cast<std::size_t>(part.from[i])];
    const auto all = neighbours.Of(to);
    EXPECT_TRUE(std::binary_search(all.begin(), all.end(), from)) << from << " -> " << to;
    EXPECT_TRUE(heard[static_cast<std::size_t>(part.to[i])].insert(from).second) << from << " twice";
  }
  // Whom the targets hear stands in the first round; those are asked in the second, and who is met there hears nobody.
  std::size_t met = targets.size();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(heard[i].size(), std::min<std::size_t>(4, neighbours.Of(targets[i]).size()));
    for (std::int32_t node : heard[i]) {
      const auto at = std::find(part.nodes.begin(), part.nodes.end(), node) - part.nodes.begin();
      met = std::max(met, static_cast<std::size_t>(at) + 1);
    }
  }
  for (std::size_t i = targets.size(); i < part.nodes.size(); ++i)
    EXPECT_EQ(heard[i].size(), i < met ? std::min<std::size_t>(3, neighbours.Of(part.nodes[i]).size()) : 0) << i;
}

// Of ten neighbours two are drawn: each about as often as the others.
TEST(NodeGraph, EachNeighbourIsDrawnAsOften) {
  NodeGraph graph{.features = 1, .x = std::vector<float>(11), .labels = std::vector<std::int32_t>(11), .classes = 1, .edges = {}};
  for (std::int32_t other = 1; other <= 10; ++other) graph.edges.emplace_back(0, other);
  const Neighbours neighbours(graph);
  Random random(7);
  std::vector<int> drawn(11);
  for (int i = 0; i < 5000; ++i) {
    const Subgraph part = SampleNeighbours(neighbours, std::vector<std::int32_t>{0}, std::vector<std::int64_t>{2}, &random);
    ASSERT_EQ(part.nodes.size(), 3u);
    for (std::size_t k = 1; k < 3; ++k) ++drawn[static_cast<std::size_t>(part.nodes[k])];
  }
  for (std::size_t other = 1; other <= 10; ++other) EXPECT_NEAR(drawn[other], 1000, 150) << other;  // 5 deviations
}

}  // namespace
}  // namespace ropewalk::mlrunner
