#include "worker/blocks/block_state.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/forked_child.h"
#include "base/job_name.h"

namespace ropewalk::blocks {
namespace {

class LeaseImpl final : public SegmentLease {
 public:
  LeaseImpl(std::shared_ptr<StoreState> state, std::shared_ptr<Segment> segment, UniqueFd file)
      : state_(std::move(state)),
        segment_(std::move(segment)),
        chunks_(segment_->chunks),
        memfd_(segment_->memfd),
        file_(std::move(file)) {}
  ~LeaseImpl() override {
    chunks_.reset();
    memfd_.reset();
    state_->EndLease(segment_.get());
  }
  const SegmentIndex& index() const override { return segment_->index; }
  int fd() const override { return memfd_ ? memfd_->fd.get() : file_.get(); }
  std::span<const std::byte> Memory(std::uint64_t offset, std::uint64_t length) const override {
    CHECK(chunks_ != nullptr);
    return chunks_->At(offset, length);
  }

 private:
  std::shared_ptr<StoreState> state_;
  std::shared_ptr<Segment> segment_;
  std::shared_ptr<const ChunkList> chunks_;  // copies: dropping the segment's own must not pull memory from under a reader
  std::shared_ptr<const MemFile> memfd_;
  UniqueFd file_;
};

}  // namespace

Charge::Charge(std::shared_ptr<StoreState> state, std::uint64_t bytes) {
  std::lock_guard lock(state->mutex);
  *this = Locked(state, bytes);
}

Charge Charge::Locked(std::shared_ptr<StoreState> state, std::uint64_t bytes) {
  state->stats.memory_bytes += bytes;
  state->stats.memory_bytes_peak = std::max(state->stats.memory_bytes_peak, state->stats.memory_bytes);
  Charge charge;
  charge.state_ = std::move(state);
  charge.bytes_ = bytes;
  return charge;
}

Charge::~Charge() {
  if (state_ == nullptr || bytes_ == 0 || IsForkedChild()) return;
  std::lock_guard lock(state_->mutex);
  state_->stats.memory_bytes -= bytes_;
  state_->Freed();
}

void Charge::ShrinkTo(std::uint64_t bytes) {
  if (bytes >= bytes_ || IsForkedChild()) return;
  std::lock_guard lock(state_->mutex);
  state_->stats.memory_bytes -= bytes_ - bytes;
  bytes_ = bytes;
  state_->Freed();
}

std::span<const std::byte> ChunkList::At(std::uint64_t offset, std::uint64_t length) const {
  if (length == 0) return {};
  auto next = std::upper_bound(chunks.begin(), chunks.end(), offset, [](std::uint64_t at, const Chunk& chunk) { return at < chunk.start; });
  CHECK(next != chunks.begin());
  const Chunk& chunk = *std::prev(next);
  CHECK(offset - chunk.start + length <= chunk.used);
  return {chunk.buffer.data() + (offset - chunk.start), length};
}

Status WriteRunFile(const Segment& segment, const std::string& path, BufferPool& pool) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd)
    return Status(errno == ENOSPC || errno == EDQUOT ? Code::kResourceExhausted : Code::kUnavailable, "BLK05", "cannot create " + path,
                  std::strerror(errno), "free space there, or give more memory (--memory)");
  if (segment.chunks != nullptr) {
    for (const ChunkList::Chunk& chunk : segment.chunks->chunks)
      RETURN_IF_ERROR(WriteExactly(fd.get(), chunk.start, {chunk.buffer.data(), chunk.used}, path));
  } else {
    constexpr std::uint64_t kCopyBytes = 2u << 20;
    Buffer buffer = pool.Get(kCopyBytes);
    for (std::uint64_t at = 0; at < segment.index.data_bytes; at += kCopyBytes) {
      std::span<std::byte> piece(buffer.data(), std::min(kCopyBytes, segment.index.data_bytes - at));
      RETURN_IF_ERROR(ReadExactly(segment.memfd->fd.get(), at, piece, segment.index.producer));
      RETURN_IF_ERROR(WriteExactly(fd.get(), at, piece, path));
    }
  }
  return WriteExactly(fd.get(), segment.index.data_bytes, AsBytes(segment.index.Tail()), path);
}

std::string StoreState::NewPath(JobId job) {
  return dir->path() + "/segment-" + std::to_string(next_file.fetch_add(1)) + "." + JobName(job) + ".run";
}

void StoreState::AdoptRunFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info{};
  if (fd && ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode)) {
    auto index = ParseSegment(fd.get(), static_cast<std::uint64_t>(info.st_size));
    if (index.ok() && index->job != JobOfRunFile(path))
      index = Status(Code::kDataLoss, "BLK37", "the run file " + path + " says that it is of " + JobName(index->job));
    if (index.ok()) {
      auto segment = std::make_shared<Segment>();
      segment->index = *std::move(index);
      segment->path = path;
      Insert(std::move(segment));
      return;
    }
    LOG(INFO) << "a run file of the worker before is dropped: " << index.status().ToString();
  }
  if (::unlink(path.c_str()) != 0) PLOG(WARNING) << "cannot remove " << path;
}

Result<bool> StoreState::Reserve(std::uint64_t bytes, Charge* charge) {
  std::unique_lock lock(mutex);
  while (stats.memory_bytes + bytes > options.memory_bytes_max || memfds >= options.descriptors_max) {
    if (!lru.empty()) {
      std::shared_ptr<Segment> victim = segments.at(lru.front()->info.segment);
      RETURN_IF_ERROR(SpillOne(lock, std::move(victim)));
    } else if (spills_running > 0) {
      spilled.wait(lock);  // another thread is about to give memory back
    } else {
      return false;
    }
  }
  *charge = Charge::Locked(shared_from_this(), bytes);
  return true;
}

Status StoreState::SpillOne(std::unique_lock<std::mutex>& lock, std::shared_ptr<Segment> victim) {
  std::vector<std::shared_ptr<const void>> dead;  // destroyed after the lock is released: charges take it
  lru.erase(victim->lru);
  victim->in_lru = false;
  std::string path = victim->path;
  Status status;
  if (path.empty()) {
    victim->spilling = true;
    ++spills_running;
    lock.unlock();
    path = NewPath(victim->index.job);
    status = WriteRunFile(*victim, path, pool);  // chunks and memfd are not touched by others while `spilling`
    if (!status.ok()) ::unlink(path.c_str());
    lock.lock();
    victim->spilling = false;
    --spills_running;
    if (status.ok()) {
      stats.spilled_bytes_total += victim->index.file_bytes();
      if (victim->freed) {
        ::unlink(path.c_str());
      } else {
        victim->path = path;
        stats.spilled_bytes += victim->index.file_bytes();
      }
    }
  }
  if (victim->freed || (victim->leases == 0 && status.ok())) {
    DropMemory(victim.get(), &dead);
  } else if (victim->leases == 0 && victim->in_memory()) {
    victim->lru = lru.insert(lru.end(), victim.get());  // could not be written: stays what it was
    victim->in_lru = true;
  }
  dead.push_back(std::move(victim));
  lock.unlock();
  dead.clear();
  lock.lock();
  spilled.notify_all();
  return status;
}

void StoreState::DropMemory(Segment* segment, std::vector<std::shared_ptr<const void>>* dead) {
  if (segment->memfd != nullptr) --memfds;
  dead->push_back(std::move(segment->chunks));
  dead->push_back(std::move(segment->memfd));
}

dag::SegmentInfo StoreState::Insert(std::shared_ptr<Segment> segment) {
  std::lock_guard lock(mutex);
  segment->info = segment->index.Info(SegmentId{next_id++});
  segment->ref = {
      .producer = segment->index.producer, .segment = segment->info.segment, .location = options.location, .bytes = segment->info.bytes};
  if (segment->memfd != nullptr) ++memfds;
  if (segment->spillable()) {
    segment->lru = lru.insert(lru.end(), segment.get());
    segment->in_lru = true;
  }
  if (!segment->path.empty()) {
    stats.spilled_bytes += segment->index.file_bytes();
    stats.spilled_bytes_total += segment->index.file_bytes();
  }
  ++stats.segments;
  Freed();
  dag::SegmentInfo info = segment->info;
  segments.emplace(info.segment, std::move(segment));
  return info;
}

Result<std::shared_ptr<const SegmentLease>> StoreState::Lease(JobId job, const TaskAttempt& producer, SegmentId id) {
  if (IsForkedChild()) return Status(Code::kInternal, "BLK44", "a forked child asks for its parent's blocks");
  std::unique_lock lock(mutex);
  auto at = segments.find(id);
  // An id alone proves nothing: a restarted owner counts from one again.
  if (at == segments.end() || at->second->index.job != job || at->second->index.producer != producer)
    return Status(Code::kDataLoss, "BLK08", "the segment of " + ToString(producer) + " is gone", "its owner does not hold it (any more)",
                  "none needed: its task is run again");
  std::shared_ptr<Segment> segment = at->second;
  UniqueFd file;
  if (!segment->in_memory()) {
    file = UniqueFd(::open(segment->path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) {
      int error = errno;
      lock.unlock();
      if (error == EMFILE || error == ENFILE)
        return Status(Code::kResourceExhausted, "BLK13", "cannot open " + segment->path, std::strerror(error),
                      "raise the open files limit");
      if (options.on_lost) options.on_lost(job, id);
      Free(job, false, std::span(&id, 1));
      return Status(Code::kDataLoss, "BLK08", "the segment of " + ToString(producer) + " is gone",
                    segment->path + ": " + std::strerror(error), "none needed: its task is run again; look at the disk");
    }
  }
  ++segment->leases;
  ++stats.leases;
  if (segment->in_lru) {
    lru.erase(segment->lru);
    segment->in_lru = false;
  }
  return std::shared_ptr<const SegmentLease>(std::make_shared<LeaseImpl>(shared_from_this(), std::move(segment), std::move(file)));
}

void StoreState::EndLease(Segment* segment) {
  if (IsForkedChild()) return;
  std::lock_guard lock(mutex);
  --segment->leases;
  --stats.leases;
  if (segment->leases == 0 && segment->spillable() && !segment->freed && !segment->spilling) {
    segment->lru = lru.insert(lru.end(), segment);
    segment->in_lru = true;
    Freed();
  }
}

void StoreState::Forget(std::shared_ptr<Segment> segment, std::vector<std::shared_ptr<const void>>* dead) {
  segment->freed = true;
  --stats.segments;
  if (segment->in_lru) {
    lru.erase(segment->lru);
    segment->in_lru = false;
  }
  if (!segment->path.empty()) {
    ::unlink(segment->path.c_str());  // open descriptors of leases keep the bytes
    stats.spilled_bytes -= segment->index.file_bytes();
  }
  if (!segment->spilling) DropMemory(segment.get(), dead);
  dead->push_back(std::move(segment));
}

void StoreState::Free(JobId job, bool any_job, std::span<const SegmentId> ids) {
  std::vector<std::shared_ptr<const void>> dead;
  std::lock_guard lock(mutex);
  for (SegmentId id : ids) {
    auto at = segments.find(id);
    if (at == segments.end() || (!any_job && at->second->index.job != job)) continue;
    std::shared_ptr<Segment> segment = std::move(at->second);
    segments.erase(at);
    Forget(std::move(segment), &dead);
  }
}

void StoreState::FreeWhere(const std::function<bool(const Segment&)>& matches) {
  std::vector<std::shared_ptr<const void>> dead;
  std::lock_guard lock(mutex);
  for (auto at = segments.begin(); at != segments.end();) {
    if (!matches(*at->second)) {
      ++at;
      continue;
    }
    std::shared_ptr<Segment> segment = std::move(at->second);
    at = segments.erase(at);
    Forget(std::move(segment), &dead);
  }
}

}  // namespace ropewalk::blocks
