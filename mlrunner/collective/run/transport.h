// How messages get from rank to rank. A message is posted memory: it stays where it is until the receiver has consumed it, and nothing
// writes to it before (Check() proves that of every plan).
//
// Thread rule: an endpoint belongs to the thread that drives its rank. Nothing here allocates once it is set up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace ropewalk::collective {

class Transport {
 public:
  virtual ~Transport() = default;

  // Whether fewer than `slots` messages to `peer` on this channel are not consumed.
  virtual bool HasSlot(std::int32_t peer, std::int32_t channel, std::int32_t slots) = 0;
  // Lets `peer` read the message. Only after HasSlot() said yes.
  virtual void Post(std::int32_t peer, std::int32_t channel, const void* data, std::size_t bytes) = 0;
  // The `index`-th message of `peer` on `channel` that is not consumed, in full: where it is. Null when it is not there yet, or when it
  // failed (status()). It may have been put into `landing`, which has room for `bytes`; a message of another length is an error.
  virtual const void* Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* landing, std::size_t bytes) = 0;
  // The first of them has been read.
  virtual void Consume(std::int32_t peer, std::int32_t channel) = 0;
  // Whether the memory of everything posted to `peer` on `channel` is the sender's own again.
  virtual bool IsFlushed(std::int32_t peer, std::int32_t channel) = 0;
  // Memory that peers may read when it is posted, for as long as the transport lives; null when there is no room. Setup only.
  virtual char* Allocate(std::size_t bytes) = 0;
  // Sleeps until something may have changed since the last call: a message, a free slot, a failure. Spins first.
  virtual void Wait() = 0;
  // Ends the waiting of all ranks that this one may keep waiting: they fail with COLL20 and this rank's name. From any thread.
  virtual void Abort() = 0;
  // The first failure: a lost peer, a message that does not fit. It stays.
  virtual const Status& status() const = 0;
};

}  // namespace ropewalk::collective
