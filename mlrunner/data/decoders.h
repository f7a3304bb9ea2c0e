// The two libraries that pictures are decoded by, each behind one function. They report errors by long jumps, which stay in their files.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "mlrunner/data/picture.h"

namespace ropewalk::mlrunner {

Result<Picture> DecodePng(std::string_view bytes, const std::string& path);
Result<Picture> DecodeJpeg(std::string_view bytes, const std::string& path);

// DATA13 of a file that goes wrong at `at`.
Status DamagedPicture(const std::string& path, std::string_view format, std::size_t at, const std::string& why);
// DATA14 where it is too large, else OK.
Status PictureFits(const std::string& path, std::int64_t height, std::int64_t width);
// Rows of red, green, blue next to each other, one pixel after the other.
Picture Planes(const std::uint8_t* interleaved, std::int64_t height, std::int64_t width);

}  // namespace ropewalk::mlrunner
