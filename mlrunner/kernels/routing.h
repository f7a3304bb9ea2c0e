// What the reference and the fast kernels of routing share.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mlrunner/kernels/tables.h"

namespace ropewalk::mlrunner {

// The places of the `count` largest of x (n), the largest first, of equals the first; each place once, whatever lies there.
template <class T>
void LargestPlaces(const T* x, std::int64_t n, std::int64_t count, std::int64_t* places) {
  for (std::int64_t k = 0; k < count; ++k) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      bool taken = false;
      for (std::int64_t j = 0; j < k; ++j) taken = taken || places[j] == i;
      if (!taken && (best < 0 || x[i] > x[best])) best = i;
    }
    places[k] = best;
  }
}

// experts (..., n), `count` of them, each of which has `capacity` places for a row -> slots (..., n), as kExpertSlots says.
template <class T>
Status FindSlots(const T* experts, const Dims& dims, std::int64_t count, std::int64_t capacity, T* slots) {
  const std::int64_t n = dims.empty() ? 1 : dims.back(), groups = n == 0 ? 0 : NumElements(dims) / n;
  std::vector<std::int64_t> there(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < groups * n; ++i) {
    const std::int64_t group = i / n;
    if (i % n == 0) std::fill(there.begin(), there.end(), 0);
    const auto expert = static_cast<std::int64_t>(experts[i]);
    if (expert < 0 || expert >= count) return NoSuchRow("expert of", i, expert, count);
    const std::int64_t place = there[static_cast<std::size_t>(expert)]++;
    slots[i] = static_cast<T>(place < capacity ? (expert * groups + group) * capacity + place : count * groups * capacity);
  }
  return {};
}

}  // namespace ropewalk::mlrunner
