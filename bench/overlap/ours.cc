// What is left to see of the sums over ranks when a training's backward hides them: the trainer itself (TrainRank: its graph, buckets,
// executor, communicator) over TCP, with products that sleep instead of computing, so that ranks which share few cores are as fast as
// ranks that have machines of their own.
//
// usage: bench_overlap link|step KEY=VALUE...
//   link: one line of JSON for each rank: what a lone TCP stream to the next rank moves
//   step: one line of JSON for each rank: times of steps with the sums and without, of all sums alone, of the last one alone
// Keys: ranks, namespaces (rank r lives in the network namespace NAME-r at 10.77.r.2; without it all share this machine's loopback),
// layers and width (of an MLP), bucket_bytes, micro_batches, backward_ms (of each of them), steps.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/hub.h"
#include "bench/must.h"
#include "bench/namespaces.h"
#include "mlrunner/collective/run/call_steps.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/train/trainer.h"

using namespace ropewalk;
using namespace ropewalk::mlrunner;

namespace {

constexpr std::int64_t kWarmSteps = 3;  // not measured
constexpr int kRoundsAlone = 15;        // of sums alone, of which the first are not measured

using bench::Must;
using bench::NowMs;
using bench::Setup;

double Ms(std::int64_t steady_ns) { return static_cast<double>(steady_ns) * 1e-6; }

// A rank of the bench as one of a gang. Whoever loses the hub ends (bench/hub.h): nobody has to be told of a loss.
class HubGang final : public dag::GangContext {
 public:
  HubGang(const Setup& setup, int rank, int hub)
      : rank_(rank), ranks_(setup.ranks()), hub_(hub), address_(setup.Address(rank)), machine_("machine" + std::to_string(rank)) {}
  std::int32_t rank() const override { return rank_; }
  std::int32_t ranks() const override { return ranks_; }
  std::uint32_t epoch() const override { return 0; }
  const std::string& address() const override { return address_; }
  const std::string& machine() const override { return machine_; }  // another one each: they speak TCP
  Result<std::vector<std::string>> Exchange(std::string mine) override { return bench::Exchange(hub_, mine, ranks_); }
  void OnLost(std::function<void(const Status&)>) override {}
  void Report(std::string) override {}
  void Reached(std::uint64_t) override {}

 private:
  int rank_, ranks_, hub_;
  std::string address_, machine_;
};

// Passes everything on, and keeps what was submitted since it was told to forget. With no communicator behind it, sums are not made and
// cost nothing: what is left of a step is what this rank computes.
class Watched final : public collective::Communicator {
 public:
  Watched(dag::GangContext& gang, std::unique_ptr<collective::Communicator> behind)
      : rank_(gang.rank()),
        ranks_(gang.ranks()),
        members_(static_cast<std::size_t>(ranks_)),
        nodes_(static_cast<std::size_t>(ranks_)),
        behind_(std::move(behind)) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  struct Sum {
    collective::CollectiveCall call;
    std::string name;
    double submitted_ms = 0;
    std::int64_t bytes() const { return call.count * static_cast<std::int64_t>(SizeOf(call.dtype)); }
  };
  void Forget() { sums_.clear(), steps_before_ = steps(); }
  // Since then the interpreter did what the sums take, no more and no less: nothing was measured that ran beside it.
  void CheckSteps() const {
    if (behind_ == nullptr) return;
    std::uint64_t wanted = 0;
    for (const Sum& sum : sums_) wanted += Must(collective::StepsOf(*behind_, sum.call));
    const std::uint64_t done = steps() - steps_before_;
    if (done == 0 || done != wanted)
      Must(Status(Code::kInternal, "BENCH04", fmt::format("{} sums took {} steps of the interpreter", sums_.size(), done),
                  fmt::format("their programs have {}", wanted), "let the trainer's sums go through its communicator"));
  }
  const std::vector<Sum>& sums() const { return sums_; }
  // Those from number `first` on again, as they were submitted. Until the last is there.
  void Again(std::size_t first) {
    std::vector<collective::Handle> handles;
    for (std::size_t i = first; i < sums_.size(); ++i) {
      collective::CollectiveCall call = sums_[i].call;
      call.name = sums_[i].name;
      handles.push_back(Must(behind_->Submit(call, {})));
    }
    for (const collective::Handle& handle : handles) Must(behind_->Wait(handle));
  }

  std::int32_t rank() const override { return rank_; }
  std::int32_t ranks() const override { return ranks_; }
  bool shares_memory() const override { return behind_ != nullptr && behind_->shares_memory(); }
  std::span<const std::int32_t> members() const override { return members_; }
  const collective::Nodes& nodes() const override { return nodes_; }
  const collective::Orders& orders() const override { return orders_; }
  Result<std::unique_ptr<collective::Communicator>> Split(const collective::GroupOptions&) override { return None("groups"); }
  Result<std::unique_ptr<collective::Communicator>> Shrink() override { return None("gangs that go on without some of their ranks"); }
  Result<std::unique_ptr<collective::Communicator>> Reform(const collective::ReformOptions&) override {
    return None("ranks that come or go");
  }
  Result<std::string> Invite() override { return None("ranks that come or go"); }
  bool HasNewcomers() override { return false; }
  Result<char*> Allocate(std::size_t bytes) override {
    if (behind_ != nullptr) return behind_->Allocate(bytes);
    // Zeros: what nobody sums is a number, too.
    owned_.push_back(std::make_unique<std::vector<char>>(bytes + 64));
    char* memory = owned_.back()->data();
    return memory + (64 - reinterpret_cast<std::uintptr_t>(memory) % 64) % 64;
  }
  void Free(char* memory) override {
    if (behind_ != nullptr) behind_->Free(memory);
  }
  Result<collective::Window> MakeWindow(std::size_t) override { return None("windows"); }
  Status Run(const collective::CollectiveCall&) override { return None("blocking calls"); }
  Result<collective::Handle> Submit(const collective::CollectiveCall& call, const collective::SubmitOptions& options) override {
    sums_.push_back({call, std::string(call.name), NowMs()});
    return behind_ == nullptr ? collective::Handle() : behind_->Submit(call, options);
  }
  Status Wait(const collective::Handle& handle) override { return behind_ == nullptr ? Status() : behind_->Wait(handle); }
  bool IsDone(const collective::Handle& handle) const override { return behind_ == nullptr || behind_->IsDone(handle); }
  void Working() override {
    if (behind_ != nullptr) behind_->Working();
  }
  void Abort(const Status& why) override {
    if (behind_ != nullptr) behind_->Abort(why);
  }
  std::uint64_t steps() const override { return behind_ == nullptr ? 0 : behind_->steps(); }

 private:
  static Status None(const std::string& what) {
    return Status(Code::kInvalid, "BENCH08", "the overlap bench knows no " + what, "the trainer did not ask for them when it was written",
                  "pass them on in bench/overlap/ours.cc");
  }
  std::int32_t rank_, ranks_;
  std::vector<std::int32_t> members_;
  collective::Nodes nodes_;  // all on one
  collective::Orders orders_;
  std::unique_ptr<collective::Communicator> behind_;
  std::vector<Sum> sums_;
  std::uint64_t steps_before_ = 0;
  std::vector<std::unique_ptr<std::vector<char>>> owned_;
};

// Rows of zeros with the label 0.
class Zeros final : public Samples {
 public:
  Zeros(std::int64_t count, std::int64_t width)
      : count_(count), width_(width), fields_{{"features", Dtype::kF32, {width}}, {"label", Dtype::kI32, {}, width}} {}
  std::int64_t count() const override { return count_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    const std::size_t each = call.field == 1 ? 1 : static_cast<std::size_t>(width_);
    std::memset(call.rows, 0, call.ids.size() * each * SizeOf(call.dtype));
  }
  std::uint64_t content_hash() const override { return static_cast<std::uint64_t>(width_); }

 private:
  std::int64_t count_, width_;
  std::vector<Field> fields_;
};

// What a rank gives for every weight's gradient in a step.
float GradientOf(int rank, std::uint64_t step) { return static_cast<float>(rank + 1) * static_cast<float>(1 + step % 3); }

// Products that sleep. Those of backward share `backward_ms`; gradients of weights become GradientOf, everything else zeros.
KernelMaker SleepingProducts(int rank, double backward_ms) {
  return [rank, backward_ms](const KernelRequest& r) -> Result<CompiledKernel> {
    auto is_backward = [](const Op& op) { return op.def == &kMatMul && op.provenance.phase == Phase::kBackward; };
    const auto products = std::count_if(r.graph.ops.begin(), r.graph.ops.end(), is_backward);
    const std::chrono::duration<double, std::milli> sleep(is_backward(r.op) ? backward_ms / static_cast<double>(products) : 0);
    const std::int64_t count = NumElements(r.out[0].dims);
    const bool is_of_weight = is_backward(r.op) && r.out[0].dims == Dims{r.out[0].dims.back(), r.out[0].dims.back()};
    CompiledKernel kernel;
    kernel.run = [=](const KernelCall& c) {
      if (sleep.count() > 0) std::this_thread::sleep_for(sleep);
      std::fill_n(static_cast<float*>(c.out[0]), count, is_of_weight ? GradientOf(rank, c.run.step) : 0.f);
      return Status();
    };
    return kernel;
  };
}

// From the trace of a step, from its begin on.
struct Seen {
  double backward_begin_ms = 0, backward_end_ms = 0;       // of its products, over all micro-batches
  double last_part_begin_ms = 0, first_wait_begin_ms = 0;  // the last micro-batch's first product; the first sum that is waited for
};
Seen Look(const std::vector<OpTime>& times, double begin_ms) {
  Seen seen;
  std::int32_t last_part = 0;
  for (const OpTime& time : times) {
    const double from = Ms(time.begin_ns) - begin_ms, to = Ms(time.end_ns) - begin_ms;
    if (time.op->def == &kAllReduce && time.op->half == Half::kDone && seen.first_wait_begin_ms == 0) seen.first_wait_begin_ms = from;
    if (time.op->def != &kMatMul || time.op->provenance.phase != Phase::kBackward) continue;
    if (seen.backward_end_ms == 0) seen.backward_begin_ms = seen.last_part_begin_ms = from;
    if (time.micro_batch > last_part) seen.last_part_begin_ms = from, last_part = time.micro_batch;
    seen.backward_end_ms = to;
  }
  return seen;
}

// What one training has shown.
struct Training {
  std::vector<double> step_ms, backward_ms, communication_ms, last_bucket_ms;
  std::vector<Watched::Sum> sums;  // of the last step
  double begin_ms = 0;             // of the last step
  Seen seen;                       // of the last step
};

Training Train(const Setup& setup, int rank, int hub, bool speaks) {
  const std::int64_t width = setup.Number("width", 512), steps = kWarmSteps + setup.Number("steps", 20);
  TrainJob job;
  job.model.hidden.assign(static_cast<std::size_t>(setup.Number("layers", 8)), width);
  // A weight w becomes w - (g + w) = -g: what is left of it says what was summed.
  job.optimizer = {.kind = OptimizerSpec::Kind::kSgd, .learning_rate = 1, .momentum = 0, .weight_decay = 1};
  job.ranks = setup.ranks();
  job.micro_batches = static_cast<std::int32_t>(setup.Number("micro_batches", 1));
  job.batch = std::int64_t{job.ranks} * job.micro_batches;
  job.steps = steps;
  job.bucket_bytes = static_cast<std::size_t>(setup.Number("bucket_bytes", static_cast<std::int64_t>(job.bucket_bytes)));
  job.threads = 1;

  HubGang gang(setup, rank, hub);
  Training training;
  Watched* watched = nullptr;
  std::vector<OpTime> times;
  auto meet = [&] { bench::Exchange(hub, "", job.ranks); };
  auto alone = [&](std::size_t first, std::vector<double>* took_ms) {
    for (int round = 0; round < kRoundsAlone; ++round) {
      meet();
      const double begin_ms = NowMs();
      watched->Again(first);
      if (round >= kWarmSteps) took_ms->push_back(NowMs() - begin_ms);
    }
  };
  TrainHooks hooks;
  hooks.load = [&]() -> Result<DataSet> { return DataSet{std::make_unique<Zeros>(job.batch, width), nullptr}; };
  hooks.kernels = [&](KernelTable* table) {
    table->Add(kMatMul, Device::kCpu, Dtype::kF32, SleepingProducts(rank, setup.Real("backward_ms", 100)));
  };
  hooks.connect = [&](dag::GangContext& of,
                      const collective::CommunicatorOptions& options) -> Result<std::unique_ptr<collective::Communicator>> {
    std::unique_ptr<collective::Communicator> behind;
    if (speaks) {
      ASSIGN_OR_RETURN(behind, collective::Communicator::Connect(collective::RendezvousOf(&of), options));
    }
    auto made = std::make_unique<Watched>(of, std::move(behind));
    watched = made.get();
    return std::unique_ptr<collective::Communicator>(std::move(made));
  };
  hooks.times = &times;
  hooks.on_step = [&](std::int64_t step, double) {
    const double end_ms = NowMs();
    watched->CheckSteps();
    if (step >= kWarmSteps) {
      training.step_ms.push_back(end_ms - training.begin_ms);
      training.seen = Look(times, training.begin_ms);
      training.backward_ms.push_back(training.seen.backward_end_ms - training.seen.last_part_begin_ms);
    }
    if (step + 1 == steps) {
      // Now, while the memory is there that the sums are made of.
      training.sums = watched->sums();
      if (!speaks) return;
      alone(0, &training.communication_ms);
      alone(training.sums.size() - 1, &training.last_bucket_ms);
      return;
    }
    watched->Forget();
    meet();
    training.begin_ms = NowMs();
  };
  hooks.on_parameter = [&](const std::string& name, const Tensor& tensor) {
    if (!speaks || tensor.dims.size() != 2) return;
    float wanted = 0;
    for (int r = 0; r < job.ranks; ++r)
      wanted -= GradientOf(r, static_cast<std::uint64_t>(steps - 1)) * static_cast<float>(job.micro_batches);
    for (double value : ToRef(tensor).data)
      if (std::fabs(value - wanted) > 1e-3)
        Must(Status(Code::kInternal, "BENCH09", fmt::format("a weight of {} is {} and not {}", name, value, wanted),
                    "the gradients of all ranks were not summed", "look at what was submitted"));
  };
  Must(TrainRank(gang, job, hooks).status());
  return training;
}

int StepRank(const Setup& setup, int rank, int hub) {
  const Training mute = Train(setup, rank, hub, false), real = Train(setup, rank, hub, true);
  std::vector<double> submits_ms;
  std::vector<std::int64_t> bytes;
  for (const Watched::Sum& sum : real.sums) {
    submits_ms.push_back(sum.submitted_ms - real.begin_ms);
    bytes.push_back(sum.bytes());
  }
  return bench::Say(fmt::format(
      "{{\"rank\": {}, \"step_ms\": [{:.3f}], \"compute_ms\": [{:.3f}], \"backward_ms\": [{:.3f}], \"communication_ms\": [{:.3f}], "
      "\"last_bucket_ms\": [{:.3f}], \"bucket_bytes\": [{}], \"submits_ms\": [{:.3f}], \"backward_begin_ms\": {:.3f}, "
      "\"last_part_begin_ms\": {:.3f}, \"backward_end_ms\": {:.3f}, \"first_wait_ms\": {:.3f}}}\n",
      rank, fmt::join(real.step_ms, ", "), fmt::join(mute.step_ms, ", "), fmt::join(mute.backward_ms, ", "),
      fmt::join(real.communication_ms, ", "), fmt::join(real.last_bucket_ms, ", "), fmt::join(bytes, ", "), fmt::join(submits_ms, ", "),
      real.seen.backward_begin_ms, real.seen.last_part_begin_ms, real.seen.backward_end_ms, real.seen.first_wait_begin_ms));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const Setup setup = Setup::Of(argc, argv, 2);
  if (verb != "link" && verb != "step") {
    std::fprintf(stderr, "usage: bench_overlap link|step KEY=VALUE...\n");
    return 2;
  }
  return bench::RunRanks(setup.ranks(), [&](int rank, int hub) {
    bench::Enter(setup, rank);
    return verb == "link" ? bench::LinkRank(setup, rank, hub) : StepRank(setup, rank, hub);
  });
}
