// Softmax cross entropy, a block of threads for a row: loss and log sum in two passes over the logits, the gradient in one.
#include <climits>

#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/maths.h"
#include "mlrunner/gpu/plugin/context.h"

namespace ropewalk::gpu {
namespace {

// What the block's threads have, folded into the first one's.
template <class F>
__device__ void Fold(float* of_threads, F f) {
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    __syncthreads();
    TreeFold(of_threads, half, static_cast<int>(threadIdx.x), f);
  }
  __syncthreads();
}

template <class L>
__device__ bool IsClass(const L* labels, std::int64_t row, std::int64_t classes, unsigned long long* bad_row) {
  if (labels[row] >= 0 && labels[row] < classes) return true;
  if (threadIdx.x == 0) atomicMin(bad_row, static_cast<unsigned long long>(row));
  return false;
}

template <class T, class L>
__global__ void Forward(CrossEntropyCall c, unsigned long long* bad_row) {
  extern __shared__ float of_threads[];
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto* labels = static_cast<const L*>(c.labels);
  for (std::int64_t row = blockIdx.x; row < c.rows; row += gridDim.x) {
    if (!IsClass(labels, row, c.classes, bad_row)) continue;  // all threads alike
    const T* x = static_cast<const T*>(c.logits) + row * c.classes;
    of_threads[thread] = RowMax(x, c.classes, thread, threads);
    Fold(of_threads, TakeMax());
    const float top = of_threads[0];
    __syncthreads();
    of_threads[thread] = RowSumExp(x, top, c.classes, thread, threads);
    Fold(of_threads, TakeSum());
    if (thread == 0) {
      const float log_sum = top + logf(of_threads[0]);
      static_cast<T*>(c.log_sum)[row] = FromFloat<T>(log_sum);
      static_cast<T*>(c.loss)[row] = FromFloat<T>(log_sum - ToFloat(x[labels[row]]));
    }
    __syncthreads();  // before the next row takes the place
  }
}

template <class T, class L>
__global__ void Backward(CrossEntropyCall c, unsigned long long* bad_row) {
  const auto* labels = static_cast<const L*>(c.labels);
  for (std::int64_t row = blockIdx.x; row < c.rows; row += gridDim.x) {
    if (!IsClass(labels, row, c.classes, bad_row)) continue;
    RowGradient(static_cast<const T*>(c.logits) + row * c.classes, ToFloat(static_cast<const T*>(c.log_sum)[row]),
                ToFloat(static_cast<const T*>(c.loss_gradient)[row]), labels[row], static_cast<T*>(c.logits_gradient) + row * c.classes,
                c.classes, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  }
}

template <class T, class L>
void Start(Context* context, const CrossEntropyCall& call) {
  const Launch launch = RowLaunch(call.rows, call.classes);
  if (call.backward != 0) {
    Backward<T, L><<<launch.blocks, launch.threads, 0, context->stream>>>(call, context->bad_row);
  } else {
    Forward<T, L><<<launch.blocks, launch.threads, launch.threads * sizeof(float), context->stream>>>(call, context->bad_row);
  }
}

template <class T>
void StartFor(Context* context, const CrossEntropyCall& call) {
  call.label == Element::kI32 ? Start<T, std::int32_t>(context, call) : Start<T, std::int64_t>(context, call);
}

Failure BadLabel(Context* context, const CrossEntropyCall& call, unsigned long long row, Message* why) {
  std::int32_t narrow = 0;
  std::int64_t wide = 0;
  const bool is_narrow = call.label == Element::kI32;
  const std::size_t bytes = is_narrow ? sizeof narrow : sizeof wide;
  RETURN_IF_FAILED(
      Check(cudaMemcpyAsync(is_narrow ? static_cast<void*>(&narrow) : &wide, static_cast<const char*>(call.labels) + row * bytes, bytes,
                            cudaMemcpyDeviceToHost, context->stream),
            "reading a label", why));
  RETURN_IF_FAILED(Check(cudaStreamSynchronize(context->stream), "reading a label", why));
  return Fail(Failure::kLabel, why, "label of sample %llu is %lld", row, static_cast<long long>(is_narrow ? narrow : wide));
}

}  // namespace

Failure CrossEntropy(Context* context, const CrossEntropyCall* call, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  if ((call->element != Element::kF32 && call->element != Element::kBF16) || (call->label != Element::kI32 && call->label != Element::kI64))
    return Fail(Failure::kUnsupported, why, "cross entropy is for f32 and bf16, with labels of i32 or i64");
  if (call->rows < 0 || call->classes <= 0) return Fail(Failure::kInvalid, why, "cross entropy without classes");
  if (call->rows == 0) return Failure::kNone;
  RETURN_IF_FAILED(Check(cudaMemsetAsync(context->bad_row, 0xff, sizeof *context->bad_row, context->stream), "cudaMemsetAsync", why));
  call->element == Element::kF32 ? StartFor<float>(context, *call) : StartFor<BFloat16>(context, *call);
  RETURN_IF_FAILED(Check(cudaGetLastError(), "the start of cross entropy", why));
  unsigned long long bad_row = ULLONG_MAX;
  RETURN_IF_FAILED(
      Check(cudaMemcpyAsync(&bad_row, context->bad_row, sizeof bad_row, cudaMemcpyDeviceToHost, context->stream), "cross entropy", why));
  RETURN_IF_FAILED(Check(cudaStreamSynchronize(context->stream), "cross entropy", why));
  return bad_row == ULLONG_MAX ? Failure::kNone : BadLabel(context, *call, bad_row, why);
}

}  // namespace ropewalk::gpu
