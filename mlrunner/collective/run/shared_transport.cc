#include "mlrunner/collective/run/shared_transport.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/monotonic.h"

namespace ropewalk::collective {
namespace {

// A lost rank is told by Abort(); this is only for a wake-up that a kernel might lose.
constexpr std::uint32_t kSleepMsMax = 100;
// A look at all that an engine drives takes as long as so many pauses of a spinning thread, about.
constexpr std::uint32_t kPausesOfALook = 4;
// How long messages that are gone wait for the one who knows why.
constexpr std::int64_t kVerdictMsMax = 2'000;

}  // namespace

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

Result<SharedMemory> SharedMemory::Create(std::size_t bytes) {
  int fd = memfd_create("ropewalk-collective", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  auto failed = [&](const char* what) {
    Status status(Code::kResourceExhausted, "COLL13", std::string("shared memory of ") + std::to_string(bytes) + " bytes: " + what,
                  std::strerror(errno), "free memory, or use TCP");
    if (fd >= 0) close(fd);
    return status;
  };
  if (fd < 0) return failed("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return failed("ftruncate");
  // A size that cannot change: a peer that shrank it would kill the others by SIGBUS.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return failed("seal");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return failed("mmap");
  SharedMemory memory;
  memory.data_ = static_cast<char*>(data);
  memory.bytes_ = bytes;
  memory.fd_ = fd;
  return memory;
}

Result<SharedMemory> SharedMemory::Open(int fd, std::size_t bytes) {
  struct stat about{};
  int seals = fcntl(fd, F_GET_SEALS);
  bool sound = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &about) == 0 && about.st_size == static_cast<off_t>(bytes);
  void* data = sound ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (data == MAP_FAILED) {
    close(fd);
    return Status(Code::kInvalid, "COLL13", "shared memory of a peer cannot be mapped",
                  sound ? std::strerror(errno) : "its size is not sealed, or is not " + std::to_string(bytes) + " bytes",
                  sound ? "give this process more address space (ulimit -v) or the ranks a smaller pool (pool_bytes), or use TCP"
                        : "run one version with the same options on all ranks");
  }
  SharedMemory memory;
  memory.data_ = static_cast<char*>(data);
  memory.bytes_ = bytes;
  memory.fd_ = fd;
  return memory;
}

std::size_t Board::BytesBeforeLabels(std::int32_t ranks, std::int32_t channels) {
  auto count = static_cast<std::size_t>(ranks);
  return sizeof(Sleeper) * (count + 1) + sizeof(Edge) * count * count * static_cast<std::size_t>(channels);
}

std::size_t Board::BytesBeforeRevoked(std::int32_t ranks, std::int32_t channels) {
  return BytesBeforeLabels(ranks, channels) + sizeof(Label) * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(channels);
}

std::size_t Board::BytesFor(std::int32_t ranks, std::int32_t channels) {
  return BytesBeforeRevoked(ranks, channels) + sizeof(std::atomic<std::uint32_t>) * static_cast<std::size_t>(ranks);
}

SharedTransport::SharedTransport(std::int32_t rank, Board board, std::vector<char*> pools, std::size_t pool_bytes)
    : rank_(rank),
      board_(board),
      pools_(std::move(pools)),
      pool_bytes_(pool_bytes),
      pool_(pools_[rank] == nullptr ? Pool() : Pool(pools_[rank], pool_bytes)),
      labels_(board.channels()),
      left_(board.ranks()),
      patience_(CalibratedPatience(board.ranks())) {}

void SharedTransport::Abort(const Board& board, std::int32_t lost_rank) {
  std::uint32_t none = 0;
  board.lost().compare_exchange_strong(none, static_cast<std::uint32_t>(lost_rank) + 1);
  for (std::int32_t rank = 0; rank < board.ranks(); ++rank) collective::Ring(board.SleeperOf(rank));
}

void SharedTransport::Abort() {
  Revoke();
  Abort(board_, rank_);
}

void SharedTransport::Revoke() {
  board_.RevokedOf(rank_).store(1, std::memory_order_relaxed);
  // Before anything that the memory's owners write now. Nobody is waited for: a peer that stands still in the middle of a message would
  // hold them up.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool SharedTransport::IsSound(std::int32_t peer) {
  // After everything that was read.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (board_.RevokedOf(peer).load(std::memory_order_relaxed) == 0) return true;
  if (revoked_by_ < 0) {
    revoked_by_ = peer;
    revoked_at_ms_ = MonotonicMs();
  }
  return false;
}

void SharedTransport::SetLabel(std::int32_t first_channel, std::int32_t channels, const CallLabel& label) {
  has_moved_ = true;
  std::uint64_t words[sizeof(CallLabel) / 8];
  std::memcpy(words, &label, sizeof(label));
  for (std::int32_t channel = first_channel; channel < first_channel + channels; ++channel) {
    labels_[channel] = label;
    Board::Label& shown = board_.LabelOf(rank_, channel);
    for (std::size_t i = 0; i < std::size(words); ++i) shown.words[i].store(words[i], std::memory_order_relaxed);
  }
}

void SharedTransport::SetLeft(std::int32_t peer) {
  left_[peer].store(true, std::memory_order_release);
  Ring();
}

void SharedTransport::Interrupt(const Status& why) {
  interruption_.Set(why);
  Ring();
}

void SharedTransport::Lost(std::int32_t peer, const char* why) {
  if (status_.ok()) status_ = Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(peer) + " is lost", why, "");
}

bool SharedTransport::HasSlot(std::int32_t peer, std::int32_t channel, std::int32_t slots) {
  const Board::Edge& edge = board_.EdgeOf(rank_, peer, channel);
  const bool left = left_[peer].load(std::memory_order_acquire);
  std::uint64_t used = edge.posted.load(std::memory_order_relaxed) - edge.consumed.load(std::memory_order_acquire);
  if (used < static_cast<std::uint64_t>(std::min(slots, kSlotsMax))) return true;
  wants_room_.store(true, std::memory_order_relaxed);
  if (left && channel != listening_) Lost(peer, "its program has ended, and it has not taken what was sent to it");
  return false;
}

std::uint64_t SharedTransport::PlaceOf(const char* memory) const {
  return reinterpret_cast<std::uint64_t>(memory) - reinterpret_cast<std::uint64_t>(pools_[rank_]);
}

char* SharedTransport::MappedAt(std::int32_t peer, std::uint64_t place, std::size_t bytes) const {
  if (pools_[peer] != nullptr && (place > pool_bytes_ || bytes > pool_bytes_ - place)) return nullptr;
  return reinterpret_cast<char*>(reinterpret_cast<std::uint64_t>(pools_[peer]) + place);
}

void SharedTransport::RingPeers() {
  for (std::int32_t rank = 0; rank < board_.ranks(); ++rank) collective::Ring(board_.SleeperOf(rank));
}

bool SharedTransport::CanPost(const void* data, std::size_t bytes) const {
  if (pools_[rank_] == nullptr || bytes == 0) return true;
  const auto place = reinterpret_cast<std::uint64_t>(data) - reinterpret_cast<std::uint64_t>(pools_[rank_]);
  return place <= pool_bytes_ && bytes <= pool_bytes_ - place;
}

void SharedTransport::Post(std::int32_t peer, std::int32_t channel, const void* data, std::size_t bytes) {
  Board::Edge& edge = board_.EdgeOf(rank_, peer, channel);
  if (!CanPost(data, bytes)) {
    if (status_.ok())
      status_ = Status(Code::kInternal, "COLL14", "a message does not lie in the pool that peers can read", "it was not staged");
    return;
  }
  const auto place = reinterpret_cast<std::uint64_t>(data) - reinterpret_cast<std::uint64_t>(pools_[rank_]);
  const std::uint64_t posted = edge.posted.load(std::memory_order_relaxed);
  Board::Edge::Slot& slot = edge.slots[posted % kSlotsMax];
  slot.place = place;
  slot.bytes = bytes;
  slot.fingerprint = labels_[channel].fingerprint;
  slot.sequence = labels_[channel].sequence;
  slot.number.store(posted + 1, std::memory_order_seq_cst);
  edge.posted.store(posted + 1, std::memory_order_relaxed);
  has_moved_ = true;
  WakeFor(board_.SleeperOf(peer), kForMessage);
}

const void* SharedTransport::Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* /*landing*/, std::size_t bytes) {
  const Board::Edge& edge = board_.EdgeOf(peer, rank_, channel);
  const bool left = left_[peer].load(std::memory_order_acquire);
  std::uint64_t first = edge.consumed.load(std::memory_order_relaxed);
  const Board::Edge::Slot& slot = edge.slots[(first + index) % kSlotsMax];
  if (slot.number.load(std::memory_order_acquire) != first + index + 1) {
    if (left && channel != listening_) Lost(peer, "its program has ended");
    return nullptr;
  }
  if (!IsSound(peer)) return nullptr;
  bool outside = pools_[peer] != nullptr && slot.bytes > 0 && (slot.place > pool_bytes_ || slot.bytes > pool_bytes_ - slot.place);
  if (slot.bytes != bytes || slot.fingerprint != labels_[channel].fingerprint || outside) {
    if (!status_.ok()) return nullptr;
    if (slot.fingerprint != labels_[channel].fingerprint) {
      Mismatched(peer, channel);
      return nullptr;
    }
    status_ = Status(Code::kInvalid, "COLL21",
                     "rank " + std::to_string(peer) + " sent " + std::to_string(slot.bytes) + " bytes where rank " + std::to_string(rank_) +
                         " expects " + std::to_string(bytes),
                     "the ranks run different collectives, or with different counts", "make all ranks call the same");
    return nullptr;
  }
  // Messages without bytes have no place; any address will do.
  if (bytes == 0) return &board_;
  return reinterpret_cast<const void*>(reinterpret_cast<std::uint64_t>(pools_[peer]) + slot.place);
}

void SharedTransport::Mismatched(std::int32_t peer, std::int32_t channel) {
  std::uint64_t words[sizeof(CallLabel) / 8];
  const Board::Label& shown = board_.LabelOf(peer, channel);
  for (std::size_t i = 0; i < std::size(words); ++i) words[i] = shown.words[i].load(std::memory_order_relaxed);
  CallLabel theirs;
  std::memcpy(&theirs, words, sizeof(theirs));
  status_ = Mismatch(peer, theirs, rank_, labels_[channel]);
}

void SharedTransport::CompareCalls() {
  for (std::int32_t channel = 0; channel < board_.channels(); ++channel) {
    if (labels_[channel].fingerprint == 0 || labels_[channel].sequence == kUncounted) continue;
    for (std::int32_t peer = 0; peer < board_.ranks(); ++peer) {
      const Board::Edge& edge = board_.EdgeOf(peer, rank_, channel);
      const std::uint64_t first = edge.consumed.load(std::memory_order_relaxed);
      const Board::Edge::Slot& slot = edge.slots[first % kSlotsMax];
      if (peer == rank_ || slot.number.load(std::memory_order_acquire) != first + 1) continue;
      // A later call's message is in order: its sender is ahead.
      if (slot.sequence == labels_[channel].sequence && slot.fingerprint != labels_[channel].fingerprint) return Mismatched(peer, channel);
    }
  }
}

void SharedTransport::Consume(std::int32_t peer, std::int32_t channel) {
  Board::Edge& edge = board_.EdgeOf(peer, rank_, channel);
  edge.consumed.store(edge.consumed.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  has_moved_ = true;
  WakeFor(board_.SleeperOf(peer), kForRoom);
}

bool SharedTransport::IsFlushed(std::int32_t peer, std::int32_t channel, std::uint64_t messages) {
  if (board_.EdgeOf(rank_, peer, channel).consumed.load(std::memory_order_acquire) >= messages) return true;
  wants_room_.store(true, std::memory_order_relaxed);
  return false;
}

void SharedTransport::Wait(bool spin) {
  if (interruption_.is_set() && status_.ok()) status_ = interruption_.why();
  if (std::uint32_t lost = board_.lost().load(std::memory_order_acquire); lost != 0) {
    if (status_.ok())
      status_ =
          Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(lost - 1) + " is lost", "its process ended, or it was aborted", "");
  }
  if (revoked_by_ >= 0 && MonotonicMs() - revoked_at_ms_ > kVerdictMsMax) Lost(revoked_by_, "it has failed, or was aborted");
  if (!status_.ok()) return;
  Sleeper* sleeper = board_.SleeperOf(rank_);
  const std::uint32_t for_what = kForMessage | (wants_room_.exchange(false, std::memory_order_relaxed) ? kForRoom : 0);
  if (std::exchange(has_moved_, false)) {
    looks_ = 0;
    if (std::exchange(announced_, 0) != 0) Withdraw(sleeper);
  }
  // The caller looks again between two of these.
  const std::uint32_t spins = spin ? patience_.spins / kPausesOfALook : 0, yields = spin ? patience_.yields : 0;
  if (looks_ < spins + yields) {
    if (looks_++ < spins)
      Pause();
    else
      sched_yield();
    return;
  }
  if (announced_ != for_what) {
    Announce(sleeper, announced_ = for_what);
    // After it: a message that nobody looks at, because its sender makes another call, is then seen here or wakes.
    CompareCalls();
    return;
  }
  Sleep(sleeper, announced_, kSleepMsMax);
  announced_ = 0;
  looks_ = 0;
}

}  // namespace ropewalk::collective
