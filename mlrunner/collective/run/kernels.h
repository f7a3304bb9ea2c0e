// The arithmetic of data steps: a left fold over rows of numbers, computed in the accumulator's type and rounded once when it is stored.
//
// Thread rule: pure functions on memory that the caller owns.
#pragma once

#include <cstdint>
#include <span>

#include "mlrunner/collective/types.h"

namespace ropewalk::collective {

struct Row {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  double scale = 1;
};

// out[i] = scale · (((rows[0][i] op rows[1][i]) op rows[2][i]) ...), each row times its own scale first. `out` may be one of the rows, not
// overlap one otherwise. Integers are cut towards zero (an average
// is their quotient). Rounding to bf16 and f16 is to nearest, ties to even.
void FoldRows(ReduceOp op, Dtype accumulator, std::span<const Row> rows, double scale, Dtype out_dtype, void* out, std::int64_t count);

}  // namespace ropewalk::collective
