// How long sums take on links whose rates are known: ranks as processes that connect as those of a gang do, over TCP.
//
// usage: bench_shaped link|sums KEY=VALUE...
//   link: one line of JSON for each rank: what a lone TCP stream to the next rank moves
//   sums: lines of JSON of rank 0: what its communicator found out about the links; then for each algorithm and size what each sum took
// Keys: ranks, namespaces (bench/namespaces.h); algorithms ("chosen": what a call without a name runs by) and bytes, with commas between
// them; repetitions; measures (1: the communicator measures links and goes by what they show); segment_bytes; apart (1: each is on a
// machine of its own as far as it can see, so that nodes may show, and waits as if it had the processors to itself).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/hub.h"
#include "bench/must.h"
#include "bench/namespaces.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/run/call_steps.h"

using namespace ropewalk;
using bench::Must;
using bench::NowMs;
using bench::Setup;

namespace {

std::vector<std::string> Words(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t from = 0; from < list.size();) {
    const std::size_t comma = std::min(list.find(',', from), list.size());
    words.push_back(list.substr(from, comma - from));
    from = comma + 1;
  }
  return words;
}

float Given(int rank, std::size_t i) { return static_cast<float>(rank + 1 + static_cast<int>(i % 7)); }

// All meet, each takes its own time of one sum; it took as long as the slowest rank. The first is not measured, but verified.
std::vector<double> Times(collective::Communicator& all, const collective::CollectiveCall& call, std::int64_t segment_bytes,
                          int repetitions) {
  const int ranks = all.ranks();
  const std::uint64_t steps = Must(collective::StepsOf(all, call, segment_bytes));
  std::vector<double> times;
  for (int repetition = 0; repetition <= repetitions; ++repetition) {
    Must(all.Barrier());
    const std::uint64_t before = all.steps();
    const double begin_ms = NowMs();
    Must(all.Run(call));
    times.push_back(NowMs() - begin_ms);
    if (all.steps() - before != steps)
      Must(Status(Code::kInternal, "BENCH04", fmt::format("a sum took {} steps of the interpreter", all.steps() - before),
                  fmt::format("its program has {}", steps), "let it run through the interpreter"));
  }
  const float* out = static_cast<const float*>(call.out);
  for (std::size_t i = 0; i < static_cast<std::size_t>(call.count); ++i) {
    float wanted = 0;
    for (int rank = 0; rank < ranks; ++rank) wanted += Given(rank, i);
    if (out[i] != wanted)
      Must(Status(Code::kInternal, "BENCH09", fmt::format("element {} of a sum is {} and not {}", i, out[i], wanted),
                  "the vectors of all ranks were not summed", "look at what was called"));
  }
  times.erase(times.begin());
  Must(all.AllReduce({.in = times.data(),
                      .out = times.data(),
                      .count = static_cast<std::int64_t>(times.size()),
                      .dtype = collective::Dtype::kF64,
                      .op = collective::ReduceOp::kMax,
                      .name = "times"}));
  return times;
}

int SumsRank(const Setup& setup, int rank, int hub) {
  collective::Rendezvous rendezvous{.rank = rank,
                                    .ranks = setup.ranks(),
                                    .address = setup.Address(rank),
                                    .machine = "machine" + std::to_string(setup.Number("apart", 0) != 0 ? rank : 0)};
  rendezvous.exchange = [&](const std::string& mine) {
    return Result<std::vector<std::string>>(bench::Exchange(hub, mine, setup.ranks()));
  };
  const std::int64_t segment_bytes = setup.Number("segment_bytes", 0);
  const double begin_ms = NowMs();
  const auto connected = Must(collective::Communicator::Connect(
      std::move(rendezvous),
      {.wire = collective::Wire::kTcp, .segment_bytes = segment_bytes, .measures_links = setup.Number("measures", 0) != 0}));
  const double connect_ms = NowMs() - begin_ms;
  collective::Communicator& all = *connected;
  auto say = [&](const std::string& line) { return rank == 0 ? bench::Say(line) : 0; };
  int worst = say(fmt::format("{{\"connect_ms\": {:.1f}, \"ring\": [{}], \"chain\": [{}], \"nodes\": [{}]}}\n", connect_ms,
                              fmt::join(all.orders().ring, ", "), fmt::join(all.orders().chain, ", "), fmt::join(all.nodes(), ", ")));
  for (const std::string& size : Words(setup.Text("bytes"))) {
    const auto bytes = static_cast<std::size_t>(std::atoll(size.c_str()));
    auto* in = reinterpret_cast<float*>(Must(all.Allocate(bytes)));
    auto* out = reinterpret_cast<float*>(Must(all.Allocate(bytes)));
    for (std::size_t i = 0; i < bytes / sizeof(float); ++i) in[i] = Given(rank, i), out[i] = 0;
    for (const std::string& algorithm : Words(setup.Text("algorithms"))) {
      const collective::CollectiveCall call{.in = in,
                                            .out = out,
                                            .count = static_cast<std::int64_t>(bytes / sizeof(float)),
                                            .name = "sum",
                                            .algorithm = algorithm == "chosen" ? std::string_view() : std::string_view(algorithm)};
      const std::vector<double> times = Times(all, call, segment_bytes, static_cast<int>(setup.Number("repetitions", 5)));
      const collective::Plan plan = Must(collective::PlanOf(all, call, collective::Algorithms(), segment_bytes));
      worst |=
          say(fmt::format("{{\"asked\": \"{}\", \"algorithm\": \"{}\", \"order\": [{}], \"bytes\": {}, \"ms\": [{:.3f}]}}\n", algorithm,
                          plan.header.algorithm, fmt::join(plan.header.request.order, ", "), bytes, fmt::join(times, ", ")));
    }
    all.Free(reinterpret_cast<char*>(in));
    all.Free(reinterpret_cast<char*>(out));
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const Setup setup = Setup::Of(argc, argv, 2);
  if (verb != "link" && verb != "sums") {
    std::fprintf(stderr, "usage: bench_shaped link|sums KEY=VALUE...\n");
    return 2;
  }
  return bench::RunRanks(setup.ranks(), [&](int rank, int hub) {
    bench::Enter(setup, rank);
    return verb == "link" ? bench::LinkRank(setup, rank, hub) : SumsRank(setup, rank, hub);
  });
}
