// Segments of one worker: in memory while the budget allows, spilled to plain run files beyond it, served to readers under leases. What
// running tasks need comes out of the same budget: segments make room for it.
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
  std::uint64_t memory_bytes_max = 1ull << 30;  // segments and what is lent to tasks, together
  std::uint64_t descriptors_max = 8192;         // adopted segments in memory hold one descriptor each; beyond this they spill
  std::string spill_dir;                        // created 0700; leftovers of dead owners are removed at start, or:
  bool keep_run_files = false;  // run files outlive this process, and whole ones of dead owners become this store's segments
  JobId job;                    // of segments that NewSegment makes (embedded: the one job)
  std::string location;         // what SegmentRef.location of own segments says; empty: this process
  // Called when a segment turns out to be unreadable (its run file is gone), from the thread that met it. May be empty.
  std::function<void(JobId, SegmentId)> on_lost;
};

struct StoreStats {
  std::uint64_t memory_bytes = 0;  // counted against the budget: segments (finished, reserved, leased) and what is lent
  std::uint64_t memory_bytes_peak = 0;
  std::uint64_t lent_bytes = 0;           // of these: lent to tasks that run, or resting with who borrowed them
  std::uint64_t lent_beyond_total = 0;    // how often a task that ran alone got more than the budget
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

// Room for a segment that somebody else writes: counted from before its first byte until it is adopted, or until this dies.
// Thread rule: one thread at a time. Must not outlive the store.
class Reservation {
 public:
  ~Reservation();
  // Makes room for `bytes` more by spilling; the pages of the memfd are allocated here, so that they are this process's and not of whoever
  // writes them. False: there is none, and the segment goes to a run file from now on, which is not counted. kResourceExhausted,
  // kUnavailable: nor can a file be made.
  Result<bool> Extend(std::uint64_t bytes);
  // What the segment is written to. A run file's writer may damage it even after its adoption: checksums are kept elsewhere.
  int fd() const { return fd_; }
  bool on_disk() const { return on_disk_; }
  void DropMemory();  // what was written to memory has been copied to the file

 private:
  friend class BlockStore;
  struct Counted;
  explicit Reservation(std::unique_ptr<Counted> counted);
  std::unique_ptr<Counted> counted_;
  int fd_ = -1;
  bool on_disk_ = false;
};

// Somebody who runs tasks and borrows what they need: an executor behind its socket, or the embedded backend. Memory is lent first come,
// first served; segments are spilled for it, and what rests with other borrowers is asked back. Where all of that does not help because
// tasks use the memory, the ask waits for them; where no task runs anywhere it is granted although it does not fit. So whoever waits holds
// nothing that another waits for, and what never fits runs alone.
// Thread rule: any thread. Must not outlive the store.
class MemoryBorrower {
 public:
  virtual ~MemoryBorrower() = default;  // gives all back; no handler runs afterwards
  // `id` is the caller's. kResourceExhausted BLK36: too many asks at once.
  virtual Status Ask(std::uint64_t id, std::uint64_t bytes) = 0;
  virtual void Withdraw(std::uint64_t id) = 0;  // it may be granted just now all the same
  virtual void Rest(std::uint64_t bytes) = 0;   // a task is over; its memory is kept warm until it is asked back
  virtual void LetGo(std::uint64_t bytes) = 0;  // of what rests
};
struct BorrowerHandlers {  // called from the lender's thread without locks
  std::function<void(std::uint64_t id, std::uint64_t bytes)> granted;
  std::function<void()> ask_back;  // answer by LetGo of all that rests
};

class BlockStore final : public dag::BlockReader, public dag::BlockWriter {
 public:
  static Result<std::unique_ptr<BlockStore>> Open(StoreOptions options);
  // Streams, extents and leases may outlive the store; writers must not.
  ~BlockStore() override;

  // In-process writing and reading (embedded backend, tests).
  Result<std::unique_ptr<dag::SegmentWriter>> NewSegment(TaskAttempt producer, std::uint32_t parts) override;
  // Nothing of an embedded job outlives its process, so this is NewSegment().
  Result<std::unique_ptr<dag::SegmentWriter>> NewDurableSegment(TaskAttempt producer, std::uint32_t parts) override;
  Result<std::unique_ptr<dag::ExtentStream>> Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) override;

  // Takes over a sealed memfd that holds a whole segment (daemon), and closes `fd` in every case. kInvalid (BLK07) unless it is a memfd
  // sealed against writing, growing and shrinking; kDataLoss unless the layout is whole and says that `producer` of `job` made it;
  // kResourceExhausted when it does not fit in memory and cannot be spilled. With `reserved` (then `fd` is -1) it is what was written to
  // the reservation, and its count is taken over. `durable`: it lies in a run file that is synced, and takes no memory.
  Result<dag::SegmentInfo> Adopt(TaskAttempt producer, JobId job, int fd, Reservation* reserved = nullptr, bool durable = false);
  std::unique_ptr<Reservation> Reserve(JobId job);
  std::unique_ptr<MemoryBorrower> NewBorrower(BorrowerHandlers handlers);

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
