#include "mlrunner/measure/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/bytes.h"
#include "job/machine.h"
#include "mlrunner/collective/calibrate.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/run/call_steps.h"
#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/measure/contenders.h"
#include "mlrunner/measure/judge.h"
#include "mlrunner/measure/report.h"
#include "mlrunner/measure/shape.h"

namespace ropewalk::measure {
namespace {

using collective::CollectiveCall;
using collective::Communicator;
using collective::ReduceOp;

constexpr std::int64_t kRounds = 8, kIterationsMin = 5;
// What a communicator needs beside the vectors and the scratch of plans.
constexpr std::size_t kPoolBytesMore = std::size_t{256} << 20;
// A forming of a gang connects once for each wire, with an epoch of its own each time.
constexpr std::uint32_t kWiresMax = 8;

double NowUs() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One algorithm at one size.
struct Contender {
  collective::Plan plan;
  Shape shape;
  CollectiveCall call;
  std::vector<std::int64_t> counts;  // where they are learned
  std::int64_t iterations = 0;
  std::vector<double> times_us;
};

class Rank {
 public:
  Rank(dag::GangContext& gang, const BenchJob& job, std::span<const collective::Algorithm> table)
      : gang_(gang), job_(job), table_(table), neighbors_(RequestOf(job).neighbors), pattern_(job.dtype, job.op, job.ranks) {}

  Result<std::string> Run() {
    ASSIGN_OR_RETURN(largest_bytes_, BytesOfLargestSize());
    RETURN_IF_ERROR(CheckMemory());
    for (std::size_t w = 0; w < job_.wires.size(); ++w) RETURN_IF_ERROR(MeasureWire(w));
    return Encode(report_);
  }

 private:
  std::int64_t LargestBytes() const { return *std::max_element(job_.sizes.begin(), job_.sizes.end()); }

  // What a rank needs at the largest size: both vectors, and the scratch of all algorithms, which take turns. What is left of smaller sizes
  // makes way. That of plans which are not cut, with a node for each rank, is the most that there can be.
  Result<std::int64_t> BytesOfLargestSize() const {
    collective::Request request = RequestOf(job_);
    request.nodes.resize(static_cast<std::size_t>(job_.ranks));
    std::iota(request.nodes.begin(), request.nodes.end(), 0);
    std::int64_t vectors = 0, scratch = 0;
    for (const std::string& named : job_.algorithms) {
      std::int64_t most = 0;  // where one is chosen, of any that may be
      for (const collective::Algorithm& algorithm : table_) {
        if (named.empty() ? algorithm.collective != job_.collective : algorithm.name != named) continue;
        const Result<collective::Plan> plan = collective::BuildPlan(algorithm, request);
        if (named.empty() && !plan.ok()) continue;
        RETURN_IF_ERROR(plan.status());
        ASSIGN_OR_RETURN(const Shape shape, ShapeOf(*plan, LargestBytes()));
        vectors = std::max(vectors, (shape.in_elements + shape.out_elements) * static_cast<std::int64_t>(SizeOf(job_.dtype)));
        most = std::max(most, shape.scratch_bytes);
      }
      scratch += most;
    }
    return vectors + scratch;
  }

  // A vector that does not fit would end the process when it is touched, and nobody would know why.
  Status CheckMemory() {
    ASSIGN_OR_RETURN(std::vector<std::string> machines, gang_.Exchange(gang_.machine()));
    report_.machines = static_cast<std::int32_t>(std::set<std::string>(machines.begin(), machines.end()).size());
    const auto here = std::count(machines.begin(), machines.end(), gang_.machine());
    const double machine = 2 * static_cast<double>(job::HalfOfMemory());  // or of the container
    const double needed = static_cast<double>(largest_bytes_) * static_cast<double>(here);
    if (needed <= machine) return {};
    return Status(Code::kResourceExhausted, "BENCH25",
                  fmt::format("vectors of {} bytes do not fit into the machine of rank {}", LargestBytes(), gang_.rank()),
                  fmt::format("its {} rank{} would need about {:.1f} GiB, and it has {:.1f}", here, here == 1 ? "" : "s", needed / 0x1p30,
                              machine / 0x1p30),
                  "smaller --sizes, or fewer --ranks on it");
  }

  Status MeasureWire(std::size_t wire) {
    collective::Rendezvous rendezvous = collective::RendezvousOf(&gang_);
    rendezvous.epoch = rendezvous.epoch * kWiresMax + static_cast<std::uint32_t>(wire);
    collective::CommunicatorOptions options{.wire = job_.wires[wire], .choose_by = job_.choose_by, .algorithms = table_};
    options.pool_bytes = std::max(options.pool_bytes, static_cast<std::size_t>(largest_bytes_) + kPoolBytesMore);
    ASSIGN_OR_RETURN(all_, Communicator::Connect(std::move(rendezvous), options));
    WireReport of_wire{.wire = all_->shares_memory() ? "shared" : "tcp"};
    if (ChoosesByCosts()) {
      of_wire.model = all_->chooser()->costs().model;
    } else {
      ASSIGN_OR_RETURN(of_wire.model, collective::Calibrate(all_.get(), job_.dtype, job_.op));
    }
    report_.wires.push_back(std::move(of_wire));
    std::int64_t last_bytes = -1;
    for (const std::int64_t bytes : job_.sizes) {
      ASSIGN_OR_RETURN(std::vector<Contender> contenders, Prepare(bytes));
      // Of what moves no bytes every size is the same.
      if (contenders[0].shape.bytes == 0 && last_bytes == 0) continue;
      last_bytes = contenders[0].shape.bytes;
      if (all_->rank() == 0 && ChoosesByCosts())
        report_.choices.push_back({report_.wires.back().wire, last_bytes, Explain(all_->chooser()->Explain(Unnamed(contenders[0].call)))});
      chosen_ = ChosenFor(contenders[0].call);
      Status status = MeasureSize(&contenders);
      all_->Free(std::exchange(in_, nullptr));
      all_->Free(std::exchange(out_, nullptr));
      RETURN_IF_ERROR(std::move(status));
    }
    all_.reset();
    return {};
  }

  bool ChoosesByCosts() const { return all_->chooser()->costs().from != collective::CostsFrom::kNowhere; }

  Result<std::vector<Contender>> Prepare(std::int64_t bytes) {
    const collective::Request request = RequestOf(job_);
    std::vector<Contender> contenders;
    for (const std::string& algorithm : job_.algorithms) {
      Contender contender;
      contender.call = {.collective = job_.collective,
                        .count = bytes / static_cast<std::int64_t>(SizeOf(job_.dtype)),
                        .dtype = job_.dtype,
                        .op = job_.op,
                        .root = request.root,
                        .peer = request.peer,
                        .name = "bench",
                        .algorithm = algorithm};
      if (!neighbors_.empty()) contender.call.neighbors = &neighbors_;
      // How large segments are may depend on the count, and what the count is on the plan.
      ASSIGN_OR_RETURN(contender.plan, collective::PlanOf(*all_, contender.call, table_));
      ASSIGN_OR_RETURN(contender.shape, ShapeOf(contender.plan, bytes));
      contender.call.count = contender.shape.count;
      ASSIGN_OR_RETURN(contender.plan, collective::PlanOf(*all_, contender.call, table_));
      contenders.push_back(std::move(contender));
    }
    return contenders;
  }

  Status MeasureSize(std::vector<Contender>* contenders) {
    std::int64_t in_elements = 1, out_elements = 1;
    for (const Contender& contender : *contenders) {
      in_elements = std::max(in_elements, contender.shape.in_elements);
      out_elements = std::max(out_elements, contender.shape.out_elements);
    }
    const std::size_t element = SizeOf(job_.dtype);
    ASSIGN_OR_RETURN(in_, all_->Allocate(static_cast<std::size_t>(in_elements) * element));
    ASSIGN_OR_RETURN(out_, all_->Allocate(static_cast<std::size_t>(out_elements) * element));
    pattern_.Fill(all_->rank(), in_, in_elements);
    Spoil(out_, out_elements * static_cast<std::int64_t>(element));
    for (Contender& contender : *contenders) {
      contender.call.in = in_;
      contender.call.out = out_;
      if (!collective::LearnsCounts(job_.collective)) continue;
      contender.counts.assign(static_cast<std::size_t>(all_->ranks()), contender.shape.each);
      contender.call.counts = contender.counts.data();
    }
    for (Contender& contender : *contenders) RETURN_IF_ERROR(WarmUp(&contender));
    for (std::int64_t round = 0; round < kRounds; ++round)
      for (std::size_t i = 0; i < contenders->size(); ++i)
        RETURN_IF_ERROR(Block(&(*contenders)[round % 2 == 0 ? i : contenders->size() - 1 - i], round));
    for (Contender& contender : *contenders) RETURN_IF_ERROR(Finish(&contender));
    return {};
  }

  Result<double> OneUs(const CollectiveCall& call) {
    RETURN_IF_ERROR(all_->Barrier());
    const double begin = NowUs();
    RETURN_IF_ERROR(all_->Run(call));
    return NowUs() - begin;
  }

  Status AllMax(std::vector<double>* numbers) {
    return all_->AllReduce({.in = numbers->data(),
                            .out = numbers->data(),
                            .count = static_cast<std::int64_t>(numbers->size()),
                            .dtype = collective::Dtype::kF64,
                            .op = ReduceOp::kMax,
                            .name = "bench times"});
  }

  // Also decides how many iterations there are, by what all ranks know.
  Status WarmUp(Contender* contender) {
    std::vector<double> us(1);
    for (std::int32_t i = 0; i < std::max(job_.warmup, 1); ++i) {
      ASSIGN_OR_RETURN(us[0], OneUs(contender->call));
    }
    RETURN_IF_ERROR(AllMax(&us));
    const double fitting = job_.seconds * 1e6 / std::max(us[0], .1);
    contender->iterations = job_.iterations > 0
                                ? job_.iterations
                                : static_cast<std::int64_t>(std::clamp(fitting, double{kIterationsMin}, double{kIterationsMax}));
    return {};
  }

  // Its part of the iterations. Where there are several, the first call after another algorithm's is not counted.
  Status Block(Contender* contender, std::int64_t round) {
    const std::int64_t iterations = contender->iterations * (round + 1) / kRounds - contender->iterations * round / kRounds;
    if (iterations > 1) RETURN_IF_ERROR(OneUs(contender->call).status());
    for (std::int64_t i = 0; i < iterations; ++i) {
      ASSIGN_OR_RETURN(double us, OneUs(contender->call));
      contender->times_us.push_back(us);
    }
    return {};
  }

  static CollectiveCall Unnamed(CollectiveCall call) {
    call.algorithm = {};
    return call;
  }
  // By which algorithm the communicator runs it where none is named; empty: by none.
  std::string ChosenFor(const CollectiveCall& call) const {
    const auto chosen = collective::PlanOf(*all_, Unnamed(call), table_);
    return chosen.ok() ? chosen->header.algorithm : "";
  }

  Status Finish(Contender* contender) {
    RETURN_IF_ERROR(AllMax(&contender->times_us));
    std::sort(contender->times_us.begin(), contender->times_us.end());
    Point point{.algorithm = contender->plan.header.algorithm,
                .wire = report_.wires.back().wire,
                .bytes = contender->shape.bytes,
                .count = contender->shape.count,
                .iterations = contender->iterations,
                .median_us = Quantile(contender->times_us, .5),
                .p95_us = Quantile(contender->times_us, .95),
                .least_us = contender->times_us[0]};
    if (job_.check) RETURN_IF_ERROR(Check(*contender, &point));
    if (all_->rank() != 0) return {};
    point.is_chosen = point.algorithm == chosen_;
    ASSIGN_OR_RETURN(double predicted_ns, collective::PredictNs(report_.wires.back().model, contender->plan, contender->shape.sizes));
    if (ChoosesByCosts()) predicted_ns *= all_->chooser()->costs().corrections.FactorOf(contender->plan.header, contender->call.count);
    point.predicted_us = predicted_ns / 1000;
    gang_.Report(fmt::format("{} of {} bytes over {}: {:.1f} us", point.algorithm, point.bytes, point.wire, point.median_us));
    report_.points.push_back(std::move(point));
    return {};
  }

  Status Check(const Contender& contender, Point* point) {
    Spoil(out_, contender.shape.out_elements * static_cast<std::int64_t>(SizeOf(job_.dtype)));
    RETURN_IF_ERROR(OneUs(contender.call).status());
    ASSIGN_OR_RETURN(Verdict verdict, Look(contender.plan, contender.shape.sizes, pattern_, all_->rank(), out_));
    std::int64_t wrong = verdict.wrong;
    RETURN_IF_ERROR(all_->AllReduce({.in = &wrong, .out = &wrong, .count = 1, .dtype = collective::Dtype::kI64, .name = "bench wrong"}));
    point->wrong = wrong;
    if (wrong == 0) return {};
    ASSIGN_OR_RETURN(std::vector<std::string> places, gang_.Exchange(verdict.first));
    for (std::size_t rank = 0; rank < places.size() && point->first_wrong.empty(); ++rank)
      if (!places[rank].empty()) point->first_wrong = fmt::format("rank {}: {}", rank, places[rank]);
    return {};
  }

  dag::GangContext& gang_;
  const BenchJob& job_;
  const std::span<const collective::Algorithm> table_;
  const collective::Neighbors neighbors_;
  const Pattern pattern_;
  std::unique_ptr<Communicator> all_;
  BenchReport report_;
  std::int64_t largest_bytes_ = 0;  // BytesOfLargestSize()
  std::string chosen_;              // ChosenFor() the size that is measured
  char *in_ = nullptr, *out_ = nullptr;
};

}  // namespace

Result<std::string> BenchRank(dag::GangContext& gang, const BenchJob& job, std::span<const collective::Algorithm> table) {
  return Rank(gang, job, table).Run();
}

}  // namespace ropewalk::measure
