// What it takes to simulate collectives of many ranks: prints, for each network, virtual time, messages, events, rates that were computed,
// programs kept, seconds of processor and the largest resident size so far.
//
// usage: bench_simulate [RANKS [ALGORITHM]]     RANKS: 1024 unless given; ALGORITHM: ring unless given. 10,000 ranks of a ring send 200
//                                               million messages: that takes minutes.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "mlrunner/collective/simulate.h"

namespace {

namespace collective = ropewalk::collective;
namespace sim = ropewalk::sim;

bool Print(const char* where, const std::string& algorithm, const collective::Request& request, collective::SimulateOptions options) {
  options.sizes.count = static_cast<std::int64_t>(request.ranks) * 250;
  const std::clock_t start = std::clock();
  auto report = collective::Simulate(algorithm, request, options);
  const double took_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", report.status().ToString().c_str());
    return false;
  }
  struct rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%-28s %10.3f %12llu %12llu %12llu %9lld %12lld %9.2f %9.1f\n", where, static_cast<double>(report->end_ns) / 1e6,
              static_cast<unsigned long long>(report->network.messages), static_cast<unsigned long long>(report->events),
              static_cast<unsigned long long>(report->network.rates), static_cast<long long>(report->programs_kept),
              static_cast<long long>(report->steps_kept), took_s, static_cast<double>(usage.ru_maxrss) / 1024);
  std::fflush(stdout);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 1024;
  const std::string algorithm = argc > 2 ? argv[2] : "ring";
  const sim::LinkSpeed gigabits{.8, 5'000};
  collective::Request request{.ranks = ranks};
  if (algorithm == "barrier") request.collective = collective::Collective::kBarrier;
  std::printf("%s, %d ranks, 1,000 bytes a rank, 10 Gb/s, 10 us\n", algorithm.c_str(), ranks);
  std::printf("%-28s %10s %12s %12s %12s %9s %12s %9s %9s\n", "network", "virtual ms", "messages", "events", "rates", "programs",
              "steps kept", "s", "MiB");
  bool good = Print("one switch", algorithm, request, {.network = {.latency_ns = 10'000, .ns_per_byte = .8}});

  collective::SimulateOptions racks{.network = {.latency_ns = 10'000, .ns_per_byte = .8, .uplink_ns_per_byte = .2}};
  for (int rank = 0; rank < ranks; ++rank) racks.network.rack.push_back(rank / 32);
  good = good && Print("racks of 32, uplinks 1:8", algorithm, request, racks);

  // The smallest tree of switches with k ports, half oversubscribed, that has room.
  int k = 2;
  while (sim::FatTreeOptions::OfPorts(k, gigabits, 2).hosts() < ranks) k += 2;
  collective::SimulateOptions tree{.topology =
                                       std::make_shared<const sim::Topology>(sim::FatTree(sim::FatTreeOptions::OfPorts(k, gigabits, 2)))};
  good = good && Print("fat tree 1:2", algorithm, request, tree);
  return good ? 0 : 1;
}
