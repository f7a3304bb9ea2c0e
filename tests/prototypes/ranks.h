// What the prototypes share: ranks as threads of this process, the kernels of the ops between ranks over real transports, and a small
// classification problem.
//
// A *channel* of a graph is a communicator: a set of ranks, their transport, and for each rank a thread that does what the rank asks for in
// the order in which it asks. Ops that are halves overlap with what the executor does in between.
//
// Owner: the test owns the World; executables must go before it. Thread rule: Kernels() and what it gives belong to the rank's thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/passes/rewriter.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::mlrunner::prototypes {

using collective::testing::Kind;

// One rank's end of a channel: its transport, and the thread that drives it.
class End {
 public:
  explicit End(collective::Transport& transport) : transport_(transport), thread_([this] { Serve(); }) {}
  ~End() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  collective::Transport& transport() { return transport_; }
  std::future<Status> Submit(std::function<Status()> work) {
    std::packaged_task<Status()> task(std::move(work));
    std::future<Status> future = task.get_future();
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_one();
    return future;
  }

 private:
  void Serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::packaged_task<Status()> task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
    }
  }

  collective::Transport& transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<Status()>> queue_;
  bool ended_ = false;
  std::thread thread_;
};

// A collective of a channel that is bound to its sizes: what a kernel runs.
class Bound {
 public:
  ~Bound() {
    if (done_.valid()) done_.wait();  // a run that failed elsewhere leaves what it started
  }
  static Result<std::shared_ptr<Bound>> Make(Result<collective::RankPlan> plan, std::int64_t count, End& end) {
    RETURN_IF_ERROR(plan.status());
    auto bound = std::shared_ptr<Bound>(new Bound(*std::move(plan), end));
    ASSIGN_OR_RETURN(bound->instance_,
                     collective::Instance::Make(&bound->plan_.header, &bound->plan_.program, {.count = count}, &end.transport()));
    return bound;
  }
  void Start(const void* in, void* out) {
    done_ = end_.Submit([this, in, out] {
      Status status = instance_->Bind(std::vector<void*>{const_cast<void*>(in), out});
      return status.ok() ? instance_->Run() : status;
    });
  }
  Status Wait() { return done_.get(); }

 private:
  Bound(collective::RankPlan plan, End& end) : plan_(std::move(plan)), end_(end) {}
  collective::RankPlan plan_;
  End& end_;
  std::unique_ptr<collective::Instance> instance_;
  std::future<Status> done_;
};

// A kernel that starts `bound` on the op's operand `in` (-1: none) and result `out` (-1: none).
inline CompiledKernel KernelOf(std::shared_ptr<Bound> bound, int in, int out) {
  CompiledKernel kernel;
  kernel.run = [bound, in, out](const KernelCall& call) {
    bound->Start(in < 0 ? nullptr : call.in[in], out < 0 ? nullptr : call.out[out]);
    return Status();
  };
  kernel.wait = [bound] { return bound->Wait(); };
  return kernel;
}

// A kernel of a strategy's own op that does all its work when it is run. `make` sees the op once (the request dies with the compiler).
using RunKernel = std::function<Status(const KernelCall& call)>;
inline void AddKernel(KernelTable& table, const OpDef& def, Dtype dtype, std::function<RunKernel(const KernelRequest& request)> make) {
  table.Add(def, Device::kCpu, dtype,
            [make](const KernelRequest& request) -> Result<CompiledKernel> { return CompiledKernel{make(request)}; });
}

class World {
 public:
  // `channels`: by the name of their state in the graphs, the ranks that take part.
  World(std::int32_t ranks, const std::map<std::string, std::vector<std::int32_t>>& channels, Kind kind = Kind::kThreads) : ranks_(ranks) {
    for (const auto& [name, members] : channels) {
      Channel& channel = channels_[name];
      channel.members = members;
      channel.fabric = std::make_unique<collective::testing::Fabric>(kind, static_cast<std::int32_t>(members.size()), 2);
      for (std::size_t i = 0; i < members.size(); ++i)
        channel.ends.push_back(std::make_unique<End>(channel.fabric->endpoint(static_cast<std::int32_t>(i))));
    }
  }

  // Runs `body` on every rank. A rank that fails frees the others. The first failure that is not "another rank is lost".
  Status Run(const std::function<Status(std::int32_t)>& body) {
    std::vector<Status> statuses(ranks_);
    collective::testing::OnAllRanks(ranks_, [&](std::int32_t rank) {
      statuses[rank] = body(rank);
      if (!statuses[rank].ok()) Abort();
    });
    Status first;
    for (const Status& status : statuses)
      if (!status.ok() && (first.ok() || first.tag() == "COLL20")) first = status;
    return first;
  }

  // Frees every rank that waits for another. From any thread.
  void Abort() {
    for (auto& [name, channel] : channels_)
      for (auto& end : channel.ends) end->transport().Abort();
  }

  End& EndOf(const std::string& channel, std::int32_t rank) { return *channels_.at(channel).ends.at(PlaceIn(channel, rank)); }
  std::int32_t PlaceIn(const std::string& channel, std::int32_t rank) const {
    const std::vector<std::int32_t>& members = channels_.at(channel).members;
    return static_cast<std::int32_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  }
  std::int32_t SizeOf(const std::string& channel) const { return static_cast<std::int32_t>(channels_.at(channel).members.size()); }

  // The channel of an op between ranks.
  static std::string ChannelOf(const KernelRequest& request) {
    return request.graph.state(request.graph.value(request.op.inputs[0]).state).name;
  }

  // The CPU's kernels, and those of sums and messages between ranks, for `rank`.
  KernelTable Kernels(std::int32_t rank) {
    KernelTable table = CpuKernels();
    for (Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
      table.Add(kAllReduce, Device::kCpu, dtype, [this, rank](const KernelRequest& request) -> Result<CompiledKernel> {
        std::string channel = ChannelOf(request);
        collective::Request wanted{.dtype = request.in[1].dtype, .ranks = SizeOf(channel), .deterministic = true};
        ASSIGN_OR_RETURN(auto bound, Bound::Make(collective::BuildProgram("direct", wanted, PlaceIn(channel, rank)),
                                                 NumElements(request.in[1].dims), EndOf(channel, rank)));
        return KernelOf(bound, 1, 1);
      });
      for (const OpDef* def : {&kSend, &kRecv}) {
        table.Add(*def, Device::kCpu, dtype, [this, rank, def](const KernelRequest& request) -> Result<CompiledKernel> {
          std::string channel = ChannelOf(request);
          const bool sends = def == &kSend;
          const ConcreteType& type = sends ? request.in[1] : request.out[1];
          std::int32_t me = PlaceIn(channel, rank), peer = PlaceIn(channel, static_cast<std::int32_t>(request.op.attrs.Int(Attr::kPeer)));
          collective::Request wanted{.collective = collective::Collective::kSendRecv,
                                     .dtype = type.dtype,
                                     .ranks = SizeOf(channel),
                                     .root = sends ? me : peer,
                                     .peer = sends ? peer : me};
          ASSIGN_OR_RETURN(auto bound,
                           Bound::Make(collective::BuildProgram("send_recv", wanted, me), NumElements(type.dims), EndOf(channel, rank)));
          return KernelOf(bound, sends ? 1 : -1, sends ? -1 : 1);
        });
      }
    }
    return table;
  }

 private:
  struct Channel {
    std::vector<std::int32_t> members;
    std::unique_ptr<collective::testing::Fabric> fabric;
    std::vector<std::unique_ptr<End>> ends;
  };
  std::int32_t ranks_;
  std::map<std::string, Channel> channels_;
};

// --- a small problem: which of four sums is the largest ---

struct Batch {
  Tensor x, labels;  // (rows, 8), (rows)
};
inline Batch MakeBatch(std::uint64_t step, std::int64_t rows, Dtype dtype = Dtype::kF32) {
  Random random(step + 77);
  RefTensor x{{rows, 8}, {}}, labels{{rows}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    double best = -10, label = 0;
    for (int k = 0; k < 4; ++k) {
      double a = RoundTo(dtype, random.Unit() * 2 - 1), c = RoundTo(dtype, random.Unit() * 2 - 1);
      x.data.insert(x.data.end(), {a, c});
      if (a + c > best) {
        best = a + c;
        label = k;
      }
    }
    labels.data.push_back(label);
  }
  return {ToTensor(dtype, x), ToTensor(Dtype::kI32, labels)};
}
// Rows [begin, end) of a tensor.
inline Tensor Rows(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(tensor.dims[0]);
  Tensor part{tensor.dtype, tensor.dims, {}};
  part.dims[0] = end - begin;
  part.bytes.assign(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(row) * begin,
                    tensor.bytes.begin() + static_cast<std::ptrdiff_t>(row) * end);
  return part;
}
// Part `index` of `parts` of the batch.
inline Batch Part(const Batch& batch, std::int64_t index, std::int64_t parts) {
  std::int64_t rows = batch.labels.dims[0] / parts;
  return {Rows(batch.x, index * rows, (index + 1) * rows), Rows(batch.labels, index * rows, (index + 1) * rows)};
}

// One step on a batch: the first output, a loss.
inline Result<double> Step(Executable& executable, const Batch& batch, StateStore& states, std::int32_t rank = 0) {
  RunInputs inputs;
  inputs.micro_batches[0] = {&batch.x, &batch.labels};
  inputs.run.rank = rank;
  ASSIGN_OR_RETURN(RunOutputs outputs, executable.Run(inputs, states));
  return ToRef(outputs.outputs[0][0]).data.at(0);
}

struct Linear {
  Parameter w, c;
  Linear(Builder& b, const std::string& name, int in, int out, Dtype dtype = Dtype::kF32)
      : w(b.NewParameter(name + "/w", {in, out}, Initializer::Normal(1 / std::sqrt(in)), dtype)),
        c(b.NewParameter(name + "/b", {out}, Initializer::Zeros(), dtype)) {}
  Value operator()(const Value& x) const { return MatMul(x, w) + c; }
};

inline double Scalar(const Tensor& tensor) { return ToRef(tensor).data.at(0); }
inline double MeanOfLast(const std::vector<double>& values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = values.size() - count; i < values.size(); ++i) sum += values[i];
  return sum / static_cast<double>(count);
}
// The largest difference of two tensors of one shape; infinite where they differ in shape or are not numbers.
inline double Distance(const Tensor& a, const Tensor& b) {
  if (a.dims != b.dims || a.dtype != b.dtype || a.bytes.empty()) return HUGE_VAL;
  RefTensor x = ToRef(a), y = ToRef(b);
  double worst = 0;
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    double difference = std::fabs(x.data[i] - y.data[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? HUGE_VAL : difference;
  }
  return worst;
}
// Parameters of `graph` that are not the same bits in both stores (all of them, or those that `chosen` takes).
inline std::vector<std::string> Different(const Graph& graph, const StateStore& a, const StateStore& b,
                                          const std::function<bool(const StateInfo&)>& chosen = nullptr) {
  std::vector<std::string> names;
  for (const StateInfo& state : graph.states) {
    if (state.kind != StateKind::kParameter || (chosen && !chosen(state))) continue;
    Tensor x = a.Get(state.name), y = b.Get(state.name);
    if (x.bytes.empty() || x.bytes != y.bytes) names.push_back(state.name);
  }
  return names;
}

}  // namespace ropewalk::mlrunner::prototypes
