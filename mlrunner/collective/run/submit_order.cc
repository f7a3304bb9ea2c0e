#include "mlrunner/collective/run/submit_order.h"

#include <algorithm>

namespace ropewalk::collective {

void SubmitOrder::Finish(std::int32_t lane) {
  credit_bytes_ += running_[lane]->bytes;
  running_[lane].reset();
}

std::optional<SubmitOrder::Start> SubmitOrder::Next() {
  if (waiting_.empty()) return std::nullopt;
  const Waiting next = *waiting_.begin();
  std::int32_t free_lane = -1;
  std::size_t free_lanes = 0;
  bool is_most_urgent = true;
  for (std::size_t lane = 0; lane < running_.size(); ++lane) {
    if (!running_[lane].has_value()) {
      ++free_lanes;
      if (free_lane < 0) free_lane = static_cast<std::int32_t>(lane);
    } else if (running_[lane]->priority <= next.priority) {
      is_most_urgent = false;
    }
  }
  if (free_lanes == 0) return std::nullopt;
  // Nothing running: is_most_urgent holds.
  if (!is_most_urgent && (credit_bytes_ <= 0 || free_lanes < 2)) return std::nullopt;
  waiting_.erase(waiting_.begin());
  running_[free_lane] = next;
  credit_bytes_ -= next.bytes;
  return Start{next.number, free_lane, next.priority};
}

}  // namespace ropewalk::collective
