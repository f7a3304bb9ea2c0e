// The two hashes of Ropewalk, both XXH3 (xxhash library), both fixed for ever: values are stored and sent.
//   Checksum64: guards bytes at rest and on the wire.
//   KeyHash64:  places keys in partitions and tables; seeded so that it differs from the checksum. The same in every process, build and
//               version; never std::hash.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ropewalk {

inline constexpr std::uint64_t kKeySeed = 0x726f706577616c6bull;  // "ropewalk"

inline std::uint64_t Checksum64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
inline std::uint64_t Checksum64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
inline std::uint64_t KeyHash64(std::string_view key) { return XXH3_64bits_withSeed(key.data(), key.size(), kKeySeed); }

// The finaliser of splitmix64: spreads every input bit over the whole word.
inline std::uint64_t Mix64(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
inline std::uint64_t HashCombine(std::uint64_t a, std::uint64_t b) { return Mix64(a + 0x9e3779b97f4a7c15ull + Mix64(b)); }

// Partition of a key hash among `parts`: the high bits, so that tables may use the low ones.
inline std::uint32_t PartitionOf(std::uint64_t hash, std::uint32_t parts) {
  return static_cast<std::uint32_t>(((hash >> 32) * parts) >> 32);
}

}  // namespace ropewalk
