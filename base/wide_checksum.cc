#include "base/wide_checksum.h"

#include "base/wide_checksum_avx2.h"

namespace ropewalk {
namespace {

bool HasAvx2() {
#if defined(ROPEWALK_AVX2_CHECKSUM)
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

}  // namespace

std::uint64_t WideChecksum64(std::span<const std::byte> bytes) {
  return HasAvx2() ? avx2::Checksum64(bytes.data(), bytes.size()) : Checksum64(bytes);
}

void WideUpdate(XXH3_state_t* state, std::span<const std::byte> bytes) {
  if (HasAvx2()) {
    avx2::Update(state, bytes.data(), bytes.size());
  } else {
    XXH3_64bits_update(state, bytes.data(), bytes.size());
  }
}

}  // namespace ropewalk
