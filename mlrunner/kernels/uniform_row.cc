#include "mlrunner/kernels/uniform_row.h"

#include <algorithm>

#include "mlrunner/kernels/cpu.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kBlocksAtOnce = 64;  // of four numbers

// Philox 4x32-10 as in philox.h, of counters that follow each other; word w of block i at words[w][i].
ROPEWALK_CLONES void Blocks(std::uint64_t key, std::uint64_t sample, std::uint64_t first, float (*words)[kBlocksAtOnce]) {
  const auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < kBlocksAtOnce; ++i) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(i);
    auto c0 = static_cast<std::uint32_t>(block), c1 = static_cast<std::uint32_t>(block >> 32);
    auto c2 = static_cast<std::uint32_t>(sample), c3 = static_cast<std::uint32_t>(sample >> 32), k0 = key0, k1 = key1;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c0, b = std::uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(b);
      c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(a);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    // 24 bits are a positive int, which every instruction set converts.
    words[0][i] = static_cast<float>(static_cast<std::int32_t>(c0 >> 8)) * 0x1.0p-24f;
    words[1][i] = static_cast<float>(static_cast<std::int32_t>(c1 >> 8)) * 0x1.0p-24f;
    words[2][i] = static_cast<float>(static_cast<std::int32_t>(c2 >> 8)) * 0x1.0p-24f;
    words[3][i] = static_cast<float>(static_cast<std::int32_t>(c3 >> 8)) * 0x1.0p-24f;
  }
}

ROPEWALK_CLONES void Drop(const float* u, float rate, float kept, float* x, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * kept;
    x[i] = u[i] < rate ? 0.0f : scaled;
  }
}

}  // namespace

void UniformRow(std::uint64_t key, std::uint64_t sample, std::uint64_t first, std::int64_t n, float* to) {
  float words[4][kBlocksAtOnce];
  for (std::int64_t done = 0; done < n;) {
    const std::uint64_t element = first + static_cast<std::uint64_t>(done), block = element / 4;
    Blocks(key, sample, block, words);
    const auto skipped = static_cast<std::int64_t>(element % 4);
    const std::int64_t count = std::min(4 * kBlocksAtOnce - skipped, n - done);
    for (std::int64_t i = 0; i < count; ++i) to[done + i] = words[(skipped + i) % 4][(skipped + i) / 4];
    done += count;
  }
}

void DropRow(std::uint64_t key, std::uint64_t sample, std::uint64_t first, float rate, float* x, std::int64_t n) {
  constexpr std::int64_t kAtOnce = 4 * kBlocksAtOnce;
  float u[kAtOnce];
  for (std::int64_t at = 0; at < n; at += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, n - at);
    UniformRow(key, sample, first + static_cast<std::uint64_t>(at), count, u);
    Drop(u, rate, 1 / (1 - rate), x + at, count);
  }
}

}  // namespace ropewalk::mlrunner
