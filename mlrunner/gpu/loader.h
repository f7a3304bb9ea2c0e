// Finds the GPU plugin, opens it and asks it for devices: at run time, so that one package serves machines with and without a driver, and
// nothing is paid where no GPU is asked for.
//
// Owner: a plugin that has been asked for devices stays in the process until its end (the libraries under it do not like to go). Thread
// rule: const once open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::mlrunner {

inline constexpr const char* kGpuPluginName = "ropewalk_gpu.so";

// Where the plugin may lie, the likeliest first: `named` alone if it is not empty (the user's ROPEWALK_GPU_PLUGIN); else beside the
// executable, and in lib/ropewalk beside the folder of the executable.
std::vector<std::string> GpuPluginPlaces(const std::string& named, const std::string& executable);
// The file of this process's executable; empty when the system does not say it.
std::string ThisExecutable();

class GpuPlugin {
 public:
  // The first of `places` that exists. GPU01 (kNotFound): none does, or the loader refuses it; GPU02 (kVersionSkew): it is no plugin, or
  // one of another version; GPU03 (kUnavailable): it finds no device.
  static Result<std::shared_ptr<const GpuPlugin>> Open(const std::vector<std::string>& places);

  const gpu::Api& api() const { return *api_; }
  const std::string& path() const { return path_; }
  const std::vector<gpu::DeviceInfo>& devices() const { return devices_; }  // at least one

 private:
  const gpu::Api* api_ = nullptr;
  std::string path_;
  std::vector<gpu::DeviceInfo> devices_;
};

}  // namespace ropewalk::mlrunner
