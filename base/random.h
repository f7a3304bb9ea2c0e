// Seeded random numbers: the same sequence on every machine, compiler and version, so that a seed in a report replays a run.
// Not for secrets (those come from SecureRandomBytes).
//
// Thread rule: a Random belongs to one thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/hash.h"

namespace ropewalk {

// xoshiro256**, seeded by splitmix64.
class Random {
 public:
  using result_type = std::uint64_t;  // fits std::shuffle and the like

  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& word : state_) word = Mix64(seed += 0x9e3779b97f4a7c15ull);
  }

  std::uint64_t operator()() {
    std::uint64_t result = Rotate(state_[1] * 5, 7) * 9;
    std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = Rotate(state_[3], 45);
    return result;
  }
  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return ~0ull; }

  // Uniform in [0, bound), without the bias of a remainder (Lemire 2019). `bound` 0 gives 0.
  std::uint64_t Below(std::uint64_t bound) {
    if (bound == 0) return 0;
    unsigned __int128 product = static_cast<unsigned __int128>((*this)()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      std::uint64_t threshold = (0 - bound) % bound;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<unsigned __int128>((*this)()) * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }
  // Uniform in [low, high].
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) { return high - low == max() ? (*this)() : low + Below(high - low + 1); }
  // Uniform in [0, 1) with 53 bits.
  double Unit() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }

  // An independent stream for a named purpose: adding a consumer does not shift the numbers of the others.
  static Random ForPurpose(std::uint64_t seed, std::uint64_t purpose) { return Random(HashCombine(seed, purpose)); }

 private:
  static std::uint64_t Rotate(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  std::uint64_t state_[4];
};

// `count` bytes from the kernel, fit for tokens and keys.
std::string SecureRandomBytes(std::size_t count);

}  // namespace ropewalk
