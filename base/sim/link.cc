#include "base/sim/link.h"

#include <algorithm>
#include <utility>

namespace ropewalk::sim {

Link::Link(EventQueue* queue, Random random, LinkOptions options)
    : queue_(queue),
      random_(random),
      options_(options),
      epoch_(std::make_shared<std::uint64_t>(0)),
      in_flight_(std::make_shared<std::uint64_t>(0)) {}

void Link::Send(std::function<void()> deliver, std::uint64_t bytes) {
  if (options_.drop > 0 && random_.Unit() < options_.drop) return;
  busy_until_ = std::max(busy_until_, queue_->now());
  if (options_.bytes_per_s > 0) busy_until_ += static_cast<TimeUs>(bytes * 1'000'000 / options_.bytes_per_s);
  auto delay = [&] {
    return static_cast<TimeUs>(
        random_.Between(static_cast<std::uint64_t>(options_.delay_us_min), static_cast<std::uint64_t>(options_.delay_us_max)));
  };
  TimeUs at = std::max(busy_until_, paused_until_) + delay();
  bool reordered = options_.reorder > 0 && random_.Unit() < options_.reorder;
  if (!reordered) last_arrival_ = at = std::max(at, last_arrival_);
  if (options_.duplicate > 0 && random_.Unit() < options_.duplicate) Deliver(at + delay(), deliver);
  Deliver(at, std::move(deliver));
}

void Link::Deliver(TimeUs at, std::function<void()> deliver) {
  ++*in_flight_;
  queue_->At(at, [deliver = std::move(deliver), epoch = epoch_, mine = *epoch_, in_flight = in_flight_] {
    --*in_flight;
    if (*epoch == mine) deliver();
  });
}

void Link::Cut() {
  ++*epoch_;
  last_arrival_ = busy_until_ = queue_->now();
}

void Link::Pause(TimeUs for_us) { paused_until_ = std::max(paused_until_, queue_->now() + for_us); }

}  // namespace ropewalk::sim
