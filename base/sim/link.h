// One direction of a network path: latency, bandwidth, and the faults a test asks for, all drawn from a seed.
//
// Like TCP by default: messages arrive whole and in order, or not at all because the connection was cut. Datagram faults (drop, duplicate,
// reorder) are off unless set.
//
// Owner: a simulation. Thread rule: single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/random.h"
#include "base/sim/event_queue.h"

namespace ropewalk::sim {

struct LinkOptions {
  TimeUs delay_us_min = 50;
  TimeUs delay_us_max = 500;
  std::uint64_t bytes_per_s = 0;                // 0: bandwidth does not matter
  double drop = 0, duplicate = 0, reorder = 0;  // probabilities for each message
};

class Link {
 public:
  Link(EventQueue* queue, Random random, LinkOptions options);
  ~Link() { Cut(); }

  // Calls `deliver` at the far end later (twice when duplicated, never when dropped or cut).
  void Send(std::function<void()> deliver, std::uint64_t bytes = 0);
  // Everything in flight is lost; the link can be used again at once (a new connection).
  void Cut();
  // Nothing is delivered before Resume(); what is sent meanwhile waits (a half-open or stalled path).
  void Pause(TimeUs for_us);
  std::uint64_t in_flight() const { return *in_flight_; }

 private:
  void Deliver(TimeUs at, std::function<void()> deliver);

  EventQueue* queue_;
  Random random_;
  LinkOptions options_;
  TimeUs busy_until_ = 0;    // of the sender's side: bandwidth
  TimeUs last_arrival_ = 0;  // order
  TimeUs paused_until_ = 0;
  std::shared_ptr<std::uint64_t> epoch_;  // messages of an older epoch were cut
  std::shared_ptr<std::uint64_t> in_flight_;
};

}  // namespace ropewalk::sim
