// Definitions of ops over the steps of a sequence.
#include <fmt/format.h>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

using Gradients = std::vector<Gradient>;
using Values = std::vector<Value>;

bool AllOfType(const InferContext& c) {
  for (const TensorType& in : c.in) {
    if (in.dtype != c.in[0].dtype) return false;
  }
  return IsFloat(c.in[0].dtype);
}
// The shapes that a layer of width H has over (T, B, H), in terms of the states before it.
struct LstmShapes {
  Shape states, gates, state, weights, bias;  // (T, B, H), (T, B, 4 H), (B, H), (4 H, H), (4 H)
};
LstmShapes ShapesOf(const Dim& steps, const Shape& state) {
  const Dim four = Dim(4) * state[1];
  return {{steps, state[0], state[1]}, {steps, state[0], four}, state, {four, state[1]}, {four}};
}
bool IsCount(const Dim& steps) { return steps.IsConstant() && steps.Constant().value_or(0) > 0; }

// (x, bias, w, h, c) -> hidden states, the last cell state; kept for the gradient: cell states, gates
Result<Types> InferLstm(const InferContext& c) {
  const Shape &x = c.in[0].shape, &h = c.in[3].shape;
  bool fits = AllOfType(c) && x.size() == 3 && h.size() == 2;
  if (fits) {
    const LstmShapes s = ShapesOf(x[0], h);
    fits = x == s.gates && c.in[1].shape == s.bias && c.in[2].shape == s.weights && c.in[4].shape == s.state;
  }
  if (!fits) {
    return Misfit(c, "it takes (T, B, 4 H), a bias (4 H), weights (4 H, H) and two states (B, H) of one floating-point type",
                  "make the last dimension of the first four times that of the states, in the order of the gates i, f, g, o");
  }
  if (!IsCount(x[0])) {
    return Misfit(c, fmt::format("its number of steps is {}", x[0].ToString(c.symbols)),
                  "give the length a number, 1 or more; batches may be symbols");
  }
  const LstmShapes s = ShapesOf(x[0], h);
  const Dtype dtype = c.in[0].dtype;
  return Types{{dtype, s.states}, {dtype, s.state}, {dtype, s.states}, {dtype, s.gates}};
}

// Row t of a stack (T, B, n), as (B, n).
Value Row(const Value& stack, std::int64_t t) { return Reshape(SliceAxis(stack, 0, t, t + 1), {stack.shape()[1], stack.shape()[2]}); }
Value AsRow(const Value& value) { return Reshape(value, {1, value.shape()[0], value.shape()[1]}); }
// Part k of four.
Value Part(const Value& gates, int k, const Dim& width) { return SliceAxis(gates, 1, Dim(k) * width, Dim(k + 1) * width); }
std::int64_t StepsOf(const Value& stack) { return stack.dim(0).Constant().value_or(0); }

Values LstmExpand(Builder&, const Op&, const Values& in) {
  Value h = in[3], c = in[4];
  const Dim width = h.dim(1);
  Values hidden, cells, gates;
  for (std::int64_t t = 0; t < StepsOf(in[0]); ++t) {
    Value z = Row(in[0], t) + in[1] + MatMul(h, in[2], false, true);
    Value i = Sigmoid(Part(z, 0, width)), f = Sigmoid(Part(z, 1, width)), g = Tanh(Part(z, 2, width)), o = Sigmoid(Part(z, 3, width));
    c = f * c + i * g;
    h = o * Tanh(c);
    hidden.push_back(AsRow(h));
    cells.push_back(AsRow(c));
    gates.push_back(AsRow(Concat({i, f, g, o}, 1)));
  }
  return {Concat(hidden, 0), c, Concat(cells, 0), Concat(gates, 0)};
}

// Everything but the recurrence is products of whole sequences, which the graph does.
Gradients LstmGradient(const GradientContext& c) {
  const Value &w = c.in[2], &hidden = c.out[0];
  auto given = [&](std::size_t i) { return c.grads[i].valid() ? c.grads[i].Dense() : Fill(c.b, 0, c.out[i].dtype(), c.out[i].shape()); };
  Values back = c.b.Emit(kLstmGrad, {w, c.in[4], c.out[2], c.out[3], given(0), given(1)}, {}, c.op.provenance.where);
  const Value& dx = back[0];
  const std::int64_t steps = StepsOf(dx);
  // What was multiplied by the weights: the state before the first step, then all states but the last.
  Value dw = MatMul(Row(dx, 0), c.in[3], true, false);
  if (steps > 1) {
    const Dim rows = Dim(steps - 1) * dx.dim(1);
    dw = dw + MatMul(Reshape(SliceAxis(dx, 0, 1, steps), {rows, dx.dim(2)}),
                     Reshape(SliceAxis(hidden, 0, 0, steps - 1), {rows, hidden.dim(2)}), true, false);
  }
  return {dx, ReduceSum(dx, {0, 1}), dw, back[1], back[2]};
}

// (w, c, cell states, gates, gradient of the hidden states, that of the last cell state) -> gradients of x, h, c
Result<Types> InferLstmGrad(const InferContext& c) {
  const Shape &state = c.in[1].shape, &states = c.in[2].shape;
  bool fits = AllOfType(c) && state.size() == 2 && states.size() == 3 && IsCount(states[0]);
  if (fits) {
    const LstmShapes s = ShapesOf(states[0], state);
    fits =
        c.in[0].shape == s.weights && states == s.states && c.in[3].shape == s.gates && c.in[4].shape == s.states && c.in[5].shape == state;
  }
  if (!fits) {
    return Misfit(c, "it takes weights (4 H, H), (B, H), (T, B, H), (T, B, 4 H), (T, B, H) and (B, H) of one floating-point type",
                  "let Grad make the op, or give it what the forward op takes and gives");
  }
  return Types{c.in[3], c.in[1], c.in[1]};
}
Values LstmGradExpand(Builder& b, const Op&, const Values& in) {
  const std::int64_t steps = StepsOf(in[2]);
  const Dim width = in[1].dim(1);
  Value dh = Fill(b, 0, in[1].dtype(), in[1].shape()), dc = in[5];
  Values dx(static_cast<std::size_t>(steps));
  for (std::int64_t t = steps; t-- > 0;) {
    Value gates = Row(in[3], t), before = t == 0 ? in[1] : Row(in[2], t - 1), squashed = Tanh(Row(in[2], t));
    Value i = Part(gates, 0, width), f = Part(gates, 1, width), g = Part(gates, 2, width), o = Part(gates, 3, width);
    dh = dh + Row(in[4], t);
    dc = dc + dh * o * (1.0 - squashed * squashed);
    Value dz = Concat({dc * g * i * (1.0 - i), dc * before * f * (1.0 - f), dc * i * (1.0 - g * g), dh * squashed * o * (1.0 - o)}, 1);
    dc = dc * f;
    dh = MatMul(dz, in[0]);
    dx[static_cast<std::size_t>(t)] = AsRow(dz);
  }
  return {Concat(dx, 0), dh, dc};
}

}  // namespace

const OpDef kLstm{"Lstm", 5, 4, InferLstm, LstmGradient, LstmExpand, {.rule_outputs = 2}};
const OpDef kLstmGrad{"LstmGrad", 6, 3, InferLstmGrad, nullptr, LstmGradExpand, {}};

}  // namespace ropewalk::mlrunner
