// The sums between the rounds of a collective: rows of numbers folded in one pass over memory.
#include <algorithm>

#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/maths.h"
#include "mlrunner/gpu/plugin/context.h"

namespace ropewalk::gpu {
namespace {

struct Rows {  // a kernel's arguments are copied when it is queued
  FoldRow rows[kFoldRowsMax];
};
static_assert(sizeof(Rows) + sizeof(FoldCall) <= 4096, "arguments of a kernel");

template <class A>
__global__ void FoldAll(FoldCall c, Rows rows) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < c.count; i += stride)
    FoldElement<A>(c, rows.rows, i);
}

}  // namespace

Failure Fold(Context* context, void* stream, const FoldCall* call, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  if (!IsLegal(*call)) return Fail(Failure::kInvalid, why, "no such fold");
  if (call->count == 0) return Failure::kNone;
  cudaStream_t on = stream == nullptr ? context->stream : static_cast<cudaStream_t>(stream);
  if (IsCopy(*call)) {
    if (call->out == call->rows[0].data) return Failure::kNone;
    const auto bytes = static_cast<std::size_t>(call->count * SizeOf(call->element));
    return Check(cudaMemcpyAsync(call->out, call->rows[0].data, bytes, cudaMemcpyDeviceToDevice, on), "a copy on the device", why);
  }
  Rows rows = {};
  std::copy_n(call->rows, call->row_count, rows.rows);
  FoldCall by_value = *call;
  by_value.rows = nullptr;  // the host's
  const Launch launch = ElementLaunch(call->count);
  switch (call->accumulator) {
    case Element::kF64:
      FoldAll<double><<<launch.blocks, launch.threads, 0, on>>>(by_value, rows);
      break;
    case Element::kI32:
      FoldAll<std::int32_t><<<launch.blocks, launch.threads, 0, on>>>(by_value, rows);
      break;
    case Element::kI64:
      FoldAll<std::int64_t><<<launch.blocks, launch.threads, 0, on>>>(by_value, rows);
      break;
    case Element::kU8:
      FoldAll<std::uint8_t><<<launch.blocks, launch.threads, 0, on>>>(by_value, rows);
      break;
    default:
      FoldAll<float><<<launch.blocks, launch.threads, 0, on>>>(by_value, rows);
  }
  return Check(cudaGetLastError(), "the start of a fold", why);
}

}  // namespace ropewalk::gpu
