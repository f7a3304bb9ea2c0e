// CPU kernels of ops that send rows to experts.
#include <algorithm>

#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/routing.h"

namespace ropewalk::mlrunner {
namespace {

Result<CompiledKernel> CompileTopK(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  const std::int64_t n = r.in[0].dims.back(), count = r.out[0].dims.back(), rows = NumElements(r.out[0].dims) / count;
  const int threads = Threads(r, rows * n);
  return CompiledKernel{[=](const KernelCall& c) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* x = static_cast<const float*>(c.in[0]) + row * n;
      auto* values = static_cast<float*>(c.out[0]) + row * count;
      auto* places = static_cast<std::int64_t*>(c.out[1]) + row * count;
      LargestPlaces(x, n, count, places);
      for (std::int64_t k = 0; k < count; ++k) values[k] = x[places[k]];
    }
    return Status();
  }};
}

Result<CompiledKernel> CompileTopKGrad(const KernelRequest& r) {
  if (!AllRowMajor(r) || r.in[0].dtype != Dtype::kI64) return Declined();
  const std::int64_t n = r.out[0].dims.back(), count = r.in[0].dims.back(), all = NumElements(r.in[0].dims);
  if (count == 0) return Declined();
  return CompiledKernel{[=](const KernelCall& c) {
    const auto* places = static_cast<const std::int64_t*>(c.in[0]);
    const auto* g = static_cast<const float*>(c.in[1]);
    auto* y = static_cast<float*>(c.out[0]);
    std::fill_n(y, all / count * n, 0.0f);
    for (std::int64_t i = 0; i < all; ++i) {
      if (places[i] < 0 || places[i] >= n) return NoSuchRow("place", i, places[i], n);
      y[i / count * n + places[i]] += g[i];
    }
    return Status();
  }};
}

template <class T>
CompiledKernel Slots(const Dims& dims, std::int64_t count, std::int64_t capacity) {
  return CompiledKernel{
      [=](const KernelCall& c) { return FindSlots(static_cast<const T*>(c.in[0]), dims, count, capacity, static_cast<T*>(c.out[0])); }};
}
Result<CompiledKernel> CompileExpertSlots(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  const Dims& dims = r.in[0].dims;
  const std::int64_t count = r.op.attrs.Int(Attr::kCount);
  const std::int64_t capacity = r.op.attrs.DimOf(Attr::kDim).Evaluate(r.bindings);
  return r.in[0].dtype == Dtype::kI64 ? Slots<std::int64_t>(dims, count, capacity) : Slots<std::int32_t>(dims, count, capacity);
}

}  // namespace

void AddRoutingKernels(KernelTable& table) {
  table.Add(kTopK, Device::kCpu, Dtype::kF32, CompileTopK);
  table.Add(kTopKGrad, Device::kCpu, Dtype::kF32, CompileTopKGrad);
  for (Dtype dtype : {Dtype::kI32, Dtype::kI64}) table.Add(kExpertSlots, Device::kCpu, dtype, CompileExpertSlots);
}

}  // namespace ropewalk::mlrunner
