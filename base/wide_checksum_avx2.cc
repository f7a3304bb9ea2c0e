// Compiled with -mavx2, so it includes nothing whose inline functions other files use too: the linker keeps one copy of each, and it must
// not be one that an older processor cannot run. All of xxhash.h is static here.
#include "base/wide_checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ropewalk::avx2 {

std::uint64_t Checksum64(const void* bytes, std::size_t size) { return XXH3_64bits(bytes, size); }

void Update(void* state, const void* bytes, std::size_t size) {
  // Cannot fail: only a null state does.
  (void)XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
}

}  // namespace ropewalk::avx2
