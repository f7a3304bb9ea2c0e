// Numbers of 16 bits as bits: conversions to f32 (exact) and from it, rounded to nearest, ties to even.
//
// Thread rule: pure functions.
#pragma once

#include <bit>
#include <cstdint>

#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

inline float BF16ToFloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t FloatToBF16(float value) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // a NaN must not round to infinity
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float F16ToFloat(std::uint16_t bits) {
  std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  float value = static_cast<float>(mantissa) * 0x1.0p-24f;  // subnormal: exact in f32
  return sign ? -value : value;
}

inline std::uint16_t FloatToF16(float value) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  if (bits < 0x38800000) {
    // Below the smallest normal number the spacing is 2^-24: adding .5 · 2^1 in the right binade rounds to it, ties to even.
    float shifted = std::bit_cast<float>(bits) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000));
  }
  bits += 0xfff + (bits >> 13 & 1);
  return static_cast<std::uint16_t>(sign | (bits - 0x38000000) >> 13);
}

// Of one of the two types of 16 bits.
inline float HalfToFloat(Dtype dtype, std::uint16_t bits) { return dtype == Dtype::kBF16 ? BF16ToFloat(bits) : F16ToFloat(bits); }
inline std::uint16_t FloatToHalf(Dtype dtype, float value) { return dtype == Dtype::kBF16 ? FloatToBF16(value) : FloatToF16(value); }

}  // namespace ropewalk::mlrunner
