// Which samples of a set are not trained on, where they have no order of their own: drawn, and the same ones every time.
//
// Thread rule: a pure function.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace ropewalk::mlrunner {

struct HoldOut {
  std::vector<std::int64_t> training, held_out;  // ascending
};

// `part` (0 to 1, rounded down) of `count` samples is held out.
inline HoldOut DrawHoldOut(std::int64_t count, double part) {
  constexpr std::uint64_t kPurpose =
      0x686f6c646f7574;  // "holdout"; of no seed of a job: trainings with others are compared by these samples
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Random random(kPurpose);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  const auto kept_back = order.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(count) * part);
  std::sort(order.begin(), kept_back);
  std::sort(kept_back, order.end());
  return {.training = {kept_back, order.end()}, .held_out = {order.begin(), kept_back}};
}

}  // namespace ropewalk::mlrunner
