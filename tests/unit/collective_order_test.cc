// Orders in which rings and chains pass messages on: each is proved, only neighbours in it send to each other, and what is none, or what an
// algorithm does not follow, is refused with a reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/sim/topology.h"
#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/run/call_label.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

Order Identity(std::int32_t ranks) {
  Order order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<const Algorithm*> Followers() {
  std::vector<const Algorithm*> followers;
  for (const Algorithm& algorithm : Algorithms())
    if (algorithm.follows != Follows::kNothing) followers.push_back(&algorithm);
  return followers;
}

Request RequestOf(const Algorithm& algorithm, const Order& order) {
  const auto ranks = static_cast<std::int32_t>(order.size());
  Request request{.collective = algorithm.collective, .ranks = ranks, .root = ranks / 2, .segment_bytes = 1 << 18, .order = order};
  if (IsHierarchical(algorithm)) request.nodes = NodesOf(ranks, NodeSize(ranks));
  return request;
}

Plan Built(std::string_view algorithm, const Request& request) {
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

std::string TagOf(std::string_view algorithm, const Request& request) {
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok() || (!plan.status().why().empty() && !plan.status().fix().empty())) << plan.status().ToString();
  return plan.ok() ? "built" : plan.status().tag();
}

TEST(Orders, AreFollowedByRingsAndChains) {
  std::set<std::string_view> names;
  for (const Algorithm* algorithm : Followers()) names.insert(algorithm->name);
  for (const Algorithm& algorithm : Algorithms())
    EXPECT_EQ(names.contains(algorithm.name),
              algorithm.name.find("ring") != std::string_view::npos || algorithm.name.find("chain") != std::string_view::npos)
        << algorithm.name;
}

TEST(Orders, OfFourRanksAreAllProved) {
  Order order = Identity(4);
  do {
    for (const Algorithm* algorithm : Followers()) {
      const Status status = CheckAll(Built(algorithm->name, RequestOf(*algorithm, order)));
      EXPECT_TRUE(status.ok()) << algorithm->name << ::testing::PrintToString(order) << "\n" << status.ToString();
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Orders, OfManyRanksAreProved) {
  const char* given = std::getenv("ROPEWALK_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (std::int32_t ranks : {1, 2, 3, 5, 6, 7, 8, 9, 12, 16}) {
    Order order = Identity(ranks);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    for (const Algorithm* algorithm : Followers()) {
      const Status status = CheckAll(Built(algorithm->name, RequestOf(*algorithm, order)));
      EXPECT_TRUE(status.ok()) << algorithm->name << ::testing::PrintToString(order) << "\n" << status.ToString();
    }
  }
}

// Pairs (from, to) between which something is sent.
std::set<std::pair<std::int32_t, std::int32_t>> Edges(const Plan& plan) {
  std::set<std::pair<std::int32_t, std::int32_t>> edges;
  for (const Program& program : plan.programs)
    for (const Edge& edge : program.edges) edges.insert({program.rank, edge.peer});
  return edges;
}

TEST(Orders, OnlyNeighboursInThemSendToEachOther) {
  const Order order = {2, 4, 0, 3, 1};
  std::set<std::pair<std::int32_t, std::int32_t>> round, there_and_back;
  for (std::size_t place = 0; place < order.size(); ++place) round.insert({order[place], order[(place + 1) % order.size()]});
  for (std::size_t place = 1; place < order.size(); ++place) {
    there_and_back.insert({order[place - 1], order[place]});
    there_and_back.insert({order[place], order[place - 1]});
  }
  EXPECT_EQ(Edges(Built("ring", {.ranks = 5, .channels = 2, .order = order})), round);
  EXPECT_EQ(Edges(Built("chain", {.ranks = 5, .order = order})), there_and_back);
  EXPECT_EQ(Edges(Built("reduce_scatter_ring", {.collective = Collective::kReduceScatter, .ranks = 5, .order = order})), round);
  EXPECT_EQ(Edges(Built("allgather_ring", {.collective = Collective::kAllgather, .ranks = 5, .order = order})), round);
  // From the root on, which stands in the middle; who stands before it is the last.
  round.erase({4, 0});
  EXPECT_EQ(Edges(Built("broadcast_chain", {.collective = Collective::kBroadcast, .ranks = 5, .root = 0, .order = order})), round);
}

TEST(Orders, GiveRanksTheirPlacesInTheNodes) {
  const Plan plan = Built("hierarchical_direct_ring", {.ranks = 6, .nodes = {0, 0, 0, 1, 1, 1}, .order = {4, 1, 3, 0, 2, 5}});
  EXPECT_EQ(plan.header.groups, (std::vector<std::vector<std::int32_t>>{{4, 3, 5}, {1, 0, 2}, {4, 1}, {3, 0}, {5, 2}}));
  // Without one: by number, and nodes as their first ranks come.
  const Plan plain = Built("hierarchical_direct_ring", {.ranks = 4, .nodes = {7, 3, 3, 7}});
  EXPECT_EQ(plain.header.groups, (std::vector<std::vector<std::int32_t>>{{0, 3}, {1, 2}, {0, 1}, {3, 2}}));
}

// Four equal hosts, and a link between hosts 0 and 1 that takes ten times as long.
TEST(Orders, LeaveASlowLinkAlone) {
  sim::Topology mesh{.hosts = 4};
  for (std::int32_t a = 0; a < 4; ++a)
    for (std::int32_t b = 0; b < a; ++b) mesh.ConnectBothWays(a, b, {.ns_per_byte = 8, .latency_ns = 1000});
  auto took = [&](std::string_view algorithm, const Order& order) {
    auto report = Simulate(algorithm, {.ranks = 4, .segment_bytes = 1 << 16, .order = order},
                           {.sizes = {.count = 1 << 20}, .topology = std::make_shared<const sim::Topology>(mesh)});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return static_cast<double>(report->end_ns);
  };
  for (std::string_view algorithm : {"ring", "chain"}) {
    const sim::Topology equal = mesh;
    const double before = took(algorithm, {});
    EXPECT_EQ(sim::SlowLink(&mesh, 0, 1, 10) + sim::SlowLink(&mesh, 1, 0, 10), 2);
    EXPECT_GT(took(algorithm, {}), 8 * before) << algorithm;
    EXPECT_LT(took(algorithm, {0, 2, 1, 3}), 1.01 * before) << algorithm;
    mesh = equal;
  }
}

// Of a chain whose host 1 has slow links the two ends send half of what the middle sends.
TEST(Orders, PutASlowRankAtTheEndOfAChain) {
  sim::Topology star = sim::Star(4, {.ns_per_byte = 8, .latency_ns = 1000});
  sim::SlowHost(&star, 1, 10);
  auto took = [&](const Order& order) {
    auto report = Simulate("chain", {.ranks = 4, .segment_bytes = 1 << 16, .order = order},
                           {.sizes = {.count = 1 << 20}, .topology = std::make_shared<const sim::Topology>(star)});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return static_cast<double>(report->end_ns);
  };
  EXPECT_NEAR(took({}) / took({1, 0, 2, 3}), 2, .1);
}

TEST(Orders, ThatAreNoneAreRefused) {
  for (const Algorithm* algorithm : Followers()) {
    auto with = [&](Order order) {
      Request request = RequestOf(*algorithm, Identity(4));
      request.order = std::move(order);
      return TagOf(algorithm->name, request);
    };
    EXPECT_EQ(with({}), "built") << algorithm->name;
    EXPECT_EQ(with({3, 1, 0, 2}), "built") << algorithm->name;
    EXPECT_EQ(with({0, 1, 2}), "COLL10") << algorithm->name;
    EXPECT_EQ(with({0, 1, 2, 3, 4}), "COLL10") << algorithm->name;
    EXPECT_EQ(with({0, 1, 2, 4}), "COLL10") << algorithm->name;
    EXPECT_EQ(with({0, -1, 2, 3}), "COLL10") << algorithm->name;
    EXPECT_EQ(with({0, 1, 1, 3}), "COLL10") << algorithm->name;
  }
  for (const Case& one : AllCases(4, 1024)) {
    auto found = FindAlgorithm(Algorithms(), one.algorithm);
    ASSERT_TRUE(found.ok());
    Request request = one.request;
    request.deterministic = false;
    request.order = {3, 1, 0, 2};
    EXPECT_EQ(TagOf(one.algorithm, request), (*found)->follows == Follows::kNothing ? "COLL10" : "built") << one.algorithm;
  }
  const Status status = BuildPlan("direct", {.ranks = 4, .order = {0, 1, 2, 3}}).status();
  EXPECT_NE(status.fix().find("ring, chain"), std::string::npos) << status.ToString();
}

// The left fold is one over the ranks: there a chain has no other order, and one that had would not be proved.
TEST(Orders, OfADeterministicSumAreTheRanks) {
  EXPECT_EQ(TagOf("chain", {.ranks = 4, .deterministic = true, .order = {0, 1, 2, 3}}), "built");
  const Status status = BuildPlan("chain", {.ranks = 4, .deterministic = true, .order = {0, 2, 1, 3}}).status();
  EXPECT_EQ(status.tag(), "COLL10");
  EXPECT_NE(status.why().find("rank 1's numbers behind rank 2's"), std::string::npos) << status.ToString();

  Plan lies = Built("chain", {.ranks = 4, .order = {0, 2, 1, 3}});
  EXPECT_TRUE(Check(lies, {.sizes = {.count = 9}}).ok());
  lies.header.request.deterministic = true;
  EXPECT_EQ(Check(lies, {.sizes = {.count = 9}}).status().tag(), "COLL08");
  // What adds nothing keeps any fold.
  for (const char* algorithm : {"broadcast_chain", "allgather_ring"}) {
    Request request{.ranks = 4, .deterministic = true, .order = {0, 2, 1, 3}};
    request.collective = (*FindAlgorithm(Algorithms(), algorithm))->collective;
    EXPECT_TRUE(CheckAll(Built(algorithm, request)).ok()) << algorithm;
  }
}

TEST(Orders, AreInWhatIsComparedAndInWhatIsPrinted) {
  auto fingerprint = [](const Request& request) {
    return LabelOf(Built("hierarchical_ring_ring", request).header, 10, "x", 0).fingerprint;
  };
  const Nodes nodes = {0, 0, 1, 1};
  const std::set<std::uint64_t> different = {
      fingerprint({.ranks = 4}), fingerprint({.ranks = 4, .nodes = nodes}), fingerprint({.ranks = 4, .nodes = {0, 1, 0, 1}}),
      fingerprint({.ranks = 4, .nodes = nodes, .order = {0, 1, 3, 2}}), fingerprint({.ranks = 4, .nodes = nodes, .order = {1, 0, 3, 2}})};
  EXPECT_EQ(different.size(), 5u);
  const std::string text = Explain(Built("ring", {.ranks = 3, .order = {2, 0, 1}}), 1);
  EXPECT_NE(text.find("\n  in the order of ranks 2 0 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("→ rank 2"), std::string::npos) << text;
}

}  // namespace
}  // namespace ropewalk::collective::testing
