#include "mlrunner/gpu/plugin/context.h"

#include <cstdarg>
#include <cstdio>

namespace ropewalk::gpu {

void* CudaMemory::Take(std::size_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
  // "No memory" is not sticky, but is told once more by the next call that asks; a failed device is told by that one, too.
  cudaGetLastError();
  return nullptr;
}

void CudaMemory::GiveBack(void* memory) {
  // Waits for the device. A failed device fails here as well, and with it goes the memory.
  cudaFree(memory);
}

Context::~Context() {
  cudaSetDevice(device);
  if (stream != nullptr) cudaStreamSynchronize(stream);
  if (blas != nullptr) cublasLtDestroy(blas);
  if (bad_row != nullptr) cudaFree(bad_row);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

Failure Fail(Failure failure, Message* why, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(why->text, sizeof why->text, format, arguments);
  va_end(arguments);
  return failure;
}

Failure Check(cudaError_t error, const char* what, Message* why) {
  if (error == cudaSuccess) return Failure::kNone;
  return Fail(error == cudaErrorMemoryAllocation ? Failure::kOutOfMemory : Failure::kDevice, why, "%s: %s", what,
              cudaGetErrorString(error));
}

Failure Check(cublasStatus_t status, const char* what, Message* why) {
  if (status == CUBLAS_STATUS_SUCCESS) return Failure::kNone;
  Failure failure = status == CUBLAS_STATUS_NOT_SUPPORTED   ? Failure::kUnsupported
                    : status == CUBLAS_STATUS_ALLOC_FAILED  ? Failure::kOutOfMemory
                    : status == CUBLAS_STATUS_INVALID_VALUE ? Failure::kInvalid
                                                            : Failure::kDevice;
  return Fail(failure, why, "%s: %s", what, cublasLtGetStatusString(status));
}

Failure Enter(Context* context, Message* why) { return Check(cudaSetDevice(context->device), "cudaSetDevice", why); }

}  // namespace ropewalk::gpu
