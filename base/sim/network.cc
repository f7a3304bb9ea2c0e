#include "base/sim/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ropewalk::sim {

Network::Network(EventQueue* queue, int hosts, NetworkOptions options)
    : queue_(queue), options_(std::move(options)), out_(static_cast<std::size_t>(hosts)), in_(out_) {
  int racks = 1;
  for (int rack : options_.rack) racks = std::max(racks, rack + 1);
  up_.resize(static_cast<std::size_t>(racks));
  down_ = up_;
}

TimeUs Network::Pass(TimeUs* busy_until, TimeUs at, double ns_per_byte, std::int64_t bytes) {
  *busy_until = std::max(*busy_until, at) + static_cast<TimeUs>(std::llround(ns_per_byte * static_cast<double>(bytes)));
  return *busy_until;
}

void Network::Send(int from, int to, std::int64_t bytes, std::function<void()> deliver) {
  TimeUs begins = std::max(queue_->now(), out_[from]);
  TimeUs ends = Pass(&out_[from], begins, options_.ns_per_byte, bytes);
  if (RackOf(from) != RackOf(to) && options_.uplink_ns_per_byte > 0) {
    // Bytes pass on as they come: a slower link is left later, a free one at once.
    ends = std::max(ends, Pass(&up_[RackOf(from)], begins, options_.uplink_ns_per_byte, bytes));
    ends = std::max(ends, Pass(&down_[RackOf(to)], begins, options_.uplink_ns_per_byte, bytes));
  }
  // The receiver's link is taken when the first byte gets there, so that who came first is served first.
  queue_->At(begins + options_.latency_ns, [this, to, bytes, ends, deliver = std::move(deliver)]() mutable {
    TimeUs there = Pass(&in_[to], queue_->now(), options_.ns_per_byte, bytes);
    in_[to] = std::max(there, ends + options_.latency_ns);
    queue_->At(in_[to], std::move(deliver));
  });
}

}  // namespace ropewalk::sim
