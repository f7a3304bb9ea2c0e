#include "mlrunner/kernels/padded_product.h"

#include <dnnl.h>

#include <algorithm>
#include <cstring>

#include "mlrunner/kernels/cpu.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kRowsAtOnce = 512;  // of the factors: what is copied stays in the cache until it is multiplied
constexpr std::int64_t kMeetEvery = 512;   // floats

bool StepsItself() {  // the GEMM that packs nothing
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return isa == dnnl_cpu_isa_sse41 || isa == dnnl_cpu_isa_avx || isa == dnnl_cpu_isa_avx2 || isa == dnnl_cpu_isa_avx2_vnni;
}

// A factor of k rows, read where it lies or from a padded copy of some rows.
struct Factor {
  std::int64_t width = 0;
  bool copied = false;

  explicit Factor(std::int64_t w) : width(w), copied(w % kMeetEvery == 0) {}
  std::int64_t Lead() const { return copied ? width + kRowPadding : width; }
  std::int64_t Floats() const { return copied ? kRowsAtOnce * Lead() : 0; }
  const float* Rows(const float* factor, std::int64_t first, std::int64_t rows, int threads, float* memory) const {
    const float* from = factor + first * width;
    if (!copied) return from;
    ForRows(rows, threads, [&](std::int64_t row) {
      std::memcpy(memory + row * Lead(), from + row * width, static_cast<std::size_t>(width) * sizeof(float));
    });
    return memory;
  }
};

}  // namespace

std::optional<CompiledKernel> PaddedProduct(std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
  const Factor a(m), b(n);
  // Each element that is copied is used at least so many times.
  constexpr std::int64_t kUses = 64;
  if (!StepsItself() || (!a.copied && !b.copied) || std::min(m, n) < kUses || k < kUses) return std::nullopt;
  return CompiledKernel{[=](const KernelCall& call) {
                          auto* memory = static_cast<float*>(call.scratch);
                          for (std::int64_t first = 0; first < k; first += kRowsAtOnce) {
                            const std::int64_t rows = std::min(kRowsAtOnce, k - first);
                            const float* of_a = a.Rows(In(call, 0), first, rows, threads, memory);
                            const float* of_b = b.Rows(In(call, 1), first, rows, threads, memory + a.Floats());
                            const dnnl_status_t status = dnnl_sgemm('T', 'N', m, n, rows, 1, of_a, a.Lead(), of_b, b.Lead(),
                                                                    first == 0 ? 0.0f : 1.0f, Out(call, 0), n);
                            if (status != dnnl_success) return OneDnnFailed("sgemm");
                          }
                          return Status();
                        },
                        static_cast<std::size_t>(a.Floats() + b.Floats()) * sizeof(float)};
}

}  // namespace ropewalk::mlrunner
