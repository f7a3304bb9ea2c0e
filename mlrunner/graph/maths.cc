#include "mlrunner/graph/maths.h"

#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

// The innermost builder among the arguments: an op that uses a value of a body belongs to that body.
Builder* BuilderOf(std::initializer_list<const Arg*> args) {
  Builder* found = nullptr;
  for (const Arg* arg : args) {
    if (arg->value.valid() && (found == nullptr || arg->value.builder->depth() > found->depth())) found = arg->value.builder;
  }
  return found;
}

std::int64_t Code64(Dtype dtype) { return static_cast<std::int64_t>(dtype); }

// An op of values and numbers; a number takes the element type of the first value that is not a condition.
std::vector<Value> Apply(const OpDef& def, std::initializer_list<const Arg*> args, Attributes attrs = {}) {
  Builder* b = BuilderOf(args);
  if (b == nullptr) return std::vector<Value>(std::max(def.outputs, 1));  // only after an error
  Dtype dtype = Dtype::kF32;
  for (const Arg* arg : args) {
    if (arg->value.valid()) dtype = arg->value.dtype();
  }
  if (dtype == Dtype::kBool) dtype = Dtype::kF32;
  std::vector<Value> inputs;
  Location where = (*args.begin())->where;
  for (const Arg* arg : args) {
    // An invalid value is a number only when it was written as one.
    inputs.push_back(arg->value.valid() ? arg->value : arg->is_number ? b->Number(arg->number, dtype, where) : Value{});
  }
  return b->Emit(def, inputs, std::move(attrs), where);
}
Value One(const OpDef& def, std::initializer_list<const Arg*> args, Attributes attrs = {}) { return Apply(def, args, std::move(attrs))[0]; }

}  // namespace

Value operator+(Arg a, Arg b) { return One(kAdd, {&a, &b}); }
Value operator-(Arg a, Arg b) { return One(kSub, {&a, &b}); }
Value operator*(Arg a, Arg b) { return One(kMul, {&a, &b}); }
Value operator/(Arg a, Arg b) { return One(kDiv, {&a, &b}); }
Value operator-(Arg a) { return One(kNeg, {&a}); }
Value Maximum(Arg a, Arg b) { return One(kMaximum, {&a, &b}); }
Value Minimum(Arg a, Arg b) { return One(kMinimum, {&a, &b}); }
Value Pow(Arg a, Arg b) { return One(kPow, {&a, &b}); }
Value Exp(Arg a) { return One(kExp, {&a}); }
Value Log(Arg a) { return One(kLog, {&a}); }
Value Sqrt(Arg a) { return One(kSqrt, {&a}); }
Value Rsqrt(Arg a) { return One(kRsqrt, {&a}); }
Value Tanh(Arg a) { return One(kTanh, {&a}); }
Value Sigmoid(Arg a) { return One(kSigmoid, {&a}); }
Value Erf(Arg a) { return One(kErf, {&a}); }
Value Sin(Arg a) { return One(kSin, {&a}); }
Value Cos(Arg a) { return One(kCos, {&a}); }
Value Abs(Arg a) { return One(kAbs, {&a}); }
Value Sign(Arg a) { return One(kSign, {&a}); }
Value Relu(Arg a) { return One(kRelu, {&a}); }
Value Gelu(Arg a) { return One(kGelu, {&a}); }
Value Square(Arg a) { return One(kMul, {&a, &a}); }
Value Less(Arg a, Arg b) { return One(kLess, {&a, &b}); }
Value Greater(Arg a, Arg b) { return One(kGreater, {&a, &b}); }
Value Equal(Arg a, Arg b) { return One(kEqual, {&a, &b}); }
Value IsFinite(Arg a) { return One(kIsFinite, {&a}); }
Value Select(Arg condition, Arg a, Arg b) { return One(kSelect, {&condition, &a, &b}); }
Value Cast(Arg a, Dtype dtype) {
  if (a.value.valid() && a.value.dtype() == dtype) return a.value;
  return One(kCast, {&a}, {{Attr::kDtype, Code64(dtype)}});
}
Value StopGradient(Arg a) { return One(kStopGradient, {&a}); }
Value Identity(Builder& b, const Value& a) { return b.EmitOne(kIdentity, {a}); }

Value Reshape(Arg a, Shape shape) {
  if (a.value.valid() && a.value.shape() == shape) return a.value;
  return One(kReshape, {&a}, {{Attr::kShape, std::move(shape)}});
}

Value Transpose(Arg a, std::vector<std::int64_t> permutation) {
  if (permutation.empty()) {
    for (std::size_t i = 0; i < a.value.rank(); ++i) permutation.push_back(static_cast<std::int64_t>(i));
    if (permutation.size() >= 2) std::swap(permutation[permutation.size() - 1], permutation[permutation.size() - 2]);
  }
  return One(kTranspose, {&a}, {{Attr::kPermutation, std::move(permutation)}});
}

Value BroadcastTo(Arg a, Shape shape) {
  if (a.value.valid() && a.value.shape() == shape) return a.value;
  return One(kBroadcastTo, {&a}, {{Attr::kShape, std::move(shape)}});
}

namespace {
std::int64_t FromFront(const Arg& a, int axis) { return axis < 0 ? axis + static_cast<std::int64_t>(a.value.rank()) : axis; }
}  // namespace

Value SliceAxis(Arg a, int axis, Dim begin, Dim end) {
  return One(kSlice, {&a}, {{Attr::kAxis, FromFront(a, axis)}, {Attr::kBegin, Shape{begin}}, {Attr::kEnd, Shape{end}}});
}

Value PadAxis(Arg a, int axis, Dim low, Dim high) {
  return One(kPad, {&a}, {{Attr::kAxis, FromFront(a, axis)}, {Attr::kLow, Shape{low}}, {Attr::kHigh, Shape{high}}});
}

Value Concat(const std::vector<Value>& parts, int axis, Location where) {
  if (parts.empty() || !parts[0].valid()) return {};
  if (axis < 0) axis += static_cast<int>(parts[0].rank());
  return parts[0].builder->EmitOne(kConcat, parts, {{Attr::kAxis, static_cast<std::int64_t>(axis)}}, where);
}

Value At(Arg stack, Arg index) { return One(kAt, {&stack, &index}); }
Value SetAt(Arg stack, Arg index, Arg value) { return One(kSetAt, {&stack, &index, &value}); }

Value Fill(Builder& b, double value, Dtype dtype, Shape shape) {
  return b.EmitOne(kFill, {}, {{Attr::kValue, value}, {Attr::kShape, std::move(shape)}, {Attr::kDtype, Code64(dtype)}});
}
Value Constant(Builder& b, Literal literal) { return b.EmitOne(kConstant, {}, {{Attr::kLiteral, std::move(literal)}}); }
Value Iota(Builder& b, Dtype dtype, Dim count) {
  return b.EmitOne(kIota, {}, {{Attr::kDtype, Code64(dtype)}, {Attr::kDim, Shape{std::move(count)}}});
}
Value DimSize(Builder& b, Dim dim, Dtype dtype) {
  if (dim.IsConstant()) return b.Number(static_cast<double>(*dim.Constant()), dtype);
  return b.EmitOne(kDimSize, {}, {{Attr::kDtype, Code64(dtype)}, {Attr::kDim, Shape{std::move(dim)}}});
}
Value RandomUniform(Builder& b, Dtype dtype, Shape shape, int sample_dim, const Value& key) {
  std::vector<Value> inputs;
  if (key.valid()) inputs.push_back(key);
  return b.EmitOne(kRandomUniform, inputs,
                   {{Attr::kDtype, Code64(dtype)}, {Attr::kShape, std::move(shape)}, {Attr::kSampleDim, std::int64_t{sample_dim}}});
}
Value Dropout(Arg a, double rate, int sample_dim) {
  if (!a.value.valid()) return {};
  Value keep = Cast(Greater(RandomUniform(*a.value.builder, Dtype::kF32, a.value.shape(), sample_dim), rate), a.value.dtype());
  return a * keep * (1 / (1 - rate));
}

Value ReduceSum(Arg a, std::vector<std::int64_t> axes, bool keep_dims) {
  return One(kReduceSum, {&a}, {{Attr::kAxes, std::move(axes)}, {Attr::kKeepDims, std::int64_t{keep_dims}}});
}
Value ReduceMax(Arg a, std::vector<std::int64_t> axes, bool keep_dims) {
  return One(kReduceMax, {&a}, {{Attr::kAxes, std::move(axes)}, {Attr::kKeepDims, std::int64_t{keep_dims}}});
}
Value Mean(Arg a, std::vector<std::int64_t> axes, bool keep_dims) {
  if (!a.value.valid()) return {};
  Dim count = 1;
  for (std::size_t i = 0; i < (axes.empty() ? a.value.rank() : axes.size()); ++i) {
    count = count * a.value.dim(axes.empty() ? static_cast<int>(i) : static_cast<int>(axes[i]));
  }
  Value sum = ReduceSum(a, axes, keep_dims);
  if (count.IsConstant()) return sum * (1.0 / static_cast<double>(*count.Constant()));
  return sum / DimSize(*a.value.builder, count, a.value.dtype());
}
Value ArgMax(Arg a, int axis) { return One(kArgMax, {&a}, {{Attr::kAxis, FromFront(a, axis)}}); }

Value SumTo(Arg a, Shape shape) {
  if (!a.value.valid() || a.value.shape() == shape) return a.value;
  std::vector<std::int64_t> axes;
  std::size_t lead = a.value.rank() - std::min(a.value.rank(), shape.size());
  for (std::size_t i = 0; i < a.value.rank(); ++i) {
    if (i < lead || a.value.shape()[i] != shape[i - lead]) axes.push_back(static_cast<std::int64_t>(i));
  }
  return Reshape(ReduceSum(a, axes), shape);
}

Value MatMul(Arg a, Arg b, bool transpose_a, bool transpose_b) {
  // (..., M, K) x (K, N) is one product of (... * M, K): the leading dimensions are rows.
  if (a.value.valid() && b.value.valid() && a.value.rank() > 2 && b.value.rank() == 2 && !transpose_a) {
    Dim rows = 1;
    for (std::size_t i = 0; i + 1 < a.value.rank(); ++i) rows = rows * a.value.shape()[i];
    Arg flat(Reshape(a, {rows, a.value.shape().back()}), a.where.file, a.where.line);
    Value product = One(kMatMul, {&flat, &b}, {{Attr::kTransposeA, std::int64_t{0}}, {Attr::kTransposeB, std::int64_t{transpose_b}}});
    if (!product.valid()) return {};
    Shape shape = a.value.shape();
    shape.back() = product.shape().back();
    return Reshape(product, shape);
  }
  return One(kMatMul, {&a, &b}, {{Attr::kTransposeA, std::int64_t{transpose_a}}, {Attr::kTransposeB, std::int64_t{transpose_b}}});
}

Value Conv2D(Arg x, Arg w, Conv2DOptions options) {
  return One(kConv2D, {&x, &w}, {{Attr::kStrides, options.stride}, {Attr::kPadding, options.padding}});
}
Value MaxPool2D(Arg x, std::int64_t kernel, std::int64_t stride) {
  return One(kMaxPool2D, {&x}, {{Attr::kKernel, kernel}, {Attr::kStep, stride}});
}
Value AvgPool2D(Arg x, std::int64_t kernel, std::int64_t stride) {
  return One(kAvgPool2D, {&x}, {{Attr::kKernel, kernel}, {Attr::kStep, stride}});
}

Value Gather(Arg table, Arg indices) { return One(kGather, {&table, &indices}); }
Value ScatterAdd(Arg indices, Arg rows, Dim num_rows) {
  return One(kScatterAdd, {&indices, &rows}, {{Attr::kDim, Shape{std::move(num_rows)}}});
}
Value OneHot(Arg indices, Dim depth, Dtype dtype) {
  return One(kOneHot, {&indices}, {{Attr::kDim, Shape{std::move(depth)}}, {Attr::kDtype, Code64(dtype)}});
}

Value Softmax(Arg a) { return One(kSoftmax, {&a}); }
Value LogSoftmax(Arg a) { return One(kLogSoftmax, {&a}); }
Value CrossEntropy(Arg logits, Arg labels) { return One(kCrossEntropy, {&logits, &labels}); }
Value LayerNorm(Arg x, Arg gain, Arg bias, double epsilon) { return One(kLayerNorm, {&x, &gain, &bias}, {{Attr::kEpsilon, epsilon}}); }

Vars While(Vars init, std::int64_t bound, const std::function<Value(Builder&, const Vars&)>& condition,
           const std::function<Vars(Builder&, const Vars&)>& body) {
  if (init.empty() || !std::all_of(init.begin(), init.end(), [](const Value& v) { return v.valid(); })) return Vars(init.size() + 1);
  Builder* b = init[0].builder;
  for (const Value& value : init) b = value.builder->depth() > b->depth() ? value.builder : b;
  std::vector<TensorType> types;
  for (const Value& value : init) types.push_back(value.type());
  auto after = b->BuildBody(types, body);
  auto test = b->BuildBody(types, [&](Builder& inner, const Vars& vars) { return Vars{condition(inner, vars)}; });
  if (!after.graph || !test.graph) return Vars(init.size() + 1);
  Attributes attrs{{Attr::kCount, static_cast<std::int64_t>(init.size())},
                   {Attr::kCaptures, static_cast<std::int64_t>(test.captures.size())},
                   {Attr::kBound, bound}};
  init.insert(init.end(), test.captures.begin(), test.captures.end());
  init.insert(init.end(), after.captures.begin(), after.captures.end());
  Vars results = b->Emit(kWhile, init, std::move(attrs), {}, {test.graph, after.graph});
  results.resize(types.size() + 1);
  return results;
}

Vars Cond(Value condition, const std::function<Vars(Builder&)>& then, const std::function<Vars(Builder&)>& otherwise) {
  if (!condition.valid()) return Vars(1);
  Builder& b = *condition.builder;
  auto first = b.BuildBody({}, [&](Builder& inner, const Vars&) { return then(inner); });
  auto second = b.BuildBody({}, [&](Builder& inner, const Vars&) { return otherwise(inner); });
  if (!first.graph || !second.graph) return Vars(1);
  Vars inputs{condition};
  inputs.insert(inputs.end(), first.captures.begin(), first.captures.end());
  inputs.insert(inputs.end(), second.captures.begin(), second.captures.end());
  return b.Emit(kCond, inputs, {{Attr::kCaptures, static_cast<std::int64_t>(first.captures.size())}}, {}, {first.graph, second.graph});
}

namespace {

std::int64_t GroupSize(const Builder& b, const std::string& group) {
  for (const Mesh::Axis& axis : b.graph().mesh.axes) {
    if (axis.name == group) return axis.size;
  }
  return 1;
}

// An op of a channel: takes its version, makes the next.
std::vector<Value> OnChannel(Builder& b, const OpDef& def, StateId channel, std::vector<Value> inputs, Attributes attrs, Location where) {
  inputs.insert(inputs.begin(), b.Token(channel));
  std::vector<Value> results = b.Emit(def, inputs, std::move(attrs), where);
  b.SetToken(channel, results[0]);
  results.resize(2);
  return results;
}

}  // namespace

Value AllReduce(Arg a, StateId channel, std::string group) {
  if (!a.value.valid()) return {};
  Builder& b = *a.value.builder;
  return OnChannel(b, kAllReduce, channel, {a.value}, {{Attr::kCount, GroupSize(b, group)}, {Attr::kGroup, group}}, a.where)[1];
}
Value AllGather(Arg a, StateId channel, std::string group, int axis) {
  if (!a.value.valid()) return {};
  Builder& b = *a.value.builder;
  return OnChannel(b, kAllGather, channel, {a.value},
                   {{Attr::kCount, GroupSize(b, group)}, {Attr::kGroup, group}, {Attr::kAxis, FromFront(a, axis)}}, a.where)[1];
}
Value ReduceScatter(Arg a, StateId channel, std::string group, int axis) {
  if (!a.value.valid()) return {};
  Builder& b = *a.value.builder;
  return OnChannel(b, kReduceScatter, channel, {a.value},
                   {{Attr::kCount, GroupSize(b, group)}, {Attr::kGroup, group}, {Attr::kAxis, FromFront(a, axis)}}, a.where)[1];
}
void Send(Arg a, StateId channel, std::int64_t peer, std::string key) {
  if (!a.value.valid()) return;
  OnChannel(*a.value.builder, kSend, channel, {a.value}, {{Attr::kPeer, peer}, {Attr::kName, std::move(key)}}, a.where);
}
Value Recv(Builder& b, TensorType type, StateId channel, std::int64_t peer, std::string key) {
  return OnChannel(b, kRecv, channel, {},
                   {{Attr::kPeer, peer}, {Attr::kName, std::move(key)}, {Attr::kShape, type.shape}, {Attr::kDtype, Code64(type.dtype)}},
                   {})[1];
}

}  // namespace ropewalk::mlrunner
