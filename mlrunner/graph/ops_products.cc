// Definitions of reductions, products, convolutions, pooling and rows.
#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
Value G(const GradientContext& c) { return c.grads[0].Dense(); }
// Of a product whose result may be wider than its operands.
Value Narrow(const GradientContext& c) { return Cast(G(c), c.in[0].dtype()); }
Gradients NoGradient(const GradientContext& c) { return Gradients(c.in.size()); }

Result<Types> InferReduce(const InferContext& c) {
  std::vector<int> axes = Axes(c.op, c.in[0].shape.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || (i > 0 && axes[i] == axes[i - 1])) {
      return Misfit(c,
                    fmt::format("the axes [{}] are not different ones of {} dimensions", fmt::join(c.op.attrs.Ints(Attr::kAxes), ", "),
                                c.in[0].shape.size()),
                    "name each once, from the front (0) or from the end (-1)");
    }
  }
  bool keep = c.op.attrs.Int(Attr::kKeepDims) != 0;
  Types types{{c.in[0].dtype, {}}};
  for (std::size_t d = 0; d < c.in[0].shape.size(); ++d) {
    bool reduced = std::find(axes.begin(), axes.end(), static_cast<int>(d)) != axes.end();
    if (!reduced) types[0].shape.push_back(c.in[0].shape[d]);
    if (reduced && keep) types[0].shape.emplace_back(1);
  }
  return types;
}
Result<Types> InferReduceSum(const InferContext& c) {
  if (!IsNumber(c.in[0].dtype)) return Misfit(c, "it adds numbers", "Cast flags first: to i64 to count them");
  return InferReduce(c);
}
Result<Types> InferReduceMax(const InferContext& c) {  // of flags: whether there is any
  if (SizeOf(c.in[0].dtype) == 0) return HoldsNoNumbers(c);
  return InferReduce(c);
}
// Of a reduction's result: the shape with the reduced axes kept as 1.
Shape Kept(const GradientContext& c) {
  Shape shape = c.in[0].shape();
  for (int axis : Axes(c.op, shape.size())) shape[axis] = 1;
  return shape;
}
Gradients ReduceSumGradient(const GradientContext& c) { return {BroadcastTo(Reshape(G(c), Kept(c)), c.in[0].shape())}; }
// Equal maxima share the gradient.
Gradients ReduceMaxGradient(const GradientContext& c) {
  Value mask = Cast(Equal(c.in[0], Reshape(c.out[0], Kept(c))), c.in[0].dtype());
  Value count = ReduceSum(mask, c.op.attrs.Ints(Attr::kAxes), true);
  return {mask * (Reshape(G(c), Kept(c)) / count)};
}
Result<Types> InferArgMax(const InferContext& c) {
  if (SizeOf(c.in[0].dtype) == 0) return HoldsNoNumbers(c);
  int axis = AxisOf(c, c.in[0]);
  if (axis < 0) return NoSuchAxis(c, c.in[0]);
  Types types{{Dtype::kI64, c.in[0].shape}};
  types[0].shape.erase(types[0].shape.begin() + axis);
  return types;
}

// A product of numbers of 16 bits is summed in f32; by kDtype it is also written so.
bool IsResultOf(Dtype result, Dtype operands) { return result == operands || (result == Dtype::kF32 && IsHalf(operands)); }
Result<Dtype> ResultOf(const InferContext& c) {
  const Dtype operands = c.in[0].dtype;
  const auto result = static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype, static_cast<std::int64_t>(operands)));
  if (IsResultOf(result, operands)) return result;
  return Misfit(c, fmt::format("its result is to be {}: it is of the operands' type, or f32 where they have 16 bits", Name(result)),
                "Cast the result");
}
Result<Types> InferMatMul(const InferContext& c) {
  if (c.in[0].dtype != c.in[1].dtype) return TypesDiffer(c);
  if (!IsFloat(c.in[0].dtype)) return Misfit(c, "it multiplies floating-point tensors", "Cast both first");
  Shape a = c.in[0].shape, b = c.in[1].shape;
  if (a.size() < 2 || b.size() < 2) return Misfit(c, "it takes matrices", "Reshape vectors to (n, 1) or (1, n)");
  if (c.op.attrs.Int(Attr::kTransposeA)) std::swap(a[a.size() - 1], a[a.size() - 2]);
  if (c.op.attrs.Int(Attr::kTransposeB)) std::swap(b[b.size() - 1], b[b.size() - 2]);
  Dim m = a[a.size() - 2], k = a.back(), k2 = b[b.size() - 2], n = b.back();
  if (k != k2) {
    return Misfit(c, fmt::format("the inner dimensions {} and {} differ", k.ToString(c.symbols), k2.ToString(c.symbols)),
                  "transpose one of them (transpose_a, transpose_b), or Reshape it");
  }
  a.resize(a.size() - 2);
  b.resize(b.size() - 2);
  auto leading = Broadcast(a, b);
  if (!leading) {
    return Misfit(c, "the dimensions before the last two do not broadcast: from the right, they must be equal or 1",
                  "Reshape one, so that a 1 stands where it is to be repeated");
  }
  leading->push_back(m);
  leading->push_back(n);
  ASSIGN_OR_RETURN(const Dtype result, ResultOf(c));
  return Types{{result, *leading}};
}
Gradients MatMulGradient(const GradientContext& c) {
  bool ta = c.op.attrs.Int(Attr::kTransposeA) != 0, tb = c.op.attrs.Int(Attr::kTransposeB) != 0;
  const Value &a = c.in[0], &b = c.in[1];
  Value g = Narrow(c);
  Value da = ta ? MatMul(b, g, tb, true) : MatMul(g, b, false, !tb);
  Value db = tb ? MatMul(g, a, true, ta) : MatMul(a, g, !ta, false);
  return {SumTo(da, a.shape()), SumTo(db, b.shape())};
}

constexpr std::int64_t kWindowMax = 1 << 30;  // of a stride and a padding: sums with lengths stay numbers

bool AreTwo(const std::vector<std::int64_t>& two, std::int64_t least) {
  return two.size() == 2 && std::all_of(two.begin(), two.end(), [&](std::int64_t n) { return n >= least && n <= kWindowMax; });
}
// Output length of a window that slides over a padded axis.
std::int64_t Windows(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return (size + 2 * padding - kernel) / stride + 1;
}
// (N, C, H, W) x (K, C / groups, R, S) -> (N, K, P, Q)
Result<Shape> ConvShape(const InferContext& c, const Shape& x, const Shape& w) {
  if (x.size() != 4 || w.size() != 4) return Misfit(c, "it takes (N, C, H, W) and (K, C, R, S)", "Reshape to four dimensions each");
  const ConvWindow window = ConvWindowOf(c.op);
  if (window.groups < 1 || !w[0].DividedBy(Dim(window.groups))) {
    return Misfit(c, fmt::format("{} kernels are not to be divided into {} groups", w[0].ToString(c.symbols), window.groups),
                  "give as many groups as divide dimension 0 of the kernels: each has its own channels and kernels");
  }
  if (x[1] != w[1] * Dim(window.groups)) {
    return Misfit(c,
                  fmt::format("the image has {} channels and the kernel {}{}", x[1].ToString(c.symbols), w[1].ToString(c.symbols),
                              window.groups == 1 ? "" : fmt::format(" in each of {} groups", window.groups)),
                  window.groups == 1 ? "make dimension 1 of both the same: images are (N, C, H, W), kernels (K, C, R, S)"
                                     : "kernels are (K, C / groups, R, S) where images are (N, C, H, W)");
  }
  if (!AreTwo(window.stride, 1) || !AreTwo(window.padding, 0) || !AreTwo(window.dilation, 1)) {
    return Misfit(c,
                  fmt::format("its strides are [{}], its paddings [{}] and its dilations [{}]", fmt::join(window.stride, ", "),
                              fmt::join(window.padding, ", "), fmt::join(window.dilation, ", ")),
                  fmt::format("give two strides and dilations of 1 to {0} and two paddings of 0 to {0}, of height and width", kWindowMax));
  }
  Shape y{x[0], w[0], 0, 0};
  for (int i = 0; i < 2; ++i) {
    if (!x[2 + i].IsConstant() || !w[2 + i].IsConstant()) {
      return Misfit(c, "heights and widths must be numbers, not symbols",
                    "give the image and the kernel numbers; only N and K may be symbols");
    }
    const std::int64_t size = *x[2 + i].Constant(), kernel = *w[2 + i].Constant();
    if (kernel < 1) return Misfit(c, "the kernel has no elements", "give it a height and a width of 1 or more");
    // Neither factor is large enough for the product to leave 64 bits, unless the kernel holds more than any memory.
    const std::int64_t reach = kernel > kWindowMax ? kernel : (kernel - 1) * window.dilation[i] + 1;
    if (size + 2 * window.padding[i] < reach) {
      return Misfit(c, fmt::format("the kernel is larger than the padded image: {} and {} + 2 * {}", reach, size, window.padding[i]),
                    "pad more, or take a smaller kernel");
    }
    y[2 + i] = Windows(size, reach, window.stride[i], window.padding[i]);
  }
  return y;
}
Status NotOneFloat(const InferContext& c) { return Misfit(c, "it takes two tensors of one floating-point type", "Cast one or both"); }
Status NotItsShape(const InferContext& c, const char* which, const Shape& shape) {
  return Misfit(c, fmt::format("the shapes that it belongs to give {} the shape {}", which, ToString(shape, c.symbols)),
                "let Grad make the op, or give it what the forward op takes and gives");
}
// (x, w) or (x, w, bias (K)) -> y
Result<Types> InferConv2D(const InferContext& c) {
  if (c.in.size() != 2 && c.in.size() != 3) return Misfit(c, "it takes an image, a kernel and perhaps a bias", "give two tensors or three");
  if (c.in[0].dtype != c.in[1].dtype || !IsFloat(c.in[0].dtype)) return NotOneFloat(c);
  ASSIGN_OR_RETURN(Shape y, ConvShape(c, c.in[0].shape, c.in[1].shape));
  if (c.in.size() == 3 && c.in[2] != TensorType{c.in[0].dtype, {y[1]}}) {
    return Misfit(c, "a bias has one number of the same type for each kernel", "make it as long as dimension 0 of the kernels");
  }
  ASSIGN_OR_RETURN(const Dtype result, ResultOf(c));
  return Types{{result, y}};
}
// (g, w) -> dx and (x, g) -> dw, where the attributes give the result's shape, and g has the shape of y = Conv2D(x, w).
Result<Types> InferConv2DGrad(const InferContext& c) {
  if (c.in[0].dtype != c.in[1].dtype || !IsFloat(c.in[0].dtype)) return NotOneFloat(c);
  ASSIGN_OR_RETURN(Types made, InferFromAttributes(c));
  ASSIGN_OR_RETURN(made[0].dtype, ResultOf(c));
  const bool to_input = c.op.def == &kConv2DInputGrad;
  ASSIGN_OR_RETURN(Shape y, ConvShape(c, to_input ? made[0].shape : c.in[0].shape, to_input ? c.in[1].shape : made[0].shape));
  if (c.in[to_input ? 0 : 1].shape != y) return NotItsShape(c, "the gradient", y);
  return made;
}
Value ConvOp(const GradientContext& c, const OpDef& def, const Value& a, const Value& b, const Shape& shape) {
  Attributes attrs{{Attr::kStrides, c.op.attrs.Ints(Attr::kStrides)}, {Attr::kPadding, c.op.attrs.Ints(Attr::kPadding)}};
  if (c.op.attrs.Has(Attr::kDilations)) attrs.Set(Attr::kDilations, c.op.attrs.Ints(Attr::kDilations));
  if (c.op.attrs.Has(Attr::kGroups)) attrs.Set(Attr::kGroups, c.op.attrs.Int(Attr::kGroups));
  if (&def != &kConv2D) {
    attrs.Set(Attr::kShape, shape);
    attrs.Set(Attr::kDtype, static_cast<std::int64_t>(a.dtype()));
  }
  return c.b.EmitOne(def, {a, b}, attrs, c.op.provenance.where);
}
// A convolution is linear in each argument, and so are the two others that it is the adjoint of; the three are each other's gradients.
Gradients Conv2DGradient(const GradientContext& c) {
  Gradients gradients{ConvOp(c, kConv2DInputGrad, Narrow(c), c.in[1], c.in[0].shape()),
                      ConvOp(c, kConv2DWeightGrad, c.in[0], Narrow(c), c.in[1].shape())};
  if (c.in.size() == 3) gradients.emplace_back(Cast(ReduceSum(G(c), {0, 2, 3}), c.in[2].dtype()));
  return gradients;
}
Gradients Conv2DInputGradGradient(const GradientContext& c) {  // (g, w) -> dx
  return {ConvOp(c, kConv2D, Narrow(c), c.in[1], {}), ConvOp(c, kConv2DWeightGrad, Narrow(c), c.in[0], c.in[1].shape())};
}
Gradients Conv2DWeightGradGradient(const GradientContext& c) {  // (x, g) -> dw
  return {ConvOp(c, kConv2DInputGrad, c.in[1], Narrow(c), c.in[0].shape()), ConvOp(c, kConv2D, c.in[0], Narrow(c), {})};
}

// (N, C, H, W) -> (N, C, P, Q)
Result<Shape> PoolShape(const InferContext& c, const Shape& x) {
  if (x.size() != 4 || !IsFloat(c.in[0].dtype)) {
    return Misfit(c, "it takes a floating-point (N, C, H, W)", "Reshape to four dimensions, or Cast");
  }
  const PoolWindow window = PoolWindowOf(c.op);
  if (!AreTwo(window.kernel, 1) || !AreTwo(window.stride, 1) || !AreTwo(window.padding, 0)) {
    return Misfit(c,
                  fmt::format("its windows have [{}] elements, are [{}] apart, and paddings are [{}]", fmt::join(window.kernel, ", "),
                              fmt::join(window.stride, ", "), fmt::join(window.padding, ", ")),
                  fmt::format("give two kernels and strides of 1 to {0} and two paddings of 0 to {0}, of height and width", kWindowMax));
  }
  Shape y{x[0], x[1], 0, 0};
  for (int i = 0; i < 2; ++i) {
    const std::int64_t kernel = window.kernel[i], padding = window.padding[i];
    if (padding >= kernel) {
      return Misfit(c, fmt::format("a padding of {} makes windows of {} that lie outside", padding, kernel),
                    "pad by less than the kernel has elements");
    }
    if (!x[2 + i].IsConstant() || *x[2 + i].Constant() < 1 || *x[2 + i].Constant() + 2 * padding < kernel) {
      return Misfit(c, fmt::format("heights and widths must be numbers, with their paddings at least the kernel's {}", kernel),
                    "take a smaller kernel, or pad the image (padding, PadAxis); a symbol has no number here");
    }
    y[2 + i] = Windows(*x[2 + i].Constant(), kernel, window.stride[i], padding);
  }
  return y;
}
Result<Types> InferPool(const InferContext& c) {
  ASSIGN_OR_RETURN(Shape y, PoolShape(c, c.in[0].shape));
  return Types{{c.in[0].dtype, y}};
}
Result<Types> InferMaxPoolGrad(const InferContext& c) {  // (x, g) -> dx
  ASSIGN_OR_RETURN(Shape y, PoolShape(c, c.in[0].shape));
  if (c.in[1] != TensorType{c.in[0].dtype, y}) return NotItsShape(c, "the gradient", y);
  return Types{c.in[0]};
}
Result<Types> InferAvgPoolGrad(const InferContext& c) {  // (g) -> dx
  ASSIGN_OR_RETURN(Types made, InferFromAttributes(c));
  ASSIGN_OR_RETURN(Shape y, PoolShape(c, made[0].shape));
  if (c.in[0] != TensorType{made[0].dtype, y}) return NotItsShape(c, "the gradient", y);
  return made;
}
Attributes PoolAttrs(const GradientContext& c) {
  const PoolWindow window = PoolWindowOf(c.op);
  return {{Attr::kKernel, window.kernel}, {Attr::kStrides, window.stride}, {Attr::kPadding, window.padding}};
}
Gradients MaxPoolGradient(const GradientContext& c) { return {c.b.EmitOne(kMaxPool2DGrad, {c.in[0], G(c)}, PoolAttrs(c))}; }
Gradients AvgPoolGradient(const GradientContext& c) {
  Attributes attrs = PoolAttrs(c);
  attrs.Set(Attr::kShape, c.in[0].shape());
  attrs.Set(Attr::kDtype, static_cast<std::int64_t>(c.in[0].dtype()));
  return {c.b.EmitOne(kAvgPool2DGrad, {G(c)}, attrs)};
}
Gradients AvgPoolGradGradient(const GradientContext& c) { return {c.b.EmitOne(kAvgPool2D, {G(c)}, PoolAttrs(c))}; }

Result<Types> InferGather(const InferContext& c) {
  if (c.in[0].shape.empty() || !IsIndexType(c.in[1].dtype)) {
    return Misfit(c, "it takes a table and integer indices", "give indices of i32 or i64, and a table of one dimension or more");
  }
  Types types{{c.in[0].dtype, c.in[1].shape}};
  types[0].shape.insert(types[0].shape.end(), c.in[0].shape.begin() + 1, c.in[0].shape.end());
  return types;
}
Gradients GatherGradient(const GradientContext& c) {
  Dim n = NumElements(c.in[1].shape());
  Shape rows{n};
  rows.insert(rows.end(), c.in[0].shape().begin() + 1, c.in[0].shape().end());
  return {IndexedRows{Reshape(c.in[1], {n}), Reshape(G(c), rows), c.in[0].shape()[0]}, Gradient()};
}
Result<Types> InferScatterAdd(const InferContext& c) {
  if (!IsIndexType(c.in[0].dtype) || c.in[0].shape.size() != 1 || c.in[1].shape.empty() || c.in[1].shape[0] != c.in[0].shape[0]) {
    return Misfit(c, "it takes n integer indices and n rows",
                  "give a vector of indices of i32 or i64, and rows with as many in dimension 0");
  }
  Types types{c.in[1]};
  types[0].shape[0] = c.op.attrs.DimOf(Attr::kDim);
  return types;
}
Gradients ScatterAddGradient(const GradientContext& c) { return {Gradient(), Gather(G(c), c.in[0])}; }
Result<Types> InferOneHot(const InferContext& c) {
  if (!IsIndexType(c.in[0].dtype)) return Misfit(c, "it takes integers", "Cast to i32 or i64");
  Types types{{static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)), c.in[0].shape}};
  types[0].shape.push_back(c.op.attrs.DimOf(Attr::kDim));
  return types;
}

}  // namespace

const OpDef kReduceSum{"ReduceSum", 1, 1, InferReduceSum, ReduceSumGradient, nullptr, {}};
const OpDef kReduceMax{"ReduceMax", 1, 1, InferReduceMax, ReduceMaxGradient, nullptr, {}};
const OpDef kArgMax{"ArgMax", 1, 1, InferArgMax, NoGradient, nullptr, {}};
const OpDef kMatMul{"MatMul", 2, 1, InferMatMul, MatMulGradient, nullptr, {}};
const OpDef kConv2D{"Conv2D", -1, 1, InferConv2D, Conv2DGradient, nullptr, {}};
const OpDef kConv2DInputGrad{"Conv2DInputGrad", 2, 1, InferConv2DGrad, Conv2DInputGradGradient, nullptr, {}};
const OpDef kConv2DWeightGrad{"Conv2DWeightGrad", 2, 1, InferConv2DGrad, Conv2DWeightGradGradient, nullptr, {}};
const OpDef kMaxPool2D{"MaxPool2D", 1, 1, InferPool, MaxPoolGradient, nullptr, {}};
const OpDef kMaxPool2DGrad{"MaxPool2DGrad", 2, 1, InferMaxPoolGrad, nullptr, nullptr, {}};
const OpDef kAvgPool2D{"AvgPool2D", 1, 1, InferPool, AvgPoolGradient, nullptr, {}};
const OpDef kAvgPool2DGrad{"AvgPool2DGrad", 1, 1, InferAvgPoolGrad, AvgPoolGradGradient, nullptr, {}};
const OpDef kGather{"Gather", 2, 1, InferGather, GatherGradient, nullptr, {}};
const OpDef kScatterAdd{"ScatterAdd", 2, 1, InferScatterAdd, ScatterAddGradient, nullptr, {}};
const OpDef kOneHot{"OneHot", 1, 1, InferOneHot, NoGradient, nullptr, {}};

}  // namespace ropewalk::mlrunner
