// f32 kernels of RMS norm, of norms that take a sum in, and of the gradients of these and of layer norm: a row is added up, normalised and
// written while it lies in the nearest cache.
#include <algorithm>
#include <cmath>
#include <vector>

#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/residual_norm.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/row_loops.h"
#include "mlrunner/kernels/table_parts.h"

namespace ropewalk::mlrunner {
namespace {

ROPEWALK_CLONES void SumRow(const float* x, const float* r, float* s, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) s[i] = x[i] + r[i];
}
ROPEWALK_CLONES void SumRowOfThree(const float* x, const float* r, const float* c, float* s, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) s[i] = x[i] + (r[i] + c[i]);
}
// y = s * scale * gain
ROPEWALK_CLONES void ScaleRow(const float* s, float scale, const float* gain, float* y, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = s[i] * scale * gain[i];
}
// As NormGradParts, without a mean and a bias.
ROPEWALK_CLONES void RmsGradParts(const float* s, const float* gain, const float* g, float scale, float* hat, float* scaled, float* dgain,
                                  std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    hat[i] = s[i] * scale;
    scaled[i] = g[i] * gain[i];
    dgain[i] += g[i] * hat[i];
  }
}

struct Rows {
  std::int64_t count = 1, n = 1;
  int threads = 1;
};
Result<Rows> RowsOf(const KernelRequest& r) {
  const Dims& dims = r.in[0].dims;
  if (!AllRowMajor(r) || dims.back() == 0) return Declined();
  Rows rows;
  rows.n = dims.back();
  rows.count = NumElements(dims) / rows.n;
  rows.threads = Threads(r, rows.count * rows.n);
  return rows;
}
float Mean(float sum, std::int64_t n) { return sum / static_cast<float>(n); }

Result<CompiledKernel> CompileRmsNorm(const KernelRequest& r) {  // (x, gain) -> y, scale
  ASSIGN_OR_RETURN(const Rows rows, RowsOf(r));
  const auto epsilon = static_cast<float>(r.op.attrs.Double(Attr::kEpsilon));
  return CompiledKernel{[=](const KernelCall& c) {
    ForRows(rows.count, rows.threads, [&](std::int64_t row) {
      const float* x = In(c, 0) + row * rows.n;
      const float scale = 1 / std::sqrt(Mean(DotOf(x, x, rows.n), rows.n) + epsilon);
      ScaleRow(x, scale, In(c, 1), Out(c, 0) + row * rows.n, rows.n);
      Out(c, 1)[row] = scale;
    });
    return Status();
  }};
}

Result<CompiledKernel> CompileAddNorm(const KernelRequest& r) {  // (x, r, gain[, bias][, c]) -> y, s[, mean], scale
  ASSIGN_OR_RETURN(const Rows rows, RowsOf(r));
  const bool centred = r.op.def == &kAddLayerNorm;
  const int added = static_cast<int>(r.in.size()) > (centred ? 4 : 3) ? static_cast<int>(r.in.size()) - 1 : -1;
  const auto epsilon = static_cast<float>(r.op.attrs.Double(Attr::kEpsilon));
  return CompiledKernel{[=](const KernelCall& c) {
    ForRows(rows.count, rows.threads, [&](std::int64_t row) {
      const std::int64_t n = rows.n, at = row * n;
      float *s = Out(c, 1) + at, *y = Out(c, 0) + at;
      if (added < 0) {
        SumRow(In(c, 0) + at, In(c, 1) + at, s, n);
      } else {
        SumRowOfThree(In(c, 0) + at, In(c, 1) + at, In(c, added), s, n);
      }
      if (!centred) {
        const float scale = 1 / std::sqrt(Mean(DotOf(s, s, n), n) + epsilon);
        ScaleRow(s, scale, In(c, 2), y, n);
        Out(c, 2)[row] = scale;
        return;
      }
      const float mean = Mean(SumOf(s, n), n);
      Shift(s, mean, y, n);
      const float scale = 1 / std::sqrt(Mean(DotOf(y, y, n), n) + epsilon);
      Normalise(y, scale, In(c, 2), In(c, 3), n);
      Out(c, 2)[row] = mean;
      Out(c, 3)[row] = scale;
    });
    return Status();
  }};
}

// Sums over rows: each of 16 fixed pieces of rows has its own, then the pieces are added in order.
Result<CompiledKernel> CompileNormGrad(const KernelRequest& r) {  // (s, gain[, mean], scale, g[, h]) -> ds, dgain[, dbias]
  ASSIGN_OR_RETURN(const Rows rows, RowsOf(r));
  constexpr std::int64_t kPieces = 16;
  const bool centred = r.op.def == &kLayerNormGrad || r.op.def == &kAddLayerNormGrad;
  const bool past = r.op.def == &kAddLayerNormGrad || r.op.def == &kAddRmsNormGrad;
  const int scale_at = centred ? 3 : 2, sums = centred ? 2 : 1;
  return CompiledKernel{[=](const KernelCall& c) {
                          const std::int64_t n = rows.n;
                          auto* partial = static_cast<float*>(c.scratch);  // [piece][gain, bias][n]
                          std::fill_n(partial, sums * kPieces * n, 0.0f);
                          ForRows(kPieces, rows.threads, [&](std::int64_t piece) {
                            float *dgain = partial + sums * piece * n, *dbias = dgain + n;
                            std::vector<float> hat(n), scaled(n);
                            for (std::int64_t row = piece * rows.count / kPieces; row < (piece + 1) * rows.count / kPieces; ++row) {
                              const float *s = In(c, 0) + row * n, *g = In(c, scale_at + 1) + row * n;
                              const float scale = In(c, scale_at)[row];
                              float *ds = Out(c, 0) + row * n, sum = 0;
                              if (centred) {
                                NormGradParts(s, In(c, 1), g, In(c, 2)[row], scale, hat.data(), scaled.data(), dgain, dbias, n);
                                sum = Mean(SumOf(scaled.data(), n), n);
                              } else {
                                RmsGradParts(s, In(c, 1), g, scale, hat.data(), scaled.data(), dgain, n);
                              }
                              const float dot = Mean(DotOf(scaled.data(), hat.data(), n), n);
                              NormGradOf(hat.data(), scaled.data(), scale, sum, dot, ds, n);
                              if (past) AddTo(ds, In(c, scale_at + 2) + row * n, n);
                            }
                          });
                          for (int k = 0; k < sums; ++k) {
                            float* to = Out(c, 1 + k);
                            std::copy_n(partial + k * n, n, to);
                            for (std::int64_t piece = 1; piece < kPieces; ++piece) AddTo(to, partial + (sums * piece + k) * n, n);
                          }
                          return Status();
                        },
                        static_cast<std::size_t>(sums * kPieces * rows.n) * sizeof(float)};
}

}  // namespace

void AddResidualNormKernels(KernelTable& table) {
  auto add = [&](const OpDef& def, KernelMaker maker) { table.Add(def, Device::kCpu, Dtype::kF32, std::move(maker)); };
  add(kRmsNorm, CompileRmsNorm);
  for (const OpDef* def : {&kAddLayerNorm, &kAddRmsNorm}) add(*def, CompileAddNorm);
  for (const OpDef* def : {&kLayerNormGrad, &kRmsNormGrad, &kAddLayerNormGrad, &kAddRmsNormGrad}) add(*def, CompileNormGrad);
}

}  // namespace ropewalk::mlrunner
