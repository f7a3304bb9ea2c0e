// Collectives over networks in virtual time, against times worked out by hand: closed forms where nothing contends, and what racks, tori,
// slow links and slow hosts do to them.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "base/random.h"
#include "mlrunner/collective/builders/builders.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

SimulateReport Ran(const Algorithm& algorithm, const Request& request, const SimulateOptions& options) {
  auto report = Simulate(algorithm, request, options);
  EXPECT_TRUE(report.ok()) << algorithm.name << ": " << report.status().ToString();
  return report.ok() ? *report : SimulateReport{};
}
SimulateReport Ran(std::string_view algorithm, const Request& request, const SimulateOptions& options) {
  return Ran(**FindAlgorithm(Algorithms(), algorithm), request, options);
}
std::shared_ptr<const sim::Topology> Shared(sim::Topology topology) { return std::make_shared<const sim::Topology>(std::move(topology)); }

std::int64_t LogOf(std::int64_t ranks) {
  std::int64_t rounds = 0;
  while ((std::int64_t{1} << rounds) < ranks) ++rounds;
  return rounds;
}

// With α for a message, β for a byte, γ for a folded byte, where each part has the same whole number of elements: to the nanosecond.
TEST(Topology, UncontendedTimesAreTheClosedForms) {
  for (std::int64_t a : {0, 1, 50'000})
    for (std::int64_t b : {1, 8})
      for (std::int64_t g : {0, 2})
        for (std::int32_t p : {2, 3, 4, 5, 7, 8, 16, 32}) {
          const std::int64_t elements = 64, part = 4 * elements, n = part * p;  // bytes
          SimulateOptions options{.sizes = {.count = elements * p},
                                  .network = {.latency_ns = a, .ns_per_byte = static_cast<double>(b)},
                                  .reduce_ns_per_byte = static_cast<double>(g)};
          auto took = [&](std::string_view algorithm, Request request = {}) {
            request.ranks = p;
            return Ran(algorithm, request, options).end_ns;
          };
          const std::string what =
              "α " + std::to_string(a) + " β " + std::to_string(b) + " γ " + std::to_string(g) + " P " + std::to_string(p);
          EXPECT_EQ(took("ring"), 2 * (p - 1) * (a + part * b) + (p - 1) * part * g) << what;
          EXPECT_EQ(took("direct"), 2 * (a + (p - 1) * part * b) + (p - 1) * part * g) << what;
          EXPECT_EQ(took("central_ps"), 2 * (a + (p - 1) * n * b) + (p - 1) * n * g) << what;
          EXPECT_EQ(took("chain"), 2 * (p - 1) * (a + n * b) + (p - 1) * n * g) << what;
          if (p == 1 << LogOf(p)) {
            EXPECT_EQ(took("recursive_doubling"), LogOf(p) * (a + n * b + n * g)) << what;
            EXPECT_EQ(took("halving_doubling"), 2 * LogOf(p) * a + 2 * (p - 1) * part * b + (p - 1) * part * g) << what;
          }
          EXPECT_EQ(took("barrier", {.collective = Collective::kBarrier}), LogOf(p) * a) << what;
          EXPECT_EQ(took("broadcast_chain", {.collective = Collective::kBroadcast}), (p - 1) * (a + n * b)) << what;
          EXPECT_EQ(took("send_recv", {.collective = Collective::kSendRecv, .peer = 1}), a + n * b) << what;
          // Each hop of the ring is a send and a receive, and each takes the processor.
          options.overhead_ns = 300;
          EXPECT_EQ(took("ring"), 2 * (p - 1) * (a + part * b + 2 * 300) + (p - 1) * part * g) << what;
        }
}

// Rings inside of groups of ranks, which know nothing of each other: what divide-and-shuffle does at a step. The groups are the header's.
void WriteRingsOfGroups(Writer& w) {
  for (const std::vector<std::int32_t>& group : w.header().groups) {
    const auto place = static_cast<std::int32_t>(std::find(group.begin(), group.end(), w.rank()) - group.begin());
    const auto size = static_cast<std::int32_t>(group.size());
    if (place == size) continue;
    const std::int32_t next = group[(place + 1) % size], previous = group[(place + size - 1) % size];
    auto part = [&](std::int32_t buffer, std::int32_t of) { return w.At(buffer, w.Part(w.Whole(), size, of)); };
    w.Send(part(kIn, place), next);
    for (std::int32_t s = 1; s < size; ++s)
      w.Fold(Op::kRecvReduceSend, {From(previous, part(s == 1 ? kIn : kOut, place - s)), Local(part(kIn, place - s))},
             {.dst = part(kOut, place - s), .to = next});
    for (std::int32_t s = size; s < 2 * size - 2; ++s)
      w.Fold(Op::kRecvCopySend, {From(previous, part(kOut, place - s))}, {.dst = part(kOut, place - s), .to = next});
    w.Recv(previous, part(kOut, place - (2 * size - 2)));
  }
}
void PromiseNothing(PostWriter&) {}
Status DeclareFours(Header* header) {
  DeclareInOut(header);
  for (std::int32_t first = 0; first < header->request.ranks; first += 4)
    header->groups.push_back({first, first + 1, first + 2, first + 3});
  return {};
}
// The first of each four across the racks, the other three among themselves.
Status DeclareOneCrossing(Header* header) {
  DeclareInOut(header);
  header->groups.push_back({0, 4, 8, 12});
  for (std::int32_t first = 0; first < header->request.ranks; first += 4) header->groups.push_back({first + 1, first + 2, first + 3});
  return {};
}

// 16 workers in 4 racks, 100 MB, 10 Gb/s hosts, 2.5 Gb/s uplinks: the figures by which divide-and-shuffle is judged.
TEST(Topology, RacksGiveTheKnownTimesOfRingsAndGroups) {
  const sim::NetworkOptions gbits{.latency_ns = 0, .ns_per_byte = .8, .uplink_ns_per_byte = 3.2};
  std::vector<std::int32_t> together, apart;
  for (int rank = 0; rank < 16; ++rank) {
    together.push_back(rank / 4);
    apart.push_back(rank % 4);
  }
  auto seconds = [&](const Algorithm& algorithm, const std::vector<std::int32_t>& racks) {
    SimulateOptions options{.sizes = {.count = 25'000'000}, .network = gbits};
    options.network.rack = racks;
    return static_cast<double>(Ran(algorithm, {.ranks = 16}, options).end_ns) / 1e9;
  };
  const Algorithm fours{"fours", Collective::kAllreduce, false, DeclareFours, WriteRingsOfGroups, PromiseNothing};
  const Algorithm one{"one_crossing", Collective::kAllreduce, false, DeclareOneCrossing, WriteRingsOfGroups, PromiseNothing};
  EXPECT_NEAR(seconds(kRingAllreduce, together), .60, 1e-6);
  EXPECT_NEAR(seconds(kRingAllreduce, apart), 2.40, 1e-6);
  const double inside = seconds(fours, together), across = seconds(fours, apart);
  EXPECT_NEAR(inside, .12, 1e-6);
  EXPECT_NEAR((inside + across) / 2, 1.02, 1e-6);
  EXPECT_NEAR(seconds(one, together), .48, 1e-6);
}

TEST(Topology, OversubscriptionSlowsARingThatCrossesByItsRatio) {
  for (int k : {1, 2, 4}) {
    std::vector<std::int32_t> racks;
    for (int rank = 0; rank < 16; ++rank) racks.push_back(rank % 2);  // all eight links of each rack cross
    SimulateOptions options{.sizes = {.count = 16'000}, .topology = Shared(sim::Racks(racks, {1, 0}, {k / 8.0, 0}))};
    EXPECT_EQ(Ran("ring", {.ranks = 16}, options).end_ns, 30 * 4000 * k) << "1:" << k;
  }
}

TEST(Topology, ATorusCarriesARingOfNeighboursFreelyAndAShuffledOneNot) {
  const std::int32_t ranks = 64;
  SimulateOptions options{.sizes = {.count = 64'000}, .topology = Shared(sim::Torus({8, 8}, {1, 0}))};
  // A snake that comes back: down the first column from the last row, through the others row by row.
  for (int y = 0; y < 8; ++y)
    for (int x = 1; x < 8; ++x) options.host_of_rank.push_back(8 * y + (y % 2 == 0 ? x : 8 - x));
  for (int y = 7; y >= 0; --y) options.host_of_rank.push_back(8 * y);
  const std::int64_t alone = 2 * (ranks - 1) * 4000;
  EXPECT_EQ(Ran("ring", {.ranks = ranks}, options).end_ns, alone);
  const std::uint64_t seed = 3;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  for (std::size_t i = options.host_of_rank.size() - 1; i > 0; --i)
    std::swap(options.host_of_rank[i], options.host_of_rank[random.Below(i + 1)]);
  const SimulateReport shuffled = Ran("ring", {.ranks = ranks}, options);
  EXPECT_GT(shuffled.end_ns, 2 * alone);
  // Full links couple flows, and that is what a simulation takes longer for.
  EXPECT_GT(shuffled.network.rates, shuffled.network.messages);
}

TEST(Topology, ASlowLinkSetsThePaceOfARingAndOfARelayOnce) {
  const std::int32_t ranks = 8;
  const std::int64_t part = 4000, a = 100;
  sim::Topology star = sim::Star(ranks, {1, a});
  ASSERT_EQ(sim::SlowLink(&star, 3, ranks, 10), 1);
  SimulateOptions options{.sizes = {.count = ranks * part / 4}, .topology = Shared(star)};
  // Its 2(P - 1) messages follow each other without a gap; all other links wait.
  EXPECT_EQ(Ran("ring", {.ranks = ranks}, options).end_ns, 2 * (ranks - 1) * part * 10 + a);
  // A chain sends the whole vector over the link once, on its way up.
  EXPECT_EQ(Ran("chain", {.ranks = ranks}, options).end_ns, 2 * (ranks - 1) * (a + ranks * part) + 2 * 9 * ranks * part);
  // Where rank 7 stands there, only its way down is.
  for (int rank = 0; rank < ranks; ++rank) options.host_of_rank.push_back(rank == 7 ? 3 : rank == 3 ? 7 : rank);
  EXPECT_EQ(Ran("chain", {.ranks = ranks}, options).end_ns, 2 * (ranks - 1) * (a + ranks * part) + 9 * ranks * part);
}

TEST(Topology, ASlowHostIsWaitedForWhileItFolds) {
  const std::int64_t ranks = 8, part = 4000, a = 1000, b = 1, g = 3;
  SimulateOptions options{.sizes = {.count = ranks * part / 4}, .network = {.latency_ns = a, .ns_per_byte = b}, .reduce_ns_per_byte = g};
  options.slowness.assign(ranks, 1);
  options.slowness[5] = 10;
  EXPECT_EQ(Ran("direct", {.ranks = 8}, options).end_ns, 2 * (a + (ranks - 1) * part * b) + 10 * (ranks - 1) * part * g);
  sim::Topology star = sim::Star(8, {b, a});
  ASSERT_EQ(sim::SlowHost(&star, 5, 10), 2);
  options.topology = Shared(star);
  EXPECT_GE(Ran("direct", {.ranks = 8}, options).end_ns, 2 * (a + 10 * (ranks - 1) * part * b) + 10 * (ranks - 1) * part * g);
}

// What crosses a fat tree: neighbours have all of their links, whatever is above; ranks that are dealt out over the pods have what the tree
// leaves them.
TEST(Topology, APlacementThatFollowsAFatTreeBeatsOneThatDoesNot) {
  for (int k : {1, 4}) {
    sim::FatTreeOptions tree = sim::FatTreeOptions::OfPorts(4, {1, 0}, k);
    const std::int32_t ranks = tree.hosts();
    SimulateOptions options{.sizes = {.count = ranks * 100}, .topology = Shared(sim::FatTree(tree))};
    const std::int64_t alone = 2 * (ranks - 1) * 400;
    EXPECT_EQ(Ran("ring", {.ranks = ranks}, options).end_ns, alone) << k;
    for (std::int32_t rank = 0; rank < ranks; ++rank) options.host_of_rank.push_back(rank % 4 * (ranks / 4) + rank / 4);
    EXPECT_GE(Ran("ring", {.ranks = ranks}, options).end_ns, k * alone) << k;
  }
}

TEST(Topology, WhatDoesNotFitIsRefused) {
  auto refusal = [](const SimulateOptions& options) {
    auto report = Simulate("ring", {.ranks = 4}, options);
    return report.ok() ? "simulated" : std::string(report.status().tag());
  };
  EXPECT_EQ(refusal({.sizes = {.count = 1}}), "simulated");
  EXPECT_EQ(refusal({.sizes = {.count = -1}}), "COLL01");
  EXPECT_EQ(refusal({.sizes = {.count = 1}, .topology = Shared(sim::Star(3, {}))}), "COLL02");
  EXPECT_EQ(refusal({.sizes = {.count = 1}, .host_of_rank = {0, 1, 1, 2}}), "COLL02");
  EXPECT_EQ(refusal({.sizes = {.count = 1}, .host_of_rank = {0, 1, 2, 4}}), "COLL02");
  EXPECT_EQ(refusal({.sizes = {.count = 1}, .start_ns = {1}}), "COLL02");
  EXPECT_EQ(refusal({.sizes = {.count = 1}, .slowness = {1, 2, 3}}), "COLL02");
  sim::Topology apart = sim::Star(4, {});
  apart.links.pop_back();
  EXPECT_EQ(refusal({.sizes = {.count = 1}, .topology = Shared(apart)}), "SIM01");
  EXPECT_EQ(Simulate("nothing", {.ranks = 4}, {}).status().tag(), "COLL11");
  EXPECT_EQ(Simulate("ring", {.ranks = 4, .slots = 1}, {}).status().tag(), "COLL10");
  for (std::int32_t ranks : {0, -1}) EXPECT_EQ(Simulate("ring", {.ranks = ranks}, {}).status().tag(), "COLL10") << ranks;
}

}  // namespace
}  // namespace ropewalk::collective::testing
