// f32 kernels of updates. Each may write over the states that it reads.
#include <algorithm>
#include <cmath>

#include "mlrunner/graph/optimizers.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/table_parts.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kPiece = 8192;
constexpr int kLanes = 32;  // of sums; as many as in row_loops.cc, and for its reason

// The numbers of one LAMB update: betas, corrections of the moments, epsilon, decay.
struct LambNumbers {
  float b1, b2, c1, c2, epsilon, decay;
};
ROPEWALK_IN_CLONES float LambStep(const LambNumbers& k, float p, float m, float v) {
  return m * k.c1 / (std::sqrt(v * k.c2) + k.epsilon) + k.decay * p;
}
ROPEWALK_IN_CLONES void LambMoments(const LambNumbers& k, float g, float* m, float* v) {
  *m = k.b1 * *m + (1 - k.b1) * g;
  *v = k.b2 * *v + (1 - k.b2) * g * g;
}

// The moments anew, and the sums of the squares of a piece of the parameter and of its step. Each input may be its output.
ROPEWALK_CLONES void LambPiece(const LambNumbers k, const float* p, const float* m0, const float* v0, const float* g, float* m, float* v,
                               std::int64_t n, double* squares) {
  float of_p[kLanes] = {}, of_u[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) {
      float mi = m0[i + lane], vi = v0[i + lane];
      LambMoments(k, g[i + lane], &mi, &vi);
      const float u = LambStep(k, p[i + lane], mi, vi);
      of_p[lane] += p[i + lane] * p[i + lane];
      of_u[lane] += u * u;
      m[i + lane] = mi;
      v[i + lane] = vi;
    }
  }
  for (; i < n; ++i) {
    float mi = m0[i], vi = v0[i];
    LambMoments(k, g[i], &mi, &vi);
    const float u = LambStep(k, p[i], mi, vi);
    of_p[0] += p[i] * p[i];
    of_u[0] += u * u;
    m[i] = mi;
    v[i] = vi;
  }
  squares[0] = squares[1] = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    squares[0] += of_p[lane];
    squares[1] += of_u[lane];
  }
}
// p = p0 - rate u, u computed again: it is cheaper than a tensor of it.
ROPEWALK_CLONES void LambWrite(const LambNumbers k, const float* p0, const float* m, const float* v, float rate, float* p, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const float pi = p0[i];
    p[i] = pi - rate * LambStep(k, pi, m[i], v[i]);
  }
}

// (p, m, v, g, rate, step) -> p, m, v. Squares are added up piece by piece in their order, whoever computes them.
Result<CompiledKernel> CompileLamb(const KernelRequest& r) {
  if (!AllRowMajor(r)) return Declined();
  const std::int64_t n = NumElements(r.out[0].dims), pieces = (n + kPiece - 1) / kPiece;
  const double b1 = r.op.attrs.Double(Attr::kLow), b2 = r.op.attrs.Double(Attr::kHigh);
  const auto epsilon = static_cast<float>(r.op.attrs.Double(Attr::kEpsilon)), decay = static_cast<float>(r.op.attrs.Double(Attr::kValue));
  const int threads = Threads(r, n);
  return CompiledKernel{[=](const KernelCall& c) {
                          const double t = *In(c, 5);
                          const LambNumbers k{static_cast<float>(b1),
                                              static_cast<float>(b2),
                                              static_cast<float>(1 / (1 - std::pow(b1, t))),
                                              static_cast<float>(1 / (1 - std::pow(b2, t))),
                                              epsilon,
                                              decay};
                          auto* squares = static_cast<double*>(c.scratch);  // [piece][parameter, step]
                          ForRows(pieces, threads, [&](std::int64_t piece) {
                            const std::int64_t at = piece * kPiece;
                            LambPiece(k, In(c, 0) + at, In(c, 1) + at, In(c, 2) + at, In(c, 3) + at, Out(c, 1) + at, Out(c, 2) + at,
                                      std::min(kPiece, n - at), squares + 2 * piece);
                          });
                          double of_p = 0, of_u = 0;
                          for (std::int64_t piece = 0; piece < pieces; ++piece) {
                            of_p += squares[2 * piece];
                            of_u += squares[2 * piece + 1];
                          }
                          const double trust = of_p > 0 && of_u > 0 ? std::sqrt(of_p) / std::sqrt(of_u) : 1;
                          const auto rate = static_cast<float>(*In(c, 4) * trust);
                          ForRows(pieces, threads, [&](std::int64_t piece) {
                            const std::int64_t at = piece * kPiece;
                            LambWrite(k, In(c, 0) + at, Out(c, 1) + at, Out(c, 2) + at, rate, Out(c, 0) + at, std::min(kPiece, n - at));
                          });
                          return Status();
                        },
                        static_cast<std::size_t>(2 * pieces) * sizeof(double)};
}

ROPEWALK_CLONES void AdagradPiece(const float* p0, const float* s0, const float* g, float rate, float epsilon, float decay, float* p,
                                  float* s, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const float pi = p0[i], gi = g[i] + decay * pi, si = s0[i] + gi * gi;
    p[i] = pi - rate * (gi / (std::sqrt(si) + epsilon));
    s[i] = si;
  }
}
Result<CompiledKernel> CompileAdagrad(const KernelRequest& r) {  // (p, s, g, rate) -> p, s
  if (!AllRowMajor(r)) return Declined();
  const std::int64_t n = NumElements(r.out[0].dims);
  const auto epsilon = static_cast<float>(r.op.attrs.Double(Attr::kEpsilon)), decay = static_cast<float>(r.op.attrs.Double(Attr::kValue));
  const int threads = Threads(r, n);
  return CompiledKernel{[=](const KernelCall& c) {
    const float rate = *In(c, 3);
    ForRows((n + kPiece - 1) / kPiece, threads, [&](std::int64_t piece) {
      const std::int64_t at = piece * kPiece;
      AdagradPiece(In(c, 0) + at, In(c, 1) + at, In(c, 2) + at, rate, epsilon, decay, Out(c, 0) + at, Out(c, 1) + at,
                   std::min(kPiece, n - at));
    });
    return Status();
  }};
}

}  // namespace

void AddOptimizerKernels(KernelTable& table) {
  table.Add(kLamb, Device::kCpu, Dtype::kF32, CompileLamb);
  table.Add(kAdagrad, Device::kCpu, Dtype::kF32, CompileAdagrad);
}

}  // namespace ropewalk::mlrunner
