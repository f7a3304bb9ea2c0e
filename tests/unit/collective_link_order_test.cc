// Orders and nodes from what links cost: against all orders where ranks are few, against worlds whose answer is known where they are many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mlrunner/collective/link_order.h"

namespace ropewalk::collective::testing {
namespace {

constexpr Follows kBoth[] = {Follows::kRing, Follows::kChain};

std::uint64_t Seed() {
  const char* given = std::getenv("ROPEWALK_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

Order OfTheRanks(std::int32_t ranks) {
  Order order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

PairLines World(std::int32_t ranks, const std::function<Line(std::int32_t from, std::int32_t to)>& line) {
  PairLines pairs(static_cast<std::size_t>(ranks), std::vector<Line>(static_cast<std::size_t>(ranks)));
  for (std::int32_t from = 0; from < ranks; ++from)
    for (std::int32_t to = 0; to < ranks; ++to)
      if (from != to) pairs[from][to] = line(from, to);
  return pairs;
}
PairLines Symmetric(PairLines pairs) {
  for (std::size_t a = 0; a < pairs.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) pairs[a][b] = pairs[b][a];
  return pairs;
}
// `values`: of how many rates a link has one; 0: any. Few make many orders equal but for their sums.
PairLines Drawn(Random* random, std::int32_t ranks, std::uint64_t values) {
  return World(ranks, [&](std::int32_t, std::int32_t) {
    return Line{.ns = 1000 + 50'000 * random->Unit(),
                .ns_per_byte = values > 0 ? 1.0 + static_cast<double>(random->Below(values)) : .1 + 10 * random->Unit()};
  });
}

// Written anew, from what an order is: links from each to the next, round or not, and of a chain the dearer way of each.
OrderCost Priced(const PairLines& pairs, const Order& order, Follows follows) {
  OrderCost cost;
  auto add = [&](std::int32_t from, std::int32_t to) {
    auto message = [](const Line& line) { return line.ns + line.ns_per_byte * 65'536; };
    double ns_per_byte = pairs[from][to].ns_per_byte, ns = message(pairs[from][to]);
    if (follows == Follows::kChain) {
      ns_per_byte = std::max(ns_per_byte, pairs[to][from].ns_per_byte);
      ns = std::max(ns, message(pairs[to][from]));
    }
    cost.ns_per_byte = std::max(cost.ns_per_byte, ns_per_byte);
    cost.message_ns += ns;
  };
  for (std::size_t place = 1; place < order.size(); ++place) add(order[place - 1], order[place]);
  if (follows == Follows::kRing) add(order.back(), order.front());
  return cost;
}

void ExpectOrder(const Order& order, std::int32_t ranks) {
  Order sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, OfTheRanks(ranks));
}

TEST(LinkOrder, OfFewRanksIsTheCheapestOfAll) {
  Random random(Seed());
  for (std::int32_t ranks = 2; ranks <= 8; ++ranks)
    for (std::uint64_t values : {0, 2, 3})
      for (int world = 0; world < 3; ++world)
        for (Follows follows : kBoth) {
          const PairLines pairs = Drawn(&random, ranks, values);
          const Order found = FindOrder(pairs, follows);
          ExpectOrder(found, ranks);
          const OrderCost cost = Priced(pairs, found, follows);
          OrderCost least = cost;
          Order order = OfTheRanks(ranks);
          do least = std::min(least, Priced(pairs, order, follows));
          while (std::next_permutation(order.begin(), order.end()));
          EXPECT_EQ(cost.ns_per_byte, least.ns_per_byte) << ranks << " ranks, " << ::testing::PrintToString(found);
          EXPECT_NEAR(cost.message_ns, least.message_ns, 1e-9 * least.message_ns) << ranks << " ranks, " << ::testing::PrintToString(found);
          const OrderCost said = CostOf(pairs, found, follows);
          EXPECT_EQ(said.ns_per_byte, cost.ns_per_byte);
          EXPECT_NEAR(said.message_ns, cost.message_ns, 1e-9 * cost.message_ns);
        }
}

TEST(LinkOrder, OfManyRanksIsOneThatNoReversalMakesCheaper) {
  Random random(Seed());
  for (std::int32_t ranks : {9, 10, 13, 20, 32})
    for (std::uint64_t values : {0, 3})
      for (Follows follows : kBoth) {
        const PairLines pairs = Symmetric(Drawn(&random, ranks, values));
        const Order found = FindOrder(pairs, follows);
        ExpectOrder(found, ranks);
        const OrderCost cost = Priced(pairs, found, follows);
        EXPECT_LE(cost, Priced(pairs, OfTheRanks(ranks), follows));
        for (auto from = 0; from < ranks; ++from)
          for (auto to = from + 1; to < ranks; ++to) {
            Order other = found;
            std::reverse(other.begin() + from, other.begin() + to + 1);
            const OrderCost changed = Priced(pairs, other, follows);
            EXPECT_TRUE(changed.ns_per_byte > cost.ns_per_byte || changed.message_ns >= cost.message_ns * (1 - 1e-9))
                << ranks << " ranks, reversed from " << from << " to " << to;
          }
      }
}

// How often it goes from one rack to another.
int Crossings(const Order& order, const std::function<std::int32_t(std::int32_t)>& rack, Follows follows) {
  int crossings = 0;
  for (std::size_t place = 0; place + (follows == Follows::kChain ? 1 : 0) < order.size(); ++place)
    crossings += rack(order[place]) != rack(order[(place + 1) % order.size()]) ? 1 : 0;
  return crossings;
}

TEST(LinkOrder, GoesThroughRacksOneAfterTheOther) {
  for (std::int32_t racks : {2, 4})
    for (std::int32_t ranks : {8, 16, 32}) {
      auto rack = [&](std::int32_t rank) { return rank % racks; };
      const PairLines pairs = World(ranks, [&](std::int32_t from, std::int32_t to) {
        return rack(from) == rack(to) ? Line{.ns = 20'000, .ns_per_byte = 1} : Line{.ns = 60'000, .ns_per_byte = 4};
      });
      EXPECT_EQ(Crossings(FindOrder(pairs, Follows::kRing), rack, Follows::kRing), racks) << ranks;
      EXPECT_EQ(Crossings(FindOrder(pairs, Follows::kChain), rack, Follows::kChain), racks - 1) << ranks;
      EXPECT_EQ(OrdersFor(pairs), (Orders{FindOrder(pairs, Follows::kRing), FindOrder(pairs, Follows::kChain)}));
    }
}

TEST(LinkOrder, LeavesSlowLinksAlone) {
  for (std::int32_t ranks : {4, 8, 12, 24}) {
    // Those of neighbouring numbers, which the ranks' own order has all of.
    const PairLines pairs = World(ranks, [&](std::int32_t from, std::int32_t to) {
      return Line{.ns = 30'000, .ns_per_byte = from % 4 / 2 == to % 4 / 2 && from / 4 == to / 4 ? 80.0 : 8.0};
    });
    for (Follows follows : kBoth) {
      EXPECT_EQ(CostOf(pairs, {}, follows).ns_per_byte, 80);
      EXPECT_EQ(CostOf(pairs, FindOrder(pairs, follows), follows).ns_per_byte, 8) << ranks;
    }
  }
  const PairLines one =
      World(4, [](std::int32_t from, std::int32_t to) { return Line{.ns = 30'000, .ns_per_byte = from + to == 1 ? 80.0 : 8.0}; });
  EXPECT_EQ(OrdersFor(one), (Orders{{0, 2, 1, 3}, {0, 2, 1, 3}}));
}

TEST(LinkOrder, PutsARankWithSlowLinksAtTheEndOfAChain) {
  for (std::int32_t ranks : {3, 4, 7, 12, 20})
    for (std::int32_t slow = 0; slow < ranks; ++slow) {
      const Order order = FindOrder(
          World(ranks, [&](std::int32_t from,
                           std::int32_t to) { return Line{.ns = 30'000, .ns_per_byte = from == slow || to == slow ? 80.0 : 8.0}; }),
          Follows::kChain);
      EXPECT_TRUE(order.front() == slow || order.back() == slow) << ::testing::PrintToString(order);
    }
}

TEST(LinkOrder, IsThatOfTheRanksWhereLinksAreEqual) {
  Random random(Seed());
  for (std::int32_t ranks : {1, 2, 3, 8, 20}) {
    const PairLines equal = World(ranks, [](std::int32_t, std::int32_t) { return Line{.ns = 30'000, .ns_per_byte = 8}; });
    for (Follows follows : kBoth) EXPECT_EQ(FindOrder(equal, follows), OfTheRanks(ranks));
    // Measured, no two are; but no order is worth leaving the ranks' own.
    PairLines measured = equal;
    for (auto& row : measured)
      for (Line& line : row) line.ns *= 1 + .1 * random.Unit(), line.ns_per_byte *= 1 + .1 * random.Unit();
    EXPECT_EQ(OrdersFor(measured), Orders()) << ranks;
  }
}

TEST(LinkOrder, GoesToAlgorithmsThatFollowIt) {
  const Orders orders{{2, 0, 1}, {1, 0, 2}};
  auto of = [&](std::string_view name, bool deterministic) {
    const Algorithm& algorithm = **FindAlgorithm(Algorithms(), name);
    return OrderOf(orders, algorithm, {.collective = algorithm.collective, .ranks = 3, .deterministic = deterministic});
  };
  EXPECT_EQ(of("ring", false), orders.ring);
  EXPECT_EQ(of("broadcast_chain", false), orders.ring);
  EXPECT_EQ(of("broadcast_chain", true), orders.ring);
  EXPECT_EQ(of("chain", false), orders.chain);
  EXPECT_EQ(of("chain", true), Order());
  EXPECT_EQ(of("direct", false), Order());
}

TEST(LinkNodes, AreRanksThatAreNearEachOther) {
  Random random(Seed());
  auto found = [&](const Nodes& nodes, double far) {
    return FindNodes(World(static_cast<std::int32_t>(nodes.size()), [&](std::int32_t from, std::int32_t to) {
      const double noise = 1 + .2 * random.Unit();
      return Line{.ns = 30'000 * noise, .ns_per_byte = noise * (nodes[from] == nodes[to] ? 1 : far)};
    }));
  };
  for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 1, 0, 1}, Nodes{0, 1, 2, 0, 1, 2}, Nodes{0, 1, 1, 1}, Nodes{0, 0, 1, 2, 2, 0}}) {
    EXPECT_EQ(found(nodes, 8), nodes);
    EXPECT_EQ(found(nodes, 1), Nodes());
  }
  // All of one, or each of its own.
  EXPECT_EQ(found({0, 0, 0, 0}, 8), Nodes());
  EXPECT_EQ(found({0, 1, 2, 3}, 8), Nodes());
  EXPECT_EQ(found({0}, 8), Nodes());
  EXPECT_TRUE(AreOfOneSize({0, 1, 1, 0}) && AreOfOneSize({0, 0}) && AreOfOneSize({}));
  EXPECT_FALSE(AreOfOneSize({0, 1, 1}));
}

TEST(LinkNodes, AreNoneWhereNearIsNotMutual) {
  auto found = [](const std::set<std::pair<std::int32_t, std::int32_t>>& slow) {
    return FindNodes(World(4, [&](std::int32_t from, std::int32_t to) {
      return Line{.ns = 30'000, .ns_per_byte = slow.contains(std::minmax(from, to)) ? 80.0 : 8.0};
    }));
  };
  EXPECT_EQ(found({{0, 1}}), Nodes());                              // both are near 2 and 3
  EXPECT_EQ(found({{0, 2}, {1, 3}}), Nodes());                      // a ring
  EXPECT_EQ(found({{0, 1}, {1, 2}, {1, 3}}), (Nodes{0, 1, 0, 0}));  // a rank with slow links
  EXPECT_EQ(found({{0, 1}, {0, 3}, {1, 2}, {2, 3}}), (Nodes{0, 1, 0, 1}));
  // Of two jumps the larger one counts: the links of a rack, of a room, of another continent.
  auto place = [](std::int32_t rank) { return std::pair(rank / 2, rank / 4); };
  const PairLines far = World(8, [&](std::int32_t from, std::int32_t to) {
    const auto a = place(from), b = place(to);
    return Line{.ns_per_byte = a == b ? 1.0 : a.second == b.second ? 3.0 : 30.0};
  });
  EXPECT_EQ(FindNodes(far), (Nodes{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(LinkPairs, AreTheLinesThatWereMeasured) {
  auto timed = [](double ns, double ns_per_byte) {
    std::vector<Timing> timings;
    for (std::int64_t bytes : {8, 64 << 10, 1 << 20}) timings.push_back({bytes, ns + ns_per_byte * static_cast<double>(bytes)});
    return timings;
  };
  PairTimings timings(3, std::vector<std::vector<Timing>>(3));
  timings[0][1] = timed(30'000, 8);
  timings[0][2] = timed(90'000, 80);
  timings[1][2] = {{8, 9'000}, {1'000, 4'000}};  // so noisy that more bytes took less time
  const PairLines lines = FitPairs(timings);
  for (auto [a, b] : {std::pair(0, 1), std::pair(1, 0)}) {
    EXPECT_NEAR(lines[a][b].ns, 30'000, 1);
    EXPECT_NEAR(lines[a][b].ns_per_byte, 8, 1e-6);
  }
  EXPECT_NEAR(lines[2][0].ns_per_byte, 80, 1e-6);
  EXPECT_DOUBLE_EQ(lines[1][2].ns_per_byte, 4);
  EXPECT_EQ(lines[1][1].ns, 0);
}

// What a sum of 8 MiB takes by a plan that goes by what the links have shown.
double Predicted(const LinkModel& model, std::string_view algorithm, const Orders& orders, const Nodes& nodes = {}) {
  const auto ranks = static_cast<std::int32_t>(model.pairs.size());
  Request request{.ranks = ranks, .channels = 1, .segment_bytes = 128 << 10, .nodes = nodes};
  request.order = OrderOf(orders, **FindAlgorithm(Algorithms(), algorithm), request);
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  auto ns = PredictNs(model, *plan, {.count = 2 << 20});
  EXPECT_TRUE(ns.ok()) << ns.status().ToString();
  return *ns;
}

TEST(LinkPairs, SayWhichPlanIsTheFastest) {
  LinkModel model;
  model.call_ns = 2'000;
  model.overhead_ns = 500;
  auto line = [](double ns_per_byte) { return Line{.ns = 40'000, .ns_per_byte = ns_per_byte}; };

  // A slow link: the ring that leaves it alone is as fast as on equal links.
  model.pairs = World(4, [&](std::int32_t, std::int32_t) { return line(8); });
  const double equal = Predicted(model, "ring", {});
  model.pairs = World(4, [&](std::int32_t from, std::int32_t to) { return line(from + to == 1 ? 80 : 8); });
  const Orders found = OrdersFor(model.pairs);
  EXPECT_NEAR(Predicted(model, "ring", found), equal, .01 * equal);
  for (const char* algorithm : {"direct", "halving_doubling", "ring"}) EXPECT_GT(Predicted(model, algorithm, {}), 2 * equal) << algorithm;

  // A slow rank: the chain that has it at an end.
  model.pairs = World(4, [&](std::int32_t from, std::int32_t to) { return line(from == 2 || to == 2 ? 80 : 8); });
  const double chain = Predicted(model, "chain", OrdersFor(model.pairs));
  for (const char* algorithm : {"direct", "halving_doubling", "ring", "chain"})
    EXPECT_GT(Predicted(model, algorithm, {}), 1.3 * chain) << algorithm;

  // Two nodes: a hierarchical sum over them. (Direct sends as little over each of four links, which in truth may be one wire.)
  model.pairs = World(4, [&](std::int32_t from, std::int32_t to) { return line(from % 2 == to % 2 ? 8 : 80); });
  const double within = Predicted(model, "hierarchical_direct_direct", {}, FindNodes(model.pairs));
  for (const char* algorithm : {"ring", "chain"}) EXPECT_GT(Predicted(model, algorithm, OrdersFor(model.pairs)), 1.3 * within) << algorithm;
}

// Where all pairs are alike they say what a model of one link says.
TEST(LinkPairs, ThatAreAlikeChangeNoPrediction) {
  LinkModel model;
  model.call_ns = 2'000;
  model.overhead_ns = 500;
  model.latency_ns = 37'000;
  model.ns_per_byte = model.alone_ns_per_byte = 8;
  LinkModel with_pairs = model;
  with_pairs.pairs = World(4, [](std::int32_t, std::int32_t) { return Line{.ns = 40'000, .ns_per_byte = 8}; });
  for (const char* algorithm : {"direct", "halving_doubling", "ring", "chain", "tree"})
    for (std::int64_t count : {10, 100'000}) {
      auto plan = BuildPlan(algorithm, {.ranks = 4, .segment_bytes = 64 << 10});
      ASSERT_TRUE(plan.ok());
      auto plain = PredictNs(model, *plan, {.count = count}), paired = PredictNs(with_pairs, *plan, {.count = count});
      ASSERT_TRUE(plain.ok() && paired.ok());
      EXPECT_NEAR(*paired, *plain, .001 * *plain) << algorithm;
    }
}

}  // namespace
}  // namespace ropewalk::collective::testing
