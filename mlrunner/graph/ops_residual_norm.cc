// Definitions of RMS norm, and of norms that take a sum in.
#include "mlrunner/graph/residual_norm.h"

#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
using Values = std::vector<Value>;

bool IsRms(const OpDef* def) { return def == &kRmsNorm || def == &kRmsNormGrad || def == &kAddRmsNorm || def == &kAddRmsNormGrad; }

TensorType RowsOf(const TensorType& x) { return {x.dtype, Shape(x.shape.begin(), x.shape.end() - 1)}; }
// Whether the inputs are so many tensors (..., n) like the first one, and then so many vectors (n).
bool Fits(const InferContext& c, std::size_t tensors, std::size_t vectors) {
  const TensorType& x = c.in[0];
  if (c.in.size() != tensors + vectors || x.shape.empty() || !IsFloat(x.dtype)) return false;
  const TensorType vector{x.dtype, {x.shape.back()}};
  for (std::size_t i = 0; i < c.in.size(); ++i) {
    if (c.in[i] != (i < tensors ? x : vector)) return false;
  }
  return true;
}

Result<Types> InferRmsNorm(const InferContext& c) {
  if (!Fits(c, 1, 1)) {
    return Misfit(c, "it takes (..., n) and a vector (n) of one floating-point type",
                  "give a gain as long as the last dimension, and Cast both to one type");
  }
  return Types{c.in[0], RowsOf(c.in[0])};
}
Result<Types> InferAddNorm(const InferContext& c) {
  const std::size_t vectors = IsRms(c.op.def) ? 1 : 2;
  if (c.in.empty() || (!Fits(c, 2, vectors) && !Fits(c, 2, vectors + 1))) {
    return Misfit(c, fmt::format("it takes two tensors (..., n) and {} or {} vectors (n) of one floating-point type", vectors, vectors + 1),
                  "give two of one shape, and vectors as long as the last dimension");
  }
  Types types{c.in[0], c.in[0], RowsOf(c.in[0])};
  if (!IsRms(c.op.def)) types.push_back(RowsOf(c.in[0]));
  return types;
}
// (s, gain[, mean], scale, g[, h])
Result<Types> InferGrad(const InferContext& c) {
  const std::size_t rows = IsRms(c.op.def) ? 1 : 2, count = rows + (c.op.def == &kRmsNormGrad ? 3 : 4);
  bool fits = c.in.size() == count && !c.in[0].shape.empty() && IsFloat(c.in[0].dtype) &&
              c.in[1] == TensorType{c.in[0].dtype, {c.in[0].shape.back()}};
  for (std::size_t i = 2; fits && i < count; ++i) fits = c.in[i] == (i < 2 + rows ? RowsOf(c.in[0]) : c.in[0]);
  if (!fits) return Misfit(c, "it takes what the forward op takes and gives, and gradients like its result", "let Grad make the op");
  Types types{c.in[0], c.in[1]};
  if (!IsRms(c.op.def)) types.push_back(c.in[1]);
  return types;
}

Value RootOf(const Op& op, const Value& x) { return Rsqrt(Mean(x * x, {-1}, true) + op.attrs.Double(Attr::kEpsilon)); }
Value AsRows(const Value& column) {
  Shape shape = column.shape();
  if (!shape.empty()) shape.pop_back();
  return Reshape(column, shape);
}

Values RmsNormExpand(Builder&, const Op& op, const Values& in) {
  Value scale = RootOf(op, in[0]);
  return {in[0] * scale * in[1], AsRows(scale)};
}
Gradients RmsNormGradient(const GradientContext& c) {
  Values by = c.b.Emit(kRmsNormGrad, {c.in[0], c.in[1], c.out[1], c.grads[0].Dense()}, {}, c.op.provenance.where);
  return {by.begin(), by.end()};
}
// What comes through the norm: (s, gain, scale, g) -> ds, dgain
Values ThroughRms(const Value& s, const Value& gain, const Value& scale, const Value& g) {
  Value hat = s * AsColumn(scale), scaled = g * gain;
  return {(scaled - hat * Mean(scaled * hat, {-1}, true)) * AsColumn(scale), SumTo(g * hat, gain.shape())};
}
Values RmsNormGradExpand(Builder&, const Op&, const Values& in) { return ThroughRms(in[0], in[1], in[2], in[3]); }
Values AddRmsNormGradExpand(Builder&, const Op&, const Values& in) {
  Values by = ThroughRms(in[0], in[1], in[2], in[3]);
  by[0] = by[0] + in[4];
  return by;
}

Values AddLayerNormGradExpand(Builder& b, const Op& op, const Values& in) {
  Values by = kLayerNormGrad.expand(b, op, {in.begin(), in.end() - 1});
  by[0] = by[0] + in[5];
  return by;
}

Values AddNormExpand(Builder& b, const Op& op, const Values& in) {  // (x, r, gain[, bias][, c])
  const bool rms = IsRms(op.def);
  const std::size_t vectors = rms ? 1 : 2;
  Value s = in[0] + (in.size() > 2 + vectors ? in[1] + in.back() : in[1]);
  if (rms) {
    Value scale = RootOf(op, s);
    return {s * scale * in[2], s, AsRows(scale)};
  }
  Values norm = kLayerNorm.expand(b, op, {s, in[2], in[3]});  // asks for the epsilon alone
  return {norm[0], s, norm[1], norm[2]};
}
Gradients AddNormGradient(const GradientContext& c) {
  const bool rms = IsRms(c.op.def), has_bias = !rms, has_c = c.in.size() > (rms ? 3 : 4);
  Gradients gradients(c.in.size());
  Value ds;
  if (c.grads[0].valid()) {
    Values in{c.out[1], c.in[2]};
    in.insert(in.end(), c.out.begin() + 2, c.out.end());
    in.push_back(c.grads[0].Dense());
    const bool past = c.grads[1].valid();
    if (past) in.push_back(c.grads[1].Dense());
    const OpDef& def = rms ? (past ? kAddRmsNormGrad : kRmsNormGrad) : past ? kAddLayerNormGrad : kLayerNormGrad;
    Values by = c.b.Emit(def, in, {}, c.op.provenance.where);
    if (by.size() < (has_bias ? 3u : 2u)) return gradients;
    ds = by[0];
    gradients[2] = by[1];
    if (has_bias) gradients[3] = by[2];
  } else {
    ds = c.grads[1].Dense();
  }
  gradients[0] = gradients[1] = ds;
  if (has_c) gradients.back() = SumTo(ds, c.in.back().shape());
  return gradients;
}

}  // namespace

const OpDef kRmsNorm{"RmsNorm", 2, 2, InferRmsNorm, RmsNormGradient, RmsNormExpand, {}};
const OpDef kRmsNormGrad{"RmsNormGrad", 4, 2, InferGrad, nullptr, RmsNormGradExpand, {}};
const OpDef kAddLayerNorm{"AddLayerNorm", -1, 4, InferAddNorm, AddNormGradient, AddNormExpand, {.rule_outputs = 2}};
const OpDef kAddRmsNorm{"AddRmsNorm", -1, 3, InferAddNorm, AddNormGradient, AddNormExpand, {.rule_outputs = 2}};
const OpDef kAddLayerNormGrad{"AddLayerNormGrad", 6, 3, InferGrad, nullptr, AddLayerNormGradExpand, {}};
const OpDef kAddRmsNormGrad{"AddRmsNormGrad", 5, 2, InferGrad, nullptr, AddRmsNormGradExpand, {}};

Value RmsNorm(const Value& x, const Value& gain, double epsilon, Location where) {
  if (!x.valid()) return {};
  return x.builder->Living().EmitOne(kRmsNorm, {x, gain}, {{Attr::kEpsilon, epsilon}}, where);
}

}  // namespace ropewalk::mlrunner
