// A network of hosts in virtual time: each host has one link in and one out, both of finite rate; a message takes the latency and, on the
// links it uses, its bytes; so many senders to one receiver queue there (incast). Groups of hosts (racks) may share an uplink.
//
// Ticks are nanoseconds: the event queue only orders numbers, and a network's world counts finer than a scheduler's.
//
// Owner: a simulation. Thread rule: single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/sim/event_queue.h"

namespace ropewalk::sim {

struct NetworkOptions {
  TimeUs latency_ns = 50'000;
  double ns_per_byte = 8;         // of a host's link, each way
  std::vector<int> rack;          // of each host; empty: all in one
  double uplink_ns_per_byte = 0;  // of a rack's link to the others, each way; 0: no limit
};

class Network {
 public:
  Network(EventQueue* queue, int hosts, NetworkOptions options);

  // Calls `deliver` when the last byte is there. Messages between the same hosts arrive in order.
  void Send(int from, int to, std::int64_t bytes, std::function<void()> deliver);
  const NetworkOptions& options() const { return options_; }

 private:
  // Takes the link for `bytes` from `at` on; when it has passed.
  static TimeUs Pass(TimeUs* busy_until, TimeUs at, double ns_per_byte, std::int64_t bytes);
  int RackOf(int host) const { return options_.rack.empty() ? 0 : options_.rack[static_cast<std::size_t>(host)]; }

  EventQueue* queue_;
  NetworkOptions options_;
  std::vector<TimeUs> out_, in_, up_, down_;  // busy until: of hosts, of racks
};

}  // namespace ropewalk::sim
