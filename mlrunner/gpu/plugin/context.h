// A device with what every call on it needs, and how CUDA's failures become the border's.
//
// Owner: whoever holds the Context of the plugin's table. Thread rule: as there.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "mlrunner/gpu/device_pool.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {

class CudaMemory : public DeviceMemory {
 public:
  void* Take(std::size_t bytes) override;
  void GiveBack(void* memory) override;
};

struct Context {
  explicit Context(int device, std::size_t pool_bytes_max) : device(device), pool(&source, pool_bytes_max) {}
  ~Context();

  int device;
  CudaMemory source;
  DevicePool pool;
  cudaStream_t stream = nullptr;
  cublasLtHandle_t blas = nullptr;
  unsigned long long* bad_row = nullptr;  // on the device: the first row whose label is none, or the largest number
};

[[gnu::format(printf, 3, 4)]] Failure Fail(Failure failure, Message* why, const char* format, ...);
// kNone for success.
Failure Check(cudaError_t error, const char* what, Message* why);
Failure Check(cublasStatus_t status, const char* what, Message* why);

// A device is a thread's state: each call begins with this.
Failure Enter(Context* context, Message* why);

// Of plugin.cc's table; each in the file of its name.
Failure MakeMatMul(Context* context, const MatMulShape* shape, MatMul** made, Message* why);
Failure RunMatMul(MatMul* product, const void* a, const void* b, void* c, Message* why);
void FreeMatMul(MatMul* product);
Failure AdamW(Context* context, const AdamWCall* call, Message* why);
Failure CrossEntropy(Context* context, const CrossEntropyCall* call, Message* why);
Failure Fold(Context* context, void* stream, const FoldCall* call, Message* why);
const NcclTable* Nccl(Message* why);

}  // namespace ropewalk::gpu

#define RETURN_IF_FAILED(call)                                                                            \
  do {                                                                                                    \
    if (::ropewalk::gpu::Failure failure = (call); failure != ::ropewalk::gpu::Failure{}) return failure; \
  } while (0)
