// A GPU that this process computes on: the plugin's calls with Status for their failures and owners for what they give.
//
// Owner: shared by the kernels that were compiled for it; it outlives its buffers. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "mlrunner/gpu/loader.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

struct GpuOptions {
  std::int32_t device = 0;
  std::uint64_t pool_bytes_max = ~std::uint64_t{0};  // of the device's memory; the largest number: as much as it has
};

class Gpu;

// Device memory, given back at its end.
class GpuBuffer {
 public:
  GpuBuffer() = default;
  GpuBuffer(Gpu* gpu, void* memory) : gpu_(gpu), memory_(memory) {}
  GpuBuffer(GpuBuffer&& other) noexcept : gpu_(other.gpu_), memory_(std::exchange(other.memory_, nullptr)) {}
  GpuBuffer& operator=(GpuBuffer&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~GpuBuffer();
  void* data() const { return memory_; }

 private:
  Gpu* gpu_ = nullptr;
  void* memory_ = nullptr;
};

class Gpu {
 public:
  // kInvalid (GPU03): the plugin has no such device; else why it cannot be opened.
  static Result<std::shared_ptr<Gpu>> Open(std::shared_ptr<const GpuPlugin> plugin, const GpuOptions& options);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const gpu::DeviceInfo& info() const { return info_; }
  const gpu::Api& api() const { return plugin_->api(); }
  gpu::Context* context() const { return context_; }

  Result<GpuBuffer> Allocate(std::size_t bytes);
  Status ToDevice(void* to, const void* from, std::size_t bytes);
  Status ToHost(void* to, const void* from, std::size_t bytes);
  Status Synchronize();
  gpu::MemoryUse memory_use() const;

  // What a call of the plugin says, from the failure and the message that it gave. GPU04 (kUnavailable): the device has failed, and this
  // object with it; GPU05: out of memory; KERNEL01: declined; RUN05: a label of the user's data; KERNEL02: our call made no sense.
  template <class F>
  Status Do(F call) {
    gpu::Message why = {};
    const gpu::Failure failure = call(&why);
    return failure == gpu::Failure::kNone ? Status() : StatusOf(failure, why);
  }

 private:
  Gpu(std::shared_ptr<const GpuPlugin> plugin, gpu::Context* context, const gpu::DeviceInfo& info)
      : plugin_(std::move(plugin)), context_(context), info_(info) {}
  static Status StatusOf(gpu::Failure failure, const gpu::Message& why);

  std::shared_ptr<const GpuPlugin> plugin_;
  gpu::Context* context_;
  gpu::DeviceInfo info_;
};

// The GPU of this machine, found as loader.h says; `named` is the user's ROPEWALK_GPU_PLUGIN, or empty. A device beyond the last is counted
// from the first again: ranks of one machine share what there is. Null: there is none, the caller
// computes on the CPU, and `say` was told why, once.
std::shared_ptr<Gpu> GpuOrSay(const std::string& named, const GpuOptions& options, const std::function<void(const Status&)>& say);

// Of the types that cross the border; false for the others.
bool ToElement(Dtype dtype, gpu::Element* element);

}  // namespace ropewalk::mlrunner
