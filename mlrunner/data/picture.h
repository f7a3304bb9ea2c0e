// Pictures as bytes, and how they come out of files.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::mlrunner {

// (C, H, W): the rows of the first channel, then those of the next.
struct Picture {
  std::int64_t channels = 0, height = 0, width = 0;
  std::vector<std::uint8_t> pixels;
};

inline constexpr std::int64_t kPicturePixelsMax = std::int64_t{1} << 26;

// A PNG or a JPEG, whichever `bytes` begin like, as red, green and blue. Grey becomes all three, a palette its colours, 16 bits the nearest
// 8; what alpha says, profiles, gammas and orientations in a file's notes are not looked at. `path` is for errors.
// kUserError DATA13: damaged, cut off, or neither of the two; names path and byte. DATA14: what is not read: CMYK, or more than
// kPicturePixelsMax pixels, which no memory is taken for.
Result<Picture> DecodePicture(std::string_view bytes, const std::string& path);

// One channel of three: .299 R + .587 G + .114 B (ITU-R BT.601), as 16 bit fractions and rounded.
Picture Grey(const Picture& picture);

// The largest part in the middle that has the shape of `height` x `width`, in that size. Each pixel is the mean of those that it lies over,
// weighted by a triangle twice as wide as itself (enlarging: as one of theirs), first along rows, then along columns, each rounded to 8
// bits with weights of 22 bits: the same bytes on every machine, and those of ImageOps.fit of Pillow 11 with BILINEAR.
Picture Fit(const Picture& picture, std::int64_t height, std::int64_t width);

}  // namespace ropewalk::mlrunner
