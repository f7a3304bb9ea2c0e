// XXH3 compiled for AVX2. Called by wide_checksum.cc only, and only where the processor has it.
//
// Thread rule: as wide_checksum.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::avx2 {

std::uint64_t Checksum64(const void* bytes, std::size_t size);
void Update(void* state, const void* bytes, std::size_t size);  // an XXH3_state_t

}  // namespace ropewalk::avx2
