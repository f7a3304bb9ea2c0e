// Sizes of launches, and how row-major products are told to a column-major library. Decided here, without a device.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {

struct Launch {
  unsigned blocks = 0, threads = 0;
};

// Elements side by side: each thread takes every (blocks * threads)-th. Enough blocks to fill any device, few enough that each has work.
constexpr Launch ElementLaunch(std::int64_t count) {
  constexpr std::int64_t kThreads = 256, kBlocksMax = 4096;
  return {static_cast<unsigned>(std::clamp<std::int64_t>((count + kThreads - 1) / kThreads, 1, kBlocksMax)),
          static_cast<unsigned>(kThreads)};
}

// A block for each row (blocks take every blocks-th), with threads that are a power of two: no more than the row has elements.
constexpr Launch RowLaunch(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kBlocksMax = 1 << 20;
  unsigned threads = 32;
  while (threads < 1024 && threads < width) threads *= 2;
  return {static_cast<unsigned>(std::clamp<std::int64_t>(rows, 1, kBlocksMax)), threads};
}

// A matrix as a column-major library sees it: element (i, j) at j * leading + i.
struct ColumnMajor {
  std::int64_t rows = 0, columns = 0, leading = 0;
  bool transposed = false;  // the product takes its transpose
  std::int64_t stride = 0;  // elements to the next of the batch
};
// first * second = result. A row-major matrix is, to that library, its own transpose; so it computes the transpose of c, b' a' instead.
struct ColumnMajorProduct {
  ColumnMajor first, second, result;  // b, a, c
};
constexpr ColumnMajorProduct AsColumnMajor(const MatMulShape& s) {
  const bool ta = s.transpose_a != 0, tb = s.transpose_b != 0;
  return {.first = {tb ? s.k : s.n, tb ? s.n : s.k, tb ? s.k : s.n, tb, s.stride_b},
          .second = {ta ? s.m : s.k, ta ? s.k : s.m, ta ? s.m : s.k, ta, s.stride_a},
          .result = {s.n, s.m, s.n, false, s.m * s.n}};
}

constexpr std::int64_t SizeOf(Element element) {
  switch (element) {
    case Element::kF64:
    case Element::kI64:
      return 8;
    case Element::kF32:
    case Element::kI32:
      return 4;
    case Element::kF16:
    case Element::kBF16:
      return 2;
    case Element::kU8:
      return 1;
  }
  return 0;
}

// Whether a product makes sense: what the plugin refuses is decided here.
constexpr bool IsLegal(const MatMulShape& s) {
  constexpr std::int64_t kMax = std::int64_t{1} << 31;  // of a side: products of two fit
  const bool sides = s.m > 0 && s.n > 0 && s.k > 0 && s.m < kMax && s.n < kMax && s.k < kMax;
  return (s.element == Element::kF32 || s.element == Element::kBF16) && sides && s.batch > 0 && s.batch < kMax &&
         (s.stride_a == 0 || s.stride_a == s.m * s.k) && (s.stride_b == 0 || s.stride_b == s.k * s.n);
}

// Whether a fold makes sense.
constexpr bool IsLegal(const FoldCall& c) {
  const bool is_float = c.accumulator == Element::kF32, is_scalable = is_float || c.accumulator == Element::kF64;
  auto fits = [&](Element element, double scale) {
    const bool is_half = element == Element::kF16 || element == Element::kBF16;
    return (element == c.accumulator || (is_float && is_half)) && (is_scalable || scale == 1);
  };
  if (c.sum == Sum::kAvg || c.accumulator == Element::kF16 || c.accumulator == Element::kBF16 || c.row_count < 1 ||
      c.row_count > kFoldRowsMax || c.count < 0 || !fits(c.element, c.scale))
    return false;
  for (std::int32_t row = 0; row < c.row_count; ++row)
    if (!fits(c.rows[row].element, c.rows[row].scale)) return false;
  return true;
}
// A fold that changes no number: bits are copied as they are.
constexpr bool IsCopy(const FoldCall& c) {
  return c.row_count == 1 && c.rows[0].element == c.element && c.rows[0].scale == 1 && c.scale == 1;
}

}  // namespace ropewalk::gpu
