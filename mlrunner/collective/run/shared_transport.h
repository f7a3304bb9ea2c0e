// The transport of ranks on one machine: a board of edges in memory that all of them map, and messages that are read where they lie, in the
// sender's memory. Ranks may be threads of one process (then all memory is common) or processes, whose posted memory must come from a pool
// that the peers have mapped.
//
// Owner: each rank owns its endpoint; the board and the pools are anonymous memory files, so nothing is left behind when a rank is killed.
// Thread rule: as transport.h says; the static Abort() may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/run/pool.h"
#include "mlrunner/collective/run/sleeper.h"
#include "mlrunner/collective/run/transport.h"

namespace ropewalk::collective {

// A mapped anonymous file. Move-only.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~SharedMemory();
  // Zeroed memory, its size sealed. kResourceExhausted when the system gives none.
  static Result<SharedMemory> Create(std::size_t bytes);
  // Of a descriptor that was passed by another process; kInvalid unless its size is sealed and exactly `bytes`.
  static Result<SharedMemory> Open(int fd, std::size_t bytes);
  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
  int fd_ = -1;
};

// What all ranks of a communicator look at. Plain memory; BoardBytes() of it, zeroed at first.
class Board {
 public:
  static std::size_t BytesFor(std::int32_t ranks, std::int32_t channels);
  Board(char* memory, std::int32_t ranks, std::int32_t channels) : memory_(memory), ranks_(ranks), channels_(channels) {}

  struct alignas(64) Edge {
    alignas(64) std::atomic<std::uint64_t> posted{0};  // the receiver does not look at it
    alignas(64) std::atomic<std::uint64_t> consumed{0};
    // A line of the cache each: all that the receiver must fetch to know of a message.
    struct alignas(64) Slot {
      std::atomic<std::uint64_t> number{0};  // of the message that lies there, counted from 1; written last
      std::uint64_t place = 0, bytes = 0, fingerprint = 0, sequence = 0;
    } slots[kSlotsMax];
  };
  // A CallLabel that its rank may overwrite while a peer reads it (to say what is wrong; then it may be of the next call).
  struct alignas(64) Label {
    std::atomic<std::uint64_t> words[sizeof(CallLabel) / 8];
  };
  Edge& EdgeOf(std::int32_t from, std::int32_t to, std::int32_t channel) const {
    return reinterpret_cast<Edge*>(memory_ +
                                   sizeof(Sleeper) * (static_cast<std::size_t>(ranks_) + 1))[(from * ranks_ + to) * channels_ + channel];
  }
  Label& LabelOf(std::int32_t rank, std::int32_t channel) const {
    return reinterpret_cast<Label*>(memory_ + BytesBeforeLabels(ranks_, channels_))[rank * channels_ + channel];
  }
  // Not 0: what this rank has posted is no longer there. Written once, and read with every message.
  std::atomic<std::uint32_t>& RevokedOf(std::int32_t rank) const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + BytesBeforeRevoked(ranks_, channels_))[rank];
  }
  Sleeper* SleeperOf(std::int32_t rank) const { return reinterpret_cast<Sleeper*>(memory_) + 1 + rank; }
  // 0, or 1 + the rank that was lost.
  std::atomic<std::uint32_t>& lost() const { return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_); }
  std::int32_t ranks() const { return ranks_; }
  std::int32_t channels() const { return channels_; }

 private:
  static std::size_t BytesBeforeLabels(std::int32_t ranks, std::int32_t channels);
  static std::size_t BytesBeforeRevoked(std::int32_t ranks, std::int32_t channels);
  char* memory_;
  std::int32_t ranks_, channels_;
};

class SharedTransport : public Transport {
 public:
  // `pools[r]`: where rank r's pool begins in this process, and `pool_bytes` of each. All null: the ranks are threads, and every address is
  // good for all.
  SharedTransport(std::int32_t rank, Board board, std::vector<char*> pools, std::size_t pool_bytes);

  // Frees all ranks that wait for `rank`: they fail with COLL20. From any thread, and from any process that has the board.
  static void Abort(const Board& board, std::int32_t lost_rank);

  void SetLabel(std::int32_t first_channel, std::int32_t channels, const CallLabel& label) override;
  bool HasSlot(std::int32_t peer, std::int32_t channel, std::int32_t slots) override;
  void Post(std::int32_t peer, std::int32_t channel, const void* data, std::size_t bytes) override;
  const void* Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* landing, std::size_t bytes) override;
  void Consume(std::int32_t peer, std::int32_t channel) override;
  void Revoke() override;
  bool IsSound(std::int32_t peer) override;
  std::uint64_t Posted(std::int32_t peer, std::int32_t channel) const override {
    return board_.EdgeOf(rank_, peer, channel).posted.load(std::memory_order_relaxed);
  }
  bool IsFlushed(std::int32_t peer, std::int32_t channel, std::uint64_t messages) override;
  Moved MovedBytes(std::int32_t /*peer*/, std::int32_t /*channel*/) const override { return {}; }
  std::uint64_t UnsentBytes(std::int32_t /*peer*/, std::int32_t /*channel*/) override { return 0; }
  char* Allocate(std::size_t bytes) override { return pool_.Allocate(bytes); }
  void Free(char* memory) override { pool_.Free(memory); }
  bool LandsMessages() const override { return false; }
  bool CanPost(const void* data, std::size_t bytes) const override;
  void SetListening(std::int32_t channel) override { listening_ = channel; }
  bool HasLeft(std::int32_t peer, std::int32_t /*channel*/) const override { return left_[peer].load(std::memory_order_acquire); }
  std::uint64_t PlaceOf(const char* memory) const override;
  char* MappedAt(std::int32_t peer, std::uint64_t place, std::size_t bytes) const override;
  void RingPeers() override;
  void Wait(bool spin) override;
  void Ring() override { collective::Ring(board_.SleeperOf(rank_)); }
  void SetLeft(std::int32_t peer) override;
  void Interrupt(const Status& why) override;
  void Abort() override;
  const Status& status() const override { return status_; }

 private:
  void Lost(std::int32_t peer, const char* why);
  void Mismatched(std::int32_t peer, std::int32_t channel);
  // Whether a peer that is at the same call means another by it: also where this rank takes no message, and would never look.
  void CompareCalls();

  std::int32_t rank_;
  Board board_;
  std::vector<char*> pools_;
  std::size_t pool_bytes_;
  Pool pool_;
  std::vector<CallLabel> labels_;        // by channel
  std::vector<std::atomic<bool>> left_;  // by rank
  const Patience patience_;
  std::int32_t listening_ = -1;
  // Of the current wait:
  bool has_moved_ = false;  // it is over: something went on
  std::uint32_t looks_ = 0;
  std::atomic<bool> wants_room_{false};  // the last look missed a slot or a flush, not only messages
  std::uint32_t announced_ = 0;          // for what it will sleep unless the next look finds something; 0: not yet
  std::int32_t revoked_by_ = -1;         // the first whose messages were gone; why is not known yet
  std::int64_t revoked_at_ms_ = 0;
  Interruption interruption_;
  Status status_;
};

}  // namespace ropewalk::collective
