// A parameter's update in one pass over memory: four tensors are read, three written.
#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/maths.h"
#include "mlrunner/gpu/plugin/context.h"

namespace ropewalk::gpu {
namespace {

template <class T>
__global__ void Update(AdamWCall c) {
  __shared__ AdamWNumbers numbers;  // powers in double are dear: once for each block
  if (threadIdx.x == 0) {
    numbers = MakeAdamWNumbers(c.beta1, c.beta2, c.epsilon, c.decay, *c.rate, *c.step);
  }
  __syncthreads();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < c.count; i += stride) {
    AdamWElement(numbers, static_cast<const T*>(c.parameter), static_cast<const T*>(c.first_moment), static_cast<const T*>(c.second_moment),
                 static_cast<const T*>(c.gradient), static_cast<T*>(c.new_parameter), static_cast<T*>(c.new_first_moment),
                 static_cast<T*>(c.new_second_moment), i);
  }
}

}  // namespace

Failure AdamW(Context* context, const AdamWCall* call, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  if (call->element != Element::kF32 && call->element != Element::kBF16)
    return Fail(Failure::kUnsupported, why, "AdamW is for f32 and bf16");
  if (call->count < 0) return Fail(Failure::kInvalid, why, "AdamW of a negative count");
  if (call->count == 0) return Failure::kNone;
  const Launch launch = ElementLaunch(call->count);
  if (call->element == Element::kF32) {
    Update<float><<<launch.blocks, launch.threads, 0, context->stream>>>(*call);
  } else {
    Update<BFloat16><<<launch.blocks, launch.threads, 0, context->stream>>>(*call);
  }
  return Check(cudaGetLastError(), "the start of AdamW", why);
}

}  // namespace ropewalk::gpu
