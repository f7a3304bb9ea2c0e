// The vocabulary of collectives: element types and operations.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string_view>

namespace ropewalk::collective {

enum class Dtype : std::uint8_t { kF32, kF64, kF16, kBf16, kI32, kI64, kU8 };

// kAvg is kSum with a scale of 1/ranks: plans know it as that.
enum class ReduceOp : std::uint8_t { kSum, kMin, kMax, kProd, kAvg };

constexpr std::int64_t SizeBytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBf16:
      return 2;
    case Dtype::kU8:
      return 1;
  }
  return 0;
}
constexpr bool IsHalf(Dtype dtype) { return dtype == Dtype::kF16 || dtype == Dtype::kBf16; }
constexpr bool IsFloat(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kF64 || IsHalf(dtype); }
// The type in which partial results of `dtype` are held within one step.
constexpr Dtype AccumulatorOf(Dtype dtype) { return IsHalf(dtype) ? Dtype::kF32 : dtype; }

std::string_view Name(Dtype dtype);
std::string_view Name(ReduceOp op);

}  // namespace ropewalk::collective
