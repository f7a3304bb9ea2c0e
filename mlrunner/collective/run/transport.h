// How messages get from rank to rank. A message is posted memory: it stays where it is until the receiver has consumed it, and nothing
// writes to it before (Check() proves that of every plan).
//
// Thread rule: an endpoint belongs to the thread that drives its rank, but for what says otherwise. Nothing here allocates once it is set
// up.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/status.h"
#include "mlrunner/collective/run/call_label.h"

namespace ropewalk::collective {

// Messages that an edge can hold at most, whatever a plan asks for.
inline constexpr std::int32_t kSlotsMax = 8;

class Transport {
 public:
  virtual ~Transport() = default;

  // What the messages of these channels are about from now on; compared with the peers'.
  virtual void SetLabel(std::int32_t first_channel, std::int32_t channels, const CallLabel& label) = 0;
  // Whether fewer than `slots` messages to `peer` on this channel are not consumed.
  virtual bool HasSlot(std::int32_t peer, std::int32_t channel, std::int32_t slots) = 0;
  // Lets `peer` read the message. Only after HasSlot() said yes.
  virtual void Post(std::int32_t peer, std::int32_t channel, const void* data, std::size_t bytes) = 0;
  // The `index`-th message of `peer` on `channel` that is not consumed, in full: where it is. Null when it is not there yet, or when it
  // failed (status()). It may have been put into `landing`, which has room for `bytes`; a message of another length is an error.
  virtual const void* Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* landing, std::size_t bytes) = 0;
  // The first of them has been read.
  virtual void Consume(std::int32_t peer, std::int32_t channel) = 0;
  // What this rank has posted is its callers' again, who write over it: whoever still reads it finds out by IsSound(). It stays so. From
  // any thread, before any call ends with an error.
  virtual void Revoke() = 0;
  // Whether what has been read of `peer`'s messages until now is what it had posted. If not, the reader must not use it, Peek() finds no
  // more of them, and in a while Wait() fails, if nobody has said before why.
  virtual bool IsSound(std::int32_t peer) = 0;
  // How many messages have been posted to `peer` on `channel` so far.
  virtual std::uint64_t Posted(std::int32_t peer, std::int32_t channel) const = 0;
  // Whether the memory of the first `messages` of them is the sender's own again. From any thread where memory is shared.
  virtual bool IsFlushed(std::int32_t peer, std::int32_t channel, std::uint64_t messages) = 0;
  // Bytes that have moved from and to `peer` on `channel` so far, also of messages that are not there in full. None where messages are read
  // where they lie. From any thread.
  struct Moved {
    std::uint64_t in = 0, out = 0;
  };
  virtual Moved MovedBytes(std::int32_t peer, std::int32_t channel) const = 0;
  // How many of those that went out the system has still to bring to the peer's machine.
  virtual std::uint64_t UnsentBytes(std::int32_t peer, std::int32_t channel) = 0;
  // Memory that peers may read when it is posted, for as long as the transport lives or until Free(); null when there is no room. From any
  // thread.
  virtual char* Allocate(std::size_t bytes) = 0;
  virtual void Free(char* memory) = 0;
  // Whether Peek() puts messages into `landing`; otherwise it may be null.
  virtual bool LandsMessages() const = 0;
  // Whether a message may lie there.
  virtual bool CanPost(const void* data, std::size_t bytes) const = 0;
  // A channel on which nobody is missed: that a peer has left is no failure there, for messages of it are not waited for. Before anything
  // moves.
  virtual void SetListening(std::int32_t channel) = 0;
  // Whether nothing more comes from `peer` on a listening channel than what Peek() finds now.
  virtual bool HasLeft(std::int32_t peer, std::int32_t channel) const = 0;
  // Where memory of Allocate() lies, in words that MappedAt() of the other ranks understands.
  virtual std::uint64_t PlaceOf(const char* memory) const = 0;
  // `bytes` of `peer`'s memory as this rank reads and writes them; null where memory is not shared, or outside of what is.
  virtual char* MappedAt(std::int32_t peer, std::uint64_t place, std::size_t bytes) const = 0;
  // Wakes the ranks that share memory with this one: something there has changed.
  virtual void RingPeers() = 0;
  // Sleeps until something may have changed since the last call: a message, a free slot, a failure, a Ring(). May spin first.
  virtual void Wait(bool spin) = 0;
  // The current Wait() returns, or else the next one does. From any thread.
  virtual void Ring() = 0;
  // `peer` has ended in order: what it sent is still good, but nothing more comes. From any thread.
  virtual void SetLeft(std::int32_t peer) = 0;
  // Fails with `why` when it waits next, if it has not failed before. From any thread.
  virtual void Interrupt(const Status& why) = 0;
  // Ends the waiting of all ranks that this one may keep waiting: they fail with COLL20 and this rank's name. From any thread.
  virtual void Abort() = 0;
  // The first failure: a lost peer, a message that does not fit. It stays.
  virtual const Status& status() const = 0;
};

// A status that another thread leaves for the one that drives.
class Interruption {
 public:
  void Set(const Status& why) {
    std::lock_guard lock(mutex_);
    if (is_set_.load(std::memory_order_relaxed)) return;
    why_ = why;
    is_set_.store(true, std::memory_order_release);
  }
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  Status why() const {
    std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  Status why_;
};

}  // namespace ropewalk::collective
