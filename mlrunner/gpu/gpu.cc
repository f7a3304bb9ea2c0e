#include "mlrunner/gpu/gpu.h"

#include <cstring>

#include <fmt/format.h>

namespace ropewalk::mlrunner {

GpuBuffer::~GpuBuffer() {
  if (memory_ != nullptr) gpu_->api().release(gpu_->context(), memory_);
}

Result<std::shared_ptr<Gpu>> Gpu::Open(std::shared_ptr<const GpuPlugin> plugin, const GpuOptions& options) {
  const auto devices = static_cast<std::int32_t>(plugin->devices().size());
  if (options.device < 0 || options.device >= devices)
    return Status(Code::kInvalid, "GPU03", fmt::format("there is no GPU {}", options.device), fmt::format("this machine has {}", devices),
                  fmt::format("name one of 0 to {}", devices - 1));
  gpu::Context* context = nullptr;
  gpu::Message why = {};
  const gpu::Failure failure = plugin->api().open(options.device, options.pool_bytes_max, &context, &why);
  const gpu::DeviceInfo& info = plugin->devices()[static_cast<std::size_t>(options.device)];
  if (failure == gpu::Failure::kNone) return std::shared_ptr<Gpu>(new Gpu(std::move(plugin), context, info));
  // A device that is too old declines nothing that another kernel could do: it cannot be used.
  if (failure == gpu::Failure::kUnsupported) {
    why.text[sizeof why.text - 1] = 0;
    return Status(Code::kUnavailable, "GPU03", fmt::format("GPU {} cannot be used", options.device), why.text, "compute on the CPU");
  }
  return StatusOf(failure, why);
}

Gpu::~Gpu() { api().close(context_); }

Status Gpu::StatusOf(gpu::Failure failure, const gpu::Message& why) {
  const std::string text(why.text, strnlen(why.text, sizeof why.text));
  switch (failure) {
    case gpu::Failure::kNone:
      return {};
    case gpu::Failure::kInvalid:
      return Status(Code::kInternal, "KERNEL02", "the GPU plugin refuses a call", text);
    case gpu::Failure::kUnsupported:
      return Status(Code::kInvalid, "KERNEL01", "declined", text, "let another kernel do it, or compute on the CPU");
    case gpu::Failure::kOutOfMemory:
      return Status(Code::kResourceExhausted, "GPU05", "the GPU has no memory left", text, "a smaller batch, or more ranks");
    case gpu::Failure::kLabel:
      return Status(Code::kUserError, "RUN05", text, "it must be one of the classes", "mend the data, or give the model more classes");
    case gpu::Failure::kDevice:
      break;
  }
  return Status(Code::kUnavailable, "GPU04", "the GPU has failed", text,
                "look into the system's log; the process must end before the GPU is used again");
}

Result<GpuBuffer> Gpu::Allocate(std::size_t bytes) {
  void* memory = nullptr;
  RETURN_IF_ERROR(Do([&](gpu::Message* why) { return api().allocate(context_, bytes, &memory, why); }));
  return GpuBuffer(this, memory);
}
Status Gpu::ToDevice(void* to, const void* from, std::size_t bytes) {
  return Do([&](gpu::Message* why) { return api().to_device(context_, to, from, bytes, why); });
}
Status Gpu::ToHost(void* to, const void* from, std::size_t bytes) {
  return Do([&](gpu::Message* why) { return api().to_host(context_, to, from, bytes, why); });
}
Status Gpu::Synchronize() {
  return Do([&](gpu::Message* why) { return api().synchronize(context_, why); });
}
gpu::MemoryUse Gpu::memory_use() const {
  gpu::MemoryUse use = {};
  api().memory_use(context_, &use);
  return use;
}

std::shared_ptr<Gpu> GpuOrSay(const std::string& named, const GpuOptions& options, const std::function<void(const Status&)>& say) {
  auto plugin = GpuPlugin::Open(GpuPluginPlaces(named, ThisExecutable()));
  if (!plugin.ok()) return say(plugin.status()), nullptr;
  GpuOptions there = options;
  there.device %= static_cast<std::int32_t>((*plugin)->devices().size());
  auto gpu = Gpu::Open(*std::move(plugin), there);
  if (!gpu.ok()) return say(gpu.status()), nullptr;
  return *std::move(gpu);
}

bool ToElement(Dtype dtype, gpu::Element* element) {
  switch (dtype) {
    case Dtype::kF32:
      return *element = gpu::Element::kF32, true;
    case Dtype::kF64:
      return *element = gpu::Element::kF64, true;
    case Dtype::kF16:
      return *element = gpu::Element::kF16, true;
    case Dtype::kBF16:
      return *element = gpu::Element::kBF16, true;
    case Dtype::kI32:
      return *element = gpu::Element::kI32, true;
    case Dtype::kI64:
      return *element = gpu::Element::kI64, true;
    case Dtype::kU8:
      return *element = gpu::Element::kU8, true;
    case Dtype::kBool:
    case Dtype::kToken:
    case Dtype::kHandle:
      return false;
  }
  return false;
}

}  // namespace ropewalk::mlrunner
