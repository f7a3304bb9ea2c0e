// Copies of bytes that may be none. Thread rule: functions only.
#pragma once

#include <cstddef>
#include <cstring>

namespace ropewalk {

// memcpy, which may not be given the null pointer that an empty vector has, not even for no bytes.
inline void CopyBytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace ropewalk
