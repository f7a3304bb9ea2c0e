// The plugin's table, and what of it is a call or two of CUDA.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "mlrunner/gpu/plugin/context.h"

namespace ropewalk::gpu {
namespace {

Failure Describe(int device, DeviceInfo* info, Message* why) {
  cudaDeviceProp properties;
  RETURN_IF_FAILED(Check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", why));
  std::snprintf(info->name, sizeof info->name, "%.63s", properties.name);
  info->major = properties.major;
  info->minor = properties.minor;
  info->memory_bytes = properties.totalGlobalMem;
  return Failure::kNone;
}

Failure Probe(DeviceInfo* devices, std::int32_t room, std::int32_t* found, Message* why) {
  int count = 0;
  *found = 0;
  RETURN_IF_FAILED(Check(cudaGetDeviceCount(&count), "cudaGetDeviceCount", why));
  for (int device = 0; device < std::min(count, room); ++device) RETURN_IF_FAILED(Describe(device, &devices[device], why));
  *found = count;
  return Failure::kNone;
}

Failure Open(std::int32_t device, std::uint64_t pool_bytes_max, Context** opened, Message* why) {
  DeviceInfo info;
  RETURN_IF_FAILED(Describe(device, &info, why));
  // The kernels are compiled for 8.0 and 9.0, and the latter's assembly is compiled further for what is newer.
  if (info.major < 8)
    return Fail(Failure::kUnsupported, why, "%s has compute capability %d.%d, and 8.0 is the least", info.name, info.major, info.minor);
  auto context = std::make_unique<Context>(device, pool_bytes_max);
  RETURN_IF_FAILED(Enter(context.get(), why));
  RETURN_IF_FAILED(Check(cudaStreamCreateWithFlags(&context->stream, cudaStreamNonBlocking), "cudaStreamCreate", why));
  RETURN_IF_FAILED(Check(cublasLtCreate(&context->blas), "cublasLtCreate", why));
  RETURN_IF_FAILED(Check(cudaMalloc(&context->bad_row, sizeof *context->bad_row), "cudaMalloc", why));
  *opened = context.release();
  return Failure::kNone;
}

Failure Allocate(Context* context, std::size_t bytes, void** memory, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  *memory = context->pool.Allocate(bytes);
  if (*memory != nullptr) return Failure::kNone;
  return Fail(Failure::kOutOfMemory, why, "no room for %zu bytes on the device: %zu are in use", bytes, context->pool.used_bytes());
}

Failure ToDevice(Context* context, void* to, const void* from, std::size_t bytes, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  return Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, context->stream), "a copy to the device", why);
}

Failure Synchronize(Context* context, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  return Check(cudaStreamSynchronize(context->stream), "the device's work", why);
}

Failure ToHost(Context* context, void* to, const void* from, std::size_t bytes, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  RETURN_IF_FAILED(Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, context->stream), "a copy to the host", why));
  return Synchronize(context, why);
}

Failure IsIdle(Context* context, void* stream, std::int32_t* idle, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  const cudaError_t state = cudaStreamQuery(stream == nullptr ? context->stream : static_cast<cudaStream_t>(stream));
  *idle = state == cudaSuccess ? 1 : 0;
  return state == cudaErrorNotReady ? Failure::kNone : Check(state, "the device's work", why);
}

Failure MakeStream(Context* context, void** stream, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  cudaStream_t made = nullptr;
  RETURN_IF_FAILED(Check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate", why));
  *stream = made;
  return Failure::kNone;
}

void FreeStream(Context* context, void* stream) {
  Message why;
  if (Enter(context, &why) != Failure::kNone) return;
  // A failed device has no work left to wait for, and its streams go with the process.
  cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
  cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

Failure WaitStream(Context* context, void* stream, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  return Check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "a stream's work", why);
}

Failure Notify(Context* context, void* stream, void (*call)(void* data), void* data, Message* why) {
  RETURN_IF_FAILED(Enter(context, why));
  return Check(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), call, data), "cudaLaunchHostFunc", why);
}

std::int32_t IsOnDevice(Context* context, const void* memory) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) return cudaGetLastError(), 0;
  return attributes.type == cudaMemoryTypeManaged || (attributes.type == cudaMemoryTypeDevice && attributes.device == context->device) ? 1
                                                                                                                                       : 0;
}

constexpr Api kApi = {
    .abi_version = kAbiVersion,
    .bytes = sizeof(Api),
    .probe = Probe,
    .open = Open,
    .close = [](Context* context) { delete context; },
    .allocate = Allocate,
    .release = [](Context* context, void* memory) { context->pool.Release(memory); },
    .memory_use = [](Context* context,
                     MemoryUse* use) { *use = {context->pool.used_bytes(), context->pool.cached_bytes(), context->pool.peak_bytes()}; },
    .to_device = ToDevice,
    .to_host = ToHost,
    .synchronize = Synchronize,
    .is_idle = IsIdle,
    .make_matmul = MakeMatMul,
    .matmul = RunMatMul,
    .free_matmul = FreeMatMul,
    .adamw = AdamW,
    .cross_entropy = CrossEntropy,
    .nccl = Nccl,
    .stream = [](Context* context) -> void* {
      cudaSetDevice(context->device);  // a failed device says so at the next call
      return context->stream;
    },
    .make_stream = MakeStream,
    .free_stream = FreeStream,
    .wait_stream = WaitStream,
    .notify = Notify,
    .is_on_device = IsOnDevice,
    .fold = Fold,
};

}  // namespace
}  // namespace ropewalk::gpu

extern "C" [[gnu::visibility("default")]] const ropewalk::gpu::Api* ropewalk_gpu_api() { return &ropewalk::gpu::kApi; }
