#include "mlrunner/graph/maths.h"

#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

// The innermost builder among the values: an op that uses a value of a body belongs to that body. (It refuses one of a body that has been
// written.)
Builder* Inner(Builder* found, const Value& value) {
  if (!value.valid()) return found;
  Builder& its = value.builder->Living();
  return found == nullptr || its.depth() > found->depth() ? &its : found;
}
Builder* BuilderOf(std::initializer_list<const Arg*> args) {
  Builder* found = nullptr;
  for (const Arg* arg : args) found = Inner(found, arg->value);
  return found;
}
Builder* BuilderOf(const std::vector<Value>& values) {
  Builder* found = nullptr;
  for (const Value& value : values) found = Inner(found, value);
  return found;
}

std::int64_t Code64(Dtype dtype) { return static_cast<std::int64_t>(dtype); }

// An op of values and numbers; a number takes the element type of the first value that is not a condition.
std::vector<Value> Apply(const OpDef& def, std::initializer_list<const Arg*> args, Attributes attrs = {}) {
  Builder* b = BuilderOf(args);
  if (b == nullptr) return std::vector<Value>(std::max(def.outputs, 1));  // only after an error
  auto gives_type = [](const Arg* arg) { return arg->value.valid() && arg->value.dtype() != Dtype::kBool; };
  auto typed = std::find_if(args.begin(), args.end(), gives_type);
  Dtype dtype = typed == args.end() ? Dtype::kF32 : (*typed)->value.dtype();
  std::vector<Value> inputs;
  Location where = (*args.begin())->where;
  for (const Arg* arg : args) {
    // An invalid value is a number only when it was written as one.
    inputs.push_back(arg->value.valid() ? arg->value : arg->is_number ? b->Number(arg->number, dtype, where) : Value{});
  }
  return b->Emit(def, inputs, std::move(attrs), where);
}
Value One(const OpDef& def, std::initializer_list<const Arg*> args, Attributes attrs = {}) { return Apply(def, args, std::move(attrs))[0]; }

// A refusal by a function that is made of several ops, of `a` as its user wrote it.
Value Refuse(std::string_view function, const Arg& a, std::string why, std::string fix) {
  Builder& b = *a.value.builder;
  b.Fail(Status(Code::kInvalid, "GRAPH01",
                fmt::format("{}:{}: {} of {} {}", a.where.file, a.where.line, function, ToString(a.value.shape(), b.graph().symbols),
                            Name(a.value.dtype())),
                std::move(why), std::move(fix)));
  return {};
}

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
Value Gelu(Arg a, GeluForm form) { return One(form == GeluForm::kTanh ? kGelu : kGeluErf, {&a}); }
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
Value Identity(Builder& b, const Value& a, Location where) { return b.EmitOne(kIdentity, {a}, {}, where); }

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
// The axis counted from the front. One that `a` does not have stays as the user wrote it, and the op refuses that.
std::int64_t FromFront(const Value& a, int axis) {
  auto rank = static_cast<std::int64_t>(a.rank());
  return axis < 0 && axis >= -rank ? axis + rank : axis;
}
}  // namespace

Value SliceAxis(Arg a, int axis, Dim begin, Dim end) {
  return One(kSlice, {&a}, {{Attr::kAxis, FromFront(a.value, axis)}, {Attr::kBegin, Shape{begin}}, {Attr::kEnd, Shape{end}}});
}

Value PadAxis(Arg a, int axis, Dim low, Dim high) {
  return One(kPad, {&a}, {{Attr::kAxis, FromFront(a.value, axis)}, {Attr::kLow, Shape{low}}, {Attr::kHigh, Shape{high}}});
}

Value Concat(const std::vector<Value>& parts, int axis, Location where) {
  Builder* b = BuilderOf(parts);
  if (b == nullptr) return {};
  return b->EmitOne(kConcat, parts, {{Attr::kAxis, FromFront(parts[0], axis)}}, where);
}

Value At(Arg stack, Arg index) { return One(kAt, {&stack, &index}); }
Value SetAt(Arg stack, Arg index, Arg value) { return One(kSetAt, {&stack, &index, &value}); }

Value Fill(Builder& b, double value, Dtype dtype, Shape shape, Location where) {
  return b.EmitOne(kFill, {}, {{Attr::kValue, value}, {Attr::kShape, std::move(shape)}, {Attr::kDtype, Code64(dtype)}}, where);
}
Value Constant(Builder& b, Literal literal, Location where) {
  return b.EmitOne(kConstant, {}, {{Attr::kLiteral, std::move(literal)}}, where);
}
Value Iota(Builder& b, Dtype dtype, Dim count, Location where) {
  return b.EmitOne(kIota, {}, {{Attr::kDtype, Code64(dtype)}, {Attr::kDim, Shape{std::move(count)}}}, where);
}
Value DimSize(Builder& b, Dim dim, Dtype dtype, Location where) {
  if (dim.IsConstant()) return b.Number(static_cast<double>(*dim.Constant()), dtype, where);
  return b.EmitOne(kDimSize, {}, {{Attr::kDtype, Code64(dtype)}, {Attr::kDim, Shape{std::move(dim)}}}, where);
}
Value RandomUniform(Builder& b, Dtype dtype, Shape shape, int sample_dim, const Value& key, Location where) {
  std::vector<Value> inputs;
  if (key.valid()) inputs.push_back(key);
  return b.EmitOne(kRandomUniform, inputs,
                   {{Attr::kDtype, Code64(dtype)}, {Attr::kShape, std::move(shape)}, {Attr::kSampleDim, std::int64_t{sample_dim}}}, where);
}
Value Dropout(Arg a, double rate, int sample_dim) {
  if (!a.value.valid()) return {};
  if (!(rate >= 0 && rate < 1)) {
    return Refuse("Dropout", a, fmt::format("its rate is {}, and what it keeps is divided by 1 - rate", rate),
                  "give the probability of an element to be left out, from 0 to below 1");
  }
  // Uniform in [0, 1): of a rate of 0 nothing lies below it.
  Value u = RandomUniform(*a.value.builder, Dtype::kF32, a.value.shape(), sample_dim, {}, a.where);
  return Select(Less(u, rate), 0, a * (1 / (1 - rate)));
}

Value ReduceSum(Arg a, std::vector<std::int64_t> axes, bool keep_dims) {
  return One(kReduceSum, {&a}, {{Attr::kAxes, std::move(axes)}, {Attr::kKeepDims, std::int64_t{keep_dims}}});
}
Value ReduceMax(Arg a, std::vector<std::int64_t> axes, bool keep_dims) {
  return One(kReduceMax, {&a}, {{Attr::kAxes, std::move(axes)}, {Attr::kKeepDims, std::int64_t{keep_dims}}});
}
Value Mean(Arg a, std::vector<std::int64_t> axes, bool keep_dims) {
  if (!a.value.valid()) return {};
  if (!IsFloat(a.value.dtype())) return Refuse("Mean", a, "it takes a floating-point tensor", "Cast it first");
  Dim count = 1;
  for (std::size_t i = 0; i < (axes.empty() ? a.value.rank() : axes.size()); ++i) {
    count = count * a.value.dim(axes.empty() ? static_cast<int>(i) : static_cast<int>(axes[i]));
  }
  Value sum = ReduceSum(a, axes, keep_dims);
  if (count.IsConstant()) return sum * (1.0 / static_cast<double>(*count.Constant()));
  return sum / DimSize(*a.value.builder, count, a.value.dtype());
}
Value ArgMax(Arg a, int axis) { return One(kArgMax, {&a}, {{Attr::kAxis, FromFront(a.value, axis)}}); }

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
  Attributes attrs{{Attr::kStrides, options.stride}, {Attr::kPadding, options.padding}};
  if (options.dilation != std::vector<std::int64_t>{1, 1}) attrs.Set(Attr::kDilations, options.dilation);
  if (options.groups != 1) attrs.Set(Attr::kGroups, options.groups);
  if (!options.bias.valid()) return One(kConv2D, {&x, &w}, std::move(attrs));
  Arg bias(options.bias, x.where.file, x.where.line);
  return One(kConv2D, {&x, &w, &bias}, std::move(attrs));
}
Value MaxPool2D(Arg x, Pool2DOptions o) {
  return One(kMaxPool2D, {&x}, {{Attr::kKernel, o.kernel}, {Attr::kStrides, o.stride}, {Attr::kPadding, o.padding}});
}
Value AvgPool2D(Arg x, Pool2DOptions o) {
  return One(kAvgPool2D, {&x}, {{Attr::kKernel, o.kernel}, {Attr::kStrides, o.stride}, {Attr::kPadding, o.padding}});
}
Value MaxPool2D(Arg x, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return MaxPool2D(x, {.kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {padding, padding}});
}
Value AvgPool2D(Arg x, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return AvgPool2D(x, {.kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {padding, padding}});
}
Value GlobalAvgPool2D(Arg x) {
  if (!x.value.valid()) return {};
  // One window that is the image: a shape that is none is refused by the pooling.
  std::vector<std::int64_t> image{x.value.dim(2).Constant().value_or(0), x.value.dim(3).Constant().value_or(0)};
  return Reshape(AvgPool2D(x, {.kernel = std::move(image), .stride = {1, 1}}), {x.value.dim(0), x.value.dim(1)});
}

Value Gather(Arg table, Arg indices) { return One(kGather, {&table, &indices}); }
Value ScatterAdd(Arg indices, Arg rows, Dim num_rows) {
  return One(kScatterAdd, {&indices, &rows}, {{Attr::kDim, Shape{std::move(num_rows)}}});
}
Value OneHot(Arg indices, Dim depth, Dtype dtype) {
  return One(kOneHot, {&indices}, {{Attr::kDim, Shape{std::move(depth)}}, {Attr::kDtype, Code64(dtype)}});
}

Value SumRows(Arg x, Arg from, Arg to, Dim num_rows) { return One(kSumRows, {&x, &from, &to}, {{Attr::kDim, Shape{std::move(num_rows)}}}); }
Value AddRows(Arg table, Arg indices, Arg rows) { return One(kAddRows, {&table, &indices, &rows}); }
Value EmbeddingBag(Arg table, Arg indices, Bag form) {
  Value rows = Gather(table, indices);
  if (!rows.valid()) return {};
  if (indices.value.rank() == 0) return Refuse("EmbeddingBag", indices, "its last dimension is that of a bag", "Reshape one index to (1)");
  const auto axis = static_cast<std::int64_t>(indices.value.rank()) - 1;
  if (indices.value.dim(-1).Is(1)) {  // nothing to add up
    Shape shape = rows.shape();
    shape.erase(shape.begin() + axis);
    return Reshape(rows, shape);
  }
  return form == Bag::kSum ? ReduceSum(rows, {axis}) : Mean(rows, {axis});
}
Value EmbeddingBags(Arg table, Arg indices, Arg offsets, Bag form) {
  if (!table.value.valid() || !indices.value.valid() || !offsets.value.valid()) return One(kSumRows, {&table, &indices, &offsets});
  const Dim places = indices.value.dim(0), bags = offsets.value.dim(0);
  Arg of(One(kBagsOf, {&offsets}, {{Attr::kDim, Shape{places}}}), offsets.where.file, offsets.where.line);
  Value sums = One(kSumRows, {&table, &indices, &of}, {{Attr::kDim, Shape{bags}}, {Attr::kExtra, std::int64_t{1}}});
  if (form == Bag::kSum || !sums.valid()) return sums;
  Shape column(sums.rank(), Dim(1)), counts = column;
  column[0] = places;
  counts[0] = bags;
  Builder& b = *BuilderOf({&table, &indices, &offsets});
  return sums / Maximum(Reshape(ScatterAdd(of, Fill(b, 1, sums.dtype(), column, table.where), bags), counts), 1);
}
Value StackedRows(Arg ids, std::vector<std::int64_t> rows, int axis) {
  return One(kStackedRows, {&ids}, {{Attr::kAxis, FromFront(ids.value, axis)}, {Attr::kStrides, std::move(rows)}});
}
TopKResult TopK(Arg a, int count) {
  std::vector<Value> both = Apply(kTopK, {&a}, {{Attr::kCount, std::int64_t{count}}});
  return {both[0], both[1]};
}
Value ExpertSlots(Arg experts, std::int64_t num_experts, Dim capacity) {
  return One(kExpertSlots, {&experts}, {{Attr::kCount, num_experts}, {Attr::kDim, Shape{std::move(capacity)}}});
}
Value PairDots(Arg x, Arg rows) { return One(kPairDots, {&x, &rows}); }

Value Softmax(Arg a) { return One(kSoftmax, {&a}); }
Value LogSoftmax(Arg a) { return One(kLogSoftmax, {&a}); }
Value CrossEntropy(Arg logits, Arg labels) { return One(kCrossEntropy, {&logits, &labels}); }
Value BinaryCrossEntropy(Arg logits, Arg targets) { return One(kBinaryCrossEntropy, {&logits, &targets}); }
Value LayerNorm(Arg x, Arg gain, Arg bias, double epsilon) { return One(kLayerNorm, {&x, &gain, &bias}, {{Attr::kEpsilon, epsilon}}); }

LstmStates Lstm(Arg x, Arg bias, Arg w, Arg h, Arg c) {
  std::vector<Value> states = Apply(kLstm, {&x, &bias, &w, &h, &c});
  return {states[0], states[1]};
}

Moments MomentsOf(Arg x, const Value& counted) {
  if (!x.value.valid()) return {};
  Builder& b = *BuilderOf({&x});
  std::vector<Value> inputs{x.value};
  if (counted.valid()) inputs.push_back(counted);
  std::vector<Value> moments = b.Emit(kBatchMoments, inputs, {}, x.where);
  if (moments.size() < 2) return {};
  const Shape shape = x.value.shape();
  const Dim of_a_row = NumElements(Shape(shape.begin() + 2, shape.end()));  // in a channel
  Value count = counted.valid() ? ReduceSum(counted) * DimSize(b, of_a_row, x.value.dtype(), x.where)
                                : DimSize(b, x.value.dim(0) * of_a_row, x.value.dtype(), x.where);
  return {moments[0], moments[1], count, counted};
}
Moments MomentsOfRanks(const Moments& mine, const Value& near, StateId channel, std::string ranks) {
  if (!mine.mean.valid() || !near.valid()) return {};
  const Dim n = mine.mean.dim(0);
  Value apart = mine.mean - near;
  Value sums = Concat({Reshape(mine.count, {1}), apart * mine.count, (mine.variance + Square(apart)) * mine.count}, 0);
  Value all = AllReduce(sums, channel, std::move(ranks));
  Value count = Reshape(SliceAxis(all, 0, 0, 1), {}), at_least_one = Maximum(count, 1);
  Value moved = SliceAxis(all, 0, 1, n + 1) / at_least_one, squares = SliceAxis(all, 0, n + 1, n + n + 1) / at_least_one;
  return {near + moved, Maximum(squares - Square(moved), 0), count, mine.counted};
}
Value BatchNorm(Arg x, Arg gain, Arg bias, const Moments& m, BatchNormOptions options) {
  if (!x.value.valid() || !gain.value.valid() || !bias.value.valid() || !m.mean.valid()) return {};
  Builder& b = *BuilderOf({&x, &gain, &bias});
  std::vector<Value> inputs{x.value, gain.value, bias.value, m.mean, m.variance, m.count};
  if (m.counted.valid()) inputs.push_back(m.counted);
  Attributes attrs{{Attr::kEpsilon, options.epsilon}, {Attr::kRelu, std::int64_t{options.relu}}};
  if (options.channel.valid()) {
    attrs.Set(Attr::kGroup, options.ranks);
    attrs.Set(Attr::kName, b.graph().state(options.channel).name);
  }
  return b.EmitOne(kBatchNorm, inputs, std::move(attrs), x.where);
}
Value BatchNormInference(Arg x, Arg gain, Arg bias, Arg mean, Arg variance, double epsilon, bool relu) {
  return One(kBatchNormInference, {&x, &gain, &bias, &mean, &variance}, {{Attr::kEpsilon, epsilon}, {Attr::kRelu, std::int64_t{relu}}});
}

Vars While(Vars init, std::int64_t bound, const std::function<Value(Builder&, const Vars&)>& condition,
           const std::function<Vars(Builder&, const Vars&)>& body, Location where) {
  Builder* b = BuilderOf(init);
  if (b == nullptr) return Vars(init.size() + 1);
  return While(b->Innermost(), std::move(init), bound, condition, body, where);
}
Vars While(Builder& b, Vars init, std::int64_t bound, const std::function<Value(Builder&, const Vars&)>& condition,
           const std::function<Vars(Builder&, const Vars&)>& body, Location where) {
  const std::size_t results_count = init.size() + 1;
  if (!std::all_of(init.begin(), init.end(), [](const Value& v) { return v.valid(); })) {
    b.Emit(kWhile, init, {}, where);  // says so
    return Vars(results_count);
  }
  std::vector<TensorType> types;
  for (const Value& value : init) types.push_back(value.type());
  auto after = b.BuildBody(types, body, where);
  auto test = b.BuildBody(types, [&](Builder& inner, const Vars& vars) { return Vars{condition(inner, vars)}; }, where);
  if (!after.graph || !test.graph) return Vars(results_count);
  Attributes attrs{{Attr::kCount, static_cast<std::int64_t>(init.size())},
                   {Attr::kCaptures, static_cast<std::int64_t>(test.captures.size())},
                   {Attr::kBound, bound}};
  init.insert(init.end(), test.captures.begin(), test.captures.end());
  init.insert(init.end(), after.captures.begin(), after.captures.end());
  Vars results = b.Emit(kWhile, init, std::move(attrs), where, {test.graph, after.graph});
  results.resize(results_count);
  return results;
}

Vars Cond(Value condition, const std::function<Vars(Builder&)>& then, const std::function<Vars(Builder&)>& otherwise, Location where) {
  if (condition.valid()) return Cond(condition.builder->Living().Innermost(), condition, then, otherwise, where);
  // Nobody owns it. The branches are written all the same: they say how many values are to be given back.
  Builder nobody;
  return Cond(nobody, condition, then, otherwise, where);
}
Vars Cond(Builder& b, Value condition, const std::function<Vars(Builder&)>& then, const std::function<Vars(Builder&)>& otherwise,
          Location where) {
  std::size_t results_count = 1;
  auto branch = [&](const std::function<Vars(Builder&)>& write) {
    return b.BuildBody(
        {},
        [&](Builder& inner, const Vars&) {
          Vars values = write(inner);
          results_count = std::max(results_count, values.size());
          return values;
        },
        where);
  };
  auto first = branch(then), second = branch(otherwise);
  if (!first.graph || !second.graph) return Vars(results_count);
  Vars inputs{condition};
  inputs.insert(inputs.end(), first.captures.begin(), first.captures.end());
  inputs.insert(inputs.end(), second.captures.begin(), second.captures.end());
  Vars results =
      b.Emit(kCond, inputs, {{Attr::kCaptures, static_cast<std::int64_t>(first.captures.size())}}, where, {first.graph, second.graph});
  results.resize(results_count);
  return results;
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
  inputs.insert(inputs.begin(), b.Token(channel, where));
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
                   {{Attr::kCount, GroupSize(b, group)}, {Attr::kGroup, group}, {Attr::kAxis, FromFront(a.value, axis)}}, a.where)[1];
}
Value ReduceScatter(Arg a, StateId channel, std::string group, int axis) {
  if (!a.value.valid()) return {};
  Builder& b = *a.value.builder;
  return OnChannel(b, kReduceScatter, channel, {a.value},
                   {{Attr::kCount, GroupSize(b, group)}, {Attr::kGroup, group}, {Attr::kAxis, FromFront(a.value, axis)}}, a.where)[1];
}
void Send(Arg a, StateId channel, std::int64_t peer, std::string key) {
  if (!a.value.valid()) return;
  OnChannel(*a.value.builder, kSend, channel, {a.value}, {{Attr::kPeer, peer}, {Attr::kName, std::move(key)}}, a.where);
}
Value Recv(Builder& b, TensorType type, StateId channel, std::int64_t peer, std::string key, Location where) {
  return OnChannel(b, kRecv, channel, {},
                   {{Attr::kPeer, peer}, {Attr::kName, std::move(key)}, {Attr::kShape, type.shape}, {Attr::kDtype, Code64(type.dtype)}},
                   where)[1];
}

}  // namespace ropewalk::mlrunner
