// The arithmetic of the GPU's own kernels, number by number and in their order, so that a machine without a GPU can run and test it too.
//
// A kernel gives a row to a block of threads: each thread folds the elements that are its own, and the threads' results are folded in
// pairs. `thread` and `threads` say which elements those are; TreeFold says the pairs.
//
// Thread rule: pure functions, on host and device.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "mlrunner/gpu/plugin_abi.h"

#ifdef __CUDACC__
#define ROPEWALK_BOTH __host__ __device__
#else
#define ROPEWALK_BOTH
#endif

namespace ropewalk::gpu {

// The upper half of an f32.
struct BFloat16 {
  std::uint16_t bits;
};

ROPEWALK_BOTH inline float ToFloat(float x) { return x; }
ROPEWALK_BOTH inline float ToFloat(BFloat16 x) {
  std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

// To the nearest, ties to even.
template <class T>
ROPEWALK_BOTH T FromFloat(float x);
template <>
ROPEWALK_BOTH inline float FromFloat<float>(float x) {
  return x;
}
template <>
ROPEWALK_BOTH inline BFloat16 FromFloat<BFloat16>(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  // Rounding could carry a not-a-number into infinity or zero.
  if (x != x) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// A number of 16 bits with 5 of exponent.
struct Float16 {
  std::uint16_t bits;
};
ROPEWALK_BOTH inline float OfBits(std::uint32_t bits) {
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}
ROPEWALK_BOTH inline float ToFloat(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, mantissa = x.bits & 0x3ff;
  if (exponent == 31) return OfBits(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return OfBits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float value = static_cast<float>(mantissa) * 0x1.0p-24f;  // subnormal: exact in f32
  return sign != 0 ? -value : value;
}
template <>
ROPEWALK_BOTH inline Float16 FromFloat<Float16>(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {static_cast<std::uint16_t>(sign | 0x7e00)};
  if (bits >= 0x477ff000) return {static_cast<std::uint16_t>(sign | 0x7c00)};  // 65520 and more round to infinity
  if (bits < 0x38800000) {
    // Below the smallest normal number the spacing is 2^-24: adding .5 in the right binade rounds to it, ties to even.
    const float shifted = OfBits(bits) + 0.5f;
    std::uint32_t rounded;
    std::memcpy(&rounded, &shifted, sizeof rounded);
    return {static_cast<std::uint16_t>(sign | (rounded - 0x3f000000))};
  }
  bits += 0xfff + (bits >> 13 & 1);
  return {static_cast<std::uint16_t>(sign | (bits - 0x38000000) >> 13)};
}

// What AdamW's elements share. Differences from 1 are taken in double: 1 - .999f is off by 1e-5.
struct AdamWNumbers {
  float beta1, rest1, beta2, rest2;
  float correct1, correct2;  // 1 / (1 - beta^step)
  float rate, epsilon, decay;
};
ROPEWALK_BOTH inline AdamWNumbers MakeAdamWNumbers(double beta1, double beta2, double epsilon, double decay, float rate, float step) {
  return {static_cast<float>(beta1),
          static_cast<float>(1 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1 - beta2),
          static_cast<float>(1 / (1 - pow(beta1, static_cast<double>(step)))),
          static_cast<float>(1 / (1 - pow(beta2, static_cast<double>(step)))),
          rate,
          static_cast<float>(epsilon),
          static_cast<float>(decay)};
}
// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= rate (m c1 / (sqrt(v c2) + eps) + decay p)
template <class T>
ROPEWALK_BOTH void AdamWElement(const AdamWNumbers& k, const T* p0, const T* m0, const T* v0, const T* g, T* p, T* m, T* v,
                                std::int64_t i) {
  // All is read before anything is written: outputs may lie where inputs do.
  float pi = ToFloat(p0[i]), gi = ToFloat(g[i]);
  float mi = k.beta1 * ToFloat(m0[i]) + k.rest1 * gi, vi = k.beta2 * ToFloat(v0[i]) + k.rest2 * gi * gi;
  p[i] = FromFloat<T>(pi - k.rate * (mi * k.correct1 / (sqrtf(vi * k.correct2) + k.epsilon) + k.decay * pi));
  m[i] = FromFloat<T>(mi);
  v[i] = FromFloat<T>(vi);
}

// The largest of this thread's elements. A not-a-number is passed over; it comes back in the sum.
template <class T>
ROPEWALK_BOTH float RowMax(const T* x, std::int64_t n, int thread, int threads) {
  float best = -INFINITY;
  for (std::int64_t i = thread; i < n; i += threads) best = fmaxf(best, ToFloat(x[i]));
  return best;
}
template <class T>
ROPEWALK_BOTH float RowSumExp(const T* x, float top, std::int64_t n, int thread, int threads) {
  float sum = 0;
  for (std::int64_t i = thread; i < n; i += threads) sum += expf(ToFloat(x[i]) - top);
  return sum;
}
// dx = (exp(x - log_sum) - [i = label]) g
template <class T>
ROPEWALK_BOTH void RowGradient(const T* x, float log_sum, float g, std::int64_t label, T* dx, std::int64_t n, int thread, int threads) {
  for (std::int64_t i = thread; i < n; i += threads) {
    dx[i] = FromFloat<T>((expf(ToFloat(x[i]) - log_sum) - (i == label ? 1.0f : 0.0f)) * g);
  }
}

// The step of a fold in pairs in which thread t takes what thread t + half has: half = threads / 2, then half of that, down to 1. `threads`
// is a power of two.
struct TakeMax {
  ROPEWALK_BOTH float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct TakeSum {
  ROPEWALK_BOTH float operator()(float a, float b) const { return a + b; }
};
template <class F>
ROPEWALK_BOTH void TreeFold(float* of_threads, int half, int thread, F f) {
  if (thread < half) of_threads[thread] = f(of_threads[thread], of_threads[thread + half]);
}

// ---- folds of collectives: element by element what mlrunner/collective/run/kernels.h does, to the last bit. The compiler must not fuse a
// product with the sum behind it (--fmad=false).

template <class A>
ROPEWALK_BOTH A LoadAs(const void* data, Element element, std::int64_t i) {
  switch (element) {
    case Element::kF32:
      return static_cast<A>(static_cast<const float*>(data)[i]);
    case Element::kF64:
      return static_cast<A>(static_cast<const double*>(data)[i]);
    case Element::kF16:
      return static_cast<A>(ToFloat(static_cast<const Float16*>(data)[i]));
    case Element::kBF16:
      return static_cast<A>(ToFloat(static_cast<const BFloat16*>(data)[i]));
    case Element::kI32:
      return static_cast<A>(static_cast<const std::int32_t*>(data)[i]);
    case Element::kI64:
      return static_cast<A>(static_cast<const std::int64_t*>(data)[i]);
    case Element::kU8:
      return static_cast<A>(static_cast<const std::uint8_t*>(data)[i]);
  }
  return A{};
}
template <class A>
ROPEWALK_BOTH void StoreAs(A value, Element element, void* data, std::int64_t i) {
  switch (element) {
    case Element::kF32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case Element::kF64:
      static_cast<double*>(data)[i] = static_cast<double>(value);
      break;
    case Element::kF16:
      static_cast<Float16*>(data)[i] = FromFloat<Float16>(static_cast<float>(value));
      break;
    case Element::kBF16:
      static_cast<BFloat16*>(data)[i] = FromFloat<BFloat16>(static_cast<float>(value));
      break;
    case Element::kI32:
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
      break;
    case Element::kI64:
      static_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(value);
      break;
    case Element::kU8:
      static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value);
      break;
  }
}

template <class A>
struct WrapsAs {  // whole numbers wrap round; signed ones must not overflow for that
  using Type = A;
};
template <>
struct WrapsAs<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct WrapsAs<std::int64_t> {
  using Type = std::uint64_t;
};

template <class A>
ROPEWALK_BOTH A FoldTwo(Sum sum, A a, A b) {
  using Wrapped = typename WrapsAs<A>::Type;
  switch (sum) {
    case Sum::kSum:
    case Sum::kAvg:
      return static_cast<A>(static_cast<Wrapped>(a) + static_cast<Wrapped>(b));
    case Sum::kProd:
      return static_cast<A>(static_cast<Wrapped>(a) * static_cast<Wrapped>(b));
    case Sum::kMin:  // a not-a-number on either side stays
      return b < a || b != b ? b : a;
    case Sum::kMax:
      return b > a || b != b ? b : a;
  }
  return a;
}
template <class A>
ROPEWALK_BOTH A ScaledBy(A value, double scale) {
  return scale == 1 ? value : static_cast<A>(static_cast<double>(value) * scale);
}

// Element i of a fold.
template <class A>
ROPEWALK_BOTH void FoldElement(const FoldCall& c, const FoldRow* rows, std::int64_t i) {
  A result = ScaledBy(LoadAs<A>(rows[0].data, rows[0].element, i), rows[0].scale);
  for (std::int32_t row = 1; row < c.row_count; ++row)
    result = FoldTwo(c.sum, result, ScaledBy(LoadAs<A>(rows[row].data, rows[row].element, i), rows[row].scale));
  StoreAs(ScaledBy(result, c.scale), c.element, c.out, i);
}

}  // namespace ropewalk::gpu
