#include <png.h>

#include <cstring>

#include "mlrunner/data/decoders.h"

namespace ropewalk::mlrunner {
namespace {

struct Source {
  std::string_view bytes;
  std::size_t at = 0;
  char message[256] = "";
};

void Read(png_structp png, png_bytep into, std::size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (count > source->bytes.size() - source->at) png_error(png, "the file ends here");
  std::memcpy(into, source->bytes.data() + source->at, count);
  source->at += count;
}

[[noreturn]] void OnError(png_structp png, png_const_charp message) {
  auto* source = static_cast<Source*>(png_get_error_ptr(png));
  std::strncpy(source->message, message, sizeof source->message - 1);
  png_longjmp(png, 1);
}
// Of what is optional in a file.
void OnWarning(png_structp, png_const_charp) {}

struct Reader {
  explicit Reader(Source* source) : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, source, OnError, OnWarning)) {
    if (png != nullptr) info = png_create_info_struct(png);
    if (info != nullptr) png_set_read_fn(png, source, Read);
  }
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  png_structp png;
  png_infop info = nullptr;
};

// Nothing with a destructor lives in the functions that are jumped back into.
bool ReadHead(png_structp png, png_infop info) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_info(png, info);
  png_set_palette_to_rgb(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_scale_16(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
  return true;
}
bool ReadBody(png_structp png, png_infop info, png_bytep* rows, std::size_t row_bytes) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  (void)png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (png_get_rowbytes(png, info) != row_bytes) png_error(png, "its pixels are of a form that is not known");
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

}  // namespace

Result<Picture> DecodePng(std::string_view bytes, const std::string& path) {
  Source source{bytes};
  Reader reader(&source);
  if (reader.info == nullptr) return DamagedPicture(path, "PNG", 0, "libpng could not be set up");
  if (!ReadHead(reader.png, reader.info)) return DamagedPicture(path, "PNG", source.at, source.message);
  const std::int64_t height = png_get_image_height(reader.png, reader.info), width = png_get_image_width(reader.png, reader.info);
  RETURN_IF_ERROR(PictureFits(path, height, width));
  const auto row_bytes = static_cast<std::size_t>(3 * width);
  std::vector<std::uint8_t> pixels(row_bytes * static_cast<std::size_t>(height));
  std::vector<png_bytep> rows;
  for (std::int64_t y = 0; y < height; ++y) rows.push_back(pixels.data() + static_cast<std::size_t>(y) * row_bytes);
  if (!ReadBody(reader.png, reader.info, rows.data(), row_bytes)) return DamagedPicture(path, "PNG", source.at, source.message);
  return Planes(pixels.data(), height, width);
}

}  // namespace ropewalk::mlrunner
