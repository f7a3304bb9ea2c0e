// The vocabulary of collectives: operations, and the element types that all of mlrunner shares.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string_view>

#include "mlrunner/types/dtype.h"

namespace ropewalk::collective {

using mlrunner::Dtype;
using mlrunner::Name;

// kAvg is kSum with a scale of 1/ranks: plans know it as that. Of floats only.
enum class ReduceOp : std::uint8_t { kSum, kMin, kMax, kProd, kAvg };

// The type in which partial results of `dtype` are held within one step.
constexpr Dtype AccumulatorOf(Dtype dtype) { return IsHalf(dtype) ? Dtype::kF32 : dtype; }

std::string_view Name(ReduceOp op);

}  // namespace ropewalk::collective
