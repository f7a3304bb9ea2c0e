// Input of jobs: which files a pattern means, how they are split, and how their lines are read.
//
// Listing: a path that exists wins over a pattern (a file may be called "*star[1].txt"); a folder means all files below it, in
// byte order of their relative paths; names that start with '.' or '_' are skipped (below a folder or by a pattern, never when named
// outright). `.gz` and `.zst` are read decompressed, all members and frames, and cannot be split.
//
// Lines: end at '\n'; a last line without one is a line; '\r' is data; a line belongs to the split in which its first byte lies.
//
// Thread rule: values and independent readers; a reader belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::storage {

enum class Compression : std::uint8_t { kNone = 0, kGzip = 1, kZstd = 2 };

struct InputFile {
  std::string path;           // absolute
  std::uint64_t bytes = 0;    // as stored
  std::int64_t mtime_ns = 0;  // an input that changes under a job fails it
  Compression compression = Compression::kNone;
};

struct InputSplit {
  std::uint32_t file = 0;   // index into the listing
  std::uint64_t begin = 0;  // bytes as stored; compressed files: the whole file
  std::uint64_t end = 0;
};

struct InputListing {
  std::vector<InputFile> files;
  std::uint64_t skipped_hidden = 0;  // so that "nothing left" can say why
};

// `patterns` are resolved against `work_dir`. kNotFound (tag IO01) names the pattern; kUserError (IO02) what cannot be read.
Result<InputListing> ListInputs(std::span<const std::string> patterns, const std::string& work_dir);

// Splits in file order. Small files are packed: one task reads several splits. Each element is one task's work.
// `record_bytes` != 0: split borders are multiples of it.
std::vector<std::vector<InputSplit>> PackSplits(const InputListing& listing, std::uint64_t split_bytes_max, std::uint32_t slots,
                                                std::uint64_t record_bytes = 0);

// A listing and its splits as bytes, so that the driver's can be journalled and handed to every replica.
std::string EncodeListing(const InputListing& listing);
Result<InputListing> DecodeListing(std::string_view bytes);

// Lines of one split, in batches. Views are valid during the call only.
struct LineBatch {
  std::span<const std::string_view> lines;
  std::span<const std::uint64_t> offsets;  // of each line's first byte: in the file as stored (compressed: in the decompressed text)
};
// `consume` returns false to stop early. Errors name file and byte offset (as stored): IO02 unreadable or changed since the listing,
// IO03 damaged or truncated compression (kUserError).
Status ReadLines(const InputFile& file, const InputSplit& split, const std::function<bool(const LineBatch&)>& consume);

inline constexpr std::uint32_t kRecordBytesMax = std::uint32_t{1} << 30;

// Records of `record_bytes` bytes each: what can be told from the listing alone, before any work. kInvalid IO04: no such size;
// kUserError IO04: a plain file's size is no multiple of it (names file and byte offset).
Status CheckFixedRecords(const InputFile& file, std::uint32_t record_bytes);

// Fixed-length records of one split; `consume` gets whole ones, and the offset of the first (compressed files: in what is decompressed),
// and returns false to stop early. Errors as those of CheckFixedRecords and of ReadLines; a compressed file whose decompressed size is no
// multiple of `record_bytes` is kUserError IO04 at its end.
Status ReadFixedRecords(const InputFile& file, const InputSplit& split, std::uint32_t record_bytes,
                        const std::function<bool(std::span<const std::byte>, std::uint64_t offset)>& consume);

}  // namespace ropewalk::storage
