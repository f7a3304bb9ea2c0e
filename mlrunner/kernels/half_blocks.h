// Blocks of numbers of 16 bits as floats and back: exact one way, rounded to nearest, ties to even, the other; the same bits as
// types/half.h, in loops that are vectorised. Kernels of bf16 and f16 compute in f32 between the two.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "mlrunner/kernels/clones.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

// A float as the nearest number that bf16 has, as bits of 32 of which the lower half is 0. A NaN stays one.
ROPEWALK_IN_CLONES std::uint32_t RoundedToBF16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000, quiet = (bits | 0x400000) & 0xffff0000;
  return (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
}

// Without branches: each of the three cases is computed, and chosen from.
ROPEWALK_IN_CLONES std::uint32_t BitsOfF16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  const std::uint32_t normal = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
  // Below the least normal number the spacing is 2^-24, as that of floats behind .5.
  const std::uint32_t small = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, size) + 0.5f) - 0x3f000000;
  std::uint32_t half = size < 0x38800000 ? small : normal;
  half = size >= 0x477ff000 ? 0x7c00 : half;  // 65520 and more are infinite
  half = size > 0x7f800000 ? 0x7e00 : half;
  return half | sign;
}
ROPEWALK_IN_CLONES float FloatOfF16(std::uint32_t half) {
  const std::uint32_t size = (half & 0x7fff) << 13;
  const float finite = __builtin_bit_cast(float, size) * 0x1p112f;  // exact, of subnormal ones too
  const std::uint32_t bits = size >= 0x0f800000 ? size | 0x7f800000 : __builtin_bit_cast(std::uint32_t, finite);
  return __builtin_bit_cast(float, bits | (half & 0x8000) << 16);
}

// `n` numbers of `dtype`, bf16 or f16, side by side. The two may not overlap.
void WidenHalves(Dtype dtype, const std::uint16_t* in, float* out, std::int64_t n);
void NarrowToHalves(Dtype dtype, const float* in, std::uint16_t* out, std::int64_t n);

}  // namespace ropewalk::mlrunner
