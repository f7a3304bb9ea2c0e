// Definitions of while, cond, and of the ops between ranks.
#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/residual_norm.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;

// While: inputs are n variables, the captures of the condition, the captures of the body. Outputs are the n variables, the number of rounds
// (i64), and for each variable of kStacked its values at the start of each round: (bound, ...).
Result<Types> InferWhile(const InferContext& c) {
  auto n = static_cast<std::size_t>(c.op.attrs.Int(Attr::kCount));
  const Graph &condition = *c.op.bodies.at(0), &body = *c.op.bodies.at(1);
  if (condition.outputs.size() != 1 || condition.value(condition.outputs[0].value).type != TensorType{Dtype::kBool, {}}) {
    return Misfit(c,
                  fmt::format("the condition must give one bool, and gives {} values{}", condition.outputs.size(),
                              condition.outputs.size() == 1 ? " of another type or shape" : ""),
                  "return a comparison of scalars from it; reduce one of tensors first");
  }
  if (body.outputs.size() != n) {
    return Misfit(c, fmt::format("the body gives {} values for {} variables", body.outputs.size(), n),
                  "return each variable's next value, in their order");
  }
  Types types;
  for (std::size_t i = 0; i < n; ++i) {
    const TensorType& after = body.value(body.outputs[i].value).type;
    if (after != c.in[i]) {
      return Misfit(c,
                    fmt::format("variable {} begins as {} {} and the body makes it {} {}", i, c.Show(i), Name(c.in[i].dtype),
                                ToString(after.shape, c.symbols), Name(after.dtype)),
                    "variables keep their type and shape: Cast or Reshape in the body, or begin with what it makes");
    }
    types.push_back(after);
  }
  types.push_back({Dtype::kI64, {}});
  for (std::int64_t stacked : c.op.attrs.Ints(Attr::kStacked)) {
    TensorType stack = types.at(stacked);
    stack.shape.insert(stack.shape.begin(), Dim(c.op.attrs.Int(Attr::kBound)));
    types.push_back(stack);
  }
  return types;
}

// Backwards: a while over the rounds from the last to the first. Each round reads the variables as they were from stacks that the forward
// op keeps from now on, computes the body again and its gradients. Gradients of captures are summed over the rounds. A derivative of a
// derivative finds users of the stacks, too: what they give a row belongs to the variable at the start of that round.
Gradients WhileGradient(const GradientContext& c) {
  auto n = static_cast<std::size_t>(c.op.attrs.Int(Attr::kCount));
  auto condition_captures = static_cast<std::size_t>(c.op.attrs.Int(Attr::kCaptures));
  std::shared_ptr<const Graph> body = c.op.bodies[1];
  std::vector<Value> captures(c.in.begin() + static_cast<std::ptrdiff_t>(n + condition_captures), c.in.end());

  // The forward op gets the stacks as further outputs.
  Graph& graph = c.b.mutable_graph();
  OpId forward = graph.value(c.out[0].id).producer;
  std::vector<Value> stacks;
  if (!graph.op(forward).attrs.Has(Attr::kStacked)) {
    std::vector<std::int64_t> all(n);
    for (std::size_t i = 0; i < n; ++i) all[i] = static_cast<std::int64_t>(i);
    graph.op(forward).attrs.Set(Attr::kStacked, all);
    for (std::size_t i = 0; i < n; ++i) {
      ValueInfo info;
      info.type = c.in[i].type();
      info.type.shape.insert(info.type.shape.begin(), Dim(c.op.attrs.Int(Attr::kBound)));
      info.logical = info.type.shape;
      info.producer = forward;
      info.output = static_cast<std::uint32_t>(graph.op(forward).outputs.size());
      graph.op(forward).outputs.push_back({static_cast<std::uint32_t>(graph.values.size())});
      graph.values.push_back(info);
    }
  }
  for (std::size_t i = 0; i < n; ++i) stacks.push_back({&c.b, graph.op(forward).outputs[n + 1 + i]});
  std::vector<Value> stack_grads(n);
  for (std::size_t i = 0; i < n && n + 1 + i < c.grads.size(); ++i) stack_grads[i] = c.grads[n + 1 + i].Dense();

  // Variables of the backward loop: the round, the gradients of the float variables, the sums of those of the float captures.
  std::vector<std::size_t> float_vars, float_captures;
  Vars init{c.out[n]};
  for (std::size_t i = 0; i < n; ++i) {
    if (!IsFloat(c.in[i].dtype())) continue;
    float_vars.push_back(i);
    init.push_back(c.grads[i].valid() ? c.grads[i].Dense() : Fill(c.b, 0, c.in[i].dtype(), c.in[i].shape()));
  }
  for (std::size_t i = 0; i < captures.size(); ++i) {
    if (!IsFloat(captures[i].dtype())) continue;
    float_captures.push_back(i);
    init.push_back(Fill(c.b, 0, captures[i].dtype(), captures[i].shape()));
  }
  Vars result = While(
      c.b, init, c.op.attrs.Int(Attr::kBound), [](Builder&, const Vars& v) { return Greater(v[0], 0); },
      [&](Builder& b, const Vars& v) {
        Value round = v[0] - 1;
        std::vector<Value> arguments;
        for (const Value& stack : stacks) arguments.push_back(At(stack, round));
        for (const Value& capture : captures) arguments.push_back(Identity(b, capture));
        std::vector<Value> after = b.Inline(*body, arguments);
        std::vector<Value> of, with;
        Gradients seeds;
        for (std::size_t k = 0; k < float_vars.size(); ++k) {
          of.push_back(after[float_vars[k]]);
          seeds.emplace_back(v[1 + k]);
          with.push_back(arguments[float_vars[k]]);
        }
        for (std::size_t i : float_captures) with.push_back(arguments[n + i]);
        Gradients grads = Grad(of, seeds, with);
        Vars next{round};
        for (std::size_t k = 0; k < float_vars.size(); ++k) {
          const Value& stack_grad = stack_grads[float_vars[k]];
          next.push_back(stack_grad.valid() ? grads[k].Dense() + At(stack_grad, round) : grads[k].Dense());
        }
        for (std::size_t k = 0; k < float_captures.size(); ++k) {
          next.push_back(v[1 + float_vars.size() + k] + grads[float_vars.size() + k].Dense());
        }
        return next;
      });
  Gradients grads(c.in.size());
  for (std::size_t k = 0; k < float_vars.size(); ++k) grads[float_vars[k]] = result[1 + k];
  for (std::size_t k = 0; k < float_captures.size(); ++k) {
    grads[n + condition_captures + float_captures[k]] = result[1 + float_vars.size() + k];
  }
  return grads;
}

// Cond: inputs are the condition, the captures of the first body, the captures of the second.
Result<Types> InferCond(const InferContext& c) {
  if (c.in[0] != TensorType{Dtype::kBool, {}}) {
    return Misfit(c, "the condition is one bool", "compare scalars; reduce a comparison of tensors first");
  }
  const Graph &then = *c.op.bodies.at(0), &otherwise = *c.op.bodies.at(1);
  if (then.outputs.size() != otherwise.outputs.size()) {
    return Misfit(c, fmt::format("the branches give different numbers of values, {} and {}", then.outputs.size(), otherwise.outputs.size()),
                  "return as many from both");
  }
  Types types;
  for (std::size_t i = 0; i < then.outputs.size(); ++i) {
    const TensorType &a = then.value(then.outputs[i].value).type, &b = otherwise.value(otherwise.outputs[i].value).type;
    if (a != b) {
      return Misfit(c,
                    fmt::format("value {} is {} {} in one branch and {} {} in the other", i, ToString(a.shape, c.symbols), Name(a.dtype),
                                ToString(b.shape, c.symbols), Name(b.dtype)),
                    "Cast or Reshape in one of them");
    }
    types.push_back(a);
  }
  return types;
}

// The same choice between the branches' gradients.
Gradients CondGradient(const GradientContext& c) {
  auto first = static_cast<std::size_t>(c.op.attrs.Int(Attr::kCaptures));
  std::vector<Value> captures(c.in.begin() + 1, c.in.end());
  std::vector<std::size_t> floats;
  for (std::size_t i = 0; i < captures.size(); ++i) {
    if (IsFloat(captures[i].dtype())) floats.push_back(i);
  }
  auto branch = [&](int which) {
    return [&, which](Builder& b) {
      std::size_t from = which == 0 ? 0 : first, to = which == 0 ? first : captures.size();
      std::vector<Value> arguments, of;
      for (std::size_t i = from; i < to; ++i) arguments.push_back(Identity(b, captures[i]));
      std::vector<Value> outputs = b.Inline(*c.op.bodies[which], arguments);
      Gradients seeds;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!c.grads[i].valid()) continue;
        of.push_back(outputs[i]);
        seeds.push_back(c.grads[i].Dense());
      }
      Gradients grads = Grad(of, seeds, arguments);
      Vars all;
      for (std::size_t i : floats) {
        bool own = i >= from && i < to;
        all.push_back(own ? grads[i - from].Dense() : Fill(b, 0, captures[i].dtype(), captures[i].shape()));
      }
      return all;
    };
  };
  Gradients grads(c.in.size());
  if (floats.empty()) return grads;
  Vars result = Cond(c.b, c.in[0], branch(0), branch(1));
  for (std::size_t k = 0; k < floats.size(); ++k) grads[1 + floats[k]] = result[k];
  return grads;
}

// Ops between ranks take the channel's version first and give the next one first: the order of a channel is the order of its versions.
Result<Types> WithToken(const InferContext& c, Types types) {
  if (c.in.empty() || c.in[0].dtype != Dtype::kToken) {
    return Misfit(c, "it is ordered by a channel, whose version comes first", "let the pass give it the channel's token as input 0");
  }
  types.insert(types.begin(), TensorType{Dtype::kToken, {}});
  return types;
}
Result<Types> InferAllReduce(const InferContext& c) { return WithToken(c, {c.in.at(1)}); }
Result<Types> InferAllGather(const InferContext& c) {
  TensorType type = c.in.at(1);
  int axis = AxisOf(c, type);
  if (axis < 0) return NoSuchAxis(c, type);
  type.shape[axis] = type.shape[axis] * Dim(c.op.attrs.Int(Attr::kCount));
  return WithToken(c, {type});
}
Result<Types> InferReduceScatter(const InferContext& c) {
  TensorType type = c.in.at(1);
  int axis = AxisOf(c, type);
  if (axis < 0) return NoSuchAxis(c, type);
  auto part = type.shape[axis].DividedBy(Dim(c.op.attrs.Int(Attr::kCount)));
  if (!part) {
    return Misfit(c, fmt::format("the axis does not divide by {} ranks", c.op.attrs.Int(Attr::kCount)),
                  "PadAxis first, and slice the padding off after the gather");
  }
  type.shape[axis] = *part;
  return WithToken(c, {type});
}
Result<Types> InferSend(const InferContext& c) { return WithToken(c, {}); }
Result<Types> InferRecv(const InferContext& c) {
  return WithToken(c, {{static_cast<Dtype>(c.op.attrs.Int(Attr::kDtype)), c.op.attrs.ShapeOf(Attr::kShape)}});
}

}  // namespace

const OpDef kWhile{"While", -1, -1, InferWhile, WhileGradient, nullptr, {}};
const OpDef kCond{"Cond", -1, -1, InferCond, CondGradient, nullptr, {}};
// No gradient rules: whether the adjoint of a sum over ranks is a sum or a copy depends on what the losses of the ranks are. The strategy
// says
// it with CustomGradient (Megatron's f and g).
const OpDef kAllReduce{"AllReduce", 2, 2, InferAllReduce, nullptr, nullptr, {.collective = true}};
const OpDef kAllGather{"AllGather", 2, 2, InferAllGather, nullptr, nullptr, {.collective = true}};
const OpDef kReduceScatter{"ReduceScatter", 2, 2, InferReduceScatter, nullptr, nullptr, {.collective = true}};
const OpDef kSend{"Send", 2, 1, InferSend, nullptr, nullptr, {.collective = true}};
const OpDef kRecv{"Recv", 1, 2, InferRecv, nullptr, nullptr, {.collective = true}};

const std::vector<const OpDef*>& BuiltinOps() {
  static const std::vector<const OpDef*> kAll = {&kInput,
                                                 &kFirstVersion,
                                                 &kRead,
                                                 &kAssign,
                                                 &kIdentity,
                                                 &kStopGradient,
                                                 &kCustomGradient,
                                                 &kAdd,
                                                 &kSub,
                                                 &kMul,
                                                 &kDiv,
                                                 &kMaximum,
                                                 &kMinimum,
                                                 &kPow,
                                                 &kLess,
                                                 &kGreater,
                                                 &kEqual,
                                                 &kSelect,
                                                 &kNeg,
                                                 &kExp,
                                                 &kLog,
                                                 &kSqrt,
                                                 &kRsqrt,
                                                 &kTanh,
                                                 &kSigmoid,
                                                 &kErf,
                                                 &kSin,
                                                 &kCos,
                                                 &kAbs,
                                                 &kSign,
                                                 &kRelu,
                                                 &kIsFinite,
                                                 &kCast,
                                                 &kReshape,
                                                 &kTranspose,
                                                 &kBroadcastTo,
                                                 &kSlice,
                                                 &kPad,
                                                 &kConcat,
                                                 &kAt,
                                                 &kSetAt,
                                                 &kRelayout,
                                                 &kConstant,
                                                 &kFill,
                                                 &kIota,
                                                 &kDimSize,
                                                 &kRandomUniform,
                                                 &kReduceSum,
                                                 &kReduceMax,
                                                 &kArgMax,
                                                 &kMatMul,
                                                 &kConv2D,
                                                 &kConv2DInputGrad,
                                                 &kConv2DWeightGrad,
                                                 &kMaxPool2D,
                                                 &kMaxPool2DGrad,
                                                 &kAvgPool2D,
                                                 &kAvgPool2DGrad,
                                                 &kGather,
                                                 &kScatterAdd,
                                                 &kOneHot,
                                                 &kGelu,
                                                 &kGeluGrad,
                                                 &kGeluErf,
                                                 &kGeluErfGrad,
                                                 &kSoftmax,
                                                 &kSoftmaxGrad,
                                                 &kLogSoftmax,
                                                 &kCrossEntropy,
                                                 &kCrossEntropyGrad,
                                                 &kLayerNorm,
                                                 &kLayerNormGrad,
                                                 &kLstm,
                                                 &kLstmGrad,
                                                 &kSumRows,
                                                 &kBagsOf,
                                                 &kStackedRows,
                                                 &kAddRows,
                                                 &kAdagradRows,
                                                 &kPairDots,
                                                 &kPairDotsGrad,
                                                 &kTopK,
                                                 &kTopKGrad,
                                                 &kExpertSlots,
                                                 &kBinaryCrossEntropy,
                                                 &kBinaryCrossEntropyGrad,
                                                 &kBatchMoments,
                                                 &kBatchNorm,
                                                 &kBatchNormInference,
                                                 &kBatchNormSums,
                                                 &kBatchNormInputGrad,
                                                 &kAdamW,
                                                 &kLamb,
                                                 &kAdagrad,
                                                 &kAttention,
                                                 &kCausalAttention,
                                                 &kAttentionGrad,
                                                 &kCausalAttentionGrad,
                                                 &kRmsNorm,
                                                 &kRmsNormGrad,
                                                 &kAddLayerNorm,
                                                 &kAddRmsNorm,
                                                 &kAddLayerNormGrad,
                                                 &kAddRmsNormGrad,
                                                 &kMap,
                                                 &kWhile,
                                                 &kCond,
                                                 &kAllReduce,
                                                 &kAllGather,
                                                 &kReduceScatter,
                                                 &kSend,
                                                 &kRecv,
                                                 &kBucket};
  return kAll;
}

}  // namespace ropewalk::mlrunner
