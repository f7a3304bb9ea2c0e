// Definitions of updates: one pass over a parameter and what its optimiser keeps.
#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"

namespace ropewalk::mlrunner {
namespace {

using Values = std::vector<Value>;

// `tensors` of one type, then scalars in which they are computed with.
Result<Types> InferUpdate(const InferContext& c, std::size_t tensors) {
  const TensorType scalar{AtLeastF32(c.in[0].dtype), {}};
  bool fits = IsFloat(c.in[0].dtype);
  for (std::size_t i = 1; i < c.in.size(); ++i) fits = fits && c.in[i] == (i < tensors ? c.in[0] : scalar);
  if (!fits) {
    return Misfit(c, "parameter, moments and gradient are of one type; what comes behind them are scalars of it, for types of 16 bits f32",
                  "Cast to the parameter's type and Reshape to its shape; Cast scalars to its type, at least f32, and Reshape to ()");
  }
  return Types(tensors - 1, c.in[0]);  // all but the gradient
}
Result<Types> InferWithMoments(const InferContext& c) { return InferUpdate(c, 4); }
Result<Types> InferAdagrad(const InferContext& c) { return InferUpdate(c, 3); }

// (parameter, first moment, second moment, gradient, learning rate (), step ()) -> the first three anew. Loshchilov and Hutter 2019,
// algorithm 2: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + decay p). Tensors of 16
// bits are computed with in f32, in which rate and step come: there is no .999 in bf16, nor a step 257.
Values AdamWExpand(Builder& b, const Op& op, const Values& in) {
  std::vector<double> k;
  for (Attr attr : {Attr::kLow, Attr::kHigh, Attr::kEpsilon, Attr::kValue}) k.push_back(op.attrs.Double(attr));
  const Dtype narrow = in[0].dtype(), wide = AtLeastF32(narrow);
  Value p = Cast(in[0], wide), g = Cast(in[3], wide);
  Value m = Cast(in[1], wide) * k[0] + g * (1 - k[0]);
  Value v = Cast(in[2], wide) * k[1] + g * g * (1 - k[1]);
  Value m_hat = m / (1.0 - Pow(b.Number(k[0], wide), in[5]));
  Value v_hat = v / (1.0 - Pow(b.Number(k[1], wide), in[5]));
  p = p - in[4] * (m_hat / (Sqrt(v_hat) + k[2]) + p * k[3]);
  return {Cast(p, narrow), Cast(m, narrow), Cast(v, narrow)};
}

Value WithDecay(const Op& op, const Value& g, const Value& p) {
  const double decay = op.attrs.Double(Attr::kValue);
  return decay == 0 ? g : g + p * decay;
}

Values LambExpand(Builder& b, const Op& op, const Values& in) {
  const double beta1 = op.attrs.Double(Attr::kLow), beta2 = op.attrs.Double(Attr::kHigh);
  const Dtype narrow = in[0].dtype(), wide = AtLeastF32(narrow);
  Value p = Cast(in[0], wide), g = Cast(in[3], wide);
  Value m = Cast(in[1], wide) * beta1 + g * (1 - beta1), v = Cast(in[2], wide) * beta2 + g * g * (1 - beta2);
  // Each element is multiplied twice in the place of being divided: the corrections are numbers.
  Value m_scale = 1.0 / (1.0 - Pow(b.Number(beta1, wide), in[5])), v_scale = 1.0 / (1.0 - Pow(b.Number(beta2, wide), in[5]));
  Value u = WithDecay(op, m * m_scale / (Sqrt(v * v_scale) + op.attrs.Double(Attr::kEpsilon)), p);
  Value p_norm = Sqrt(ReduceSum(p * p)), u_norm = Sqrt(ReduceSum(u * u));
  Value trust = Select(Minimum(Greater(p_norm, 0.0), Greater(u_norm, 0.0)), p_norm / u_norm, b.Number(1, wide));
  return {Cast(p - in[4] * trust * u, narrow), Cast(m, narrow), Cast(v, narrow)};
}

Values AdagradExpand(Builder&, const Op& op, const Values& in) {
  const Dtype narrow = in[0].dtype(), wide = AtLeastF32(narrow);
  Value p = Cast(in[0], wide), g = WithDecay(op, Cast(in[2], wide), p), s = Cast(in[1], wide) + g * g;
  return {Cast(p - in[3] * (g / (Sqrt(s) + op.attrs.Double(Attr::kEpsilon))), narrow), Cast(s, narrow)};
}

}  // namespace

const OpDef kAdamW{"AdamW", 6, 3, InferWithMoments, nullptr, AdamWExpand, {.elementwise = true}};
// Its norms need all of a tensor, so it is no elementwise op.
const OpDef kLamb{"Lamb", 6, 3, InferWithMoments, nullptr, LambExpand, {.updates = 3}};
const OpDef kAdagrad{"Adagrad", 4, 2, InferAdagrad, nullptr, AdagradExpand, {.elementwise = true}};

}  // namespace ropewalk::mlrunner
