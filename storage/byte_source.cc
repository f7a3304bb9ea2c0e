#include "storage/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

std::string At(const InputFile& file, std::uint64_t offset) {
  return "input " + QuotedPath(file.path) + " at byte " + std::to_string(offset);
}

// In the middle of a job a path that vanished is the user's doing as much as one that changed, not a mistyped name.
Status AsUserError(const Status& status) {
  if (status.code() != Code::kNotFound) return status;
  return Status(Code::kUserError, status.tag(), status.what(), status.why(), "leave the input in place while a job reads it");
}

Status Changed(const InputFile& file, const std::string& how) {
  return Status(Code::kUserError, "IO02", "input " + QuotedPath(file.path) + " changed since the job listed it", how,
                "leave the input as it is while a job reads it, then run the job again");
}

class PlainSource final : public ByteSource {
 public:
  PlainSource(InputFileReader* reader, std::uint64_t begin) : reader_(reader), at_(begin) {}
  Result<std::size_t> Read(std::span<char> out) override {
    auto n = reader_->ReadAt(at_, out);
    if (n.ok()) at_ += *n;
    return n;
  }

 private:
  InputFileReader* reader_;
  std::uint64_t at_;
};

}  // namespace

Result<std::unique_ptr<InputFileReader>> InputFileReader::Open(const InputFile& file) {
  int fd;
  do {
    fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);  // never hang on what has become a pipe
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return AsUserError(IoError(errno, "IO02", "cannot open input " + QuotedPath(file.path)));
  std::unique_ptr<InputFileReader> reader(new InputFileReader(file, fd));
  RETURN_IF_ERROR(reader->CheckUnchanged());
  return reader;
}

InputFileReader::~InputFileReader() { close(fd_); }

Status InputFileReader::CheckUnchanged() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return IoError(errno, "IO02", "cannot look at input " + QuotedPath(file_.path));
  if (S_ISDIR(info.st_mode)) return IoError(EISDIR, "IO02", "cannot read input " + QuotedPath(file_.path));
  if (!S_ISREG(info.st_mode)) return Changed(file_, "it is no regular file any more");
  if (static_cast<std::uint64_t>(info.st_size) != file_.bytes)
    return Changed(file_, "it had " + std::to_string(file_.bytes) + " bytes and has " + std::to_string(info.st_size) + " now");
  if (info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec != file_.mtime_ns)
    return Changed(file_, "its modification time is another");
  return {};
}

Result<std::size_t> InputFileReader::ReadAt(std::uint64_t offset, std::span<char> out) {
  if (offset >= file_.bytes) return std::size_t{0};
  std::size_t want = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), file_.bytes - offset));
  std::size_t done = 0;
  while (done < want) {
    ssize_t n = pread(fd_, out.data() + done, want - done, static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0) {
      return Changed(file_, "it ends at byte " + std::to_string(offset + done) + " and had " + std::to_string(file_.bytes) + " bytes");
    } else if (errno != EINTR) {
      return AsUserError(IoError(errno, "IO02", "cannot read " + At(file_, offset + done)));
    }
  }
  return done;
}

std::unique_ptr<ByteSource> NewPlainSource(InputFileReader* reader, std::uint64_t begin) {
  return std::make_unique<PlainSource>(reader, begin);
}

std::unique_ptr<ByteSource> NewSource(InputFileReader* reader, std::uint64_t begin) {
  switch (reader->file().compression) {
    case Compression::kGzip:
      return NewGzipSource(reader, kStoredReadBytes);
    case Compression::kZstd:
      return NewZstdSource(reader, kStoredReadBytes);
    case Compression::kNone:
      break;
  }
  return NewPlainSource(reader, begin);
}

}  // namespace ropewalk::storage
