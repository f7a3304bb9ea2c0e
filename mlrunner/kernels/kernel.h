// The kernel table: how an op is computed, keyed by (op, device, element type).
//
// A kernel is compiled once for an op with numbers for its dimensions (that is where oneDNN makes its primitives), and then run many times
// with pointers alone. Ops that a device has no kernel for fall back to the float64 reference, so every graph runs everywhere.
//
// Owner: whoever builds the table; strategies add kernels of their own ops to a copy. Thread rule: a table is const once built; a
// compiled kernel
// is run by one thread at a time, and may use an OpenMP team inside.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/reference.h"

namespace ropewalk::mlrunner {

enum class Device : std::uint8_t { kReference, kCpu, kGpu };

struct ConcreteType {
  Dtype dtype = Dtype::kF32;
  Dims dims;
  Layout layout;
  std::size_t Bytes() const { return static_cast<std::size_t>(layout.PhysicalElements(dims)) * SizeOf(dtype); }
};

struct KernelRequest {
  const Graph& graph;  // lives as long as the compiled kernel
  const Op& op;
  const Bindings& bindings;
  std::vector<ConcreteType> in, out;
  int num_threads = 1;
};

struct KernelCall {
  void* const* in;   // one for each input; null for tokens
  void* const* out;  // may equal an input's where the op is elementwise and the sizes agree
  void* scratch;     // scratch_bytes, aligned to 64
  const RunContext& run;
};

struct CompiledKernel {
  std::function<Status(const KernelCall&)> run;
  std::size_t scratch_bytes = 0;
  // For split ops: `run` starts the work, `wait` ends it. Empty: run has done everything. A run that fails elsewhere does not wait: then
  // the kernel's end must, or see to it that nothing is written any more.
  std::function<Status()> wait;
  bool is_reference = false;
};
using KernelMaker = std::function<Result<CompiledKernel>(const KernelRequest&)>;

class KernelTable {
 public:
  void Add(const OpDef& def, Device device, Dtype dtype, KernelMaker maker) { makers_[{&def, device, dtype}] = std::move(maker); }
  // The makers of one device and element type, by op.
  std::map<const OpDef*, KernelMaker> Makers(Device device, Dtype dtype) const;
  // The kernel of that device, else the CPU's, else the reference.
  Result<CompiledKernel> Compile(Device device, const KernelRequest& request) const;
  RefTable& reference() { return reference_; }

 private:
  std::map<std::tuple<const OpDef*, Device, Dtype>, KernelMaker> makers_;
  RefTable reference_ = ReferenceKernels();
};

// The element type that an op's kernel is looked up by: of its first floating-point input, else of its first output with elements.
Dtype KernelDtype(const KernelRequest& request);

// All fast kernels of the CPU: oneDNN products and convolutions, loops for the rest. They are of f32; those of bf16 and f16 compute in f32
// and round each result once, but for products where oneDNN has them for this processor.
KernelTable CpuKernels();

// The layouts in which they are fastest: a processor with wide registers gets images whose channels lie in blocks. What AssignLayouts asks.
PreferredLayout CpuLayouts();

// A kernel of f32 for operands of which some are bf16 or f16: these are widened, and results of 16 bits rounded once.
KernelMaker WidenedKernel(KernelMaker f32);

// Parts of it, one for each file.
void AddProductKernels(KernelTable& table);      // oneDNN
void AddElementwiseKernels(KernelTable& table);  // also Map
void AddRowKernels(KernelTable& table);          // softmax, layer norm, cross entropy, gather, reductions, transposes
void AddSequenceKernels(KernelTable& table);     // LSTM
void AddTableKernels(KernelTable& table);        // sums of rows, updates of rows, bags, pairs
void AddRoutingKernels(KernelTable& table);      // the largest of a row, places at experts
void AddNormKernels(KernelTable& table);         // batch norm
void AddPoolKernels(KernelTable& table);         // maxima and means of windows

}  // namespace ropewalk::mlrunner
