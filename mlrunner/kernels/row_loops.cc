#include "mlrunner/kernels/row_loops.h"

#include <algorithm>
#include <cmath>

#include "mlrunner/kernels/cpu.h"

namespace ropewalk::mlrunner {
namespace {

// The larger; not-a-number wins and stays, as in the reference.
ROPEWALK_IN_CLONES float Larger(float best, float x) { return x > best || x != x ? x : best; }

// Rows are reduced in lanes: vectorised, and sums in lanes are closer to the exact one than one chain. As many as this, since of a shorter
// inner loop the compiler makes single statements, which it then leaves one by one.
constexpr int kLanes = 32;

}  // namespace

ROPEWALK_CLONES float MaxOf(const float* x, std::int64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -HUGE_VALF;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] = Larger(lanes[k], x[i + k]);
  }
  float best = -HUGE_VALF;
  for (; i < n; ++i) best = Larger(best, x[i]);
  for (float lane : lanes) best = Larger(best, lane);
  return best;
}
ROPEWALK_CLONES float SumOf(const float* x, std::int64_t n) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += x[i + k];
  }
  float sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (float lane : lanes) sum += lane;
  return sum;
}
ROPEWALK_CLONES float DotOf(const float* x, const float* y, std::int64_t n) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += x[i + k] * y[i + k];
  }
  float sum = 0;
  for (; i < n; ++i) sum += x[i] * y[i];
  for (float lane : lanes) sum += lane;
  return sum;
}

// y = exp(x - shift)
ROPEWALK_CLONES void ExpOf(const float* x, float shift, float* y, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = FastExp(x[i] - shift);
}
// y = exp(x - shift) * scale
ROPEWALK_CLONES void ScaledExpOf(const float* x, float shift, float scale, float* y, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = FastExp(x[i] - shift) * scale;
}
// y = x - shift
ROPEWALK_CLONES void Shift(const float* x, float shift, float* y, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - shift;
}
ROPEWALK_CLONES void Scale(float* y, float scale, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] *= scale;
}
ROPEWALK_CLONES void AddTo(float* y, const float* x, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}
ROPEWALK_CLONES void LargerTo(float* y, const float* x, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = Larger(y[i], x[i]);
}
// dx = y * (g - dot)
ROPEWALK_CLONES void SoftmaxGradOf(const float* y, const float* g, float dot, float* dx, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (g[i] - dot);
}
// y = y * scale * gain + bias
ROPEWALK_CLONES void Normalise(float* y, float scale, const float* gain, const float* bias, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] * scale * gain[i] + bias[i];
}
// What a row of a layer norm gives to the sums, and what its own gradient is made of.
ROPEWALK_CLONES void NormGradParts(const float* x, const float* gain, const float* g, float mean, float rstd, float* hat, float* scaled,
                                   float* dgain, float* dbias, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    hat[i] = (x[i] - mean) * rstd;
    scaled[i] = g[i] * gain[i];
    dgain[i] += g[i] * hat[i];
    dbias[i] += g[i];
  }
}
ROPEWALK_CLONES void NormGradOf(const float* hat, const float* scaled, float rstd, float sum, float dot, float* dx, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) dx[i] = rstd * (scaled[i] - sum - hat[i] * dot);
}
float SumExpOf(const float* x, float shift, std::int64_t n) {
  float block[512], sum = 0;
  for (std::int64_t i = 0; i < n; i += 512) {
    std::int64_t count = std::min<std::int64_t>(512, n - i);
    ExpOf(x + i, shift, block, count);
    sum += SumOf(block, count);
  }
  return sum;
}

}  // namespace ropewalk::mlrunner
