// gzip (RFC 1952) by zlib: any number of members, read in pieces of any size. Zero bytes after the last member are padding (tapes, tar)
// and ignored, as gzip does; anything else there is an error, since silently dropping it would lose data.
#include <zlib.h>

#include <algorithm>
#include <vector>

#include "storage/byte_source.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

class GzipSource final : public ByteSource {
 public:
  GzipSource(InputFileReader* reader, std::size_t stored_bytes_max)
      : reader_(reader), stored_(std::clamp<std::uint64_t>(reader->file().bytes, 1, stored_bytes_max)) {}
  ~GzipSource() override {
    if (started_) inflateEnd(&stream_);
  }

  Result<std::size_t> Read(std::span<char> out) override {
    if (!started_) {
      if (inflateInit2(&stream_, 15 + 16) != Z_OK)
        return Status(Code::kResourceExhausted, "IO03", Where() + ": no memory for zlib",
                      "this process may have no more (ulimit -v, or its control group)", "give it more memory");
      started_ = true;
    }
    // avail_out is 32 bits wide.
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(std::min<std::size_t>(out.size(), 1u << 30));
    std::size_t want = stream_.avail_out;
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0) RETURN_IF_ERROR(Refill());
      if (stream_.avail_in == 0) {  // the end of the file
        if (in_member_ || members_ == 0) return Truncated();
        ended_ = true;
      } else if (padding_ || (!in_member_ && members_ > 0 && *stream_.next_in == 0)) {
        RETURN_IF_ERROR(SkipPadding());
      } else {
        RETURN_IF_ERROR(Inflate());
      }
    }
    return want - stream_.avail_out;
  }

 private:
  std::uint64_t StoredOffset() const { return read_bytes_ - stream_.avail_in; }
  std::string Where() const { return WhereAt(StoredOffset()); }
  std::string WhereAt(std::uint64_t offset) const {
    return "input " + QuotedPath(reader_->file().path) + " at byte " + std::to_string(offset) + " (as stored)";
  }

  Status Refill() {
    auto n = reader_->ReadAt(read_bytes_, stored_);
    if (!n.ok()) return n.status();
    read_bytes_ += *n;
    stream_.next_in = reinterpret_cast<Bytef*>(stored_.data());
    stream_.avail_in = static_cast<uInt>(*n);
    return {};
  }

  Status Inflate() {
    if (!in_member_) {
      member_begin_ = StoredOffset();
      in_member_ = true;
    }
    int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      ++members_;
      in_member_ = false;
      inflateReset(&stream_);
      return {};
    }
    if (result == Z_OK || result == Z_BUF_ERROR) return {};  // Z_BUF_ERROR: needs more input or room, both come
    if (result == Z_MEM_ERROR)
      return Status(Code::kResourceExhausted, "IO03", Where() + ": no memory for zlib",
                    "this process may have no more (ulimit -v, or its control group)", "give it more memory");
    std::string why = stream_.msg != nullptr ? stream_.msg : "zlib error " + std::to_string(result);
    if (StoredOffset() - member_begin_ <= 2 && members_ == 0) {
      return Status(Code::kUserError, "IO03", WhereAt(member_begin_) + ": this is no gzip data", "a gzip file begins with the bytes 1f 8b",
                    "rename the file without .gz if it is plain text");
    }
    return Status(Code::kUserError, "IO03", Where() + ": the gzip data is damaged",
                  why + ", in the member that begins at byte " + std::to_string(member_begin_),
                  "make or fetch the file again (gzip -t checks it)");
  }

  Status Truncated() {
    return Status(Code::kUserError, "IO03", Where() + ": the gzip data ends too early",
                  members_ == 0 && !in_member_ ? "the file is empty, and even empty text takes 18 bytes as gzip"
                                               : "the member that begins at byte " + std::to_string(member_begin_) + " is cut off",
                  "make or fetch the file again (gzip -t checks it)");
  }

  Status SkipPadding() {
    padding_ = true;
    while (stream_.avail_in > 0 && *stream_.next_in == 0) ++stream_.next_in, --stream_.avail_in;
    if (stream_.avail_in == 0) return {};
    return Status(Code::kUserError, "IO03", Where() + ": bytes that are no gzip data follow the zero padding after the last member",
                  "after that padding a file ends, or another member begins", "cut them off, or make the file again");
  }

  InputFileReader* reader_;
  std::vector<char> stored_;
  z_stream stream_{};
  std::uint64_t read_bytes_ = 0;  // from the file, so far
  std::uint64_t member_begin_ = 0;
  std::uint64_t members_ = 0;  // complete ones
  bool started_ = false;
  bool in_member_ = false;
  bool padding_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> NewGzipSource(InputFileReader* reader, std::size_t stored_bytes_max) {
  return std::make_unique<GzipSource>(reader, stored_bytes_max);
}

}  // namespace ropewalk::storage
