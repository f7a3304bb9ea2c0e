#include <setjmp.h>

#include <cstdio>
#include <cstring>

#include <jpeglib.h>

#include <jerror.h>

#include "mlrunner/data/decoders.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr int kScansMax = 500;  // a file of few bytes may ask for any number of passes over all pixels

struct Errors {
  jpeg_error_mgr manager{};  // first: libjpeg gives a pointer to it back
  jmp_buf jump{};
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void OnError(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<Errors*>(jpeg->err);
  jpeg->err->format_message(jpeg, errors->message);
  longjmp(errors->jump, 1);
}
// What the library would go on from with grey pixels is an error here, a file that was cut off above all.
void OnMessage(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  const int code = jpeg->err->msg_code;
  if (code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR) return;
  OnError(jpeg);
}
void OnProgress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kScansMax) return;
  auto* errors = reinterpret_cast<Errors*>(jpeg->err);
  std::snprintf(errors->message, sizeof errors->message, "it has more than %d scans", kScansMax);
  longjmp(errors->jump, 1);
}

struct Reader {
  Reader() {
    jpeg.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = OnError;
    errors.manager.emit_message = OnMessage;
    progress.progress_monitor = OnProgress;
  }
  ~Reader() { jpeg_destroy_decompress(&jpeg); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Errors errors;
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct jpeg{};
};

// Nothing with a destructor lives in the functions that are jumped back into.
bool ReadHead(Reader* reader, const unsigned char* bytes, std::size_t count) {
  if (setjmp(reader->errors.jump) != 0) return false;
  jpeg_create_decompress(&reader->jpeg);
  reader->jpeg.progress = &reader->progress;
  jpeg_mem_src(&reader->jpeg, bytes, count);
  jpeg_read_header(&reader->jpeg, TRUE);
  return true;
}
bool ReadBody(Reader* reader, unsigned char* pixels) {
  if (setjmp(reader->errors.jump) != 0) return false;
  jpeg_decompress_struct& jpeg = reader->jpeg;
  jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&jpeg);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixels + static_cast<std::size_t>(jpeg.output_scanline) * jpeg.output_width * 3;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

}  // namespace

Result<Picture> DecodeJpeg(std::string_view bytes, const std::string& path) {
  Reader reader;
  const jpeg_decompress_struct& jpeg = reader.jpeg;
  auto damaged = [&] {
    const std::size_t left = jpeg.src == nullptr ? 0 : jpeg.src->bytes_in_buffer;
    return DamagedPicture(path, "JPEG", bytes.size() - std::min(left, bytes.size()), reader.errors.message);
  };
  if (!ReadHead(&reader, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) return damaged();
  if (jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK)
    return Status(Code::kUserError, "DATA14", storage::QuotedPath(path) + " is a JPEG in CMYK", "pictures are read in RGB or grey",
                  "convert it to RGB, by a tool that knows its colour profile");
  const std::int64_t height = jpeg.image_height, width = jpeg.image_width;
  RETURN_IF_ERROR(PictureFits(path, height, width));
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(3 * height * width));
  if (!ReadBody(&reader, pixels.data())) return damaged();
  return Planes(pixels.data(), height, width);
}

}  // namespace ropewalk::mlrunner
