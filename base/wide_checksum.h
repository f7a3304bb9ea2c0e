// Checksum64 of long inputs by the widest vectors that the processor has: the same values sooner. base/hash.h is compiled for every x86-64;
// this looks once at what the machine can do.
//
// Thread rule: pure functions; a state belongs to one caller.
#pragma once

#include "base/hash.h"

namespace ropewalk {

// Equal to Checksum64(bytes).
std::uint64_t WideChecksum64(std::span<const std::byte> bytes);
// Equal to XXH3_64bits_update(state, bytes).
void WideUpdate(XXH3_state_t* state, std::span<const std::byte> bytes);

}  // namespace ropewalk
