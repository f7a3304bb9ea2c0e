// The GPU's kernels in the kernel table: products by cuBLASLt, AdamW, cross entropy and its gradient, for f32 and bf16.
//
// The executor keeps values in the host's memory. So each of these kernels takes its inputs to the device and brings its outputs back, and
// an op without a GPU kernel is computed by the CPU's at the same place. That is right and not fast: a device-resident arena is what
// the executor needs next, and the plugin's calls take device memory already.
//
// Thread rule: as the table.
#pragma once

#include <memory>

#include "mlrunner/gpu/gpu.h"
#include "mlrunner/graph/shape.h"
#include "mlrunner/kernels/kernel.h"

namespace ropewalk::mlrunner {

// For executables with Device::kGpu. Compiled kernels hold the GPU; with one GPU only one executable runs at a time.
void AddGpuKernels(KernelTable* table, const std::shared_ptr<Gpu>& gpu);

// The product of two row-major tensors as one batch of matrices, each side the same for all of them or one after the other. False: the
// leading dimensions broadcast in another way, or there is nothing to multiply.
bool AsMatMul(const Dims& a, const Dims& b, const Dims& c, bool transpose_a, bool transpose_b, gpu::MatMulShape* shape);

}  // namespace ropewalk::mlrunner
