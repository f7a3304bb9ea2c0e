// How operators move encoded records in extents: to the parts of a segment or of a spill, and back out of them. Nothing here knows a user
// type, so it is compiled once.
//
// Thread rule: each object belongs to one task.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/huge_pages.h"
#include "base/status.h"
#include "dag/task.h"

namespace ropewalk::dag {

// How a map side writes its shuffle. The numbers are plan constants: block bytes are a function of the records and of these.
struct ShuffleOptions {
  std::uint32_t partitions = 1;
  std::uint64_t memory_bytes_max = 256ull << 20;  // Settings::operator_bytes
  std::uint64_t extent_bytes_max = 256ull << 10;  // a longer record has an extent of its own
  HugePages* pages = &ProcessPages();
  RecordCursor* cursor = nullptr;  // of the task
  bool precise_cursor = false;     // as TaskContext's
};

// Gathers records in one buffer for each part and hands full ones on as extents. Extents hold whole records.
class PartitionBuffers {
 public:
  // `out` is not owned. The buffers together take at most `memory_bytes_max`, unless that leaves less than 1 KiB for each.
  PartitionBuffers(SegmentWriter* out, std::uint32_t parts, std::uint64_t memory_bytes_max, std::uint64_t extent_bytes_max,
                   HugePages* pages = &ProcessPages());

  // `write` puts exactly `bytes` bytes at the address it gets. The first error of the segment stays and is returned by Flush.
  template <class Write>
  void Put(std::uint32_t part, std::size_t bytes, Write write) {
    Part& p = parts_[part];
    if (p.used + bytes > extent_bytes_) {
      FlushPart(part);
      if (bytes > extent_bytes_) {
        write(Oversize(bytes));
        return PutOversize(part, bytes);
      }
    }
    write(buffer_.data() + part * extent_bytes_ + p.used);
    p.used += bytes;
    ++p.records;
  }
  Status Flush();
  const Status& status() const { return status_; }
  std::uint64_t records() const { return records_; }  // handed on so far
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Part {
    std::size_t used = 0;
    std::uint64_t records = 0;
  };
  void FlushPart(std::uint32_t part);
  char* Oversize(std::size_t bytes);
  void PutOversize(std::uint32_t part, std::size_t bytes);

  SegmentWriter* out_;
  HugePages* pages_;
  std::size_t extent_bytes_;
  HugeBuffer buffer_, oversize_;
  std::vector<Part> parts_;
  Status status_;
  std::uint64_t records_ = 0, bytes_ = 0;
};

// A spill that looks like a segment: numbered parts, each a file of the task's scratch space that is created when its first extent comes.
class SpillParts final : public SegmentWriter {
 public:
  SpillParts(SpillSpace* space, TaskProgress* progress, std::uint32_t parts);
  Status Append(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) override;
  Result<SegmentInfo> Seal() override;  // ends writing
  std::uint64_t part_bytes(std::uint32_t part) const;
  std::uint64_t part_records(std::uint32_t part) const { return files_[part].records; }
  // The part's extents in the order of writing. The stream must not outlive this object.
  std::unique_ptr<ExtentStream> Open(std::uint32_t part);
  void Drop(std::uint32_t part) { files_[part].file.reset(); }  // its disk space is free again

 private:
  struct File {
    std::unique_ptr<SpillFile> file;
    std::uint64_t records = 0;
  };
  SpillSpace* space_;
  TaskProgress* progress_;
  std::vector<File> files_;
};

// Part `part` of all segments of one input, in map-task order. A few segments are opened ahead, so that a reader elsewhere is not waited
// for one after another. kCancelled when the task is.
class ShuffleStream final : public ExtentStream {
 public:
  ShuffleStream(TaskContext& context, const TaskInput& input, std::uint32_t part);
  Result<std::optional<Extent>> Next() override;
  std::size_t segment() const { return at_; }  // which segment the last extent came from

 private:
  static constexpr std::size_t kOpenAhead = 4;
  TaskContext& context_;
  const TaskInput& input_;
  std::uint32_t part_;
  std::size_t at_ = 0, opened_ = 0;
  std::deque<std::unique_ptr<ExtentStream>> open_;
};

// The error for an extent whose records do not decode although its checksum was right: the producer's bytes are wrong.
Status DamagedExtent(const Extent& extent);

// kCancelled, as every operator returns it.
Status CancelledStatus(const TaskContext& context);

// Calls `body(extent)` for all extents of a stream.
template <class Body>
Status ForEachExtent(ExtentStream& stream, Body body) {
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Extent> extent, stream.Next());
    if (!extent) return {};
    RETURN_IF_ERROR(body(*extent));
  }
}

}  // namespace ropewalk::dag
