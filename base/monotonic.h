// Time that only goes forward, whatever is done to the clock on the wall: for waits and deadlines.
//
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace ropewalk {

inline std::int64_t MonotonicMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ropewalk
