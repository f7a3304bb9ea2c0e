// What a field of some samples holds.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "mlrunner/data/samples.h"

namespace ropewalk::mlrunner::testing {

// T: float, double or std::int32_t.
template <class T>
std::vector<T> ValuesOf(const Samples& samples, std::string_view field, const std::vector<std::int64_t>& ids, std::int64_t epoch = 0) {
  const std::ptrdiff_t at = FindField(samples, field);
  if (at < 0) return {};
  std::size_t each = 1;
  for (std::int64_t length : samples.fields()[static_cast<std::size_t>(at)].dims) each *= static_cast<std::size_t>(length);
  constexpr Dtype dtype = std::is_same_v<T, float> ? Dtype::kF32 : std::is_same_v<T, double> ? Dtype::kF64 : Dtype::kI32;
  std::vector<T> values(each * ids.size());
  samples.Fill({.field = static_cast<std::size_t>(at), .ids = ids, .epoch = epoch, .dtype = dtype, .rows = values.data()});
  return values;
}

}  // namespace ropewalk::mlrunner::testing
