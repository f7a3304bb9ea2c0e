// Plugins that cannot be used, each for one reason (tests/unit/gpu_plugins.cmake). What a host must not call ends the process.
#include <cstdio>

#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {
namespace {

[[maybe_unused]] constexpr Api kApi = {
#ifdef BROKEN_VERSION
    .abi_version = kAbiVersion + 1,
#else
    .abi_version = kAbiVersion,
#endif
#ifdef BROKEN_SIZE
    .bytes = sizeof(Api) - sizeof(void*),
#else
    .bytes = sizeof(Api),
#endif
#if defined(BROKEN_DRIVER)
    .probe =
        [](DeviceInfo*, std::int32_t, std::int32_t*, Message* why) {
          std::snprintf(why->text, sizeof why->text, "the driver is older than the runtime");
          return Failure::kDevice;
        },
#elif defined(BROKEN_DEVICES)
    .probe = [](DeviceInfo*, std::int32_t, std::int32_t* found, Message*) { return *found = 0, Failure::kNone; },
#endif
};

}  // namespace
}  // namespace ropewalk::gpu

#ifdef BROKEN_SYMBOL
extern "C" const ropewalk::gpu::Api* ropewalk_gpu_table() { return &ropewalk::gpu::kApi; }
#elif defined(BROKEN_TABLE)
extern "C" const ropewalk::gpu::Api* ropewalk_gpu_api() { return nullptr; }
#else
extern "C" const ropewalk::gpu::Api* ropewalk_gpu_api() { return &ropewalk::gpu::kApi; }
#endif
