// Definitions of fused ops: one pass over memory where the primitive form takes several. Each has that form, and is tested against it.
#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
using Values = std::vector<Value>;
Value G(const GradientContext& c) { return c.grads[0].Dense(); }

Result<Types> InferRows(const InferContext& c) {
  if (c.in[0].shape.empty() || !IsFloat(c.in[0].dtype)) {
    return Misfit(c, "it takes a floating-point tensor with a last dimension", "Cast an integer tensor, or Reshape a scalar to (1)");
  }
  return Types{c.in[0]};
}

Values SoftmaxExpand(Builder&, const Op&, const Values& in) {
  Value e = Exp(in[0] - ReduceMax(in[0], {-1}, true));
  return {e / ReduceSum(e, {-1}, true)};
}
Gradients SoftmaxGradient(const GradientContext& c) { return {c.b.EmitOne(kSoftmaxGrad, {c.out[0], G(c)}, {}, c.op.provenance.where)}; }
Values SoftmaxGradExpand(Builder&, const Op&, const Values& in) {  // (y, g)
  return {in[0] * (in[1] - ReduceSum(in[0] * in[1], {-1}, true))};
}
Values LogSoftmaxExpand(Builder&, const Op&, const Values& in) {
  Value shifted = in[0] - ReduceMax(in[0], {-1}, true);
  return {shifted - Log(ReduceSum(Exp(shifted), {-1}, true))};
}
Gradients LogSoftmaxGradient(const GradientContext& c) { return {G(c) - Exp(c.out[0]) * ReduceSum(G(c), {-1}, true)}; }

// (logits, labels) -> loss, log of the sum of exponentials
Result<Types> InferCrossEntropy(const InferContext& c) {
  const Shape &x = c.in[0].shape, &labels = c.in[1].shape;
  if (x.empty() || !IsFloat(c.in[0].dtype) || !IsIndexType(c.in[1].dtype) || Shape(x.begin(), x.end() - 1) != labels) {
    return Misfit(c, "it takes floating-point logits (..., classes) and integer labels (...)",
                  "give one label of i32 or i64 for each row of logits: the labels' shape is the logits' without the last dimension");
  }
  return Types{{c.in[0].dtype, labels}, {c.in[0].dtype, labels}};
}
Values CrossEntropyExpand(Builder&, const Op&, const Values& in) {
  const Value& x = in[0];
  Value top = ReduceMax(x, {-1}, true);
  Value sum = Reshape(Log(ReduceSum(Exp(x - top), {-1}, true)) + top, in[1].shape());
  Value picked = ReduceSum(x * OneHot(in[1], x.shape().back(), x.dtype()), {-1});
  return {sum - picked, sum};
}
Gradients CrossEntropyGradient(const GradientContext& c) {
  return {c.b.EmitOne(kCrossEntropyGrad, {c.in[0], c.in[1], c.out[1], G(c)}, {}, c.op.provenance.where), Gradient()};
}
Values CrossEntropyGradExpand(Builder&, const Op&, const Values& in) {  // (logits, labels, log sum, g)
  Value probability = Exp(in[0] - AsColumn(in[2]));
  return {(probability - OneHot(in[1], in[0].shape().back(), in[0].dtype())) * AsColumn(in[3])};
}

// (x, gain, bias) -> y, mean, 1 / standard deviation
Result<Types> InferLayerNorm(const InferContext& c) {
  const Shape& x = c.in[0].shape;
  bool fits = !x.empty() && IsFloat(c.in[0].dtype);
  for (int i = 1; i < 3; ++i) fits = fits && c.in[i].dtype == c.in[0].dtype && c.in[i].shape == Shape{x.back()};
  if (!fits) {
    return Misfit(c, "it takes (..., n) and two vectors (n) of one floating-point type",
                  "give a gain and a bias as long as the last dimension, and Cast all to one type");
  }
  TensorType rows{c.in[0].dtype, Shape(x.begin(), x.end() - 1)};
  return Types{c.in[0], rows, rows};
}
Values LayerNormExpand(Builder&, const Op& op, const Values& in) {
  const Value& x = in[0];
  Value mean = Mean(x, {-1}, true);
  Value centred = x - mean;
  Value rstd = Rsqrt(Mean(centred * centred, {-1}, true) + op.attrs.Double(Attr::kEpsilon));
  Shape rows(x.shape().begin(), x.shape().end() - 1);
  return {centred * rstd * in[1] + in[2], Reshape(mean, rows), Reshape(rstd, rows)};
}
Gradients LayerNormGradient(const GradientContext& c) {
  Values grads = c.b.Emit(kLayerNormGrad, {c.in[0], c.in[1], c.out[1], c.out[2], G(c)}, {}, c.op.provenance.where);
  return {grads.begin(), grads.end()};
}
Result<Types> InferLayerNormGrad(const InferContext& c) { return Types{c.in[0], c.in[1], c.in[1]}; }
Values LayerNormGradExpand(Builder&, const Op&, const Values& in) {  // (x, gain, mean, rstd, g) -> dx, dgain, dbias
  Value hat = (in[0] - AsColumn(in[2])) * AsColumn(in[3]);
  Value scaled = in[4] * in[1];
  Value dx = (scaled - Mean(scaled, {-1}, true) - hat * Mean(scaled * hat, {-1}, true)) * AsColumn(in[3]);
  return {dx, SumTo(in[4] * hat, in[1].shape()), SumTo(in[4], in[1].shape())};
}

// A fused chain of elementwise ops: the body is that chain.
Result<Types> InferMap(const InferContext& c) {
  if (c.op.bodies.size() != 1 || c.op.bodies[0]->inputs.size() != c.in.size()) {
    return Misfit(c, "a body with as many inputs is needed", "mend the pass that fused the chain");
  }
  const Graph& body = *c.op.bodies[0];
  Types types;
  for (std::size_t i = 0; i < c.in.size(); ++i) {
    if (body.value(body.inputs[i]).type != c.in[i]) {
      return Misfit(c, fmt::format("the body's input {} is of another type", i), "mend the pass that fused the chain");
    }
  }
  for (const NamedValue& output : body.outputs) types.push_back(body.value(output.value).type);
  return types;
}
Values MapExpand(Builder& b, const Op& op, const Values& in) { return b.Inline(*op.bodies[0], in); }

}  // namespace

const OpDef kSoftmax{"Softmax", 1, 1, InferRows, SoftmaxGradient, SoftmaxExpand, {}};
const OpDef kSoftmaxGrad{"SoftmaxGrad", 2, 1, InferBroadcast, nullptr, SoftmaxGradExpand, {}};
const OpDef kLogSoftmax{"LogSoftmax", 1, 1, InferRows, LogSoftmaxGradient, LogSoftmaxExpand, {}};
const OpDef kCrossEntropy{"CrossEntropy", 2, 2, InferCrossEntropy, CrossEntropyGradient, CrossEntropyExpand, {}};
const OpDef kCrossEntropyGrad{"CrossEntropyGrad", 4, 1, InferLikeFirst, nullptr, CrossEntropyGradExpand, {}};
const OpDef kLayerNorm{"LayerNorm", 3, 3, InferLayerNorm, LayerNormGradient, LayerNormExpand, {}};
const OpDef kLayerNormGrad{"LayerNormGrad", 5, 3, InferLayerNormGrad, nullptr, LayerNormGradExpand, {}};
const OpDef kMap{"Map", -1, -1, InferMap, nullptr, MapExpand, {.elementwise = true}};

}  // namespace ropewalk::mlrunner
