// Definitions of elementwise ops: y = f(x) at each element.
#include <cmath>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
constexpr OpDef::Traits kElementwise{.elementwise = true};
constexpr OpDef::Traits kCommutative{.elementwise = true, .commutative = true};

// The gradient of a broadcast operand is the sum over what was repeated.
Gradient Back(const GradientContext& c, std::size_t i, const Value& grad) { return SumTo(grad, c.in[i].shape()); }
Value G(const GradientContext& c) { return c.grads[0].Dense(); }

Gradients NoGradient(const GradientContext& c) { return Gradients(c.in.size()); }

Gradients AddGradient(const GradientContext& c) { return {Back(c, 0, G(c)), Back(c, 1, G(c))}; }
Gradients SubGradient(const GradientContext& c) { return {Back(c, 0, G(c)), Back(c, 1, -G(c))}; }
Gradients MulGradient(const GradientContext& c) { return {Back(c, 0, G(c) * c.in[1]), Back(c, 1, G(c) * c.in[0])}; }
Gradients DivGradient(const GradientContext& c) { return {Back(c, 0, G(c) / c.in[1]), Back(c, 1, -(G(c) * c.out[0]) / c.in[1])}; }
// Where both are equal, each gets half.
Gradients ExtremumGradient(const GradientContext& c, bool maximum) {
  Value larger = maximum ? Greater(c.in[0], c.in[1]) : Less(c.in[0], c.in[1]);
  Value equal = Equal(c.in[0], c.in[1]);
  Value share = Select(equal, c.b.Number(.5, c.in[0].dtype()), Cast(larger, c.in[0].dtype()));
  return {Back(c, 0, G(c) * share), Back(c, 1, G(c) * (1.0 - share))};
}
Gradients MaximumGradient(const GradientContext& c) { return ExtremumGradient(c, true); }
Gradients MinimumGradient(const GradientContext& c) { return ExtremumGradient(c, false); }
// At x = 0 the plain rule multiplies 0 by inf: x^0 is 1 everywhere, so its slope is 0, and by p the slope of 0^p is 0, where p > 0; at
// p = 0, where it jumps, it is taken for 0, too. What would be infinite is left out before it is computed, so that derivatives of this rule
// do not meet it either.
Gradients PowGradient(const GradientContext& c) {
  const Value &x = c.in[0], &p = c.in[1];
  Value power = Select(Equal(Abs(x) + Abs(p), 0), 1, p), base = Select(Equal(x, 0), Select(Less(p, 0), x, 1), x);
  return {Back(c, 0, G(c) * p * Pow(x, power - 1.0)), Back(c, 1, G(c) * c.out[0] * Log(base))};
}
Gradients SelectGradient(const GradientContext& c) {
  Value zero = c.b.Number(0, c.in[1].dtype());
  return {Gradient(), Back(c, 1, Select(c.in[0], G(c), zero)), Back(c, 2, Select(c.in[0], zero, G(c)))};
}

Gradients NegGradient(const GradientContext& c) { return {-G(c)}; }
Gradients ExpGradient(const GradientContext& c) { return {G(c) * c.out[0]}; }
Gradients LogGradient(const GradientContext& c) { return {G(c) / c.in[0]}; }
Gradients SqrtGradient(const GradientContext& c) { return {G(c) * .5 / c.out[0]}; }
Gradients RsqrtGradient(const GradientContext& c) { return {G(c) * -.5 * c.out[0] / c.in[0]}; }
Gradients TanhGradient(const GradientContext& c) { return {G(c) * (1.0 - c.out[0] * c.out[0])}; }
Gradients SigmoidGradient(const GradientContext& c) { return {G(c) * c.out[0] * (1.0 - c.out[0])}; }
Gradients ErfGradient(const GradientContext& c) { return {G(c) * (2 / std::sqrt(M_PI)) * Exp(-(c.in[0] * c.in[0]))}; }
Gradients SinGradient(const GradientContext& c) { return {G(c) * Cos(c.in[0])}; }
Gradients CosGradient(const GradientContext& c) { return {-(G(c) * Sin(c.in[0]))}; }
Gradients AbsGradient(const GradientContext& c) { return {G(c) * Sign(c.in[0])}; }
Gradients ReluGradient(const GradientContext& c) {
  return {Select(Greater(c.out[0], c.b.Number(0, c.out[0].dtype())), G(c), c.b.Number(0, c.out[0].dtype()))};
}
Gradients CastGradient(const GradientContext& c) {
  if (!IsFloat(c.in[0].dtype()) || !IsFloat(c.out[0].dtype())) return {Gradient()};
  return {Cast(G(c), c.in[0].dtype())};
}

// What adds and multiplies. Flags are no numbers: whether 1 + 1 of them is 1 or 2 would depend on who computes it.
Result<Types> InferArithmetic(const InferContext& c) {
  for (const TensorType& in : c.in) {
    if (in.dtype == Dtype::kBool) return Misfit(c, "it takes numbers, and flags are none", "Cast the flags first, to the other's type");
  }
  return InferBroadcast(c);
}
Result<Types> InferNumber(const InferContext& c) {
  if (!IsNumber(c.in[0].dtype)) return Misfit(c, "it takes numbers", "Cast flags first");
  return Types{c.in[0]};
}
Result<Types> InferSelect(const InferContext& c) {
  if (c.in[0].dtype != Dtype::kBool) return Misfit(c, "the condition is bool", "compare first");
  if (c.in[1].dtype != c.in[2].dtype) return TypesDiffer(c);
  auto shape = Broadcast(c.in[1].shape, c.in[2].shape);
  if (shape) shape = Broadcast(*shape, c.in[0].shape);
  if (!shape) return NoBroadcast(c);
  return Types{{c.in[1].dtype, *shape}};
}
Result<Types> InferIsFinite(const InferContext& c) { return Types{{Dtype::kBool, c.in[0].shape}}; }
Result<Types> InferCast(const InferContext& c) {
  if (SizeOf(c.in[0].dtype) == 0) return HoldsNoNumbers(c);
  return Types{{static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)), c.in[0].shape}};
}

// The tanh form: .5 x (1 + tanh(sqrt(2/pi) (x + .044715 x^3))).
const double kGeluScale = std::sqrt(2 / M_PI);
std::vector<Value> GeluExpand(Builder&, const Op&, const std::vector<Value>& in) {
  const Value& x = in[0];
  return {x * .5 * (Tanh((x + x * x * x * .044715) * kGeluScale) + 1.0)};
}
Gradients GeluGradient(const GradientContext& c) { return {c.b.EmitOne(kGeluGrad, {c.in[0], G(c)}, {}, c.op.provenance.where)}; }
std::vector<Value> GeluGradExpand(Builder&, const Op&, const std::vector<Value>& in) {
  const Value& x = in[0];
  Value t = Tanh((x + x * x * x * .044715) * kGeluScale);
  Value slope = (x * x * (3 * .044715) + 1.0) * kGeluScale;
  return {in[1] * ((t + 1.0) * .5 + x * .5 * (1.0 - t * t) * slope)};
}

// The erf form: x Phi(x), Phi(x) = .5 (1 + erf(x / sqrt 2)); its slope is Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi).
Value NormalBelow(const Value& x) { return (Erf(x * std::sqrt(.5)) + 1.0) * .5; }
std::vector<Value> GeluErfExpand(Builder&, const Op&, const std::vector<Value>& in) { return {in[0] * NormalBelow(in[0])}; }
Gradients GeluErfGradient(const GradientContext& c) { return {c.b.EmitOne(kGeluErfGrad, {c.in[0], G(c)}, {}, c.op.provenance.where)}; }
std::vector<Value> GeluErfGradExpand(Builder&, const Op&, const std::vector<Value>& in) {
  const Value& x = in[0];
  return {in[1] * (NormalBelow(x) + x * Exp(x * x * -.5) * std::sqrt(.5 / M_PI))};
}

}  // namespace

const OpDef kAdd{"Add", 2, 1, InferArithmetic, AddGradient, nullptr, kCommutative};
const OpDef kSub{"Sub", 2, 1, InferArithmetic, SubGradient, nullptr, kElementwise};
const OpDef kMul{"Mul", 2, 1, InferArithmetic, MulGradient, nullptr, kCommutative};
const OpDef kDiv{"Div", 2, 1, InferArithmetic, DivGradient, nullptr, kElementwise};
// Not commutative: of a number and NaN, and of 0 and -0, they give the second.
const OpDef kMaximum{"Maximum", 2, 1, InferBroadcast, MaximumGradient, nullptr, kElementwise};
const OpDef kMinimum{"Minimum", 2, 1, InferBroadcast, MinimumGradient, nullptr, kElementwise};
const OpDef kPow{"Pow", 2, 1, InferArithmetic, PowGradient, nullptr, kElementwise};
const OpDef kLess{"Less", 2, 1, InferCompare, NoGradient, nullptr, kElementwise};
const OpDef kGreater{"Greater", 2, 1, InferCompare, NoGradient, nullptr, kElementwise};
const OpDef kEqual{"Equal", 2, 1, InferCompare, NoGradient, nullptr, kCommutative};
const OpDef kSelect{"Select", 3, 1, InferSelect, SelectGradient, nullptr, kElementwise};
const OpDef kNeg{"Neg", 1, 1, InferNumber, NegGradient, nullptr, kElementwise};
const OpDef kExp{"Exp", 1, 1, InferFloatUnary, ExpGradient, nullptr, kElementwise};
const OpDef kLog{"Log", 1, 1, InferFloatUnary, LogGradient, nullptr, kElementwise};
const OpDef kSqrt{"Sqrt", 1, 1, InferFloatUnary, SqrtGradient, nullptr, kElementwise};
const OpDef kRsqrt{"Rsqrt", 1, 1, InferFloatUnary, RsqrtGradient, nullptr, kElementwise};
const OpDef kTanh{"Tanh", 1, 1, InferFloatUnary, TanhGradient, nullptr, kElementwise};
const OpDef kSigmoid{"Sigmoid", 1, 1, InferFloatUnary, SigmoidGradient, nullptr, kElementwise};
const OpDef kErf{"Erf", 1, 1, InferFloatUnary, ErfGradient, nullptr, kElementwise};
const OpDef kSin{"Sin", 1, 1, InferFloatUnary, SinGradient, nullptr, kElementwise};
const OpDef kCos{"Cos", 1, 1, InferFloatUnary, CosGradient, nullptr, kElementwise};
const OpDef kAbs{"Abs", 1, 1, InferNumber, AbsGradient, nullptr, kElementwise};
const OpDef kSign{"Sign", 1, 1, InferNumber, NoGradient, nullptr, kElementwise};
const OpDef kRelu{"Relu", 1, 1, InferNumber, ReluGradient, nullptr, kElementwise};
const OpDef kIsFinite{"IsFinite", 1, 1, InferIsFinite, NoGradient, nullptr, kElementwise};
const OpDef kCast{"Cast", 1, 1, InferCast, CastGradient, nullptr, kElementwise};
const OpDef kGelu{"Gelu", 1, 1, InferFloatUnary, GeluGradient, GeluExpand, kElementwise};
const OpDef kGeluGrad{"GeluGrad", 2, 1, InferBroadcast, nullptr, GeluGradExpand, kElementwise};
const OpDef kGeluErf{"GeluErf", 1, 1, InferFloatUnary, GeluErfGradient, GeluErfExpand, kElementwise};
const OpDef kGeluErfGrad{"GeluErfGrad", 2, 1, InferBroadcast, nullptr, GeluErfGradExpand, kElementwise};

}  // namespace ropewalk::mlrunner
