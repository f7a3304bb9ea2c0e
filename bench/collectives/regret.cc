// Every candidate of the chooser against each other: ranks as processes that run, size by size, all candidates in turn.
//
// usage: bench_regret RANKS shared|tcp SECONDS_OF_CANDIDATE FOLDER [SIZE,...]     lines of JSON, one for each candidate and size
//
// Costs are those in FOLDER; where there are none the ranks calibrate, and keep them there. So who runs it once without sizes, and then
// with them, has predictions and choices that know nothing of the processes in which they are judged.
//
// All meet in a barrier, each rank takes its own time of a call, the slowest one's counts. The calls of a candidate are cut into kRounds
// blocks, and in each round each has one, forwards and backwards in turn: whatever makes the machine slower for a while does so to all. Of
// a block the median is said.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/hub.h"
#include "bench/must.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/run/call_steps.h"
#include "mlrunner/collective/run/candidates.h"
#include "mlrunner/collective/run/chooser.h"

using ropewalk::Result;
namespace bench = ropewalk::bench;
namespace collective = ropewalk::collective;

using bench::Must;

namespace {

constexpr int kRounds = 8, kCallsMin = kRounds, kCallsMax = 400;

double NowUs() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Contender {
  collective::Candidate candidate;
  collective::CollectiveCall call;
  double model_us = 0, predicted_us = 0;  // predicted_us: with what was measured beside the model
  int calls = 0;
  std::vector<double> rounds_us;
};

class Rank {
 public:
  Rank(collective::Communicator& all, double seconds) : all_(all), seconds_(seconds) {}

  void Measure(std::int64_t bytes) {
    const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(float));
    auto* const in = reinterpret_cast<float*>(Must(all_.Allocate(static_cast<std::size_t>(bytes))));
    auto* const out = reinterpret_cast<float*>(Must(all_.Allocate(static_cast<std::size_t>(bytes))));
    std::fill(in, in + count, static_cast<float>(all_.rank() + 1));
    const collective::CollectiveCall any{.in = in, .out = out, .count = count, .name = "bench"};
    const collective::Chosen chosen = all_.chooser()->For(any);
    std::vector<Contender> contenders = ContendersFor(any);
    for (Contender& one : contenders) WarmUp(&one, out);
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t i = 0; i < contenders.size(); ++i) Block(&contenders[round % 2 == 0 ? i : contenders.size() - 1 - i], round);
    for (const Contender& one : contenders) {
      const collective::Choice& choice = one.candidate.choice;
      const bool is_chosen = choice.algorithm == chosen.algorithm && choice.segment_bytes == chosen.request.segment_bytes &&
                             choice.channels == chosen.request.channels;
      if (all_.rank() == 0) Print(bytes, one, is_chosen);
    }
    all_.Free(reinterpret_cast<char*>(in));
    all_.Free(reinterpret_cast<char*>(out));
  }

 private:
  // Without those that are the same calls at this length, but for the one that is chosen; and without those that need too much scratch.
  std::vector<Contender> ContendersFor(const collective::CollectiveCall& any) {
    const collective::Ground ground{.ranks = all_.ranks(), .shares_memory = all_.shares_memory(), .nodes = all_.nodes()};
    const collective::Chosen chosen = all_.chooser()->For(any);
    std::vector<Contender> contenders;
    for (collective::Candidate& candidate : collective::CandidatesFor({.collective = any.collective, .dtype = any.dtype}, ground)) {
      const collective::Costs& costs = all_.chooser()->costs();
      const auto ns = collective::NsOf(costs, candidate, any.count), model_ns = collective::NsOf(costs.model, candidate, any.count);
      if (!ns.ok() || !model_ns.ok()) continue;
      const collective::Choice& choice = candidate.choice;
      const bool is_whole = choice.segment_bytes >= any.count * static_cast<std::int64_t>(sizeof(float));
      const auto same = std::find_if(contenders.begin(), contenders.end(), [&](const Contender& one) {
        const collective::Choice& other = one.candidate.choice;
        return is_whole && other.algorithm == choice.algorithm && other.channels == choice.channels;
      });
      Contender one{.candidate = std::move(candidate), .call = any, .model_us = *model_ns / 1000, .predicted_us = *ns / 1000};
      one.call.algorithm = one.candidate.choice.algorithm;
      one.call.segment_bytes = one.candidate.choice.segment_bytes;
      one.call.channels = one.candidate.choice.channels;
      if (same == contenders.end())
        contenders.push_back(std::move(one));
      else if (choice.algorithm == chosen.algorithm && one.call.segment_bytes == chosen.request.segment_bytes &&
               one.call.channels == chosen.request.channels)
        *same = std::move(one);
    }
    return contenders;
  }

  double OneUs(const collective::CollectiveCall& call) {
    Must(all_.Barrier());
    const double begin = NowUs();
    Must(all_.Run(call));
    return NowUs() - begin;
  }
  void AllMax(std::vector<double>* numbers) {
    Must(all_.AllReduce({.in = numbers->data(),
                         .out = numbers->data(),
                         .count = static_cast<std::int64_t>(numbers->size()),
                         .dtype = collective::Dtype::kF64,
                         .op = collective::ReduceOp::kMax,
                         .name = "times"}));
  }

  void WarmUp(Contender* one, const float* out) {
    const std::uint64_t before = all_.steps();
    Must(all_.Run(one->call));
    const std::uint64_t steps = all_.steps() - before, wanted = Must(collective::StepsOf(all_, one->call));
    const auto sum = static_cast<float>(all_.ranks() * (all_.ranks() + 1) / 2);
    for (std::int64_t i = 0; i < one->call.count; ++i)
      if (out[i] != sum || steps != wanted) {
        std::fprintf(stderr, "error[BENCH03] %s: element %lld is %g, and should be %g; %llu steps, and should be %llu\n",
                     Describe(one->candidate.choice).c_str(), static_cast<long long>(i), static_cast<double>(out[i]),
                     static_cast<double>(sum), static_cast<unsigned long long>(steps), static_cast<unsigned long long>(wanted));
        std::_Exit(1);
      }
    std::vector<double> us = {OneUs(one->call)};
    AllMax(&us);
    one->calls = static_cast<int>(std::clamp(seconds_ * 1e6 / (us[0] + 1), double{kCallsMin}, double{kCallsMax}));
  }

  void Block(Contender* one, int round) {
    std::vector<double> us(static_cast<std::size_t>(one->calls * (round + 1) / kRounds - one->calls * round / kRounds));
    if (one->calls > kCallsMin) OneUs(one->call);  // the first after another's; of those that take milliseconds it counts like the others
    for (double& time : us) time = OneUs(one->call);
    AllMax(&us);
    std::nth_element(us.begin(), us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2), us.end());
    one->rounds_us.push_back(us[us.size() / 2]);
  }

  static void Print(std::int64_t bytes, const Contender& one, bool is_chosen) {
    const collective::Choice& choice = one.candidate.choice;
    std::string rounds;
    for (double us : one.rounds_us) rounds += (rounds.empty() ? "" : ", ") + std::to_string(us);
    std::printf(
        "{\"bytes\": %lld, \"algorithm\": \"%s\", \"segment_bytes\": %lld, \"channels\": %d, \"chosen\": %s, \"model_us\": %.3f, "
        "\"predicted_us\": %.3f, "
        "\"rounds_us\": [%s]}\n",
        static_cast<long long>(bytes), std::string(choice.algorithm).c_str(), static_cast<long long>(choice.segment_bytes), choice.channels,
        is_chosen ? "true" : "false", one.model_us, one.predicted_us, rounds.c_str());
    std::fflush(stdout);
  }

  collective::Communicator& all_;
  const double seconds_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::fprintf(stderr, "usage: bench_regret RANKS shared|tcp SECONDS_OF_CANDIDATE FOLDER [SIZE,...]\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const auto wire = std::strcmp(argv[2], "tcp") == 0 ? collective::Wire::kTcp : collective::Wire::kShared;
  return bench::RunRanks(ranks, [&](int rank, int hub) {
    collective::Rendezvous rendezvous{.rank = rank, .ranks = ranks, .machine = "here"};
    rendezvous.exchange = [&](const std::string& mine) { return Result<std::vector<std::string>>(bench::Exchange(hub, mine, ranks)); };
    const double begin = NowUs();
    const auto all = Must(collective::Communicator::Connect(
        std::move(rendezvous), {.wire = wire, .choose_by = collective::ChooseBy::kKeptCosts, .costs_folder = argv[4]}));
    const double connected = NowUs();
    (void)all->chooser()->For({.count = 1});  // makes the table
    const collective::Costs& costs = all->chooser()->costs();
    const collective::LinkModel& model = costs.model;
    if (rank == 0) {
      std::printf(
          "{\"kept\": %s, \"connect_ms\": %.1f, \"table_ms\": %.1f, \"call_ns\": %.1f, \"latency_ns\": %.1f, \"overhead_ns\": %.1f, "
          "\"ns_per_byte\": %.4f, \"alone_ns_per_byte\": %.4f, \"reduce_ns_per_byte\": %.4f, \"copy_ns_per_byte\": %.4f, \"beyond\": [",
          costs.from == collective::CostsFrom::kFile ? "true" : "false", (connected - begin) / 1000, (NowUs() - connected) / 1000,
          model.call_ns, model.latency_ns, model.overhead_ns, model.ns_per_byte, model.alone_ns_per_byte, model.reduce_ns_per_byte,
          model.copy_ns_per_byte);
      for (std::size_t i = 0; i < model.beyond.size(); ++i)
        std::printf("%s[%lld, %.4f, %.4f, %.4f]", i == 0 ? "" : ", ", static_cast<long long>(model.beyond[i].bytes),
                    model.beyond[i].ns_per_byte, model.beyond[i].reduce_ns_per_byte, model.beyond[i].copy_ns_per_byte);
      std::printf("], \"corrections\": [");
      for (std::size_t i = 0; i < costs.corrections.curves().size(); ++i) {
        const collective::Corrections::Curve& curve = costs.corrections.curves()[i];
        std::printf("%s[\"%s\", %lld, %d", i == 0 ? "" : ", ", curve.algorithm.c_str(), static_cast<long long>(curve.segment_bytes),
                    curve.channels);
        for (const collective::Corrections::Point& point : curve.points)
          std::printf(", [%lld, %.4f]", static_cast<long long>(point.bytes), point.factor);
        std::printf("]");
      }
      std::printf("]}\n");
      std::fflush(stdout);
    }
    Rank of_bench(*all, std::atof(argv[3]));
    for (const char* at = argc > 5 ? argv[5] : nullptr; at != nullptr; ++at) {
      char* end = nullptr;
      of_bench.Measure(std::strtoll(at, &end, 10));
      if (*end == '\0') break;
      at = end;
    }
    return 0;
  });
}
