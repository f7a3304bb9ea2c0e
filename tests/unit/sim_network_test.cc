// The network in virtual time: ways through topologies, and what messages cost that share links, against answers worked out by hand and,
// on random networks, against the definition of a max-min fair share.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/random.h"
#include "base/sim/network.h"

namespace ropewalk::sim {
namespace {

constexpr std::int64_t kBytes = 1'000'000;

struct Transfer {
  int from, to;
  std::int64_t bytes = kBytes;
  TimeUs starts = 0;
};
struct Ran {
  std::vector<TimeUs> ends;
  TimeUs last = 0;
  std::uint64_t steps = 0;
  Network::Counters counters;
};

Ran Carry(const Topology& topology, const std::vector<Transfer>& transfers) {
  EXPECT_TRUE(Check(topology).ok()) << Check(topology).ToString();
  EventQueue queue;
  Network network(&queue, topology);
  Ran ran;
  ran.ends.resize(transfers.size(), -1);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& one = transfers[i];
    queue.At(one.starts, [&, i] { network.Send(one.from, one.to, one.bytes, [&, i] { ran.ends[i] = queue.now(); }); });
  }
  EXPECT_TRUE(queue.RunUntil(INT64_MAX / 2, 1'000'000));
  for (TimeUs end : ran.ends) {
    EXPECT_GE(end, 0);
    ran.last = std::max(ran.last, end);
  }
  ran.steps = queue.steps();
  ran.counters = network.counters();
  return ran;
}

std::vector<Transfer> Permutation(const std::vector<std::int32_t>& to) {
  std::vector<Transfer> transfers;
  for (std::size_t from = 0; from < to.size(); ++from)
    if (static_cast<std::int32_t>(from) != to[from]) transfers.push_back({static_cast<int>(from), to[from]});
  return transfers;
}
std::vector<std::int32_t> Shift(std::int32_t hosts, std::int32_t by) {
  std::vector<std::int32_t> to;
  for (std::int32_t host = 0; host < hosts; ++host) to.push_back((host + by) % hosts);
  return to;
}

TEST(EventQueue, TakesWhatWasPutInTimeAndOrderAndNothingThatWasCancelled) {
  const std::uint64_t seed = 4;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  EventQueue queue;
  std::map<std::pair<TimeUs, int>, EventQueue::Handle> model;
  std::vector<std::pair<TimeUs, int>> wanted, got;
  std::vector<EventQueue::Handle> old;
  int next = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t dice = random.Below(10);
    if (dice < 5) {
      const std::pair<TimeUs, int> key{queue.now() + static_cast<TimeUs>(random.Below(50)), next++};
      model[key] = queue.At(key.first, [&got, key] { got.push_back(key); });
    } else if (dice < 8 && !model.empty()) {
      auto victim = std::next(model.begin(), static_cast<long>(random.Below(std::min<std::size_t>(model.size(), 20))));
      EXPECT_TRUE(queue.Cancel(victim->second));
      EXPECT_FALSE(queue.Cancel(victim->second));
      old.push_back(victim->second);
      model.erase(victim);
    } else if (!model.empty()) {
      wanted.push_back(model.begin()->first);
      old.push_back(model.begin()->second);
      model.erase(model.begin());
      EXPECT_TRUE(queue.RunOne(INT64_MAX));
    }
    ASSERT_EQ(queue.size(), model.size());
  }
  for (const EventQueue::Handle& handle : old) EXPECT_FALSE(queue.Cancel(handle));
  for (const auto& [key, handle] : model) wanted.push_back(key);
  while (queue.RunOne(INT64_MAX)) {
  }
  EXPECT_EQ(got, wanted);
  EXPECT_TRUE(queue.empty());
}

TEST(Network, AMessageAloneTakesTheLatenciesAndItsBytesOnTheSlowestLink) {
  EXPECT_EQ(Carry(Star(2, {8, 50'000}), {{0, 1, 2500}}).last, 50'000 + 8 * 2500);
  Topology racks = Racks({0, 0, 1, 1}, {1, 700}, {4, 300});
  EXPECT_EQ(Carry(racks, {{0, 1}}).last, 700 + kBytes);
  EXPECT_EQ(Carry(racks, {{0, 2}}).last, 700 + 300 + 4 * kBytes);
  // To itself, without bytes, without a limit.
  EXPECT_EQ(Carry(racks, {{0, 0}}).last, 0);
  EXPECT_EQ(Carry(racks, {{0, 2, 0}}).last, 1000);
  EXPECT_EQ(Carry(Star(2, {0, 50}), {{0, 1}}).last, 50);
}

TEST(Network, MessagesOfOnePairFollowEachOtherInOrder) {
  Ran ran = Carry(Star(2, {1, 100}), {{0, 1, 10'000}, {0, 1, 1}, {0, 1, 0}, {0, 1, 5}});
  EXPECT_EQ(ran.ends, (std::vector<TimeUs>{10'100, 10'101, 10'101, 10'106}));
}

TEST(Network, SendersToOneReceiverShareItsLink) {
  std::vector<Transfer> transfers;
  for (int from = 1; from < 9; ++from) transfers.push_back({from, 0, 5000});
  Ran ran = Carry(Star(9, {1, 1000}), transfers);
  for (TimeUs end : ran.ends) EXPECT_EQ(end, 1000 + 8 * 5000);
}

TEST(Network, WhatComesLaterTakesItsShareAndWhatLeavesGivesItBack) {
  // B comes when A has half of its bytes left; until B, which has a quarter as many, is over, both go at half the rate.
  Ran ran = Carry(Star(3, {1, 0}), {{0, 2, 1000, 0}, {1, 2, 250, 500}});
  EXPECT_EQ(ran.ends, (std::vector<TimeUs>{1250, 1000}));
}

// The textbook's line of three links: one flow over all of them, one over each. The long one gets what the scarcest link leaves it, and on
// the others what is left goes to the short ones.
TEST(Network, SharesAreMaxMinFairAndNotEqual) {
  Topology line{.hosts = 8, .switches = 4};
  // Hosts 0..3 send into switches 0..3, hosts 4..7 hang behind them.
  for (int i = 0; i < 4; ++i) {
    line.ConnectBothWays(i, 8 + i, {});
    line.ConnectBothWays(4 + i, 8 + i, {});
  }
  const double ns_per_byte[] = {1, .5, .25};
  for (int i = 0; i < 3; ++i) line.ConnectBothWays(8 + i, 9 + i, {ns_per_byte[i], 0});
  // Rates: long .5 (half of 1), then 1: .5, 2: 1.5, 4: 3.5 bytes per ns. All carry for exactly 1,000 ns.
  Ran ran = Carry(line, {{0, 7, 500}, {0, 5, 500}, {1, 6, 1500}, {2, 7, 3500}});
  for (TimeUs end : ran.ends) EXPECT_EQ(end, 1000);
}

TEST(Network, RacksAreSlowedByTheirOversubscription) {
  for (int k : {1, 2, 4, 8}) {
    // Two racks of eight whose uplink carries 8/k hosts.
    std::vector<std::int32_t> racks(16);
    for (int host = 8; host < 16; ++host) racks[host] = 1;
    Topology topology = Racks(racks, {1, 1000}, {k / 8.0, 0});
    EXPECT_EQ(Carry(topology, Permutation(Shift(16, 8))).last, 1000 + k * kBytes) << "1:" << k;
    // Inside of a rack nothing is felt, whatever crosses meanwhile, but for the link that both share.
    std::vector<Transfer> both = {{0, 1}, {2, 10}, {3, 11}};
    EXPECT_EQ(Carry(topology, both).ends[0], 1000 + kBytes) << "1:" << k;
  }
}

TEST(Network, FatTreesGiveNeighboursAllAndSlowCrossTrafficByTheOversubscription) {
  for (int k : {1, 2, 4}) {
    FatTreeOptions options = FatTreeOptions::OfPorts(4, {1, 10}, k);
    Topology tree = FatTree(options);
    ASSERT_EQ(tree.hosts, 16 * k);
    ASSERT_EQ(tree.switches, 20);
    // On one edge switch.
    std::vector<Transfer> inside;
    for (int host = 0; host < tree.hosts; host += 2) {
      inside.push_back({host, host + 1});
      inside.push_back({host + 1, host});
    }
    EXPECT_EQ(Carry(tree, inside).last, 2 * 10 + kBytes);
    // All hosts to another pod: what a pod sends has 1/k of what its hosts could send. Flows that meet by the hash are slower than that.
    Ran across = Carry(tree, Permutation(Shift(tree.hosts, tree.hosts / 2)));
    EXPECT_GE(across.last, 6 * 10 + k * kBytes);
  }
  // With one switch above there is no choice, and the slow-down is exact: eight hosts of each pod share the one link up.
  FatTreeOptions lean{.pods = 2, .edges_per_pod = 2, .hosts_per_edge = 4, .aggregations_per_pod = 1, .cores_per_aggregation = 1};
  lean.host = lean.fabric = {1, 10};
  Topology tree = FatTree(lean);
  EXPECT_EQ(Carry(tree, Permutation(Shift(16, 8))).last, 60 + 8 * kBytes);
  lean.fabric.ns_per_byte = .125;
  EXPECT_EQ(Carry(FatTree(lean), Permutation(Shift(16, 8))).last, 60 + kBytes);
}

TEST(Routes, AreShortestAndTheSameEveryTimeAndUseAllWays) {
  Topology tree = FatTree(FatTreeOptions::OfPorts(8, {1, 1}));
  Routes routes(&tree), again(&tree);
  std::set<std::int32_t> used;
  for (std::int32_t from = 0; from < tree.hosts; ++from)
    for (std::int32_t to = 0; to < tree.hosts; ++to) {
      auto found = routes.Find(from, to);
      const std::vector<std::int32_t> way(found.begin(), found.end());
      std::int32_t at = from;
      for (std::int32_t link : way) {
        ASSERT_EQ(tree.links[link].from, at);
        at = tree.links[link].to;
        used.insert(link);
      }
      ASSERT_EQ(at, to);
      const std::size_t hops = from == to ? 0 : from / 4 == to / 4 ? 2 : from / 16 == to / 16 ? 4 : 6;
      ASSERT_EQ(way.size(), hops) << from << " to " << to;
      auto second = again.Find(from, to);
      ASSERT_EQ(way, std::vector<std::int32_t>(second.begin(), second.end()));
    }
  EXPECT_EQ(used.size(), tree.links.size());
}

TEST(Routes, WalkToriDimensionByDimensionTheShorterWay) {
  for (const std::vector<std::int32_t>& extents : {std::vector<std::int32_t>{6, 5}, {4, 3, 2}, {7}, {1, 8}}) {
    Topology torus = Torus(extents, {1, 1});
    ASSERT_TRUE(Check(torus).ok()) << Check(torus).ToString();
    Topology shortest = torus;
    shortest.routing = Routing::kShortestPaths;
    Routes routes(&torus), free(&shortest);
    for (std::int32_t from = 0; from < torus.hosts; ++from)
      for (std::int32_t to = 0; to < torus.hosts; ++to) {
        std::int32_t at = from, stride = 1;
        std::size_t expected = 0;
        auto found = routes.Find(from, to);
        std::vector<std::int32_t> dimensions;
        for (std::int32_t link : found) {
          ASSERT_EQ(torus.links[link].from, at);
          at = torus.links[link].to;
          const std::int32_t step = std::abs(torus.links[link].to - torus.links[link].from);
          dimensions.push_back(step);
        }
        ASSERT_EQ(at, to);
        for (std::int32_t extent : extents) {
          const std::int32_t ahead = ((to / stride % extent) - (from / stride % extent) + extent) % extent;
          expected += static_cast<std::size_t>(std::min(ahead, extent - ahead));
          stride *= extent;
        }
        ASSERT_EQ(found.size(), expected);
        ASSERT_EQ(free.Find(from, to).size(), expected);
        // Never back to an earlier dimension: steps are by 1 (or round, by x - 1), then by x, then by x · y.
        std::int32_t reached = 0;
        for (std::int32_t step : dimensions) {
          std::int32_t dimension = 0, unit = 1;
          while (dimension + 1 < static_cast<std::int32_t>(extents.size()) && step >= unit * extents[dimension])
            unit *= extents[dimension++];
          ASSERT_GE(dimension, reached);
          reached = dimension;
        }
      }
  }
}

TEST(Network, NeighboursOnATorusDoNotMeetAndARandomPermutationDoes) {
  Topology torus = Torus({4, 4, 4}, {1, 100});
  // A ring through all hosts that goes from neighbour to neighbour (a snake).
  std::vector<std::int32_t> snake;
  for (int z = 0; z < 4; ++z)
    for (int y = 0; y < 4; ++y)
      for (int x = 0; x < 4; ++x) {
        const int row = z % 2 == 0 ? y : 3 - y, column = (4 * z + y) % 2 == 0 ? x : 3 - x;
        snake.push_back(column + 4 * row + 16 * z);
      }
  std::vector<std::int32_t> to(64);
  for (int i = 0; i < 64; ++i) to[snake[i]] = snake[(i + 1) % 64];
  EXPECT_EQ(Carry(torus, Permutation(to)).last, 100 + kBytes);
  const std::uint64_t seed = 7;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  for (int i = 63; i > 0; --i) std::swap(to[i], to[random.Below(static_cast<std::uint64_t>(i) + 1)]);
  EXPECT_GT(Carry(torus, Permutation(to)).last, 2 * kBytes);
}

TEST(Network, OneSlowLinkIsFeltByWhatCrossesItOnly) {
  Topology tree = FatTree(FatTreeOptions::OfPorts(4, {1, 0}));
  ASSERT_EQ(SlowLink(&tree, 3, 16 + 1, 10), 1);  // host 3 to its edge switch
  Ran ran = Carry(tree, Permutation(Shift(16, 1)));
  for (int host = 0; host < 16; ++host) EXPECT_EQ(ran.ends[host] >= 10 * kBytes, host == 3) << host;
  ASSERT_EQ(SlowHost(&tree, 5, 10), 2);
  ran = Carry(tree, Permutation(Shift(16, 1)));
  for (int host = 0; host < 16; ++host) EXPECT_EQ(ran.ends[host] >= 10 * kBytes, host == 3 || host == 4 || host == 5) << host;
}

TEST(Network, ALinkMayChangeItsRateUnderWay) {
  Topology star = Star(3, {1, 10});
  EventQueue queue;
  Network network(&queue, star);
  TimeUs slowed = 0, other = 0;
  network.Send(0, 1, 1000, [&] { slowed = queue.now(); });
  network.Send(2, 1, 1000, [&] { other = queue.now(); });
  // Both have 500 left when host 0's link falls to a quarter of what it has: .25, so the other gets .75.
  queue.At(1000, [&] { network.SetRate(0, 4); });
  queue.RunUntil(1'000'000);
  EXPECT_EQ(other, 1000 + 667 + 10);
  EXPECT_EQ(slowed, 1000 + 2000 + 10);
  EXPECT_EQ(network.PathOf(0, 1).ns_per_byte, 4);
  EXPECT_EQ(network.PathOf(2, 1).ns_per_byte, 1);
}

// A ring of four that is rewired so that those who talked over two links are neighbours.
TEST(Network, WhatIsUnderWayGoesOnOverANewTopology) {
  auto ring = [](const std::vector<int>& order, LinkSpeed speed) {
    Topology topology{.hosts = static_cast<std::int32_t>(order.size())};
    for (std::size_t i = 0; i < order.size(); ++i) topology.Connect(order[i], order[(i + 1) % order.size()], speed);
    return topology;
  };
  EventQueue queue;
  Network network(&queue, ring({0, 1, 2, 3}, {1, 500}));
  EXPECT_EQ(network.PathOf(0, 2).latency_ns, 1000);
  std::vector<TimeUs> ends(4);
  network.Send(0, 2, 1000, [&] { ends[0] = queue.now(); });  // shares 1 → 2 with the next
  network.Send(1, 2, 400, [&] { ends[1] = queue.now(); });   // has left after 800, is there at 1300
  network.Send(0, 2, 100, [&] { ends[2] = queue.now(); });   // behind the first
  queue.At(900, [&] {
    // The first has sent 400 and 100; 500 are left. Dark until 1100, then alone on its link.
    network.Reconfigure(ring({0, 2, 1, 3}, {1, 20}), 200);
    network.Send(3, 0, 10, [&] { ends[3] = queue.now(); });
  });
  queue.RunUntil(1'000'000);
  EXPECT_EQ(network.PathOf(0, 2).latency_ns, 20);
  EXPECT_EQ(ends, (std::vector<TimeUs>{1100 + 500 + 20, 1300, 1100 + 600 + 20, 1300}));
}

// Max-min fair is: no flow can get more without another getting less that has no more than it. That is so when each flow crosses a link
// that is full and on which nobody has more than it. Checked at the start of random sets of flows on random networks.
TEST(Network, RatesOnRandomNetworksAreMaxMinFair) {
  const std::uint64_t seed = 11;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  for (int round = 0; round < 60; ++round) {
    Topology topology;
    switch (random.Below(3)) {
      case 0:
        topology = FatTree(FatTreeOptions::OfPorts(4, {1, 0}, 1 + static_cast<int>(random.Below(3))));
        break;
      case 1:
        topology = Torus({4, 3, 2}, {1, 0});
        break;
      default:
        topology = Racks({0, 0, 0, 1, 1, 1, 2, 2, 2, 2}, {1, 0}, {1 + random.Unit(), 0});
    }
    for (Topology::Link& link : topology.links) link.ns_per_byte *= 1 + 3 * random.Unit() * random.Unit();
    // All flows are long but for one, the probe, whose bytes are so few that it ends before anything changes: its end tells its rate. Each
    // flow is the probe once.
    std::vector<std::pair<int, int>> pairs;
    std::set<std::pair<int, int>> taken;
    for (int i = 0; i < 12; ++i) {
      const int from = static_cast<int>(random.Below(topology.hosts)), to = static_cast<int>(random.Below(topology.hosts));
      if (from != to && taken.insert({from, to}).second) pairs.emplace_back(from, to);
    }
    std::vector<double> rates;
    for (std::size_t probe = 0; probe < pairs.size(); ++probe) {
      std::vector<Transfer> transfers;
      for (std::size_t i = 0; i < pairs.size(); ++i)
        transfers.push_back({pairs[i].first, pairs[i].second, i == probe ? 1'000'000 : 1'000'000'000});
      rates.push_back(1e6 / static_cast<double>(Carry(topology, transfers).ends[probe]));
    }
    Routes routes(&topology);
    std::vector<double> used(topology.links.size());
    std::vector<std::vector<std::int32_t>> ways;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      auto found = routes.Find(pairs[i].first, pairs[i].second);
      ways.emplace_back(found.begin(), found.end());
      for (std::int32_t link : found) used[link] += rates[i];
    }
    for (std::size_t link = 0; link < used.size(); ++link)
      ASSERT_LE(used[link] * topology.links[link].ns_per_byte, 1 + 1e-4) << "round " << round << " link " << link;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const bool is_held = std::any_of(ways[i].begin(), ways[i].end(), [&](std::int32_t link) {
        if (used[link] * topology.links[link].ns_per_byte < 1 - 1e-4) return false;
        for (std::size_t k = 0; k < pairs.size(); ++k)
          if (std::count(ways[k].begin(), ways[k].end(), link) > 0 && rates[k] > rates[i] * (1 + 1e-4)) return false;
        return true;
      });
      ASSERT_TRUE(is_held) << "round " << round << " flow " << i << " at " << rates[i];
    }
  }
}

TEST(Network, BytesAreNeitherLostNorMade) {
  const std::uint64_t seed = 12;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  for (int round = 0; round < 20; ++round) {
    Topology topology = round % 2 == 0 ? Racks({0, 0, 0, 0, 1, 1, 1, 1}, {1, 50}, {.7, 20}) : Torus({3, 3}, {1, 50});
    std::vector<Transfer> transfers;
    std::vector<std::int64_t> out(topology.hosts);
    for (int i = 0; i < 200; ++i) {
      Transfer one{static_cast<int>(random.Below(topology.hosts)), static_cast<int>(random.Below(topology.hosts)),
                   static_cast<std::int64_t>(random.Below(20'000)), static_cast<TimeUs>(random.Below(200'000))};
      if (one.from != one.to) out[one.from] += one.bytes;
      transfers.push_back(one);
    }
    Ran ran = Carry(topology, transfers);
    // No host sends faster than its links: on racks it has one, on this torus four.
    for (int host = 0; host < topology.hosts; ++host) EXPECT_GE(ran.last, out[host] / (round % 2 == 0 ? 1 : 4));
    // Alone each is as fast as can be, together none is faster.
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      Transfer alone = transfers[i];
      EXPECT_GE(ran.ends[i], Carry(topology, {alone}).last) << i;
    }
    EXPECT_EQ(ran.ends, Carry(topology, transfers).ends);
  }
}

// Where no two flows meet on a full link a settlement looks at the flow alone, however many others there are.
TEST(Network, FlowsThatDoNotMeetAreSettledAlone) {
  std::vector<Transfer> transfers;
  for (int round = 0; round < 10; ++round)
    for (const Transfer& one : Permutation(Shift(512, 1)))
      transfers.push_back({one.from, one.to, 1000 + one.from, round * 2000 + one.from});
  Ran ran = Carry(Star(512, {1, 100}), transfers);
  EXPECT_EQ(ran.counters.messages, 5120u);
  EXPECT_EQ(ran.counters.rates, 5120u);
  EXPECT_LE(ran.steps, 4 * ran.counters.messages);  // to send (this test's own), to settle, to end, to arrive
}

TEST(Topology, WhatIsWrongIsRefused) {
  auto refusal = [](const Topology& topology) {
    Status status = Check(topology);
    EXPECT_FALSE(status.ok() || status.why().empty() || status.fix().empty());
    return status.ok() ? std::string() : std::string(status.tag()) + " " + status.ToString();
  };
  EXPECT_NE(refusal({.hosts = 0}).find("SIM01"), std::string::npos);
  Topology apart = Star(3, {1, 1});
  apart.links.pop_back();
  EXPECT_NE(refusal(apart).find("host 2"), std::string::npos);
  Topology negative = Star(3, {1, 1});
  negative.links[1].latency_ns = -1;
  EXPECT_NE(refusal(negative).find("link 1"), std::string::npos);
  Topology nowhere = Star(3, {1, 1});
  nowhere.links[2].to = 9;
  EXPECT_NE(refusal(nowhere).find("node 9"), std::string::npos);
  Topology holed = Torus({3, 3}, {1, 1});
  holed.links.pop_back();
  EXPECT_NE(refusal(holed).find("neighbour"), std::string::npos);
  Topology odd = Torus({3, 3}, {1, 1});
  odd.extents = {3, 2};
  EXPECT_NE(refusal(odd).find("multiply"), std::string::npos);
  for (const Topology& good : {Star(1, {1, 1}), Racks({0, 2, 1}, {1, 1}, {1, 1}), FatTree({}), Torus({2, 2}, {1, 1}), Torus({1}, {1, 1})})
    EXPECT_TRUE(Check(good).ok()) << Check(good).ToString();
}

}  // namespace
}  // namespace ropewalk::sim
