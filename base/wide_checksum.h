// Checksum64 of long inputs by the widest vectors that the processor has: the same values sooner. base/hash.h is compiled for every x86-64;
// this looks once at what the machine can do.
//
// Thread rule: pure functions; a state or hash belongs to one caller.
#pragma once

#include <cstdint>
#include <span>

#include "base/hash.h"

namespace ropewalk {

// Equal to Checksum64(bytes).
std::uint64_t WideChecksum64(std::span<const std::byte> bytes);
// Equal to XXH3_64bits_update(state, bytes).
void WideUpdate(XXH3_state_t* state, std::span<const std::byte> bytes);

// The same of bytes that come one after the other.
class WideHash {
 public:
  WideHash() : state_(XXH3_createState()) { XXH3_64bits_reset(state_); }
  ~WideHash() { XXH3_freeState(state_); }
  WideHash(const WideHash&) = delete;
  WideHash& operator=(const WideHash&) = delete;
  void Add(std::span<const std::byte> bytes) { WideUpdate(state_, bytes); }
  // Of all so far.
  std::uint64_t value() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* const state_;
};

}  // namespace ropewalk
