// Philox 4x32-10 (Salmon et al. 2011): random numbers as a pure function of a key and a counter, so any element of any tensor can be drawn
// anywhere, in any order, on any number of ranks.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "base/hash.h"

namespace ropewalk::mlrunner {

inline std::array<std::uint32_t, 4> Philox(std::uint64_t key, std::array<std::uint32_t, 4> counter) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0], b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// The number of (seed, step, op, sample, element): uniform in [0, 1) with 24 bits, so that f32 and f64 get the same one.
inline std::uint64_t RandomKey(std::uint64_t seed, std::uint64_t step, std::uint64_t op, std::uint64_t extra) {
  return HashCombine(HashCombine(seed, step), HashCombine(op, extra));
}
inline float UniformAt(std::uint64_t key, std::uint64_t sample, std::uint64_t element) {
  std::uint64_t block = element / 4;
  std::array<std::uint32_t, 4> words = Philox(key, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                                    static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)});
  return static_cast<float>(words[element % 4] >> 8) * 0x1.0p-24f;
}

}  // namespace ropewalk::mlrunner
