// Kernels of bf16 and f16 by those of f32: operands are widened, which is exact, the f32 kernel computes with f32 sums, and each result is
// rounded once. So every op that has a kernel of f32 has one of 16 bits, on processors without instructions for such numbers too.
#include <memory>
#include <utility>

#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/half_blocks.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::size_t kAlignment = 64;

// An input or output of 16 bits, and where its floats lie in the scratch memory.
struct Widened {
  std::size_t index = 0, offset = 0;
  Dtype dtype = Dtype::kBF16;
  std::int64_t count = 0;
  int threads = 1;
};

// Takes those of 16 bits out of `types`, which are f32 then, and gives them room behind `bytes`.
std::vector<Widened> Widen(const KernelRequest& r, std::vector<ConcreteType>* types, std::size_t* bytes) {
  std::vector<Widened> widened;
  for (std::size_t i = 0; i < types->size(); ++i) {
    ConcreteType& type = (*types)[i];
    if (!IsHalf(type.dtype)) continue;
    const std::int64_t count = type.layout.PhysicalElements(type.dims);
    widened.push_back({i, *bytes, type.dtype, count, Threads(r, count)});
    *bytes += (static_cast<std::size_t>(count) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    type.dtype = Dtype::kF32;
  }
  return widened;
}

float* FloatsOf(const Widened& w, const KernelCall& call) { return reinterpret_cast<float*>(static_cast<char*>(call.scratch) + w.offset); }

}  // namespace

KernelMaker WidenedKernel(KernelMaker f32) {
  return [f32 = std::move(f32)](const KernelRequest& r) -> Result<CompiledKernel> {
    KernelRequest wide = r;
    std::size_t bytes = 0;
    std::vector<Widened> in = Widen(r, &wide.in, &bytes), out = Widen(r, &wide.out, &bytes);
    ASSIGN_OR_RETURN(CompiledKernel inner, f32(wide));
    // The inner kernel's own scratch memory lies behind the floats.
    CompiledKernel compiled;
    compiled.scratch_bytes = bytes + inner.scratch_bytes;
    const std::size_t inputs = r.in.size(), outputs = r.out.size();
    compiled.run = [in = std::move(in), out = std::move(out), run = std::move(inner.run), bytes, inputs, outputs](const KernelCall& call) {
      std::vector<void*> from(call.in, call.in + inputs), to(call.out, call.out + outputs);
      for (const Widened& w : in) {
        const auto* halves = static_cast<const std::uint16_t*>(call.in[w.index]);
        float* floats = FloatsOf(w, call);
        ForStretches(w.count, w.threads,
                     [&](std::int64_t begin, std::int64_t end) { WidenHalves(w.dtype, halves + begin, floats + begin, end - begin); });
        from[w.index] = floats;
      }
      for (const Widened& w : out) to[w.index] = FloatsOf(w, call);
      RETURN_IF_ERROR(run({from.data(), to.data(), static_cast<char*>(call.scratch) + bytes, call.run}));
      for (const Widened& w : out) {
        auto* halves = static_cast<std::uint16_t*>(call.out[w.index]);
        const float* floats = FloatsOf(w, call);
        ForStretches(w.count, w.threads,
                     [&](std::int64_t begin, std::int64_t end) { NarrowToHalves(w.dtype, floats + begin, halves + begin, end - begin); });
      }
      return Status();
    };
    return compiled;
  };
}

}  // namespace ropewalk::mlrunner
