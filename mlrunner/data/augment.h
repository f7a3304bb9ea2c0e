// Pictures that are learnt from moved and mirrored, each time otherwise: a function of (seed, epoch, sample), whatever the ranks.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "base/random.h"

namespace ropewalk::mlrunner {

struct Augmentation {
  std::int64_t padding = 0;  // pixels of black around the picture, from which a part of its size is cut out
  bool mirror = false;       // one of two is mirrored, left and right
};

// Where the part begins in the padded picture.
struct Cut {
  std::int64_t down = 0, right = 0;
  bool mirrored = false;
};

inline Cut CutOf(const Augmentation& augmentation, std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
  constexpr std::uint64_t kPurpose = 0x6175676d656e74;  // "augment"
  Random random =
      Random::ForPurpose(HashCombine(HashCombine(seed, kPurpose), static_cast<std::uint64_t>(epoch)), static_cast<std::uint64_t>(sample));
  // All are drawn, so that one does not depend on whether another one is asked for.
  const auto places = static_cast<std::uint64_t>(2 * augmentation.padding + 1);
  Cut cut{static_cast<std::int64_t>(random.Below(places)), static_cast<std::int64_t>(random.Below(places)), false};
  cut.mirrored = random.OneIn(2) && augmentation.mirror;
  return cut;
}

// Calls put(i, channel, pixel) for each element i of (C, H, W) with the pixel that comes there.
template <class Put>
void ForEachCutPixel(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height, std::int64_t width,
                     const Augmentation& augmentation, const Cut& cut, Put put) {
  std::int64_t i = 0;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t y = 0; y < height; ++y) {
      const std::int64_t from_y = y + cut.down - augmentation.padding;
      for (std::int64_t x = 0; x < width; ++x, ++i) {
        const std::int64_t from_x = (cut.mirrored ? width - 1 - x : x) + cut.right - augmentation.padding;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        put(i, channel, inside ? pixels[(channel * height + from_y) * width + from_x] : std::uint8_t{0});
      }
    }
  }
}

}  // namespace ropewalk::mlrunner
