// What the block store's parts share: the table of segments, the one memory budget (segments and what tasks borrow) and the choice of what
// to spill.
//
// Owner: BlockStore, and every lease, so that leases may outlive the store. Thread rule: each function says whether `mutex` is held.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "worker/blocks/block_store.h"
#include "worker/blocks/buffer_pool.h"
#include "worker/blocks/segment_format.h"
#include "worker/blocks/spill_dir.h"

namespace ropewalk::blocks {

struct StoreState;

// Bytes counted against the budget until this dies.
class Charge {
 public:
  Charge() = default;
  Charge(std::shared_ptr<StoreState> state, std::uint64_t bytes);                // counts `bytes` whether or not they fit
  static Charge Locked(std::shared_ptr<StoreState> state, std::uint64_t bytes);  // the same for a caller that holds the mutex
  Charge(Charge&& other) noexcept : state_(std::move(other.state_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(state_, other.state_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge();
  std::uint64_t bytes() const { return bytes_; }
  // Takes over what `other` counts, of the same store.
  void Absorb(Charge other) {
    if (state_ == nullptr) state_ = std::move(other.state_);
    bytes_ += std::exchange(other.bytes_, 0);
  }
  void ShrinkTo(std::uint64_t bytes);

 private:
  std::shared_ptr<StoreState> state_;
  std::uint64_t bytes_ = 0;
};

// The data of a segment in this process's memory: chunks that follow each other; no extent straddles two.
struct ChunkList {
  struct Chunk {
    Buffer buffer;
    Charge charge;
    std::uint64_t start = 0;  // offset in the segment
    std::uint64_t used = 0;
  };
  std::vector<Chunk> chunks;
  std::span<const std::byte> At(std::uint64_t offset, std::uint64_t length) const;
};

struct MemFile {
  UniqueFd fd;
  Charge charge;
};

struct Segment {
  SegmentIndex index;
  dag::SegmentRef ref;
  dag::SegmentInfo info;
  // Under StoreState::mutex. At least one of the three is set.
  std::shared_ptr<const ChunkList> chunks;
  std::shared_ptr<const MemFile> memfd;
  std::string path;  // of the run file, when it has been written
  std::uint64_t leases = 0;
  bool spilling = false;
  bool freed = false;
  std::list<Segment*>::iterator lru;
  bool in_lru = false;

  bool in_memory() const { return chunks != nullptr || memfd != nullptr; }
  bool spillable() const { return memfd != nullptr || (chunks != nullptr && !chunks->chunks.empty()); }  // an empty one gives nothing back
};

struct StoreState : std::enable_shared_from_this<StoreState> {
  explicit StoreState(StoreOptions options) : options(std::move(options)) {}

  // Makes room for `bytes` by spilling unleased segments, least recently used first. True: counted in *charge. False: nothing more can be
  // spilled now. An error: the spill folder refused. Mutex not held; may block on the disk.
  Result<bool> Reserve(std::uint64_t bytes, Charge* charge);

  // Takes over a finished segment and gives it its id. Mutex not held.
  dag::SegmentInfo Insert(std::shared_ptr<Segment> segment);
  Result<std::shared_ptr<const SegmentLease>> Lease(JobId job, const TaskAttempt& producer, SegmentId id);
  void EndLease(Segment* segment);
  void Free(JobId job, bool any_job, std::span<const SegmentId> ids);
  void FreeWhere(const std::function<bool(const Segment&)>& matches);
  std::string NewPath(JobId job);  // of a run file; JobOfRunFile() finds the job again
  // A run file that a dead owner left in this owner's folder: a segment of this store when it is whole and of the job that its name says,
  // else it is removed. An executor may have written the content, but never the name. Mutex not held.
  void AdoptRunFile(const std::string& path);

  // Called with the mutex held after memory came back or may be spilled now.
  void Freed() {
    if (!asks.empty()) freed.notify_all();
  }

  // ---- operator memory, memory_lender.cc. The last two with the mutex held.
  struct Borrower;
  struct Ask {
    std::shared_ptr<Borrower> by;
    std::uint64_t id = 0, bytes = 0;
  };
  std::unique_ptr<MemoryBorrower> NewBorrower(BorrowerHandlers handlers);  // takes the mutex itself
  void Lend();                                                             // the lender's thread
  bool TryGrant(const Ask& ask, bool beyond_budget);
  bool MakeRoom(std::unique_lock<std::mutex>& lock, const Ask& head);

  const StoreOptions options;
  BufferPool pool;
  std::unique_ptr<SpillDir> dir;
  std::atomic<std::uint64_t> next_file{1};

  mutable std::mutex mutex;
  std::condition_variable spilled;  // a spill ended
  std::unordered_map<SegmentId, std::shared_ptr<Segment>> segments;
  std::list<Segment*> lru;  // unleased segments in memory, the least recently used first
  std::uint64_t next_id = 1;
  std::uint64_t spills_running = 0;
  std::uint64_t memfds = 0;  // segments that hold a descriptor
  StoreStats stats;

  std::condition_variable freed;  // memory came back, a segment may be spilled, somebody asks, or the end
  std::deque<Ask> asks;           // first come, first served
  std::set<std::shared_ptr<Borrower>> borrowers;
  std::uint64_t in_use_bytes = 0;  // lent to tasks that run
  bool lending_ends = false;
  std::thread lender;  // started by the first borrower

 private:
  Status SpillOne(std::unique_lock<std::mutex>& lock, std::shared_ptr<Segment> victim);
  void DropMemory(Segment* segment, std::vector<std::shared_ptr<const void>>* dead);
  void Forget(std::shared_ptr<Segment> segment, std::vector<std::shared_ptr<const void>>* dead);
};

// Writes all of a segment (data from memory, then index and footer) to a new run file.
Status WriteRunFile(const Segment& segment, const std::string& path, BufferPool& pool);

}  // namespace ropewalk::blocks
