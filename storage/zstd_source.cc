// zstd by libzstd's streaming decoder: any number of frames (skippable ones too), read in pieces of any size. The decoder's window is at
// most 128 MiB (libzstd's default limit), so a hostile or --ultra --long file cannot take the machine's memory.
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <vector>

#include "storage/byte_source.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

class ZstdSource final : public ByteSource {
 public:
  ZstdSource(InputFileReader* reader, std::size_t stored_bytes_max)
      : reader_(reader), stored_(std::clamp<std::uint64_t>(reader->file().bytes, 1, stored_bytes_max)), stream_(ZSTD_createDStream()) {}
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  Result<std::size_t> Read(std::span<char> out) override {
    if (stream_ == nullptr)
      return Status(Code::kResourceExhausted, "IO03", Where() + ": no memory for zstd",
                    "this process may have no more (ulimit -v, or its control group)", "give it more memory");
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size && !ended_) {
      if (from_.pos == from_.size && !flushing_) {
        auto n = reader_->ReadAt(read_bytes_, stored_);
        if (!n.ok()) return n.status();
        read_bytes_ += *n;
        from_ = {stored_.data(), *n, 0};
        if (*n == 0) {
          if (in_frame_ || frames_ == 0) return Truncated();
          ended_ = true;
          break;
        }
      }
      RETURN_IF_ERROR(Decompress(&to));
    }
    return to.pos;
  }

 private:
  std::uint64_t StoredOffset() const { return read_bytes_ - (from_.size - from_.pos); }
  std::string Where() const {
    return "input " + QuotedPath(reader_->file().path) + " at byte " + std::to_string(StoredOffset()) + " (as stored)";
  }

  Status Decompress(ZSTD_outBuffer* to) {
    if (!in_frame_) {
      frame_begin_ = StoredOffset();
      in_frame_ = true;
    }
    std::size_t left = ZSTD_decompressStream(stream_, to, &from_);
    if (ZSTD_isError(left)) {
      std::string why = ZSTD_getErrorName(left);
      if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
        return Status(Code::kUserError, "IO03", Where() + ": the zstd data needs more memory to read than is given to one file",
                      "it was compressed with a window of more than 128 MiB", "compress it again without --long and --ultra");
      // Not by the offset: the decoder does not say how far it came in the piece that it failed on.
      if (frames_ == 0 && ZSTD_getErrorCode(left) == ZSTD_error_prefix_unknown)
        return Status(Code::kUserError, "IO03", Where() + ": this is no zstd data", why,
                      "rename the file without .zst if it is plain text");
      return Status(Code::kUserError, "IO03", Where() + ": the zstd data is damaged",
                    why + ", in the frame that begins at byte " + std::to_string(frame_begin_),
                    "make or fetch the file again (zstd -t checks it)");
    }
    if (left == 0) {
      ++frames_;
      in_frame_ = false;
    }
    flushing_ = in_frame_ && to->pos == to->size;  // the decoder may hold more output than there was room for
    return {};
  }

  Status Truncated() {
    return Status(
        Code::kUserError, "IO03", Where() + ": the zstd data ends too early",
        frames_ == 0 && !in_frame_ ? "the file is empty" : "the frame that begins at byte " + std::to_string(frame_begin_) + " is cut off",
        "make or fetch the file again (zstd -t checks it)");
  }

  InputFileReader* reader_;
  std::vector<char> stored_;
  ZSTD_DStream* stream_;
  ZSTD_inBuffer from_{nullptr, 0, 0};
  std::uint64_t read_bytes_ = 0;
  std::uint64_t frame_begin_ = 0;
  std::uint64_t frames_ = 0;
  bool in_frame_ = false;
  bool flushing_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> NewZstdSource(InputFileReader* reader, std::size_t stored_bytes_max) {
  return std::make_unique<ZstdSource>(reader, stored_bytes_max);
}

}  // namespace ropewalk::storage
