// The wide checksum is the checksum, whatever the length, the place in memory and the pieces.
#include "base/wide_checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/bytes.h"

namespace ropewalk {
namespace {

TEST(WideChecksum, EqualsTheOneThatEveryProcessorComputes) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::string bytes(3 << 20, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  std::vector<std::size_t> sizes = {0, 1, 16, 17, 128, 129, 240, 241, 1024, 1025, bytes.size() - 64};
  for (int i = 0; i < 500; ++i) sizes.push_back(random() % 5000);
  for (std::size_t size : sizes) {
    std::string_view piece = std::string_view(bytes).substr(random() % 64, size);
    ASSERT_EQ(WideChecksum64(AsBytes(piece)), Checksum64(piece)) << size;
  }
}

TEST(WideChecksum, InPiecesAndMixedWithTheOther) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::string bytes(1 << 20, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (int round = 0; round < 20; ++round) {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    std::string_view rest = bytes;
    while (!rest.empty()) {
      std::string_view piece = rest.substr(0, random() % (random() % 4 == 0 ? 300'000 : 500));
      if (random() % 3 == 0) {
        XXH3_64bits_update(&state, piece.data(), piece.size());
      } else {
        WideUpdate(&state, AsBytes(piece));
      }
      rest.remove_prefix(piece.size());
    }
    ASSERT_EQ(XXH3_64bits_digest(&state), Checksum64(bytes));
  }
}

}  // namespace
}  // namespace ropewalk
