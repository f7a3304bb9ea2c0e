// The bytes of one input file as a reader should see them: plain, or decompressed. Internal to storage/.
//
// Thread rule: one thread each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "storage/input.h"

namespace ropewalk::storage {

// An open input file that must stay as it was when the job listed it.
class InputFileReader {
 public:
  // IO02: missing, unreadable, a folder, or changed since the listing.
  static Result<std::unique_ptr<InputFileReader>> Open(const InputFile& file);
  ~InputFileReader();

  // Reads until `out` is full or the file's listed size is reached; returns how much. IO02 with the offset when the disk fails or the file
  // is shorter than listed.
  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<char> out);
  // IO02 when size or modification time differ from the listing. To be called again at the end: what was read may be a mixture.
  Status CheckUnchanged() const;
  const InputFile& file() const { return file_; }

 private:
  InputFileReader(const InputFile& file, int fd) : file_(file), fd_(fd) {}
  InputFile file_;
  int fd_;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `out`; less only at the end of the data, 0 after it. Errors name the file and the offset as stored.
  virtual Result<std::size_t> Read(std::span<char> out) = 0;
};

std::unique_ptr<ByteSource> NewPlainSource(InputFileReader* reader, std::uint64_t begin);
// `stored_bytes_max`: how much is read from the file at a time (tests try every size).
std::unique_ptr<ByteSource> NewGzipSource(InputFileReader* reader, std::size_t stored_bytes_max);
std::unique_ptr<ByteSource> NewZstdSource(InputFileReader* reader, std::size_t stored_bytes_max);

inline constexpr std::size_t kStoredReadBytes = 256 << 10;
// By file.compression; `begin` must be 0 for compressed files. `reader` outlives the source.
std::unique_ptr<ByteSource> NewSource(InputFileReader* reader, std::uint64_t begin);

}  // namespace ropewalk::storage
