#include "mlrunner/gpu/loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

constexpr std::int32_t kDevicesMax = 64;

std::string Joined(const std::vector<std::string>& places) {
  std::string text;
  for (const std::string& place : places) text += (text.empty() ? "" : ", ") + place;
  return text.empty() ? "nowhere" : text;
}

// The plugin's words, whatever it has written.
std::string Text(gpu::Message why) {
  why.text[sizeof why.text - 1] = 0;
  return why.text[0] == 0 ? "it gives no reason" : why.text;
}

using GiveApi = const gpu::Api* (*)();

// The table, if `library` has one that we can read.
Result<const gpu::Api*> ApiOf(void* library, const std::string& path) {
  auto give = reinterpret_cast<GiveApi>(dlsym(library, gpu::kApiSymbol));
  if (give == nullptr)
    return Status(Code::kVersionSkew, "GPU02", path + " is no GPU plugin", fmt::format("it has no symbol {}", gpu::kApiSymbol),
                  "build it from mlrunner/gpu");
  const gpu::Api* api = give();
  if (api == nullptr || api->abi_version != gpu::kAbiVersion || api->bytes != sizeof(gpu::Api))
    return Status(Code::kVersionSkew, "GPU02", path + " is a GPU plugin of another version",
                  api == nullptr ? std::string("it gives no table")
                                 : fmt::format("its table is version {} of {} bytes, and this program reads version {} of {} bytes",
                                               api->abi_version, api->bytes, gpu::kAbiVersion, sizeof(gpu::Api)),
                  "install program and plugin from one package");
  return api;
}

}  // namespace

std::vector<std::string> GpuPluginPlaces(const std::string& named, const std::string& executable) {
  if (!named.empty()) return {named};
  if (executable.empty()) return {};
  const std::filesystem::path folder = std::filesystem::path(executable).parent_path();
  return {(folder / kGpuPluginName).string(), (folder.parent_path() / "lib" / "ropewalk" / kGpuPluginName).string()};
}

std::string ThisExecutable() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 && static_cast<std::size_t>(length) < sizeof path ? std::string(path, static_cast<std::size_t>(length)) : std::string();
}

Result<std::shared_ptr<const GpuPlugin>> GpuPlugin::Open(const std::vector<std::string>& places) {
  auto found = std::find_if(places.begin(), places.end(), [](const std::string& place) { return access(place.c_str(), F_OK) == 0; });
  if (found == places.end())
    return Status(Code::kNotFound, "GPU01", "there is no GPU plugin", "looked for " + Joined(places),
                  "build it with cmake --preset cuda, or name it in ROPEWALK_GPU_PLUGIN");
  // A bare name would be looked for in the system's folders.
  const std::string path = std::filesystem::absolute(*found).string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status(Code::kNotFound, "GPU01", path + " cannot be opened", why == nullptr ? "" : why,
                  "install the CUDA libraries it was built with");
  }
  auto api = ApiOf(library, path);
  if (!api.ok()) {
    dlclose(library);  // nothing of it ran but its table's function
    return std::move(api).status();
  }
  auto plugin = std::make_shared<GpuPlugin>();
  plugin->api_ = *api;
  plugin->path_ = path;
  plugin->devices_.resize(kDevicesMax);
  std::int32_t count = 0;
  gpu::Message why = {};
  // From here on it stays: what is below has started threads and registered what runs at the process's end.
  if (plugin->api_->probe(plugin->devices_.data(), kDevicesMax, &count, &why) != gpu::Failure::kNone)
    return Status(Code::kUnavailable, "GPU03", "no GPU can be used", Text(why), "install a driver, or compute on the CPU");
  if (count <= 0) return Status(Code::kUnavailable, "GPU03", "no GPU can be used", "the driver knows of none", "compute on the CPU");
  plugin->devices_.resize(static_cast<std::size_t>(std::min(count, kDevicesMax)));
  for (gpu::DeviceInfo& device : plugin->devices_) device.name[sizeof device.name - 1] = 0;
  return std::shared_ptr<const GpuPlugin>(std::move(plugin));
}

}  // namespace ropewalk::mlrunner
