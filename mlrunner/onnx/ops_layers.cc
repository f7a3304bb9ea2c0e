// Products, convolutions, pooling and norms.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/onnx/ops.h"

namespace ropewalk::mlrunner::onnx {
namespace {

Operands MatMulOp(NodeContext& c) {
  Value a = c.Val(0), b = c.Val(1);
  if (!a.valid() || !b.valid()) return {};
  if (a.rank() == 0 || b.rank() == 0) return c.Refuse("it multiplies a number", "use Mul");
  // Vectors are rows on the left and columns on the right, for the time of the product.
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) a = Reshape(a, {1, a.dim(0)});
  if (column) b = Reshape(b, {b.dim(0), 1});
  Value y = MatMul(a, b);
  if (!y.valid()) return {};
  Shape shape = y.shape();
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - (column ? 1 : 2));
  return {Operand::Of(Reshape(y, shape))};
}

bool IsZero(const Value& value) {
  const Graph& graph = value.builder->graph();
  const Op& op = graph.op(graph.value(value.id).producer);
  return op.def == &kFill && op.attrs.Double(Attr::kValue) == 0;
}

Operands Gemm(NodeContext& c) {
  Value a = c.Val(0), b = c.Val(1);
  if (!a.valid() || !b.valid()) return {};
  const double alpha = c.node.Float("alpha", 1), beta = c.node.Float("beta", 1);
  Value y = MatMul(a, b, c.node.Int("transA", 0) != 0, c.node.Int("transB", 0) != 0);
  if (alpha != 1) y = y * alpha;
  if (c.Has(2) && beta != 0) {
    Value bias = c.Val(2);
    if (!bias.valid()) return {};
    y = y + (beta == 1 ? bias : bias * beta);
  }
  return {Operand::Of(y)};
}

// --- windows ---

constexpr std::int64_t kWindowMax = 1 << 20, kPlacesMax = 1 << 24;

// What goes over one axis is done over two, of which the first has a length of 1: (N, C, L) is (N, C, 1, L).
Value AsImage(const Value& x) { return x.rank() == 3 ? Reshape(x, {x.dim(0), x.dim(1), 1, x.dim(2)}) : x; }
Value FromImage(const Value& y, std::size_t rank) { return y.valid() && rank == 3 ? Reshape(y, {y.dim(0), y.dim(1), y.dim(3)}) : y; }

// Strides, paddings and the like, of two axes.
struct Windows {
  std::vector<std::int64_t> kernel, stride = {1, 1}, dilation = {1, 1}, low = {0, 0}, high = {0, 0};
};
// Of one with `kernel`, over x (N, C, H, W); nothing after a refusal. `axes` is what the node says: 1, or 2.
std::optional<Windows> WindowsOf(NodeContext& c, const Value& x, std::vector<std::int64_t> kernel, std::size_t axes) {
  Windows w;
  auto of_two = [&](std::vector<std::int64_t> each) {
    if (axes == 1 && each.size() == 1) each.insert(each.begin(), 1);
    return each;
  };
  w.kernel = of_two(std::move(kernel));
  auto refuse = [&](std::string why, std::string fix) -> std::optional<Windows> {
    c.Refuse(std::move(why), std::move(fix));
    return std::nullopt;
  };
  if (x.rank() != 4 || w.kernel.size() != 2)
    return refuse(fmt::format("it goes over {}", c.Show(x.shape())), "images are (N, C, L) or (N, C, H, W) here; Reshape others");
  if (c.node.Int("ceil_mode", 0) != 0) return refuse("windows hang over the edge (ceil_mode)", "pad the image instead");
  if (c.node.Has("strides")) w.stride = of_two(c.node.Ints("strides"));
  if (c.node.Has("dilations")) w.dilation = of_two(c.node.Ints("dilations"));
  if (c.node.Has("pads")) {
    std::vector<std::int64_t> pads = c.node.Ints("pads");
    if (axes == 1 && pads.size() == 2) pads = {0, pads[0], 0, pads[1]};
    if (pads.size() != 4) return refuse("it has not two paddings for each axis", "export the model again");
    w.low = {pads[0], pads[1]};
    w.high = {pads[2], pads[3]};
  }
  if (w.stride.size() != 2 || w.dilation.size() != 2) return refuse("it has not a stride for each axis", "export the model again");
  auto positive = [](const std::vector<std::int64_t>& all) {
    return std::all_of(all.begin(), all.end(), [](std::int64_t each) { return each >= 1 && each <= kWindowMax; });
  };
  auto no_less = [](const std::vector<std::int64_t>& all) {
    return std::all_of(all.begin(), all.end(), [](std::int64_t each) { return each >= 0 && each <= kWindowMax; });
  };
  if (!positive(w.kernel) || !positive(w.stride) || !positive(w.dilation) || !no_less(w.low) || !no_less(w.high)) {
    return refuse(fmt::format("kernel, strides and dilations are to be 1 to {0}, and paddings 0 to {0}", kWindowMax),
                  "export the model again");
  }
  const std::string automatic = c.node.String("auto_pad", "NOTSET");
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    for (std::size_t i = 2 - axes; i < 2; ++i) {
      auto size = x.shape()[2 + i].Constant();
      if (!size) return refuse("heights and widths must be numbers", "give them (ImportOptions::lengths)");
      const std::int64_t windows = (*size + w.stride[i] - 1) / w.stride[i];
      const std::int64_t all = std::max<std::int64_t>(0, (windows - 1) * w.stride[i] + (w.kernel[i] - 1) * w.dilation[i] + 1 - *size);
      w.low[i] = automatic == "SAME_UPPER" ? all / 2 : all - all / 2;
      w.high[i] = all - w.low[i];
    }
  }
  return w;
}

Operands Conv(NodeContext& c) {
  Value x = c.Val(0), w = c.Val(1);
  if (!x.valid() || !w.valid()) return {};
  const std::size_t rank = x.rank();
  if (rank != w.rank())
    return c.Refuse(fmt::format("a kernel {} goes over {}", c.Show(w.shape()), c.Show(x.shape())), "export the model again");
  x = AsImage(x);
  w = AsImage(w);
  if (w.rank() != 4 || !w.dim(2).IsConstant() || !w.dim(3).IsConstant())
    return c.Refuse(fmt::format("its kernel is {}", c.Show(w.shape())), "kernels are (K, C, S) or (K, C, R, S) here");
  auto windows = WindowsOf(c, x, {*w.dim(2).Constant(), *w.dim(3).Constant()}, rank - 2);
  if (!windows) return {};
  Conv2DOptions options{windows->stride, windows->low, windows->dilation};
  if (windows->low != windows->high) {
    for (int i = 0; i < 2; ++i) {
      x = PadWith(x, 2 + i, windows->low[static_cast<std::size_t>(i)], windows->high[static_cast<std::size_t>(i)], 0);
    }
    options.padding = {0, 0};
  }
  options.groups = c.node.Int("group", 1);
  if (c.Has(2)) {
    Value bias = c.Val(2);
    if (!bias.valid()) return {};
    if (!IsZero(bias)) options.bias = bias;
  }
  return {Operand::Of(FromImage(Conv2D(x, w, options), rank))};
}

Operands Pool(NodeContext& c, bool largest) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  const std::size_t rank = x.rank();
  x = AsImage(x);
  auto windows = WindowsOf(c, x, c.node.Ints("kernel_shape"), rank == 3 ? 1 : 2);
  if (!windows) return {};
  const Windows& w = *windows;
  if (w.dilation != std::vector<std::int64_t>{1, 1}) return c.Refuse("its windows are dilated", "use a dilation of 1");
  Pool2DOptions options{w.kernel, w.stride, w.low};
  Value padded = x;
  if (w.low != w.high) {  // a padding of sides that differ is in a copy of the image
    for (std::size_t i = 0; i < 2; ++i) {
      padded = PadWith(padded, 2 + static_cast<int>(i), w.low[i], w.high[i], largest ? -HUGE_VAL : 0.0);
    }
    options.padding = {0, 0};
  }
  if (largest) return {Operand::Of(FromImage(MaxPool2D(padded, options), rank))};
  Value y = AvgPool2D(padded, options);
  const bool pads = w.low != std::vector<std::int64_t>{0, 0} || w.high != std::vector<std::int64_t>{0, 0};
  if (!y.valid() || !pads || c.node.Int("count_include_pad", 0) != 0) return {Operand::Of(FromImage(y, rank))};
  // The mean is of what lies in the image: windows at the edge have fewer elements.
  auto height = y.dim(2).Constant(), width = y.dim(3).Constant();
  if (!height || !width || *height > kPlacesMax / std::max<std::int64_t>(*width, 1))
    return c.Refuse("heights and widths must be numbers, and not so large", "give them (ImportOptions::lengths)");
  auto inside = [&](std::size_t i, std::int64_t at) {
    const std::int64_t begin = at * w.stride[i] - w.low[i], size = *x.shape()[2 + i].Constant();
    return std::min(begin + w.kernel[i], size) - std::max<std::int64_t>(begin, 0);
  };
  Known factors{y.dtype(), {1, 1, *height, *width}, {}, {}};
  for (std::int64_t row = 0; row < *height; ++row) {
    for (std::int64_t column = 0; column < *width; ++column) {
      factors.real.push_back(static_cast<double>(w.kernel[0] * w.kernel[1]) / static_cast<double>(inside(0, row) * inside(1, column)));
    }
  }
  return {Operand::Of(FromImage(y * MakeKnown(c.b, factors), rank))};
}
Operands MaxPool(NodeContext& c) { return Pool(c, true); }
Operands AveragePool(NodeContext& c) { return Pool(c, false); }

Operands GlobalPool(NodeContext& c) {
  Value x = c.Val(0);
  if (!x.valid()) return {};
  if (x.rank() < 3) return c.Refuse(fmt::format("it goes over {}", c.Show(x.shape())), "images are (N, C, ...)");
  std::vector<std::int64_t> axes(x.rank() - 2);
  std::iota(axes.begin(), axes.end(), 2);
  return {Operand::Of(c.node.op == "GlobalMaxPool" ? ReduceMax(x, axes, true) : Mean(x, axes, true))};
}

// --- norms ---

Operands BatchNormalization(NodeContext& c) {
  Value x = c.Val(0), gain = c.Val(1), bias = c.Val(2);
  if (!x.valid() || !gain.valid() || !bias.valid()) return {};
  if (x.rank() < 2) return c.Refuse(fmt::format("it goes over {}", c.Show(x.shape())), "dimension 1 has the channels");
  const double epsilon = c.node.Float("epsilon", 1e-5), momentum = c.node.Float("momentum", .9);
  // Running statistics are initializers, and become states; what a run computes is taken as it is.
  StateId mean_state = c.s.statistic(c.node.inputs.at(3)), variance_state = c.s.statistic(c.node.inputs.at(4));
  const ImportOptions& options = c.s.options;
  const bool trains =
      options.mode == ImportMode::kTraining || (options.mode == ImportMode::kAsTheFileSays && c.node.Int("training_mode", 0) != 0);
  if (trains && !options.running_batch_norm) {
    // Rows are told from what else a layer before may have put along dimension 0.
    const bool has_rows = options.weights.valid() && x.dim(0) == options.weights.dim(0);
    Moments moments = MomentsOf(x, has_rows ? Cast(Greater(options.weights, 0), x.dtype()) : Value());
    BatchNormOptions norm{.epsilon = epsilon};
    const auto& axes = c.b.graph().mesh.axes;
    const bool several =
        std::any_of(axes.begin(), axes.end(), [&](const auto& axis) { return axis.name == options.ranks && axis.size > 1; });
    if (several && mean_state.valid()) {
      norm.channel = c.b.NewChannel(c.node.outputs.at(0) + "/sums");
      norm.ranks = options.ranks;
      moments = MomentsOfRanks(moments, c.b.Read(mean_state), norm.channel, norm.ranks);
    }
    if (!moments.mean.valid()) return {};
    // A batch of which nothing counts has no moments.
    const Value share = Minimum(moments.count, 1) * (1 - momentum);
    auto update = [&](StateId state, const Value& now) {
      if (!state.valid() || !now.valid()) return;
      Value before = c.b.Read(state);
      c.b.Assign(state, before + (StopGradient(now) - before) * share);
    };
    update(mean_state, moments.mean);
    update(variance_state, moments.variance);
    return {Operand::Of(BatchNorm(x, gain, bias, moments, norm))};
  }
  Value mean = mean_state.valid() ? c.b.Read(mean_state) : c.Val(3);
  Value variance = variance_state.valid() ? c.b.Read(variance_state) : c.Val(4);
  return {Operand::Of(BatchNormInference(x, gain, bias, mean, variance, epsilon))};
}

Operands LayerNormalization(NodeContext& c) {
  Value x = c.Val(0), gain = c.Val(1);
  if (!x.valid() || !gain.valid()) return {};
  const auto axis = static_cast<std::size_t>(c.Axis(c.node.Int("axis", -1), x.rank()));
  if (!c.ok()) return {};
  const Shape shape = x.shape();
  const Dim length = NumElements(Shape(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end()));
  Shape rows(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis));
  rows.push_back(length);
  const Shape inner(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end());
  auto vector = [&](const Value& of) { return Reshape(BroadcastTo(of, inner), {length}); };
  Value bias = c.Has(2) ? c.Val(2) : Fill(c.b, 0, x.dtype(), {length});
  if (!bias.valid()) return {};
  Value y = LayerNorm(Reshape(x, rows), vector(gain), c.Has(2) ? vector(bias) : bias, c.node.Float("epsilon", 1e-5));
  return {Operand::Of(Reshape(y, shape))};
}

}  // namespace

void AddLayers(Importers* table) {
  table->insert({
      {"AveragePool", AveragePool},
      {"BatchNormalization", BatchNormalization},
      {"Conv", Conv},
      {"Gemm", Gemm},
      {"GlobalAveragePool", GlobalPool},
      {"GlobalMaxPool", GlobalPool},
      {"LayerNormalization", LayerNormalization},
      {"MatMul", MatMulOp},
      {"MaxPool", MaxPool},
  });
}

}  // namespace ropewalk::mlrunner::onnx
