// Segments of one worker: in memory while the budget allows, spilled to plain run files beyond it, served to readers under leases.
//
// The store is the same for the embedded backend (writers and readers are threads of this process, extents are views of the segment's own
// memory: no copy) and for the worker daemon (writers are executors that hand over a sealed memfd; readers pread or get the bytes by TCP).
// Only unleased segments spill; memory counts until the last lease ends. Bytes of a segment never depend on where it lies.
//
// Segment layout, in memory and in a file alike:   extents... | index {part, offset, length, records, xxh3}... | footer
//
// Thread rule: all methods may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/task.h"

namespace ropewalk::blocks {

struct StoreOptions {
  std::uint64_t memory_bytes_max = 1ull << 30;
  std::string spill_dir;        // created 0700; emptied of leftovers of dead owners at start
};

struct StoreStats {
  std::uint64_t memory_bytes = 0, spilled_bytes = 0, segments = 0, leases = 0, spilled_bytes_total = 0;
};

class BlockStore final : public dag::BlockReader, public dag::BlockWriter {
 public:
  static Result<std::unique_ptr<BlockStore>> Open(StoreOptions options);
  ~BlockStore() override;

  // In-process writing and reading (embedded backend, tests).
  Result<std::unique_ptr<dag::SegmentWriter>> NewSegment(TaskAttempt producer, std::uint32_t parts) override;
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) override;

  // Takes over a sealed memfd or run file of `bytes` bytes that holds a whole segment (daemon). The layout is verified: kDataLoss.
  Result<dag::SegmentInfo> Adopt(TaskAttempt producer, JobId job, int fd);

  Status Free(std::span<const SegmentId> segments);
  std::vector<dag::SegmentRef> List() const;   // what a worker reports when it registers again
  StoreStats stats() const;

 private:
  struct Impl;
  explicit BlockStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Spill space for operators, below `dir`; files are unlinked while open, so that nothing outlives the process.
std::unique_ptr<dag::SpillSpace> NewSpillSpace(std::string dir);

}  // namespace ropewalk::blocks
