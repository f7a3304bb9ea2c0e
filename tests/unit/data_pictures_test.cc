// Pictures from files of all forms, exactly where the form is exact; damaged and hostile ones; sizes; cuts that are drawn.
#include "mlrunner/data/picture.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/random.h"
#include "mlrunner/data/augment.h"
#include "tests/unit/data_picture_files.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JpegForm;
using testing::JpegOf;
using testing::PngForm;
using testing::PngOf;
using testing::SmoothRows;

std::uint64_t Seed(std::uint64_t number) { return ::testing::UnitTest::GetInstance()->random_seed() + number; }

Picture Decoded(const std::string& file) {
  auto picture = DecodePicture(file, "x");
  EXPECT_TRUE(picture.ok()) << picture.status().ToString();
  return picture.ok() ? *picture : Picture();
}

Picture RandomPicture(Random& random, std::int64_t channels, std::int64_t height, std::int64_t width) {
  Picture picture{channels, height, width, {}};
  for (std::int64_t i = 0; i < channels * height * width; ++i) picture.pixels.push_back(static_cast<std::uint8_t>(random.Below(256)));
  return picture;
}

// Every type and depth that the format has, in rows and interlaced.
TEST(Pictures, PngOfEveryForm) {
  const std::uint64_t seed = Seed(31);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (auto [type, depth] : {std::pair(PNG_COLOR_TYPE_GRAY, 1),
                             {PNG_COLOR_TYPE_GRAY, 2},
                             {PNG_COLOR_TYPE_GRAY, 4},
                             {PNG_COLOR_TYPE_GRAY, 8},
                             {PNG_COLOR_TYPE_GRAY, 16},
                             {PNG_COLOR_TYPE_RGB, 8},
                             {PNG_COLOR_TYPE_RGB, 16},
                             {PNG_COLOR_TYPE_PALETTE, 1},
                             {PNG_COLOR_TYPE_PALETTE, 2},
                             {PNG_COLOR_TYPE_PALETTE, 4},
                             {PNG_COLOR_TYPE_PALETTE, 8},
                             {PNG_COLOR_TYPE_GRAY_ALPHA, 8},
                             {PNG_COLOR_TYPE_GRAY_ALPHA, 16},
                             {PNG_COLOR_TYPE_RGB_ALPHA, 8},
                             {PNG_COLOR_TYPE_RGB_ALPHA, 16}}) {
    for (bool interlaced : {false, true}) {
      const int width = static_cast<int>(random.Between(1, 20)), height = static_cast<int>(random.Between(1, 20));
      PngForm form{type, depth, interlaced};
      if (type == PNG_COLOR_TYPE_PALETTE) {
        for (int i = 0; i < 1 << depth; ++i)
          form.palette.push_back(
              {static_cast<png_byte>(random.Below(256)), static_cast<png_byte>(random.Below(256)), static_cast<png_byte>(i)});
      }
      const bool is_colour = (type & PNG_COLOR_MASK_COLOR) != 0 && type != PNG_COLOR_TYPE_PALETTE;
      const int values = (is_colour ? 3 : 1) + ((type & PNG_COLOR_MASK_ALPHA) != 0 ? 1 : 0);
      Picture expected{3, height, width, std::vector<std::uint8_t>(static_cast<std::size_t>(3 * height * width))};
      std::vector<std::string> rows;
      for (int y = 0; y < height; ++y) {
        std::string row(static_cast<std::size_t>((width * values * depth + 7) / 8), '\0');
        for (int x = 0; x < width; ++x) {
          std::uint8_t rgb[3] = {};
          for (int i = 0; i < values; ++i) {
            const auto value = static_cast<std::uint32_t>(random.Below(std::uint64_t{1} << depth));
            const int bit = (x * values + i) * depth;
            if (depth == 16) {
              row[static_cast<std::size_t>(bit / 8)] = static_cast<char>(value >> 8);
              row[static_cast<std::size_t>(bit / 8 + 1)] = static_cast<char>(value);
            } else {
              row[static_cast<std::size_t>(bit / 8)] |= static_cast<char>(value << (8 - depth - bit % 8));
            }
            const std::uint32_t most = (1u << depth) - 1;
            const auto byte = static_cast<std::uint8_t>((value * 255 * 2 + most) / (2 * most));
            if (type == PNG_COLOR_TYPE_PALETTE) {
              const png_color& colour = form.palette[value];
              rgb[0] = colour.red, rgb[1] = colour.green, rgb[2] = colour.blue;
            } else if (is_colour && i < 3) {
              rgb[i] = byte;
            } else if (!is_colour && i == 0) {
              rgb[0] = rgb[1] = rgb[2] = byte;
            }
          }
          for (int channel = 0; channel < 3; ++channel)
            expected.pixels[static_cast<std::size_t>((channel * height + y) * width + x)] = rgb[channel];
        }
        rows.push_back(row);
      }
      const Picture picture = Decoded(PngOf(width, height, form, rows));
      ASSERT_EQ(picture.height, height);
      ASSERT_EQ(picture.width, width);
      ASSERT_EQ(picture.pixels, expected.pixels) << "type " << type << ", " << depth << " bits, " << interlaced;
    }
  }
}

TEST(Pictures, JpegInColourAndGrey) {
  const int width = 37, height = 21;
  const std::vector<std::string> rows = SmoothRows(width, height, 1);
  for (bool progressive : {false, true}) {
    const Picture picture = Decoded(JpegOf(width, height, {.quality = 100, .progressive = progressive}, rows));
    ASSERT_EQ(picture.pixels.size(), static_cast<std::size_t>(3 * width * height));
    double off = 0;
    for (int i = 0; i < 3 * width * height; ++i) {
      const int channel = i / (width * height), y = i / width % height, x = i % width;
      off += std::abs(
          picture.pixels[static_cast<std::size_t>(i)] -
          static_cast<int>(static_cast<std::uint8_t>(rows[static_cast<std::size_t>(y)][static_cast<std::size_t>(3 * x + channel)])));
    }
    EXPECT_LT(off / (3 * width * height), 6) << "colours are kept at half the size";
  }
  std::vector<std::string> grey(static_cast<std::size_t>(height), std::string(static_cast<std::size_t>(width), '\x50'));
  const Picture picture = Decoded(JpegOf(width, height, {JCS_GRAYSCALE, 1, 100}, grey));
  EXPECT_EQ(picture.channels, 3);
  EXPECT_EQ(picture.pixels, std::vector<std::uint8_t>(static_cast<std::size_t>(3 * width * height), 0x50));
}

TEST(Pictures, WhatIsNotReadIsSaid) {
  const std::vector<std::string> rows(4, std::string(16, '\x20'));
  const Status cmyk = DecodePicture(JpegOf(4, 4, {JCS_CMYK, 4}, rows), "some/cat.jpg").status();
  EXPECT_EQ(cmyk.tag(), "DATA14");
  EXPECT_EQ(cmyk.what(), "\"some/cat.jpg\" is a JPEG in CMYK");
  const Status gif = DecodePicture("GIF89a..", "a.png").status();
  EXPECT_EQ(gif.tag(), "DATA13");
  EXPECT_EQ(gif.what(), "\"a.png\" is neither a PNG nor a JPEG");
  EXPECT_EQ(gif.why(), "it begins with the bytes 4749463839612e2e");
  EXPECT_EQ(DecodePicture("", "a.png").status().why(), "it is empty");
  for (const Status& status : {cmyk, gif}) EXPECT_FALSE(status.fix().empty());
}

// A few bytes that ask for gigabytes.
TEST(Pictures, ThatClaimToBeHugeAreRefusedByTheirHead) {
  std::string png = PngOf(4, 4, {PNG_COLOR_TYPE_GRAY, 8}, std::vector<std::string>(4, "abcd"));
  const auto width = [](std::string* file, std::size_t at, std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) (*file)[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> 8 * (bytes - 1 - i));
  };
  width(&png, 16, 60'000, 4);
  width(&png, 20, 50'000, 4);
  uLong check = crc32(0, reinterpret_cast<const Bytef*>(png.data()) + 12, 17);
  width(&png, 29, static_cast<std::uint32_t>(check), 4);
  const Status status = DecodePicture(png, "p").status();
  EXPECT_EQ(status.tag(), "DATA14") << status.ToString();
  EXPECT_EQ(status.what(), "\"p\" has 60000 x 50000 pixels");
  std::string jpeg = JpegOf(8, 8, {JCS_GRAYSCALE, 1}, std::vector<std::string>(8, std::string(8, 'x')));
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, jpeg.npos);
  width(&jpeg, frame + 5, 65'000, 2);
  width(&jpeg, frame + 7, 65'000, 2);
  EXPECT_EQ(DecodePicture(jpeg, "j").status().tag(), "DATA14") << DecodePicture(jpeg, "j").status().ToString();
}

TEST(Pictures, EveryTruncationIsRefused) {
  const std::vector<std::string> rows = SmoothRows(24, 16, 0);
  for (const std::string& file : {PngOf(24, 16, {}, rows), PngOf(24, 16, {.interlaced = true}, rows), JpegOf(24, 16, {}, rows),
                                  JpegOf(24, 16, {.progressive = true}, rows)}) {
    Decoded(file);
    for (std::size_t length = 0; length < file.size(); ++length) {
      auto picture = DecodePicture(file.substr(0, length), "cut");
      ASSERT_FALSE(picture.ok()) << length << " of " << file.size();
      EXPECT_EQ(picture.status().tag(), "DATA13") << picture.status().ToString();
      EXPECT_NE(picture.status().what().find("\"cut\" is "), std::string::npos) << picture.status().ToString();
      EXPECT_FALSE(picture.status().why().empty()) << length;
    }
  }
}

TEST(Pictures, EveryFlippedBitOfAPngIsNoticed) {
  const std::string file = PngOf(6, 5, {}, SmoothRows(6, 5, 2));
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    ASSERT_FALSE(DecodePicture(flipped, "x").ok()) << bit;
  }
}

// A JPEG has no checksums: what can be decoded is, what cannot is refused, and nothing else happens.
TEST(Pictures, DamagedJpegsAreRefusedOrPictures) {
  const std::uint64_t seed = Seed(32);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string file = JpegOf(24, 16, {.progressive = round % 2 == 0}, SmoothRows(24, 16, round % 5));
    for (std::uint64_t i = 0; i <= random.Below(4); ++i) file[random.Below(file.size())] = static_cast<char>(random.Below(256));
    auto picture = DecodePicture(file, "x");
    if (picture.ok()) {
      EXPECT_EQ(static_cast<std::int64_t>(picture->pixels.size()), 3 * picture->height * picture->width);
    } else {
      ++refused;
      EXPECT_TRUE(picture.status().tag() == "DATA13" || picture.status().tag() == "DATA14");
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(Pictures, GreyIsTheLumaOfTelevision) {
  const Picture colours{3, 1, 5, {255, 0, 0, 255, 10, 0, 255, 0, 255, 20, 0, 0, 255, 255, 30}};
  const Picture grey = Grey(colours);
  EXPECT_EQ(grey.channels, 1);
  EXPECT_EQ(grey.pixels, (std::vector<std::uint8_t>{76, 150, 29, 255, 18}));
}

// The definition, in floating point.
double SlowFitted(const Picture& p, std::int64_t channel, double y, double x, double rows, double columns) {
  double sum = 0, weights = 0;
  auto weight = [](double distance, double scale) { return std::max(0.0, 1 - std::abs(distance) / std::max(1.0, scale)); };
  for (std::int64_t i = 0; i < p.height; ++i) {
    for (std::int64_t j = 0; j < p.width; ++j) {
      const double w = weight(static_cast<double>(i) + .5 - y, rows) * weight(static_cast<double>(j) + .5 - x, columns);
      sum += w * p.pixels[static_cast<std::size_t>((channel * p.height + i) * p.width + j)];
      weights += w;
    }
  }
  return sum / weights;
}

TEST(Pictures, FitIsTheMeanOfWhatLiesUnderEachPixel) {
  const std::uint64_t seed = Seed(33);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  auto size = [&](std::uint64_t most) { return static_cast<std::int64_t>(random.Between(1, most)); };
  for (int round = 0; round < 60; ++round) {
    const Picture p = RandomPicture(random, 2, size(30), size(30));
    const std::int64_t height = size(24), width = size(24);
    const Picture fitted = Fit(p, height, width);
    ASSERT_EQ(static_cast<std::int64_t>(fitted.pixels.size()), 2 * height * width);
    const double shape = static_cast<double>(width) / static_cast<double>(height);
    const double columns = std::min(static_cast<double>(p.width), shape * static_cast<double>(p.height)), rows = columns / shape;
    const double scale_y = rows / static_cast<double>(height), scale_x = columns / static_cast<double>(width);
    for (std::int64_t i = 0; i < 2 * height * width; ++i) {
      const std::int64_t channel = i / (height * width), y = i / width % height, x = i % width;
      const double expected =
          SlowFitted(p, channel, (static_cast<double>(p.height) - rows) / 2 + (static_cast<double>(y) + .5) * scale_y,
                     (static_cast<double>(p.width) - columns) / 2 + (static_cast<double>(x) + .5) * scale_x, scale_y, scale_x);
      // Rounded twice: after the rows and after the columns.
      ASSERT_NEAR(fitted.pixels[static_cast<std::size_t>(i)], expected, 1.01)
          << p.height << " x " << p.width << " to " << height << " x " << width << ", element " << i;
    }
  }
  const Picture p = RandomPicture(random, 3, 9, 7);
  EXPECT_EQ(Fit(p, 9, 7).pixels, p.pixels);
  const Picture flat{1, 50, 40, std::vector<std::uint8_t>(2000, 255)};
  EXPECT_EQ(Fit(flat, 7, 90).pixels, std::vector<std::uint8_t>(630, 255)) << "white stays white";
}

TEST(Augment, IsAFunctionOfSeedEpochAndSample) {
  const Augmentation augmentation{.padding = 2, .mirror = true};
  std::set<std::tuple<std::int64_t, std::int64_t, bool>> seen;
  int same_epoch = 0, same_seed = 0;
  for (std::int64_t sample = 0; sample < 2000; ++sample) {
    const Cut cut = CutOf(augmentation, 7, 3, sample), again = CutOf(augmentation, 7, 3, sample);
    auto all = [](const Cut& c) { return std::tuple(c.down, c.right, c.mirrored); };
    EXPECT_EQ(all(cut), all(again));
    seen.insert(all(cut));
    EXPECT_TRUE(cut.down >= 0 && cut.down <= 4 && cut.right >= 0 && cut.right <= 4);
    same_epoch += all(cut) == all(CutOf(augmentation, 7, 4, sample));
    same_seed += all(cut) == all(CutOf(augmentation, 8, 3, sample));
    const Cut unmirrored = CutOf({.padding = 2}, 7, 3, sample);
    EXPECT_EQ(std::tuple(unmirrored.down, unmirrored.right, unmirrored.mirrored), std::tuple(cut.down, cut.right, false));
    const Cut none = CutOf({}, 7, 3, sample);
    EXPECT_EQ(all(none), std::tuple(std::int64_t{0}, std::int64_t{0}, false));
  }
  EXPECT_EQ(seen.size(), 50u) << "every place, mirrored and not";
  EXPECT_LT(same_epoch, 100) << "of 2000, of which one in 50 is the same by chance";
  EXPECT_LT(same_seed, 100);
}

TEST(Augment, CutsOutOfThePaddedPicture) {
  const std::uint8_t pixels[] = {1, 2, 3, 4, 5, 6};  // 2 x 3
  auto cut = [&](const Cut& c) {
    std::string text;
    ForEachCutPixel(pixels, 1, 2, 3, {.padding = 1, .mirror = true}, c,
                    [&](std::int64_t, std::int64_t, std::uint8_t pixel) { text += static_cast<char>('0' + pixel); });
    return text;
  };
  EXPECT_EQ(cut({1, 1, false}), "123456");
  EXPECT_EQ(cut({1, 1, true}), "321654");
  EXPECT_EQ(cut({0, 0, false}), "000012");
  EXPECT_EQ(cut({0, 0, true}), "000210") << "mirrored after it was cut out";
  EXPECT_EQ(cut({2, 2, false}), "560000");
}

}  // namespace
}  // namespace ropewalk::mlrunner
