// Hashes that enter an operator's fingerprint: equal in every process that runs the same executable, so no addresses and no padding.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <typeinfo>

#include "base/hash.h"

namespace ropewalk::dag {

template <class... T>
std::uint64_t TypeHash() {
  std::uint64_t hash = 0;
  ((hash = HashCombine(hash, Checksum64(std::string_view(typeid(T).name())))), ...);
  return hash;
}

// The captured values of a callable where they can be seen: trivially copyable closures, padding cleared. A captured pointer or reference
// is seen as its address, which differs between executors: the job stops and FirstDifference() says so, instead of computing nonsense.
// What hides behind a capture's own pointers (a vector) is watched by sampled verification instead.
template <class Fn>
std::uint64_t CaptureHash(const Fn& fn) {
  if constexpr (std::is_empty_v<Fn> || !std::is_class_v<Fn> || !std::is_trivially_copyable_v<Fn>) {
    return 0;
  } else {
#if defined(__GNUC__) && !defined(__clang__)
    alignas(Fn) std::byte bytes[sizeof(Fn)];
    std::memcpy(bytes, static_cast<const void*>(&fn), sizeof(Fn));
    __builtin_clear_padding(reinterpret_cast<Fn*>(bytes));
    return XXH3_64bits(bytes, sizeof(Fn));
#else
    if constexpr (std::has_unique_object_representations_v<Fn>) return XXH3_64bits(&fn, sizeof(Fn));
    return 0;
#endif
  }
}

template <class Fn>
std::uint64_t CallableHash(const Fn& fn) {
  return HashCombine(TypeHash<Fn>(), CaptureHash(fn));
}

}  // namespace ropewalk::dag
