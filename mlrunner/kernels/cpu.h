// Helpers shared by the CPU kernels.
//
// Thread rule: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "mlrunner/kernels/clones.h"
#include "mlrunner/kernels/kernel.h"

namespace ropewalk::mlrunner {

// "This kernel does not do that shape or layout": the table takes the reference.
inline Status Declined() {
  return Status(Code::kInvalid, "KERNEL01", "declined", "this kernel does not do that shape, type or layout", "let the table take another");
}

inline bool IsDeclined(const Result<CompiledKernel>& made) { return !made.ok() && made.status().tag() == "KERNEL01"; }

// Its headers are for the .cc files that call it.
inline Status OneDnnFailed(const std::string& what) {
  return Status(Code::kInternal, "KERNEL02", "oneDNN: " + what, "a primitive could not be made or run");
}

inline bool AllRowMajor(const KernelRequest& r) {
  for (const auto* list : {&r.in, &r.out}) {
    for (const ConcreteType& type : *list) {
      if (!type.layout.IsRowMajor()) return false;
    }
  }
  return true;
}

inline const float* In(const KernelCall& c, int i) { return static_cast<const float*>(c.in[i]); }
inline float* Out(const KernelCall& c, int i) { return static_cast<float*>(c.out[i]); }
// Of i32 or i64.
inline std::int64_t IndexAt(const void* data, Dtype dtype, std::int64_t i) {
  return dtype == Dtype::kI64 ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
}

// Rows of large tables lie where nothing foresees them: who goes through many asks for those that he will need soon, so that the waits for
// them overlap. Both ends: short rows cross lines of the cache.
constexpr std::int64_t kRowsAhead = 16;
inline void AskForRow(const float* row, std::int64_t width) {
  if (width == 0) return;
  __builtin_prefetch(row);
  __builtin_prefetch(row + width - 1);
}

// Work below this many elements is not worth waking other threads for.
constexpr std::int64_t kParallelElements = 32 * 1024;
inline int Threads(const KernelRequest& r, std::int64_t elements) { return elements < kParallelElements ? 1 : r.num_threads; }

// f(row) for each, spread over threads in pieces that lie together.
template <class F>
void ForRows(std::int64_t rows, int threads, F f) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (std::int64_t row = 0; row < rows; ++row) f(row);
}
// f(first row, end) for the stretch that each thread owns.
template <class F>
void ForStretches(std::int64_t rows, int threads, F f) {
  ForRows(threads, threads, [&](std::int64_t t) { f(rows * t / threads, rows * (t + 1) / threads); });
}

// How the channels of (N, C, ...) lie in memory: as (rows, blocks, spatial, width), where channel c is c % width of block c / width. A
// width of 1 is row-major, one of 8 or 16 is a blocked layout, and what has nothing but channels is one block of all.
struct ChannelPlanes {
  std::int64_t rows = 0, blocks = 0, spatial = 0, width = 0;
  std::int64_t size() const { return spatial * width; }  // of a plane, which lies in one piece
  std::int64_t channels() const { return blocks * width; }
};
// Nothing where it lies in another way, or has no elements.
std::optional<ChannelPlanes> ChannelPlanesOf(const ConcreteType& type);

// The sum of each channel of (N, C, ...) in such a layout.
Result<CompiledKernel> CompileChannelSum(const KernelRequest& r);

// ln of the largest float, rounded down.
constexpr float kExpMax = 88.722831726f;

// exp by 2^n * p(r), |r| <= ln(2)/2 (Cephes); tests compare it with float64. Results below the least normal number are 0; arguments above
// kExpMax count as kExpMax, which sums that end in a quotient want.
ROPEWALK_IN_CLONES float FastExp(float y) {
  float x = y < -87.3f ? -87.3f : y;
  x = x > kExpMax ? kExpMax : x;
  float n = x * 1.44269504f;
  // Round by adding and taking off 1.5 * 2^23: vectorises everywhere.
  n = (n + 12582912.0f) - 12582912.0f;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // In two factors, so that 2^128 is never formed.
  auto whole = static_cast<std::int32_t>(n), half = whole / 2;
  float e = p * __builtin_bit_cast(float, (half + 127) << 23) * __builtin_bit_cast(float, (whole - half + 127) << 23);
  return y < -87.3f ? 0.0f : e;
}

// For small x the series, since 1 - e^(-2x) loses digits there.
ROPEWALK_IN_CLONES float FastTanh(float x) {
  float a = std::fabs(x), e = FastExp(-2 * a), big = (1 - e) / (1 + e), s = x * x;
  float small = a * (1 + s * (-0.33333333f + s * (0.13333333f + s * (-0.053968254f + s * (0.021869489f - s * 0.0088632355f)))));
  float magnitude = a < 0.35f ? small : big;
  return std::copysign(magnitude, x);
}
ROPEWALK_IN_CLONES float FastSigmoid(float x) { return 1 / (1 + FastExp(-x)); }

}  // namespace ropewalk::mlrunner
