// Products whose first factor is read transposed, as the gradients of weights are, where oneDNN's GEMM steps through a factor from row to
// row: rows of a multiple of 2 KiB then meet in a few sets of the cache, and half of the rate or more is lost (docs/performance.md). Such a
// factor is copied, some rows at a time, to where rows are a line longer. Its GEMM for AVX-512 packs factors itself and is left alone.
//
// Thread rule: as kernel.h.
#pragma once

#include <cstdint>
#include <optional>

#include "mlrunner/kernels/kernel.h"

namespace ropewalk::mlrunner {

// How many floats longer rows are made: a line of the cache.
constexpr std::int64_t kRowPadding = 16;

// a (k, m), b (k, n) -> a' b (m, n), row-major; nothing where it is not worth it.
std::optional<CompiledKernel> PaddedProduct(std::int64_t m, std::int64_t n, std::int64_t k, int threads);

}  // namespace ropewalk::mlrunner
