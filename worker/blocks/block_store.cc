#include "worker/blocks/block_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/home_process.h"
#include "worker/blocks/block_state.h"
#include "worker/blocks/file_extents.h"

namespace ropewalk::blocks {
namespace {

constexpr std::uint64_t kFirstChunkBytes = 2u << 20;
constexpr std::uint64_t kChunkBytes = 8u << 20;

// The file and its name survive a loss of power from here on.
Status SyncFile(const std::string& path) {
  for (const std::string& name : {path, path.substr(0, path.rfind('/'))}) {
    UniqueFd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || ::fsync(fd.get()) != 0)
      return Status(Code::kUnavailable, "BLK06", "cannot sync " + name, std::strerror(errno), "look at the disk");
  }
  return {};
}

// Extents of a segment in this process's memory: views, no copy.
class MemoryExtentStream final : public dag::ExtentStream {
 public:
  MemoryExtentStream(std::shared_ptr<const SegmentLease> lease, std::span<const ExtentEntry> entries)
      : lease_(std::move(lease)), producer_(lease_->index().producer), rest_(entries) {}

  Result<std::optional<dag::Extent>> Next() override {
    if (rest_.empty()) {
      lease_.reset();
      return std::optional<dag::Extent>();
    }
    const ExtentEntry& entry = rest_.front();
    rest_ = rest_.subspan(1);
    std::span<const std::byte> bytes = lease_->Memory(entry.offset, entry.length);
    RETURN_IF_ERROR(VerifyExtent(entry, bytes, producer_));
    return std::optional<dag::Extent>({.part = entry.part, .records = entry.records, .bytes = bytes, .holder = lease_});
  }

 private:
  std::shared_ptr<const SegmentLease> lease_;
  const TaskAttempt producer_;
  std::span<const ExtentEntry> rest_;  // of the lease's index
};

// Builds a segment in chunks of memory; when the budget has no more, it goes on in a run file.
class StoreWriter final : public dag::SegmentWriter {
 public:
  StoreWriter(std::shared_ptr<StoreState> state, TaskAttempt producer, std::uint32_t parts)
      : state_(std::move(state)), index_(producer, state_->options.job, parts), memory_(std::make_shared<ChunkList>()) {}

  ~StoreWriter() override {
    if (file_ && home_.here()) ::unlink(path_.c_str());
  }

  Status Append(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) override {
    if (sealed_) return Status(Code::kInternal, "BLK03", "append to a sealed segment");
    std::uint64_t start = index_.data_bytes();
    RETURN_IF_ERROR(index_.Add(part, bytes, records));
    if (bytes.empty()) return {};
    if (file_) return AppendToFile(start, bytes);
    if (!LastChunkHas(bytes.size())) {
      ASSIGN_OR_RETURN(bool fits, AddChunk(start, bytes.size()));
      if (!fits) {
        RETURN_IF_ERROR(MoveToFile());
        return AppendToFile(start, bytes);
      }
    }
    ChunkList::Chunk& chunk = memory_->chunks.back();
    std::byte* to = chunk.buffer.data() + chunk.used;
    if (to != bytes.data()) std::memcpy(to, bytes.data(), bytes.size());
    chunk.used += bytes.size();
    return {};
  }

  char* Room(std::size_t bytes) override {
    if (sealed_ || file_) return nullptr;
    if (!LastChunkHas(bytes)) {
      Result<bool> fits = AddChunk(index_.data_bytes(), bytes);
      if (!fits.ok() || !*fits) return nullptr;  // Append meets the same again, and says so or goes on in a file
    }
    ChunkList::Chunk& chunk = memory_->chunks.back();
    return reinterpret_cast<char*>(chunk.buffer.data() + chunk.used);
  }

  Result<dag::SegmentInfo> Seal() override {
    if (sealed_) return Status(Code::kInternal, "BLK03", "a segment is sealed once");
    RETURN_IF_ERROR(CheckHome());
    sealed_ = true;
    auto segment = std::make_shared<Segment>();
    segment->index = std::move(index_).Finish();
    if (file_) {
      RETURN_IF_ERROR(FlushTail());
      RETURN_IF_ERROR(WriteExactly(file_.get(), segment->index.data_bytes, AsBytes(segment->index.Tail()), path_));
      file_.Close();  // from here on the file is the segment's
      segment->path = path_;
    } else {
      ShrinkLastChunk();
      segment->chunks = std::move(memory_);
    }
    return state_->Insert(std::move(segment));
  }

 private:
  // A forked child has its parent's file: what it wrote would stand between its parent's bytes. A new file would have the name of its
  // parent's next one.
  Status CheckHome() const {
    return home_.here() ? Status() : Status(Code::kInternal, "BLK44", "a forked child writes its parent's blocks");
  }
  bool LastChunkHas(std::uint64_t bytes) const {
    return !memory_->chunks.empty() && memory_->chunks.back().buffer.capacity() - memory_->chunks.back().used >= bytes;
  }
  // False when the budget refuses.
  Result<bool> AddChunk(std::uint64_t start, std::uint64_t bytes) {
    RETURN_IF_ERROR(CheckHome());
    std::size_t capacity = BufferPool::CapacityOf(std::max(bytes, memory_->chunks.empty() ? kFirstChunkBytes : kChunkBytes));
    Charge charge;
    ASSIGN_OR_RETURN(bool fits, state_->Reserve(capacity, &charge));
    if (fits) memory_->chunks.push_back({.buffer = state_->pool.Get(capacity), .charge = std::move(charge), .start = start});
    return fits;
  }

  // A small segment, or a small end of one, must not keep a large chunk.
  void ShrinkLastChunk() {
    if (memory_->chunks.empty()) return;
    ChunkList::Chunk& chunk = memory_->chunks.back();
    std::size_t capacity = BufferPool::CapacityOf(chunk.used);
    if (capacity > chunk.buffer.capacity() / 2) return;
    Buffer small = state_->pool.Get(capacity);
    std::memcpy(small.data(), chunk.buffer.data(), chunk.used);
    chunk.buffer = std::move(small);
    chunk.charge = Charge(state_, capacity);
  }

  Status MoveToFile() {
    path_ = state_->NewPath(state_->options.job);
    file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file_)
      return Status(Code::kResourceExhausted, "BLK05", "cannot create " + path_, std::strerror(errno),
                    "free space there, or give more memory (--memory)");
    for (const ChunkList::Chunk& chunk : memory_->chunks)
      RETURN_IF_ERROR(WriteExactly(file_.get(), chunk.start, {chunk.buffer.data(), chunk.used}, path_));
    memory_.reset();
    tail_ = state_->pool.Get(kFirstChunkBytes);
    tail_charge_ = Charge(state_, tail_.capacity());  // over the budget by one small buffer a writer, or nothing would move
    return {};
  }

  Status AppendToFile(std::uint64_t start, std::span<const std::byte> bytes) {
    if (tail_used_ + bytes.size() > tail_.capacity()) RETURN_IF_ERROR(FlushTail());
    if (bytes.size() >= tail_.capacity()) {
      RETURN_IF_ERROR(CheckHome());
      return WriteExactly(file_.get(), start, bytes, path_);
    }
    if (tail_used_ == 0) tail_start_ = start;
    std::memcpy(tail_.data() + tail_used_, bytes.data(), bytes.size());
    tail_used_ += bytes.size();
    return {};
  }

  Status FlushTail() {
    RETURN_IF_ERROR(CheckHome());
    RETURN_IF_ERROR(WriteExactly(file_.get(), tail_start_, {tail_.data(), tail_used_}, path_));
    tail_used_ = 0;
    return {};
  }

  std::shared_ptr<StoreState> state_;
  IndexBuilder index_;
  std::shared_ptr<ChunkList> memory_;
  bool sealed_ = false;
  // Beyond the budget:
  std::string path_;
  UniqueFd file_;
  HomeProcess home_;
  Buffer tail_;
  Charge tail_charge_;
  std::uint64_t tail_start_ = 0, tail_used_ = 0;
};

}  // namespace

struct BlockStore::Impl {
  std::shared_ptr<StoreState> state;
};

// ---- reservations ----------------------------------------------------------------------------------------------------------------------

struct Reservation::Counted {
  std::shared_ptr<StoreState> state;
  JobId job;
  Charge charge;
  std::uint64_t bytes = 0;  // of the memfd
  UniqueFd memfd, file;
  std::string path;
};

Reservation::Reservation(std::unique_ptr<Counted> counted) : counted_(std::move(counted)) {}

Reservation::~Reservation() {
  if (!counted_->path.empty()) ::unlink(counted_->path.c_str());
}

Result<bool> Reservation::Extend(std::uint64_t bytes) {
  Counted& c = *counted_;
  if (on_disk_) return false;
  Charge more;
  ASSIGN_OR_RETURN(bool fits, c.state->Reserve(bytes, &more));
  if (fits && !c.memfd) c.memfd = UniqueFd(::memfd_create("ropewalk-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Where the machine itself has no more, the disk has.
  if (fits && c.memfd && (bytes == 0 || ::fallocate(c.memfd.get(), 0, static_cast<off_t>(c.bytes), static_cast<off_t>(bytes)) == 0)) {
    c.charge.Absorb(std::move(more));
    c.bytes += bytes;
    fd_ = c.memfd.get();
    return true;
  }
  std::string path = c.state->NewPath(c.job);
  c.file = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!c.file)
    return Status(errno == ENOSPC || errno == EDQUOT ? Code::kResourceExhausted : Code::kUnavailable, "BLK05", "cannot create " + path,
                  std::strerror(errno), "free space there, or give more memory (--memory)");
  c.path = std::move(path);
  fd_ = c.file.get();
  on_disk_ = true;
  return false;
}

void Reservation::DropMemory() {
  counted_->memfd.Close();
  counted_->charge = Charge();
}

std::unique_ptr<MemoryBorrower> BlockStore::NewBorrower(BorrowerHandlers handlers) {
  return impl_->state->NewBorrower(std::move(handlers));
}

std::unique_ptr<Reservation> BlockStore::Reserve(JobId job) {
  auto counted = std::make_unique<Reservation::Counted>();
  counted->state = impl_->state;
  counted->job = job;
  return std::unique_ptr<Reservation>(new Reservation(std::move(counted)));
}

BlockStore::BlockStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<BlockStore>> BlockStore::Open(StoreOptions options) {
  std::vector<std::string> leftovers;
  ASSIGN_OR_RETURN(auto dir, SpillDir::Open(options.spill_dir, options.keep_run_files ? &leftovers : nullptr));
  auto impl = std::make_unique<Impl>();
  impl->state = std::make_shared<StoreState>(std::move(options));
  impl->state->dir = std::move(dir);
  for (const std::string& path : leftovers) impl->state->AdoptRunFile(path);
  return std::unique_ptr<BlockStore>(new BlockStore(std::move(impl)));
}

BlockStore::~BlockStore() {
  {
    std::lock_guard lock(impl_->state->mutex);
    impl_->state->lending_ends = true;
    impl_->state->freed.notify_all();
  }
  if (impl_->state->lender.joinable()) impl_->state->lender.join();
  const bool keep = impl_->state->options.keep_run_files;
  impl_->state->FreeWhere([keep](const Segment& segment) { return !keep || segment.path.empty(); });
}

Result<std::unique_ptr<dag::SegmentWriter>> BlockStore::NewSegment(TaskAttempt producer, std::uint32_t parts) {
  return std::unique_ptr<dag::SegmentWriter>(std::make_unique<StoreWriter>(impl_->state, producer, parts));
}

Result<std::unique_ptr<dag::SegmentWriter>> BlockStore::NewDurableSegment(TaskAttempt producer, std::uint32_t parts) {
  return NewSegment(producer, parts);
}

Result<std::unique_ptr<dag::ExtentStream>> BlockStore::Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) {
  ASSIGN_OR_RETURN(auto lease, Lease(impl_->state->options.job, segment.producer, segment.segment));
  std::span<const ExtentEntry> entries = lease->index().Range(first, count);
  int fd = lease->fd();
  if (fd >= 0) return NewFileExtentStream(fd, lease, entries, segment.producer, impl_->state->pool);
  return std::unique_ptr<dag::ExtentStream>(std::make_unique<MemoryExtentStream>(std::move(lease), entries));
}

Result<dag::SegmentInfo> BlockStore::Adopt(TaskAttempt producer, JobId job, int fd, Reservation* reserved, bool durable) {
  if (reserved != nullptr) {
    UniqueFd unused(fd);
    fd = reserved->counted_->memfd.release();
  }
  if (reserved != nullptr && reserved->on_disk()) {
    UniqueFd unused(fd);
    struct stat info{};
    if (::fstat(reserved->fd(), &info) != 0)
      return Status(Code::kUnavailable, "BLK06", "cannot look at " + reserved->counted_->path, std::strerror(errno));
    auto segment = std::make_shared<Segment>();
    ASSIGN_OR_RETURN(segment->index, ParseSegment(reserved->fd(), static_cast<std::uint64_t>(info.st_size), producer, job));
    if (durable) RETURN_IF_ERROR(SyncFile(reserved->counted_->path));
    segment->path = std::exchange(reserved->counted_->path, {});
    return impl_->state->Insert(std::move(segment));
  }
  auto memfd = std::make_shared<MemFile>();
  memfd->fd = UniqueFd(fd);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info{};
  if (seals < 0 || (seals & kNeeded) != kNeeded || ::fstat(fd, &info) != 0)
    return Status(Code::kInvalid, "BLK07", "the segment of " + ToString(producer) + " is refused", "it is not a sealed memfd",
                  "bring all parts to one version; run the job again");
  auto bytes = static_cast<std::uint64_t>(info.st_size);
  auto segment = std::make_shared<Segment>();
  ASSIGN_OR_RETURN(segment->index, ParseSegment(fd, bytes, producer, job));
  segment->memfd = memfd;

  StoreState& state = *impl_->state;
  Charge charge;
  if (reserved != nullptr) charge = std::move(reserved->counted_->charge);
  bool fits = charge.bytes() >= bytes && !durable;
  charge.ShrinkTo(bytes);   // announced in steps
  if (!fits && !durable) {  // less was announced than came
    charge = Charge();
    ASSIGN_OR_RETURN(fits, state.Reserve(bytes, &charge));
  }
  if (fits) {
    memfd->charge = std::move(charge);
  } else {
    std::string path = state.NewPath(job);
    Status status = WriteRunFile(*segment, path, state.pool);
    if (status.ok() && durable) status = SyncFile(path);
    if (!status.ok()) {
      ::unlink(path.c_str());
      return status;
    }
    segment->path = path;
    segment->memfd.reset();
  }
  return state.Insert(std::move(segment));
}

Result<std::shared_ptr<const SegmentLease>> BlockStore::Lease(JobId job, const TaskAttempt& producer, SegmentId segment) {
  return impl_->state->Lease(job, producer, segment);
}

Status BlockStore::Free(std::span<const SegmentId> segments) {
  impl_->state->Free({}, true, segments);
  return {};
}

void BlockStore::FreeOf(JobId job, std::span<const SegmentId> segments) { impl_->state->Free(job, false, segments); }

void BlockStore::FreeJob(JobId job) {
  impl_->state->FreeWhere([job](const Segment& segment) { return segment.index.job == job; });
}

void BlockStore::FreeAttempt(JobId job, const TaskAttempt& producer, SegmentId keep) {
  impl_->state->FreeWhere([&](const Segment& segment) {
    return segment.index.job == job && segment.index.producer == producer && segment.info.segment != keep;
  });
}

std::optional<HeldSegment> BlockStore::Find(JobId job, const TaskAttempt& producer, SegmentId segment) const {
  std::lock_guard lock(impl_->state->mutex);
  auto at = impl_->state->segments.find(segment);
  if (at == impl_->state->segments.end() || at->second->index.job != job || at->second->index.producer != producer) return std::nullopt;
  return HeldSegment{job, at->second->ref, at->second->info};
}

void BlockStore::ReportLost(JobId job, const TaskAttempt& producer, SegmentId segment) {
  if (!Find(job, producer, segment)) return;
  FreeOf(job, std::span(&segment, 1));
  if (impl_->state->options.on_lost) impl_->state->options.on_lost(job, segment);
}

std::vector<HeldSegment> BlockStore::List() const {
  std::lock_guard lock(impl_->state->mutex);
  std::vector<HeldSegment> all;
  all.reserve(impl_->state->segments.size());
  for (const auto& [id, segment] : impl_->state->segments) all.push_back({segment->index.job, segment->ref, segment->info});
  return all;
}

StoreStats BlockStore::stats() const {
  std::lock_guard lock(impl_->state->mutex);
  return impl_->state->stats;
}

}  // namespace ropewalk::blocks
