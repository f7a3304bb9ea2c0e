// Definitions of batch norm (Ioffe and Szegedy 2015), of the channels of x (N, C, ...), in the pieces between which ranks may sum:
//
//   forward    moments of the batch  ->  sum over ranks  ->  y = (x - mean) / sqrt(variance + epsilon) * gain + bias, ReLU
//   backward   dgain, dbias          ->  sum over ranks  ->  dx
//
// Where a ReLU is part of the op, backward finds from x again where y was above zero: y need not be kept, nor read.
#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
using Values = std::vector<Value>;

bool HasChannels(const TensorType& x) { return x.shape.size() >= 2 && IsFloat(x.dtype); }
TensorType ChannelsOf(const TensorType& x) { return {x.dtype, {x.shape[1]}}; }
Status NoChannels(const InferContext& c) {
  return Misfit(c, "it takes a floating-point (N, C, ...)", "Cast, or Reshape so that dimension 1 counts the channels");
}
// Whether input `i`, which may be left out, says which rows count.
bool MayCount(const InferContext& c, std::size_t i) {
  return c.in.size() == i || (c.in.size() == i + 1 && c.in[i] == TensorType{c.in[0].dtype, {c.in[0].shape[0]}});
}

// (x[, counted (N)]) -> mean (C), variance (C)
Result<Types> InferMoments(const InferContext& c) {
  if (c.in.empty() || !HasChannels(c.in[0])) return NoChannels(c);
  if (!MayCount(c, 1)) {
    return Misfit(c, "beside x there may be a vector (N) of its type, which says what rows count", "give one number for each row, 0 or 1");
  }
  return Types{ChannelsOf(c.in[0]), ChannelsOf(c.in[0])};
}
// (x, gain, bias, mean, variance) of which all but x are (C), and for the batch's own moments count (), and perhaps counted (N)
Result<Types> InferBatchNorm(const InferContext& c) {
  if (c.in.empty() || !HasChannels(c.in[0])) return NoChannels(c);
  const bool of_batch = c.op.def == &kBatchNorm;
  bool fits = c.in.size() >= (of_batch ? 6 : 5);
  for (std::size_t i = 1; i < 5 && fits; ++i) fits = c.in[i] == ChannelsOf(c.in[0]);
  if (of_batch && fits) fits = c.in[5] == TensorType{c.in[0].dtype, {}} && MayCount(c, 6);
  if (!fits) {
    return Misfit(c, "it takes (N, C, ...) and four vectors (C) of one floating-point type: gain, bias, mean and variance",
                  "give as many numbers as dimension 1 has channels, and Cast all to one type");
  }
  return Types{c.in[0]};
}
Result<Types> InferSums(const InferContext& c) {  // (x, g, gain, bias, mean, variance) -> dgain, dbias
  if (c.in.size() != 6 || !HasChannels(c.in[0]) || c.in[1] != c.in[0]) return NoChannels(c);
  for (std::size_t i = 2; i < 6; ++i) {
    if (c.in[i] != ChannelsOf(c.in[0])) return NoChannels(c);
  }
  return Types{c.in[2], c.in[2]};
}
Result<Types> InferInputGrad(const InferContext& c) {  // (x, g, gain, bias, mean, variance, dgain, dbias, count[, counted]) -> dx
  if (c.in.size() < 9 || !HasChannels(c.in[0]) || c.in[1] != c.in[0] || !MayCount(c, 9)) return NoChannels(c);
  for (std::size_t i = 2; i < 8; ++i) {
    if (c.in[i] != ChannelsOf(c.in[0])) return NoChannels(c);
  }
  return Types{c.in[0]};
}

// (C) and (N) as they broadcast over x.
Value OverChannels(const Value& x, const Value& v) {
  Shape shape(x.rank() - 1, Dim(1));
  shape[0] = x.dim(1);
  return Reshape(v, shape);
}
Value OverRows(const Value& x, const Value& v) {
  Shape shape(x.rank(), Dim(1));
  shape[0] = x.dim(0);
  return Reshape(v, shape);
}
Value SumOfChannels(const Value& x) {
  std::vector<std::int64_t> axes{0};
  for (std::size_t d = 2; d < x.rank(); ++d) axes.push_back(static_cast<std::int64_t>(d));
  return ReduceSum(x, axes);
}
Value Rstd(const Op& op, const Value& variance) { return Rsqrt(variance + op.attrs.Double(Attr::kEpsilon)); }
// (x, gain, bias, mean, variance) -> y without its ReLU
Value Normal(const Op& op, const Value& x, const Value& gain, const Value& bias, const Value& mean, const Value& variance) {
  return (x - OverChannels(x, mean)) * OverChannels(x, Rstd(op, variance) * gain) + OverChannels(x, bias);
}
bool HasRelu(const Op& op) { return op.attrs.Int(Attr::kRelu) != 0; }
// (x, g, gain, bias, mean, variance, ...) -> the gradient of y without its ReLU
Value BeforeRelu(const Op& op, const Values& in) {
  return HasRelu(op) ? Select(Greater(Normal(op, in[0], in[2], in[3], in[4], in[5]), 0), in[1], 0) : in[1];
}

Values MomentsExpand(Builder& b, const Op&, const Values& in) {
  const Value& x = in[0];
  const Shape shape = x.shape();
  const Dim of_a_row = NumElements(Shape(shape.begin() + 2, shape.end()));  // in a channel
  const bool counts = in.size() > 1;
  auto counted = [&](const Value& v) { return counts ? v * OverRows(x, in[1]) : v; };
  Value count = DimSize(b, counts ? of_a_row : x.dim(0) * of_a_row, x.dtype());
  if (counts) count = count * ReduceSum(in[1]);
  count = Maximum(count, 1);
  Value mean = SumOfChannels(counted(x)) / count;
  return {mean, SumOfChannels(counted(Square(x - OverChannels(x, mean)))) / count};
}
Values BatchNormExpand(Builder&, const Op& op, const Values& in) {
  Value y = Normal(op, in[0], in[1], in[2], in[3], in[4]);
  return {HasRelu(op) ? Relu(y) : y};
}
Values SumsExpand(Builder&, const Op& op, const Values& in) {
  Value g = BeforeRelu(op, in);
  return {SumOfChannels(g * (in[0] - OverChannels(in[0], in[4]))) * Rstd(op, in[5]), SumOfChannels(g)};
}
Values InputGradExpand(Builder&, const Op& op, const Values& in) {
  const Value &x = in[0], rstd = Rstd(op, in[5]), count = Maximum(in[8], 1);
  // What all elements that count share: the mean moves with each of them, and so does the variance.
  Value shared = OverChannels(x, in[7] / count) + (x - OverChannels(x, in[4])) * OverChannels(x, rstd * in[6] / count);
  if (in.size() > 9) shared = shared * OverRows(x, in[9]);
  return {(BeforeRelu(op, in) - shared) * OverChannels(x, in[2] * rstd)};
}

// The sum over ranks, where the moments were of all of them.
Values OfAllRanks(const GradientContext& c, const Values& sums) {
  const std::string channel = c.op.attrs.String(Attr::kName);
  const std::vector<StateInfo>& states = c.b.graph().states;
  for (std::uint32_t i = 0; i < states.size() && !channel.empty(); ++i) {
    if (states[i].name != channel) continue;
    Value all = AllReduce(Concat(sums, 0), StateId{i}, c.op.attrs.String(Attr::kGroup));
    const Dim n = sums[0].dim(0);
    return {SliceAxis(all, 0, 0, n), SliceAxis(all, 0, n, n + n)};
  }
  if (!channel.empty()) {
    c.b.Fail(Status(Code::kInvalid, "GRAPH06", fmt::format("there is no channel {}", channel),
                    "the moments of a batch norm are of several ranks, and so are the sums of its gradient",
                    "differentiate in the builder that has the channel"));
  }
  return sums;
}
Attributes NormAttrs(const GradientContext& c) {
  return {{Attr::kEpsilon, c.op.attrs.Double(Attr::kEpsilon)}, {Attr::kRelu, c.op.attrs.Int(Attr::kRelu)}};
}
// (x, gain, bias, mean, variance, count[, counted]): all of the gradient by x goes this way, the moments pass none on.
Gradients BatchNormGradient(const GradientContext& c) {
  const Location where = c.op.provenance.where;
  Values in{c.in[0], c.grads[0].Dense(), c.in[1], c.in[2], c.in[3], c.in[4]};
  Values sums = c.b.Emit(kBatchNormSums, in, NormAttrs(c), where);
  if (sums.size() < 2) return {};
  Values all = OfAllRanks(c, sums);
  in.insert(in.end(), {all[0], all[1]});
  in.insert(in.end(), c.in.begin() + 5, c.in.end());
  Gradients gradients{c.b.EmitOne(kBatchNormInputGrad, in, NormAttrs(c), where), sums[0], sums[1]};
  gradients.resize(c.in.size());
  return gradients;
}
// (x, gain, bias, mean, variance): each of them is a function's argument like any other, and no element moves the moments.
Gradients InferenceGradient(const GradientContext& c) {
  const Location where = c.op.provenance.where;
  Values in{c.in[0], c.grads[0].Dense(), c.in[1], c.in[2], c.in[3], c.in[4]};
  Values sums = c.b.Emit(kBatchNormSums, in, NormAttrs(c), where);
  if (sums.size() < 2) return {};
  Value scale = c.in[1] * Rstd(c.op, c.in[4]), none = Fill(c.b, 0, c.in[0].dtype(), c.in[1].shape());
  in.insert(in.end(), {none, none, c.b.Number(1, c.in[0].dtype())});
  return {c.b.EmitOne(kBatchNormInputGrad, in, NormAttrs(c), where), sums[0], sums[1], -(sums[1] * scale),
          sums[0] * scale * Rstd(c.op, c.in[4]) * -.5};
}

}  // namespace

const OpDef kBatchMoments{"BatchMoments", -1, 2, InferMoments, nullptr, MomentsExpand, {}};
const OpDef kBatchNorm{"BatchNorm", -1, 1, InferBatchNorm, BatchNormGradient, BatchNormExpand, {}};
const OpDef kBatchNormInference{"BatchNormInference", 5, 1, InferBatchNorm, InferenceGradient, BatchNormExpand, {}};
const OpDef kBatchNormSums{"BatchNormSums", 6, 2, InferSums, nullptr, SumsExpand, {}};
const OpDef kBatchNormInputGrad{"BatchNormInputGrad", -1, 1, InferInputGrad, nullptr, InputGradExpand, {}};

}  // namespace ropewalk::mlrunner
