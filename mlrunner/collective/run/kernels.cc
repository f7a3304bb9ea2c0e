#include "mlrunner/collective/run/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "mlrunner/types/half.h"

namespace ropewalk::collective {
namespace {

// Small enough to stay in the first cache beside the rows.
constexpr std::int64_t kBlock = 1024;

// x / n is not x · (1/n) cut towards zero: 49 · (1/49) is below 1. So whole numbers are divided where the scale is one over a whole number.
template <class A>
void Scale(A* row, std::int64_t count, double scale) {
  if (scale == 1) return;
  if constexpr (std::is_integral_v<A>) {
    double inverse = std::round(1 / scale);
    if (std::abs(inverse) >= 1 && std::abs(inverse) < 1e9 && std::abs(inverse * scale - 1) < 1e-12) {
      auto divisor = static_cast<std::int64_t>(inverse);
      for (std::int64_t i = 0; i < count; ++i) row[i] = static_cast<A>(static_cast<std::int64_t>(row[i]) / divisor);
      return;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) row[i] = static_cast<A>(static_cast<double>(row[i]) * scale);
}

template <class A>
void Load(const Row& row, std::int64_t from, std::int64_t count, A* out) {
  auto plain = [&]<class T>(const T* data) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<A>(data[from + i]);
  };
  switch (row.dtype) {
    case Dtype::kF32:
      plain(static_cast<const float*>(row.data));
      break;
    case Dtype::kF64:
      plain(static_cast<const double*>(row.data));
      break;
    case Dtype::kI32:
      plain(static_cast<const std::int32_t*>(row.data));
      break;
    case Dtype::kI64:
      plain(static_cast<const std::int64_t*>(row.data));
      break;
    case Dtype::kU8:
      plain(static_cast<const std::uint8_t*>(row.data));
      break;
    case Dtype::kBF16:
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = static_cast<A>(mlrunner::BF16ToFloat(static_cast<const std::uint16_t*>(row.data)[from + i]));
      break;
    case Dtype::kF16:
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = static_cast<A>(mlrunner::F16ToFloat(static_cast<const std::uint16_t*>(row.data)[from + i]));
      break;
    default:
      std::abort();  // Declare() lets no plan through that adds up what is no number
  }
  Scale(out, count, row.scale);
}

template <class A>
void Store(const A* in, Dtype dtype, void* out, std::int64_t from, std::int64_t count) {
  auto plain = [&]<class T>(T* data) {
    for (std::int64_t i = 0; i < count; ++i) data[from + i] = static_cast<T>(in[i]);
  };
  switch (dtype) {
    case Dtype::kF32:
      plain(static_cast<float*>(out));
      break;
    case Dtype::kF64:
      plain(static_cast<double*>(out));
      break;
    case Dtype::kI32:
      plain(static_cast<std::int32_t*>(out));
      break;
    case Dtype::kI64:
      plain(static_cast<std::int64_t*>(out));
      break;
    case Dtype::kU8:
      plain(static_cast<std::uint8_t*>(out));
      break;
    case Dtype::kBF16:
      for (std::int64_t i = 0; i < count; ++i)
        static_cast<std::uint16_t*>(out)[from + i] = mlrunner::FloatToBF16(static_cast<float>(in[i]));
      break;
    case Dtype::kF16:
      for (std::int64_t i = 0; i < count; ++i) static_cast<std::uint16_t*>(out)[from + i] = mlrunner::FloatToF16(static_cast<float>(in[i]));
      break;
    default:
      std::abort();
  }
}

// Integers wrap round like those of every other library; signed overflow must not be undefined.
template <class A>
A Plus(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) + static_cast<std::make_unsigned_t<A>>(b));
  else
    return a + b;
}
template <class A>
A Times(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) * static_cast<std::make_unsigned_t<A>>(b));
  else
    return a * b;
}

// Two rows of one type, unscaled: one pass without a detour. `out` may be `a`.
template <class T>
void FoldTwo(ReduceOp op, const T* a, const T* b, T* out, std::int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      for (std::int64_t i = 0; i < count; ++i) out[i] = Plus(a[i], b[i]);
      return;
    case ReduceOp::kProd:
      for (std::int64_t i = 0; i < count; ++i) out[i] = Times(a[i], b[i]);
      return;
    // A NaN on either side stays: a minimum that hides one would hide a broken step.
    case ReduceOp::kMin:
      for (std::int64_t i = 0; i < count; ++i) out[i] = b[i] < a[i] || b[i] != b[i] ? b[i] : a[i];
      return;
    case ReduceOp::kMax:
      for (std::int64_t i = 0; i < count; ++i) out[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];
      return;
  }
}

template <class A>
void Fold(ReduceOp op, std::span<const Row> rows, double scale, Dtype out_dtype, void* out, std::int64_t count) {
  alignas(64) A sum[kBlock], next[kBlock];
  for (std::int64_t from = 0; from < count; from += kBlock) {
    std::int64_t length = std::min(kBlock, count - from);
    Load(rows[0], from, length, sum);
    for (std::size_t i = 1; i < rows.size(); ++i) {
      Load(rows[i], from, length, next);
      FoldTwo(op, sum, next, sum, length);
    }
    Scale(sum, length, scale);
    Store(sum, out_dtype, out, from, length);
  }
}

}  // namespace

void FoldRows(ReduceOp op, Dtype accumulator, std::span<const Row> rows, double scale, Dtype out_dtype, void* out, std::int64_t count) {
  if (count == 0) return;
  if (rows.size() == 1 && rows[0].dtype == out_dtype && rows[0].scale == 1 && scale == 1) {
    if (rows[0].data != out) std::memcpy(out, rows[0].data, static_cast<std::size_t>(count) * SizeOf(out_dtype));
    return;
  }
  bool plain = rows.size() == 2 && scale == 1 && out_dtype == accumulator;
  for (const Row& row : rows) plain = plain && row.dtype == accumulator && row.scale == 1;
  auto run = [&]<class T>(T) {
    if (plain)
      FoldTwo(op, static_cast<const T*>(rows[0].data), static_cast<const T*>(rows[1].data), static_cast<T*>(out), count);
    else
      Fold<T>(op, rows, scale, out_dtype, out, count);
  };
  switch (accumulator) {
    case Dtype::kF64:
      return run(double{});
    case Dtype::kI32:
      return run(std::int32_t{});
    case Dtype::kI64:
      return run(std::int64_t{});
    case Dtype::kU8:
      return run(std::uint8_t{});
    default:
      return run(float{});
  }
}

}  // namespace ropewalk::collective
