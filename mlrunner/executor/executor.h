// Executor: runs a model graph as a program of (region, micro-batch, stream).
//
// An executable is compiled for one graph, one program, and numbers for the symbols: kernels are chosen and made, memory is planned over
// the
// whole program, and a run only binds pointers. A run allocates nothing but the copies of its outputs.
//
// Owner: the caller owns the executable and the states; both may outlive a run, the graph must outlive the executable. Thread rule: one
// run at
// a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/kernels/kernel.h"

namespace ropewalk::mlrunner {

// One step of a program. Steps are given in an order that is legal; what has different streams may overlap where start and done halves let
// it. A value of a region exists once for each micro-batch; states exist once. The ops of `beside`, a region that runs once, are run within
// this step, each where the graph has it, for micro-batch 0: what the last micro-batch's backward finishes can go while it goes on.
struct ProgramStep {
  RegionId region;
  std::int32_t micro_batch = 0;
  std::int32_t stream = 0;
  RegionId beside{};
  friend bool operator==(const ProgramStep&, const ProgramStep&) = default;
};
using Program = std::vector<ProgramStep>;

// All regions once, for micro-batch 0: each after those that it needs, else in the order of their first ops.
Program DefaultProgram(const Graph& graph);

struct Tensor {
  Dtype dtype = Dtype::kF32;
  Dims dims;
  std::vector<std::byte> bytes;  // row-major
};
Tensor ToTensor(Dtype dtype, const RefTensor& values);
RefTensor ToRef(const Tensor& tensor);
// Whether each element is a number, and none infinite.
bool IsFinite(const Tensor& tensor);

// The states of one rank, by name. Buffers keep their places for as long as they exist.
class StateStore {
 public:
  // The state's buffer, made and initialised where there is none.
  Result<void*> Find(const Graph& graph, const StateInfo& state, const Bindings& bindings, const RunContext& run);
  Tensor Get(const std::string& name) const;
  void Set(const std::string& name, Tensor tensor) { tensors_[name] = std::make_unique<Tensor>(std::move(tensor)); }
  std::size_t Bytes() const;

 private:
  std::map<std::string, std::unique_ptr<Tensor>> tensors_;
};

struct ExecutorOptions {
  Device device = Device::kCpu;
  int num_threads = 1;
  bool reuse_memory = true;  // false: each value has a place of its own (a check of the planner)
  // Gives the memory that ops between ranks read and write (buckets and their sums), for as long as the executable lives; peers may read it
  // where it lies. Called once at most. Empty: it lies with everything else.
  std::function<Result<char*>(std::size_t bytes)> registered_memory;
};

// When an op ran, in nanoseconds of the steady clock: of a start half, when it had been handed over.
struct OpTime {
  const Op* op = nullptr;
  std::int32_t micro_batch = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
};

// Work that a failed run has started may read its inputs until the executable is gone (CompiledKernel::wait), and so may peers in the same
// process: they have to live as long.
struct RunInputs {
  std::vector<std::vector<const Tensor*>> micro_batches = {{}};  // [micro-batch][input in the order of graph.inputs]
  RunContext run;                                                // sample_offset is that of micro-batch 0
  std::vector<std::int64_t> sample_offsets;                      // of each micro-batch; empty: all run.sample_offset
  std::vector<OpTime>* times = nullptr;                          // gets one entry for each op, in the order of the run
};
struct RunOutputs {
  std::vector<std::vector<Tensor>> outputs;         // [micro-batch][in the order of graph.outputs]; empty where its region did not run
  std::vector<std::map<std::string, Tensor>> taps;  // [micro-batch]
};

class Executable {
 public:
  struct Impl;  // what a run needs, in executor.cc
  ~Executable();
  // After a failure start halves may still be at work on the executable's memory: end what they wait for before it is destroyed.
  Result<RunOutputs> Run(const RunInputs& inputs, StateStore& states);

  std::size_t arena_bytes() const;        // planned memory, states and registered memory not counted
  std::size_t registered_bytes() const;   // of that
  std::size_t arena_bytes_bound() const;  // the most that is alive at once: a lower bound of any plan
  std::size_t fallback_ops() const;       // instructions without a fast kernel

 private:
  friend Result<std::unique_ptr<Executable>> Compile(const Graph&, const Bindings&, const Program&, const KernelTable&,
                                                     const ExecutorOptions&);
  std::unique_ptr<Impl> impl_;
};

// Refuses (RUN06) a program that uses a value before it is made, or a graph whose kernels are missing (RUN02). `table` is used only here.
Result<std::unique_ptr<Executable>> Compile(const Graph& graph, const Bindings& bindings, const Program& program, const KernelTable& table,
                                            const ExecutorOptions& options = {});

}  // namespace ropewalk::mlrunner
