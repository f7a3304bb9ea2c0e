// Numbers as integers: towards zero; what lies outside of the type is its nearest end, and what is no number is 0. (C++ leaves such casts
// undefined; WebAssembly's trunc_sat, Rust and JAX have this rule.) All arithmetic of integers in a graph goes through it, so sums that the
// type cannot hold stay at its ends, too, and do not wrap.
//
// Thread rule: pure functions.
#pragma once

#include <cmath>
#include <limits>

namespace ropewalk::mlrunner {

template <class T>
T Saturate(double value) {
  // The upper end of 64 bits becomes 2^63 here, which is above the type: hence >=.
  constexpr auto kLow = static_cast<double>(std::numeric_limits<T>::min()), kHigh = static_cast<double>(std::numeric_limits<T>::max());
  if (std::isnan(value)) return 0;
  if (value <= kLow) return std::numeric_limits<T>::min();
  if (value >= kHigh) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

}  // namespace ropewalk::mlrunner
