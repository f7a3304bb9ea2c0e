// Definitions of ops that move, cut and make elements, and of states.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
Value G(const GradientContext& c) { return c.grads[0].Dense(); }
Gradients NoGradient(const GradientContext& c) { return Gradients(c.in.size()); }

Result<Types> InferFirstVersion(const InferContext&) { return Types{{Dtype::kToken, {}}}; }
Result<Types> InferRead(const InferContext& c) {
  if (c.in[0].dtype != Dtype::kToken) {
    return Misfit(c, "a state is read at a version, which is a token", "let Builder::Read make the op, or give it the version as input 0");
  }
  return InferFromAttributes(c);
}
Result<Types> InferAssign(const InferContext& c) {
  if (c.in[0].dtype != Dtype::kToken) {
    return Misfit(c, "a state is assigned after a version, which is a token",
                  "let Builder::Assign make the op, or give it the version as input 0");
  }
  return Types{{Dtype::kToken, {}}};
}
Gradients IdentityGradient(const GradientContext& c) { return {G(c)}; }

Result<Types> InferCustomGradient(const InferContext& c) {
  auto inputs = static_cast<std::size_t>(c.op.attrs.Int(Attr::kCount));
  return Types(c.in.begin() + static_cast<std::ptrdiff_t>(inputs), c.in.end());
}
Gradients CustomGradientGradient(const GradientContext& c) {
  Gradients all(c.in.size());
  const Builder::GradientFn* fn = c.b.CustomGradientOf(c.op.attrs.Int(Attr::kKey));
  if (fn == nullptr) {
    c.b.Fail(Status(Code::kInvalid, "GRAPH06", "a custom gradient of a graph that is already finished",
                    "its rule is a function of the builder that made it", "call Grad before Finish"));
    return all;
  }
  auto inputs = static_cast<std::size_t>(c.op.attrs.Int(Attr::kCount));
  GradientContext inner{c.b, c.op, {c.in.begin(), c.in.begin() + static_cast<std::ptrdiff_t>(inputs)}, c.out, c.grads};
  Gradients given = (*fn)(inner);
  given.resize(inputs);
  std::move(given.begin(), given.end(), all.begin());
  return all;
}

Result<Types> InferReshape(const InferContext& c) {
  Shape shape = c.op.attrs.ShapeOf(Attr::kShape);
  if (NumElements(shape) != NumElements(c.in[0].shape)) {
    return Misfit(c,
                  fmt::format("the new shape {} has {} elements, the old one {}", ToString(shape, c.symbols),
                              NumElements(shape).ToString(c.symbols), NumElements(c.in[0].shape).ToString(c.symbols)),
                  "name a shape of as many elements; Reshape keeps them all");
  }
  return Types{{c.in[0].dtype, shape}};
}
Gradients ReshapeGradient(const GradientContext& c) { return {Reshape(G(c), c.in[0].shape())}; }

Result<Types> InferTranspose(const InferContext& c) {
  std::vector<std::int64_t> order = c.op.attrs.Ints(Attr::kPermutation);
  std::vector<std::int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool fits = sorted.size() == c.in[0].shape.size();
  for (std::size_t i = 0; fits && i < sorted.size(); ++i) fits = sorted[i] == static_cast<std::int64_t>(i);
  if (!fits) {
    return Misfit(
        c, fmt::format("the permutation [{}] does not name each of {} dimensions once", fmt::join(order, ", "), c.in[0].shape.size()),
        "name 0 to the last dimension, each once, in the new order");
  }
  Shape shape;
  for (std::int64_t axis : order) shape.push_back(c.in[0].shape[axis]);
  return Types{{c.in[0].dtype, shape}};
}
Gradients TransposeGradient(const GradientContext& c) {
  std::vector<std::int64_t> order = c.op.attrs.Ints(Attr::kPermutation), inverse(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<std::int64_t>(i);
  return {Transpose(G(c), inverse)};
}

Result<Types> InferBroadcastTo(const InferContext& c) {
  Shape shape = c.op.attrs.ShapeOf(Attr::kShape);
  if (Broadcast(c.in[0].shape, shape) != shape) {
    return Misfit(c,
                  "it does not broadcast to " + ToString(shape, c.symbols) + ": from the right, its dimensions must be equal to those or 1",
                  "Reshape it, so that a 1 stands where it is to be repeated");
  }
  return Types{{c.in[0].dtype, shape}};
}
Gradients BroadcastToGradient(const GradientContext& c) { return {SumTo(G(c), c.in[0].shape())}; }

Result<Types> InferSlice(const InferContext& c) {
  int axis = AxisOf(c, c.in[0]);
  if (axis < 0) return NoSuchAxis(c, c.in[0]);
  Dim begin = c.op.attrs.DimOf(Attr::kBegin), end = c.op.attrs.DimOf(Attr::kEnd), size = c.in[0].shape[axis];
  Dim count = end - begin, left = size - end;
  if ((count.Constant() && *count.Constant() < 0) || (begin.Constant() && *begin.Constant() < 0) ||
      (left.Constant() && *left.Constant() < 0)) {
    return Misfit(c,
                  fmt::format("[{}, {}) does not lie in axis {} of {}", begin.ToString(c.symbols), end.ToString(c.symbols), axis,
                              size.ToString(c.symbols)),
                  "slice from 0 or later to the axis's size at most, and not backwards");
  }
  Types types{c.in[0]};
  types[0].shape[axis] = count;
  return types;
}
Gradients SliceGradient(const GradientContext& c) {
  int axis = static_cast<int>(c.op.attrs.Int(Attr::kAxis));
  return {PadAxis(G(c), axis, c.op.attrs.DimOf(Attr::kBegin), c.in[0].shape()[axis] - c.op.attrs.DimOf(Attr::kEnd))};
}

Result<Types> InferPad(const InferContext& c) {
  int axis = AxisOf(c, c.in[0]);
  if (axis < 0) return NoSuchAxis(c, c.in[0]);
  Dim low = c.op.attrs.DimOf(Attr::kLow), high = c.op.attrs.DimOf(Attr::kHigh);
  if ((low.Constant() && *low.Constant() < 0) || (high.Constant() && *high.Constant() < 0)) {
    return Misfit(c, fmt::format("it cannot put {} and {} zeros around axis {}", low.ToString(c.symbols), high.ToString(c.symbols), axis),
                  "pad with 0 or more on each side; SliceAxis takes elements away");
  }
  Types types{c.in[0]};
  types[0].shape[axis] = types[0].shape[axis] + low + high;
  return types;
}
Gradients PadGradient(const GradientContext& c) {
  int axis = static_cast<int>(c.op.attrs.Int(Attr::kAxis));
  Dim low = c.op.attrs.DimOf(Attr::kLow);
  return {SliceAxis(G(c), axis, low, low + c.in[0].shape()[axis])};
}

Result<Types> InferConcat(const InferContext& c) {
  if (c.in.empty()) return Misfit(c, "it takes at least one tensor", "give one or more; for none there is no shape");
  Types types{c.in[0]};
  int axis = AxisOf(c, c.in[0]);
  if (axis < 0) return NoSuchAxis(c, c.in[0]);
  for (std::size_t i = 1; i < c.in.size(); ++i) {
    if (c.in[i].dtype != c.in[0].dtype) return TypesDiffer(c);
    Shape other = c.in[i].shape;
    bool fits = other.size() == c.in[0].shape.size();
    for (std::size_t d = 0; fits && d < other.size(); ++d) fits = static_cast<int>(d) == axis || other[d] == c.in[0].shape[d];
    if (!fits) {
      return Misfit(c, fmt::format("input {} differs from input 0 in a dimension other than axis {}", i, axis),
                    "make all others equal, or join along the one that differs");
    }
    types[0].shape[axis] = types[0].shape[axis] + other[axis];
  }
  return types;
}
Gradients ConcatGradient(const GradientContext& c) {
  Gradients grads;
  int axis = static_cast<int>(c.op.attrs.Int(Attr::kAxis));
  Dim begin = 0;
  for (const Value& in : c.in) {
    Dim end = begin + in.shape()[axis];
    grads.emplace_back(SliceAxis(G(c), axis, begin, end));
    begin = end;
  }
  return grads;
}

bool IsIndex(const TensorType& type) { return IsIndexType(type.dtype) && type.shape.empty(); }
Result<Types> InferAt(const InferContext& c) {
  if (c.in[0].shape.empty() || !IsIndex(c.in[1])) {
    return Misfit(c, "it takes a stack and an integer scalar", "give a tensor of one dimension or more, and a scalar of i32 or i64");
  }
  return Types{{c.in[0].dtype, Shape(c.in[0].shape.begin() + 1, c.in[0].shape.end())}};
}
Gradients AtGradient(const GradientContext& c) {
  return {SetAt(Fill(c.b, 0, c.in[0].dtype(), c.in[0].shape()), c.in[1], G(c)), Gradient()};
}
Result<Types> InferSetAt(const InferContext& c) {
  ASSIGN_OR_RETURN(Types row, InferAt(c));
  if (row[0] != c.in[2]) {
    return Misfit(c, fmt::format("a row of the stack is {} {}", ToString(row[0].shape, c.symbols), Name(row[0].dtype)),
                  "Cast or Reshape the new row to that");
  }
  return Types{c.in[0]};
}
Gradients SetAtGradient(const GradientContext& c) {
  Value zero_row = Fill(c.b, 0, c.in[2].dtype(), c.in[2].shape());
  return {SetAt(G(c), c.in[1], zero_row), Gradient(), At(G(c), c.in[1])};
}

Result<Types> InferConstant(const InferContext& c) {
  const Literal& literal = *c.op.attrs.LiteralOf(Attr::kLiteral);
  const std::size_t bytes = static_cast<std::size_t>(NumElements(literal.dims)) * SizeOf(literal.dtype);
  if (literal.bytes == nullptr || literal.bytes->size() != bytes || (bytes == 0 && NumElements(literal.dims) != 0)) {
    return Status(Code::kInvalid, "GRAPH01", fmt::format("a constant {} {}", ToString(literal.dims), Name(literal.dtype)),
                  fmt::format("it has {} bytes, and {} are needed", literal.bytes == nullptr ? 0 : literal.bytes->size(), bytes),
                  "give Literal::Of as many values as the shape has, of the C++ type of that element type");
  }
  return Types{{literal.dtype, Shape(literal.dims.begin(), literal.dims.end())}};
}
// The least and the greatest number of a type, for a number that stands in the graph as a double.
std::pair<double, double> RangeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return {-std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
    case Dtype::kF32:
      return {-std::numeric_limits<float>::max(), std::numeric_limits<float>::max()};
    case Dtype::kF16:
      return {-65504, 65504};
    case Dtype::kBF16:
      return {-0x1.fep127, 0x1.fep127};
    case Dtype::kI32:
      return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    case Dtype::kI64:
      return {-0x1p63, 0x1.fffffffffffffp62};  // the greatest double below 2^63
    case Dtype::kU8:
      return {0, 255};
    case Dtype::kBool:
      return {0, 1};
    default:
      return {1, 0};  // tokens and handles: none
  }
}
// In floating-point types a number is rounded, as every result is. In others it would be another number.
Result<Types> InferFill(const InferContext& c) {
  const auto dtype = static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype));
  const double value = c.op.attrs.Double(Attr::kValue);
  const auto [low, high] = RangeOf(dtype);
  bool fits = value >= low && value <= high;
  fits = IsFloat(dtype) ? fits || !std::isfinite(value) : fits && value == std::trunc(value);
  if (!fits) {
    return Status(Code::kInvalid, "GRAPH01", fmt::format("the number {} as {}", value, Name(dtype)),
                  fmt::format("{} holds {} from {} to {}", Name(dtype), IsFloat(dtype) ? "numbers" : "whole numbers", low, high),
                  "Cast the tensor beside it to a type that holds the number, or give another number");
  }
  return InferFromAttributes(c);
}
Status NoNumberType(const InferContext& c, std::string why) {
  return Status(Code::kInvalid, "GRAPH01", fmt::format("{} as {}", c.op.def->name, Name(static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)))),
                std::move(why), "ask for another type, and Cast what it gives");
}
Result<Types> InferIota(const InferContext& c) {
  if (!IsNumber(static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)))) return NoNumberType(c, "it counts, in numbers");
  return Types{{static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)), {c.op.attrs.DimOf(Attr::kDim)}}};
}
Result<Types> InferDimSize(const InferContext& c) {
  if (!IsNumber(static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)))) return NoNumberType(c, "a length is a number");
  return Types{{static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)), {}}};
}
// (key)
Result<Types> InferRandomUniform(const InferContext& c) {
  if (!IsFloat(static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype))))
    return NoNumberType(c, "what lies in [0, 1) is 0 in any type of whole numbers");
  if (c.in.size() > 1 || (c.in.size() == 1 && !IsIndex(c.in[0]))) {
    return Misfit(c, "the key is one integer", "give a scalar of i32 or i64, such as the round of a while");
  }
  return InferFromAttributes(c);
}

Result<Types> InferBucket(const InferContext& c) {
  Dim total = 0;
  for (const TensorType& in : c.in) {
    if (in.dtype != c.in[0].dtype) return Misfit(c, "a bucket holds one element type", "make a bucket for each type");
    total = total + NumElements(in.shape);
  }
  return Types{{c.in.at(0).dtype, {total}}};
}

}  // namespace

const OpDef kInput{"Input", 0, 1, InferFromAttributes, nullptr, nullptr, {.source = true}};
const OpDef kFirstVersion{"FirstVersion", 0, 1, InferFirstVersion, nullptr, nullptr, {.source = true}};
const OpDef kRead{"Read", 1, 1, InferRead, NoGradient, nullptr, {}};
const OpDef kAssign{"Assign", 2, 1, InferAssign, nullptr, nullptr, {}};
const OpDef kIdentity{"Identity", 1, 1, InferLikeFirst, IdentityGradient, nullptr, {.view = true}};
const OpDef kStopGradient{"StopGradient", 1, 1, InferLikeFirst, NoGradient, nullptr, {.view = true}};
const OpDef kCustomGradient{"CustomGradient", -1, -1, InferCustomGradient, CustomGradientGradient, nullptr, {}};
const OpDef kReshape{"Reshape", 1, 1, InferReshape, ReshapeGradient, nullptr, {.view = true}};
const OpDef kTranspose{"Transpose", 1, 1, InferTranspose, TransposeGradient, nullptr, {}};
const OpDef kBroadcastTo{"BroadcastTo", 1, 1, InferBroadcastTo, BroadcastToGradient, nullptr, {}};
const OpDef kSlice{"Slice", 1, 1, InferSlice, SliceGradient, nullptr, {}};
const OpDef kPad{"Pad", 1, 1, InferPad, PadGradient, nullptr, {}};
const OpDef kConcat{"Concat", -1, 1, InferConcat, ConcatGradient, nullptr, {}};
const OpDef kAt{"At", 2, 1, InferAt, AtGradient, nullptr, {}};
const OpDef kSetAt{"SetAt", 3, 1, InferSetAt, SetAtGradient, nullptr, {}};
const OpDef kRelayout{"Relayout", 1, 1, InferLikeFirst, IdentityGradient, nullptr, {}};
const OpDef kConstant{"Constant", 0, 1, InferConstant, nullptr, nullptr, {}};
const OpDef kFill{"Fill", 0, 1, InferFill, nullptr, nullptr, {}};
const OpDef kIota{"Iota", 0, 1, InferIota, nullptr, nullptr, {}};
const OpDef kDimSize{"DimSize", 0, 1, InferDimSize, nullptr, nullptr, {}};
const OpDef kRandomUniform{"RandomUniform", -1, 1, InferRandomUniform, NoGradient, nullptr, {.random = true}};
const OpDef kBucket{"Bucket", -1, 1, InferBucket, nullptr, nullptr, {}};

}  // namespace ropewalk::mlrunner
