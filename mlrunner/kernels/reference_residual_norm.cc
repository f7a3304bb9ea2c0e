// References of RMS norm, of norms that take a sum in, and of the gradients of these and of layer norm.
#include <cmath>

#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/residual_norm.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/kernels/table_parts.h"

namespace ropewalk::mlrunner {
namespace {

// f(first element, row, n) for each row of the last dimension.
template <class F>
Status ForRows(const RefTensor& x, F f) {
  const std::int64_t n = x.dims.back(), size = static_cast<std::int64_t>(x.data.size());
  for (std::int64_t at = 0, row = 0; at < size; at += n, ++row) f(at, row, n);
  return {};
}

// y = (s - mean) / sqrt(mean of the squares of that + epsilon) * gain + bias; an RMS norm has a mean of 0 and no bias.
struct Norm {
  double mean = 0, scale = 1;
  Norm(const double* s, std::int64_t n, double epsilon, bool centred) {
    double squares = 0;
    for (std::int64_t i = 0; centred && i < n; ++i) mean += s[i] / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i) squares += (s[i] - mean) * (s[i] - mean) / static_cast<double>(n);
    scale = 1 / std::sqrt(squares + epsilon);
  }
};

Status Rms(RefCall& c) {  // (x, gain) -> y, scale
  return ForRows(*c.in[0], [&](std::int64_t at, std::int64_t row, std::int64_t n) {
    const Norm norm(&c.in[0]->data[at], n, c.op.attrs.Double(Attr::kEpsilon), false);
    for (std::int64_t i = 0; i < n; ++i) c.out[0].data[at + i] = c.in[0]->data[at + i] * norm.scale * c.in[1]->data[i];
    c.out[1].data[row] = norm.scale;
  });
}

Status AddNorm(RefCall& c) {  // (x, r, gain[, bias][, c]) -> y, s[, mean], scale
  const bool centred = c.op.def == &kAddLayerNorm;
  const RefTensor* added = c.in.size() > (centred ? 4u : 3u) ? c.in.back() : nullptr;
  return ForRows(*c.in[0], [&](std::int64_t at, std::int64_t row, std::int64_t n) {
    double* s = &c.out[1].data[at];
    for (std::int64_t i = 0; i < n; ++i) {
      s[i] = c.in[0]->data[at + i] + (added == nullptr ? c.in[1]->data[at + i] : c.in[1]->data[at + i] + added->data[i]);
    }
    const Norm norm(s, n, c.op.attrs.Double(Attr::kEpsilon), centred);
    for (std::int64_t i = 0; i < n; ++i) {
      c.out[0].data[at + i] = (s[i] - norm.mean) * norm.scale * c.in[2]->data[i] + (centred ? c.in[3]->data[i] : 0);
    }
    if (centred) c.out[2].data[row] = norm.mean;
    c.out.back().data[row] = norm.scale;
  });
}

Status NormGrad(RefCall& c) {  // (s, gain[, mean], scale, g[, h]) -> ds, dgain[, dbias]
  const bool centred = c.op.def == &kLayerNormGrad || c.op.def == &kAddLayerNormGrad;
  const std::size_t rows = centred ? 2 : 1;
  const RefTensor &s = *c.in[0], &gain = *c.in[1], &g = *c.in[2 + rows];
  const RefTensor* past = c.in.size() > 3 + rows ? c.in[3 + rows] : nullptr;
  return ForRows(s, [&](std::int64_t at, std::int64_t row, std::int64_t n) {
    const double mean = centred ? c.in[2]->data[row] : 0, scale = c.in[1 + rows]->data[row];
    double sum = 0, dot = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double hat = (s.data[at + i] - mean) * scale, scaled = g.data[at + i] * gain.data[i];
      if (centred) sum += scaled / static_cast<double>(n);
      dot += scaled * hat / static_cast<double>(n);
      c.out[1].data[i] += g.data[at + i] * hat;
      if (centred) c.out[2].data[i] += g.data[at + i];
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const double hat = (s.data[at + i] - mean) * scale;
      c.out[0].data[at + i] = scale * (g.data[at + i] * gain.data[i] - sum - hat * dot) + (past == nullptr ? 0 : past->data[at + i]);
    }
  });
}

}  // namespace

void AddResidualNormReferences(RefTable& table) {
  table[&kRmsNorm] = Rms;
  for (const OpDef* def : {&kAddLayerNorm, &kAddRmsNorm}) table[def] = AddNorm;
  for (const OpDef* def : {&kLayerNormGrad, &kRmsNormGrad, &kAddLayerNormGrad, &kAddRmsNormGrad}) table[def] = NormGrad;
}

}  // namespace ropewalk::mlrunner
