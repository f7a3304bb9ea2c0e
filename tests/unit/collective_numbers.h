// Numbers of any element type, one by one, for tests.
//
// Thread rule: pure functions on memory that the caller owns.
#pragma once

#include <cstdint>

#include "mlrunner/collective/types.h"
#include "mlrunner/types/half.h"

namespace ropewalk::collective::testing {

inline double Get(Dtype dtype, const char* data, std::int64_t i) {
  switch (dtype) {
    case Dtype::kF32:
      return reinterpret_cast<const float*>(data)[i];
    case Dtype::kF64:
      return reinterpret_cast<const double*>(data)[i];
    case Dtype::kI32:
      return reinterpret_cast<const std::int32_t*>(data)[i];
    case Dtype::kI64:
      return static_cast<double>(reinterpret_cast<const std::int64_t*>(data)[i]);
    case Dtype::kU8:
      return reinterpret_cast<const std::uint8_t*>(data)[i];
    default:
      return HalfToFloat(dtype, reinterpret_cast<const std::uint16_t*>(data)[i]);
  }
}

inline void Set(Dtype dtype, char* data, std::int64_t i, double value) {
  switch (dtype) {
    case Dtype::kF32:
      reinterpret_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case Dtype::kF64:
      reinterpret_cast<double*>(data)[i] = value;
      break;
    case Dtype::kI32:
      reinterpret_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
      break;
    case Dtype::kI64:
      reinterpret_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(value);
      break;
    case Dtype::kU8:
      reinterpret_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value);
      break;
    default:
      reinterpret_cast<std::uint16_t*>(data)[i] = FloatToHalf(dtype, static_cast<float>(value));
  }
}

}  // namespace ropewalk::collective::testing
