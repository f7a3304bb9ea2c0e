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
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/task.h"

namespace ropewalk::blocks {

class BufferPool;
struct SegmentIndex;

struct StoreOptions {
  std::uint64_t memory_bytes_max = 1ull << 30;
  std::uint64_t descriptors_max = 8192;  // adopted segments in memory hold one descriptor each; beyond this they spill
  std::string spill_dir;                 // created 0700; leftovers of dead owners are removed at start
  JobId job;                             // of segments that NewSegment makes (embedded: the one job)
  std::string location;                  // what SegmentRef.location of own segments says; empty: this process
  // Called when a segment turns out to be unreadable (its run file is gone), from the thread that met it. May be empty.
  std::function<void(JobId, SegmentId)> on_lost;
};

struct StoreStats {
  std::uint64_t memory_bytes = 0;  // of segments, finished or being written, leased ones included
  std::uint64_t memory_bytes_peak = 0;
  std::uint64_t spilled_bytes = 0;        // now in run files
  std::uint64_t spilled_bytes_total = 0;  // ever written to run files
  std::uint64_t segments = 0;
  std::uint64_t leases = 0;
};

struct HeldSegment {  // what a worker reports when it registers again
  JobId job;
  dag::SegmentRef ref;
  dag::SegmentInfo info;
};

// A reader's hold on one segment: while it lives, the bytes stay, freed or not.
class SegmentLease {
 public:
  virtual ~SegmentLease() = default;
  virtual const SegmentIndex& index() const = 0;
  // A descriptor of the whole segment for pread, sendfile or passing on; -1 for a segment that NewSegment made and that is still in memory.
  virtual int fd() const = 0;
  // The bytes at `offset` where fd() is -1. [offset, offset + length) must be one extent.
  virtual std::span<const std::byte> Memory(std::uint64_t offset, std::uint64_t length) const = 0;
};

class BlockStore final : public dag::BlockReader, public dag::BlockWriter {
 public:
  static Result<std::unique_ptr<BlockStore>> Open(StoreOptions options);
  // Streams, extents and leases may outlive the store; writers must not.
  ~BlockStore() override;

  // In-process writing and reading (embedded backend, tests).
  Result<std::unique_ptr<dag::SegmentWriter>> NewSegment(TaskAttempt producer, std::uint32_t parts) override;
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) override;

  // Takes over a sealed memfd that holds a whole segment (daemon), and closes `fd` in every case. kInvalid (BLK07) unless it is a memfd
  // sealed against writing, growing and shrinking; kDataLoss unless the layout is whole and says that `producer` of `job` made it;
  // kResourceExhausted when it does not fit in memory and cannot be spilled.
  Result<dag::SegmentInfo> Adopt(TaskAttempt producer, JobId job, int fd);

  // A hold on the segment that `producer` of `job` made; kDataLoss (BLK08) when it is not (or no longer) here.
  Result<std::shared_ptr<const SegmentLease>> Lease(JobId job, const TaskAttempt& producer, SegmentId segment);

  // Unknown segments are passed over: a free may be told twice.
  // What Lease() would find; nullopt otherwise.
  std::optional<HeldSegment> Find(JobId job, const TaskAttempt& producer, SegmentId segment) const;
  // To be called when a run file turns out to be unreadable: the segment is freed and on_lost told.
  void ReportLost(JobId job, const TaskAttempt& producer, SegmentId segment);

  Status Free(std::span<const SegmentId> segments);
  // Frees only what belongs to `job`: ids that an untrusting caller got from elsewhere.
  void FreeOf(JobId job, std::span<const SegmentId> segments);
  void FreeJob(JobId job);
  // Frees what `producer` of `job` made, except `keep`: leftovers of an attempt that did not finish, or that sealed more than it reported.
  void FreeAttempt(JobId job, const TaskAttempt& producer, SegmentId keep = {});
  std::vector<HeldSegment> List() const;
  StoreStats stats() const;

 private:
  struct Impl;
  explicit BlockStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Spill space for operators, below `dir`; files are unlinked while open, so that nothing outlives the process.
std::unique_ptr<dag::SpillSpace> NewSpillSpace(std::string dir);

}  // namespace ropewalk::blocks
