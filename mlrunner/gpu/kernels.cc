#include "mlrunner/gpu/kernels.h"

#include <functional>
#include <utility>
#include <vector>

#include "mlrunner/gpu/geometry.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/cpu.h"

namespace ropewalk::mlrunner {
namespace {

// What a kernel does with device memory.
using Work = std::function<Status(void* const* in, void* const* out)>;

std::vector<std::size_t> BytesOf(const std::vector<ConcreteType>& types) {
  std::vector<std::size_t> bytes;
  for (const ConcreteType& type : types) bytes.push_back(type.Bytes());
  return bytes;
}

// Takes the inputs to the device, works, brings the outputs back. The copies are in the order of the stream, so only the last waits.
CompiledKernel Staged(const KernelRequest& r, const std::shared_ptr<Gpu>& gpu, Work work) {
  return CompiledKernel{[gpu, work = std::move(work), in_bytes = BytesOf(r.in), out_bytes = BytesOf(r.out)](const KernelCall& call) {
    std::vector<GpuBuffer> buffers;
    std::vector<void*> in, out;
    for (std::size_t i = 0; i < in_bytes.size(); ++i) {
      ASSIGN_OR_RETURN(GpuBuffer buffer, gpu->Allocate(in_bytes[i]));
      RETURN_IF_ERROR(gpu->ToDevice(buffer.data(), call.in[i], in_bytes[i]));
      in.push_back(buffer.data());
      buffers.push_back(std::move(buffer));
    }
    for (std::size_t bytes : out_bytes) {
      ASSIGN_OR_RETURN(GpuBuffer buffer, gpu->Allocate(bytes));
      out.push_back(buffer.data());
      buffers.push_back(std::move(buffer));
    }
    RETURN_IF_ERROR(work(in.data(), out.data()));
    for (std::size_t i = 0; i < out_bytes.size(); ++i) RETURN_IF_ERROR(gpu->ToHost(call.out[i], out[i], out_bytes[i]));
    return Status();
  }};
}

Result<CompiledKernel> CompileMatMul(const KernelRequest& r, const std::shared_ptr<Gpu>& gpu) {
  gpu::MatMulShape shape = {};
  // The plugin's products are of one type: one of bf16 that is written in f32 is the CPU's.
  if (r.out[0].dtype != r.in[0].dtype) return Declined();
  if (!AllRowMajor(r) || !ToElement(r.in[0].dtype, &shape.element) ||
      !AsMatMul(r.in[0].dims, r.in[1].dims, r.out[0].dims, r.op.attrs.Int(Attr::kTransposeA) != 0, r.op.attrs.Int(Attr::kTransposeB) != 0,
                &shape) ||
      !gpu::IsLegal(shape))
    return Declined();
  gpu::MatMul* made = nullptr;
  RETURN_IF_ERROR(gpu->Do([&](gpu::Message* why) { return gpu->api().make_matmul(gpu->context(), &shape, &made, why); }));
  // It uses the context until its end, so it holds it.
  std::shared_ptr<gpu::MatMul> product(made, [gpu](gpu::MatMul* gone) { gpu->api().free_matmul(gone); });
  return Staged(r, gpu, [gpu = gpu.get(), product](void* const* in, void* const* out) {
    return gpu->Do([&](gpu::Message* why) { return gpu->api().matmul(product.get(), in[0], in[1], out[0], why); });
  });
}

Result<CompiledKernel> CompileAdamW(const KernelRequest& r, const std::shared_ptr<Gpu>& gpu) {
  gpu::AdamWCall call = {};
  call.count = NumElements(r.out[0].dims);
  if (!AllRowMajor(r) || call.count == 0 || !ToElement(r.in[0].dtype, &call.element)) return Declined();
  call.beta1 = r.op.attrs.Double(Attr::kLow);
  call.beta2 = r.op.attrs.Double(Attr::kHigh);
  call.epsilon = r.op.attrs.Double(Attr::kEpsilon);
  call.decay = r.op.attrs.Double(Attr::kValue);
  return Staged(r, gpu, [gpu = gpu.get(), call](void* const* in, void* const* out) mutable {
    call.parameter = in[0];
    call.first_moment = in[1];
    call.second_moment = in[2];
    call.gradient = in[3];
    call.rate = static_cast<const float*>(in[4]);
    call.step = static_cast<const float*>(in[5]);
    call.new_parameter = out[0];
    call.new_first_moment = out[1];
    call.new_second_moment = out[2];
    return gpu->Do([&](gpu::Message* why) { return gpu->api().adamw(gpu->context(), &call, why); });
  });
}

Result<CompiledKernel> CompileCrossEntropy(const KernelRequest& r, const std::shared_ptr<Gpu>& gpu) {
  gpu::CrossEntropyCall call = {};
  call.classes = r.in[0].dims.back();
  call.rows = NumElements(r.in[1].dims);
  if (!AllRowMajor(r) || call.classes == 0 || call.rows == 0 || !ToElement(r.in[0].dtype, &call.element) ||
      !ToElement(r.in[1].dtype, &call.label))
    return Declined();
  call.backward = r.op.def == &kCrossEntropyGrad ? 1 : 0;
  return Staged(r, gpu, [gpu = gpu.get(), call](void* const* in, void* const* out) mutable {
    call.logits = in[0];
    call.labels = in[1];
    if (call.backward != 0) {
      call.log_sum = in[2];
      call.loss_gradient = in[3];
      call.logits_gradient = out[0];
    } else {
      call.loss = out[0];
      call.log_sum = out[1];
    }
    return gpu->Do([&](gpu::Message* why) { return gpu->api().cross_entropy(gpu->context(), &call, why); });
  });
}

}  // namespace

bool AsMatMul(const Dims& a, const Dims& b, const Dims& c, bool transpose_a, bool transpose_b, gpu::MatMulShape* shape) {
  auto side = [](const Dims& dims, std::size_t from_end) { return dims[dims.size() - from_end]; };
  auto matrices = [](const Dims& dims) { return NumElements(Dims(dims.begin(), dims.end() - 2)); };
  shape->transpose_a = transpose_a ? 1 : 0;
  shape->transpose_b = transpose_b ? 1 : 0;
  shape->m = side(c, 2);
  shape->n = side(c, 1);
  shape->k = side(a, transpose_a ? 2 : 1);
  shape->batch = matrices(c);
  if (NumElements(c) == 0 || shape->k == 0) return false;
  const std::int64_t of_a = matrices(a), of_b = matrices(b);
  // As many matrices as the result has are the result's, in its order; dimensions of 1 that are not written do not matter.
  if ((of_a != shape->batch && of_a != 1) || (of_b != shape->batch && of_b != 1)) return false;
  if (of_b == 1 && !transpose_a) {  // (batch, m, k) is (batch * m, k): one large product is better than many small ones
    if (of_a != shape->batch) return false;
    shape->m *= shape->batch;
    shape->batch = 1;
  }
  shape->stride_a = shape->batch == 1 || of_a == 1 ? 0 : shape->m * shape->k;
  shape->stride_b = shape->batch == 1 || of_b == 1 ? 0 : shape->k * shape->n;
  return true;
}

void AddGpuKernels(KernelTable* table, const std::shared_ptr<Gpu>& gpu) {
  auto add = [&](const OpDef& def, Result<CompiledKernel> (*compile)(const KernelRequest&, const std::shared_ptr<Gpu>&)) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      table->Add(def, Device::kGpu, dtype, [gpu, compile](const KernelRequest& request) { return compile(request, gpu); });
  };
  add(kMatMul, CompileMatMul);
  add(kAdamW, CompileAdamW);
  add(kCrossEntropy, CompileCrossEntropy);
  add(kCrossEntropyGrad, CompileCrossEntropy);
}

}  // namespace ropewalk::mlrunner
