// f32 kernel of random numbers: rows of Philox (uniform_row.h), for values that this rank holds whole.
#include <algorithm>

#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/philox.h"
#include "mlrunner/kernels/table_parts.h"
#include "mlrunner/kernels/uniform_row.h"

namespace ropewalk::mlrunner {
namespace {

// Where dimension 0 counts samples, or none does; no key of a round.
Result<CompiledKernel> CompileRandomUniform(const KernelRequest& r) {
  const ValueInfo& info = r.graph.value(r.op.outputs[0]);
  const std::int64_t sample_dim = r.op.attrs.Int(Attr::kSampleDim);
  if (!r.in.empty() || sample_dim > 0 || !info.sharding.IsReplicated() || !AllRowMajor(r)) return Declined();
  const Dims& dims = r.out[0].dims;
  const std::int64_t elements = NumElements(dims);
  const bool by_sample = sample_dim == 0 && !dims.empty();
  const std::int64_t samples = by_sample ? dims[0] : 1, of_a_sample = samples == 0 ? 0 : elements / samples;
  constexpr std::int64_t kPiece = 4096;
  const std::int64_t pieces = (of_a_sample + kPiece - 1) / kPiece;
  const int threads = Threads(r, elements);
  const std::uint64_t draws = r.op.stable_id;
  return CompiledKernel{[=](const KernelCall& c) {
    const std::uint64_t key = RandomKey(c.run.seed, c.run.step, draws, 0);
    ForRows(samples * pieces, threads, [&](std::int64_t i) {
      const std::int64_t sample = i / pieces, first = i % pieces * kPiece;
      const std::int64_t number = by_sample ? sample + c.run.sample_offset : 0;
      UniformRow(key, static_cast<std::uint64_t>(number), static_cast<std::uint64_t>(first), std::min(kPiece, of_a_sample - first),
                 Out(c, 0) + sample * of_a_sample + first);
    });
    return Status();
  }};
}

}  // namespace

void AddRandomKernels(KernelTable& table) { table.Add(kRandomUniform, Device::kCpu, Dtype::kF32, CompileRandomUniform); }

}  // namespace ropewalk::mlrunner
