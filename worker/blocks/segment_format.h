// The bytes of a segment, and what is believed of them.
//
//   extents in the order of writing ... | ExtentEntry... sorted by part | SegmentFooter
//
// Whoever gets a segment from elsewhere (a memfd of an executor, a run file) parses the tail with ParseSegment, which trusts nothing:
// sizes, checksums, ranges and sums are all proven before an entry is used. Extents carry their own checksum, verified by each reader.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/task.h"

namespace ropewalk::blocks {

struct ExtentEntry {
  std::uint32_t part = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;  // in the segment
  std::uint64_t length = 0;  // bytes
  std::uint64_t records = 0;
  std::uint64_t checksum = 0;  // XXH3 of the bytes
};
static_assert(sizeof(ExtentEntry) == 40);

struct SegmentFooter {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t parts = 0;
  std::uint64_t stage = 0;
  std::uint32_t task = 0;
  std::uint32_t attempt = 0;
  std::uint64_t job = 0;
  std::uint64_t extents = 0;
  std::uint64_t data_bytes = 0;
  std::uint64_t records = 0;
  std::uint64_t content_hash = 0;
  std::uint64_t index_checksum = 0;
  std::uint64_t footer_checksum = 0;  // of all bytes before it
};
static_assert(sizeof(SegmentFooter) == 88);

inline constexpr std::uint64_t kSegmentMagic = 0x31474553574b5052ull;  // "RPKWSEG1"
inline constexpr std::uint64_t kExtentsMax = 1ull << 24;               // of one segment: bounds what an index may make us allocate

// The index of one segment: entries sorted by part, and within a part in the order of writing.
struct SegmentIndex {
  TaskAttempt producer;
  JobId job;
  std::uint32_t parts = 0;
  std::uint64_t data_bytes = 0;
  std::uint64_t records = 0;
  std::uint64_t content_hash = 0;
  std::vector<ExtentEntry> entries;

  // The entries of parts [first, first + count).
  std::span<const ExtentEntry> Range(std::uint32_t first, std::uint32_t count) const;
  // Index and footer as they stand behind the data.
  std::string Tail() const;
  std::uint64_t file_bytes() const { return data_bytes + entries.size() * sizeof(ExtentEntry) + sizeof(SegmentFooter); }
  dag::SegmentInfo Info(SegmentId id) const {
    return {.segment = id, .bytes = data_bytes, .records = records, .content_hash = content_hash};
  }
};

// Collects the entries while a segment is written.
class IndexBuilder {
 public:
  IndexBuilder(TaskAttempt producer, JobId job, std::uint32_t parts);
  // The entry of an extent that lies at the end of what was added so far. kInternal when `part` is out of range, kResourceExhausted beyond
  // kExtentsMax.
  Status Add(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records);
  std::uint64_t data_bytes() const { return index_.data_bytes; }
  SegmentIndex Finish() &&;

 private:
  SegmentIndex index_;
  bool sorted_ = true;
};

// Reads the tail of the segment in `fd` (`file_bytes` long) by pread and proves it. kDataLoss names `producer`.
Result<SegmentIndex> ParseSegment(int fd, std::uint64_t file_bytes, const TaskAttempt& producer, JobId job);
// The same for a segment of any task and job: they are those that its footer names.
Result<SegmentIndex> ParseSegment(int fd, std::uint64_t file_bytes);

// kDataLoss unless `bytes` are those of `entry`.
Status VerifyExtent(const ExtentEntry& entry, std::span<const std::byte> bytes, const TaskAttempt& producer);

// "stage 12 task 3 attempt 1", the form that all block errors use.
std::string ToString(const TaskAttempt& producer);

// Reads exactly `out.size()` bytes at `offset`; kDataLoss (BLK02) when the file ends before or cannot be read.
Status ReadExactly(int fd, std::uint64_t offset, std::span<std::byte> out, const TaskAttempt& producer);
// Writes all bytes at `offset`. kResourceExhausted (BLK05) when the disk is full; `path` is for the message.
Status WriteExactly(int fd, std::uint64_t offset, std::span<const std::byte> bytes, const std::string& path);

}  // namespace ropewalk::blocks
