// Pictures as files, written by the libraries that read them.
//
// Thread rule: pure functions.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <jpeglib.h>
#include <png.h>

namespace ropewalk::mlrunner::testing {

struct PngForm {
  int color_type = PNG_COLOR_TYPE_RGB, bit_depth = 8;
  bool interlaced = false;
  std::vector<png_color> palette = {};
};

// `rows` as the file has them: packed where pixels have less than 8 bits, two bytes big-endian where they have 16.
inline std::string PngOf(int width, int height, const PngForm& form, std::vector<std::string> rows) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, [](png_structp, png_const_charp) { std::abort(); }, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp p, png_bytep bytes, png_size_t count) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<const char*>(bytes), count);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), form.bit_depth, form.color_type,
               form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!form.palette.empty()) png_set_PLTE(png, info, form.palette.data(), static_cast<int>(form.palette.size()));
  std::vector<png_bytep> pointers;
  for (std::string& row : rows) pointers.push_back(reinterpret_cast<png_bytep>(row.data()));
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

struct JpegForm {
  J_COLOR_SPACE space = JCS_RGB;
  int components = 3, quality = 90;
  bool progressive = false;
};

inline std::string JpegOf(int width, int height, const JpegForm& form, const std::vector<std::string>& rows) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);  // ends the process
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  jpeg_mem_dest(&jpeg, &bytes, &count);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = form.components;
  jpeg.in_color_space = form.space;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, form.quality, TRUE);
  if (form.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  for (const std::string& row : rows) {
    std::string copy = row;
    JSAMPROW pointer = reinterpret_cast<JSAMPROW>(copy.data());
    jpeg_write_scanlines(&jpeg, &pointer, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<char*>(bytes), count);
  jpeg_destroy_compress(&jpeg);
  std::free(bytes);
  return file;
}

// A smooth picture in red, green and blue that is another one for each `phase`.
inline std::vector<std::string> SmoothRows(int width, int height, int phase) {
  std::vector<std::string> rows;
  for (int y = 0; y < height; ++y) {
    rows.emplace_back();
    for (int x = 0; x < width; ++x) {
      for (int channel = 0; channel < 3; ++channel)
        rows.back() += static_cast<char>((3 * x * (channel + 1) + 5 * y + 40 * phase + 60 * channel) % 256 / 2 + 40);
    }
  }
  return rows;
}

}  // namespace ropewalk::mlrunner::testing
