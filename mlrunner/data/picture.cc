#include "mlrunner/data/picture.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/escape.h"
#include "mlrunner/data/decoders.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

using storage::QuotedPath;

constexpr int kWeightBits = 22;  // of 32: 8 for pixels, 2 for sums of weights a little above 1

// What a line of pixels is made of: weights of `count` neighbours from `first` on.
struct Neighbours {
  std::int64_t first = 0;
  std::vector<std::int32_t> weights;
};

// `to` pixels of the stretch [begin, end) of `from` pixels. Its ends are floats since they are Pillow's.
std::vector<Neighbours> Triangles(std::int64_t from, float begin, float end, std::int64_t to) {
  const double scale = static_cast<double>(end - begin) / static_cast<double>(to), reach = std::max(scale, 1.0), steep = 1 / reach;
  std::vector<Neighbours> line(static_cast<std::size_t>(to));
  std::vector<double> weights;
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = static_cast<double>(begin) + (static_cast<double>(i) + .5) * scale;
    const std::int64_t first = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - reach + .5));
    const std::int64_t last = std::min(from, static_cast<std::int64_t>(centre + reach + .5));
    weights.clear();
    double sum = 0;
    for (std::int64_t x = first; x < last; ++x) {
      weights.push_back(std::max(0.0, 1 - std::abs((static_cast<double>(x) - centre + .5) * steep)));
      sum += weights.back();
    }
    Neighbours& neighbours = line[static_cast<std::size_t>(i)];
    neighbours.first = first;
    for (double weight : weights) {
      const double share = sum == 0 ? 0 : weight / sum;
      neighbours.weights.push_back(static_cast<std::int32_t>(share * (1 << kWeightBits) + .5));
    }
  }
  return line;
}

// `pixel`: the first of the neighbours.
std::uint8_t Mean(const std::uint8_t* pixel, std::int64_t step, const Neighbours& neighbours) {
  std::int32_t sum = 1 << (kWeightBits - 1);
  for (std::int32_t weight : neighbours.weights) {
    sum += weight * *pixel;
    pixel += step;
  }
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

}  // namespace

Result<Picture> DecodePicture(std::string_view bytes, const std::string& path) {
  if (bytes.starts_with("\x89PNG")) return DecodePng(bytes, path);
  if (bytes.starts_with("\xff\xd8")) return DecodeJpeg(bytes, path);
  return Status(Code::kUserError, "DATA13", QuotedPath(path) + " is neither a PNG nor a JPEG",
                bytes.empty() ? "it is empty" : "it begins with the bytes " + HexString(bytes.substr(0, 8)),
                "remove it, or convert it to one of the two");
}

Picture Grey(const Picture& picture) {
  Picture grey{1, picture.height, picture.width, {}};
  const auto count = static_cast<std::size_t>(picture.height * picture.width);
  const std::uint8_t *red = picture.pixels.data(), *green = red + count, *blue = green + count;
  grey.pixels.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    grey.pixels[i] = static_cast<std::uint8_t>((red[i] * 19595 + green[i] * 38470 + blue[i] * 7471 + 0x8000) >> 16);
  return grey;
}

Picture Fit(const Picture& picture, std::int64_t height, std::int64_t width) {
  if (picture.height == height && picture.width == width) return picture;
  const auto all_rows = static_cast<double>(picture.height), all_columns = static_cast<double>(picture.width);
  const double has = all_columns / all_rows, wanted = static_cast<double>(width) / static_cast<double>(height);
  double rows = all_rows, columns = all_columns;
  if (has >= wanted) {
    columns = wanted * all_rows;
  } else {
    rows = all_columns / wanted;
  }
  const double left = (all_columns - columns) * .5, top = (all_rows - rows) * .5;
  auto stretch = [](std::int64_t from, double begin, double length, std::int64_t to) {
    return Triangles(from, static_cast<float>(begin), static_cast<float>(begin + length), to);
  };
  const std::vector<Neighbours> across = stretch(picture.width, left, columns, width);
  const std::vector<Neighbours> down = stretch(picture.height, top, rows, height);
  // Only the rows that the second pass looks at.
  const std::int64_t first = down.front().first, last = down.back().first + static_cast<std::int64_t>(down.back().weights.size());
  Picture fitted{picture.channels, height, width, {}};
  fitted.pixels.resize(static_cast<std::size_t>(picture.channels * height * width));
  std::vector<std::uint8_t> narrow(static_cast<std::size_t>((last - first) * width));
  for (std::int64_t channel = 0; channel < picture.channels; ++channel) {
    const std::uint8_t* plane = picture.pixels.data() + channel * picture.height * picture.width;
    std::uint8_t* into = narrow.data();
    for (std::int64_t y = first; y < last; ++y) {
      for (const Neighbours& neighbours : across) *into++ = Mean(plane + y * picture.width + neighbours.first, 1, neighbours);
    }
    into = fitted.pixels.data() + channel * height * width;
    for (const Neighbours& neighbours : down) {
      for (std::int64_t x = 0; x < width; ++x) *into++ = Mean(narrow.data() + (neighbours.first - first) * width + x, width, neighbours);
    }
  }
  return fitted;
}

Status DamagedPicture(const std::string& path, std::string_view format, std::size_t at, const std::string& why) {
  return Status(Code::kUserError, "DATA13", fmt::format("{} is a damaged {}: it goes wrong before byte {}", QuotedPath(path), format, at),
                EscapeForLog(why), "fetch it again, or remove it");
}

Status PictureFits(const std::string& path, std::int64_t height, std::int64_t width) {
  if (height <= kPicturePixelsMax / std::max<std::int64_t>(1, width)) return {};
  return Status(Code::kUserError, "DATA14", fmt::format("{} has {} x {} pixels", QuotedPath(path), width, height),
                fmt::format("at most {} are read", kPicturePixelsMax), "scale it down, or remove it");
}

Picture Planes(const std::uint8_t* interleaved, std::int64_t height, std::int64_t width) {
  Picture picture{3, height, width, {}};
  const auto count = static_cast<std::size_t>(height * width);
  picture.pixels.resize(3 * count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t channel = 0; channel < 3; ++channel) picture.pixels[channel * count + i] = *interleaved++;
  }
  return picture;
}

}  // namespace ropewalk::mlrunner
