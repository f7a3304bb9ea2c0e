// Definitions of ops that send rows to experts: the largest of a row, and places at the experts.
#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
using Values = std::vector<Value>;

// (x (..., n)) -> the kCount largest of each row, the largest first and of equals the first one, and their places (i64)
Result<Types> InferTopK(const InferContext& c) {
  const Shape& x = c.in[0].shape;
  const std::int64_t count = c.op.attrs.Int(Attr::kCount);
  if (x.empty() || !IsFloat(c.in[0].dtype)) {
    return Misfit(c, "it takes a floating-point tensor with a last dimension", "Cast an integer tensor, or Reshape a scalar to (1)");
  }
  if (!x.back().IsConstant() || count < 1 || count > x.back().Constant().value_or(0)) {
    return Misfit(c, fmt::format("there are no {} largest of {}", count, x.back().ToString(c.symbols)),
                  "ask for 1 or more, and for no more than a row has; the row's length must be a number");
  }
  Shape kept = x;
  kept.back() = count;
  return Types{{c.in[0].dtype, kept}, {Dtype::kI64, kept}};
}
Gradients TopKGradient(const GradientContext& c) {
  return {c.b.EmitOne(kTopKGrad, {c.out[1], c.grads[0].Dense()}, {{Attr::kDim, Shape{c.in[0].shape().back()}}}, c.op.provenance.where)};
}
// (places, g) -> g at its places, zeros elsewhere
Result<Types> InferTopKGrad(const InferContext& c) {
  if (c.in[0].shape != c.in[1].shape || c.in[0].shape.empty() || !IsIndexType(c.in[0].dtype) || !IsFloat(c.in[1].dtype)) {
    return Misfit(c, "it takes places and as many floating-point gradients", "let Grad make the op");
  }
  Types types{c.in[1]};
  types[0].shape.back() = c.op.attrs.DimOf(Attr::kDim);
  return types;
}
Values TopKGradExpand(Builder&, const Op& op, const Values& in) {
  Value at = OneHot(in[0], op.attrs.DimOf(Attr::kDim), in[1].dtype());
  return {ReduceSum(at * AsColumn(in[1]), {static_cast<std::int64_t>(in[0].rank()) - 1})};
}

// (experts (..., n)) -> slots: of each row g of G the i-th that goes to expert e lies at (e * G + g) * capacity + i, as long as i is below
// the capacity; what is over it, all at kCount * G * capacity. kCount: experts; kDim: the capacity of each for a row.
Result<Types> InferExpertSlots(const InferContext& c) {
  if (!IsIndexType(c.in[0].dtype) || c.op.attrs.Int(Attr::kCount) < 1) {
    return Misfit(c, "it takes the number of an expert for each", "give i32 or i64, and one expert at least");
  }
  return Types{c.in[0]};
}
Gradients NoGradient(const GradientContext& c) { return Gradients(c.in.size()); }

}  // namespace

const OpDef kTopK{"TopK", 1, 2, InferTopK, TopKGradient, nullptr, {}};
const OpDef kTopKGrad{"TopKGrad", 2, 1, InferTopKGrad, nullptr, TopKGradExpand, {}};
const OpDef kExpertSlots{"ExpertSlots", 1, 1, InferExpertSlots, NoGradient, nullptr, {}};

}  // namespace ropewalk::mlrunner
