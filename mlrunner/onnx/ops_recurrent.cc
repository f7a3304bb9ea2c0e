// Recurrent layers: LSTM, which is one op of ours, and GRU and RNN, which are written out step by step.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/onnx/ops.h"

namespace ropewalk::mlrunner::onnx {
namespace {

constexpr std::int64_t kStepsMax = 1 << 20;
constexpr std::int64_t kWrittenOutMax = 1024;  // steps: each is some ops of the graph, and twice as many of its gradient

// One direction of a layer: x (T, B, I); w (G H, I), r (G H, H) with the gates in the file's order; w_bias and r_bias (G H); h and cell
// (B, H).
struct OneWay {
  Value x, w, r, w_bias, r_bias, h, cell;
  bool backwards = false;
  std::int64_t steps = 0, way = 0;
};
struct Made {
  Value all, last, cell;  // (T, B, H), (B, H), (B, H); cell of an LSTM only
};
using Layer = Made (*)(NodeContext&, const OneWay&);

// What the layers have in common; `gates` for each number of the state. The initial cell is input 6 of an LSTM, and ignored elsewhere.
Operands Recurrent(NodeContext& c, std::int64_t gates, std::int64_t steps_max, bool has_cell, Layer layer) {
  Value x = c.Val(0), w = c.Val(1), r = c.Val(2);
  if (!x.valid() || !w.valid() || !r.valid()) return {};
  if (c.Has(4)) return c.Refuse("sequences of different lengths", "leave the lengths out, and mask what is behind the ends");
  if (c.node.Has("clip")) return c.Refuse("what goes into gates is clipped", "export the plain layer, as torch.nn has it");
  if (c.node.Int("layout", 0) != 0) return c.Refuse("the batch comes first (layout = 1)", "use layout = 0, and transpose");
  auto steps = x.dim(0).Constant();
  if (x.rank() != 3 || w.rank() != 3 || r.rank() != 3 || !steps || *steps < 1 || *steps > steps_max) {
    return c.Refuse(fmt::format("it goes over {}, and the number of steps must be known, and {} at most", c.Show(x.shape()), steps_max),
                    "give that length as a number (ImportOptions::lengths)");
  }
  const std::string direction = c.node.String("direction", "forward");
  const std::int64_t ways = direction == "bidirectional" ? 2 : 1;
  const Dim width = r.dim(2), batch = x.dim(1);
  auto part = [&](std::size_t input, std::int64_t way, Shape shape) {
    return Reshape(SliceAxis(c.Val(input), 0, way, way + 1), std::move(shape));
  };
  std::vector<Value> all, last, cells;
  for (std::int64_t way = 0; way < ways && c.ok(); ++way) {
    OneWay one{.x = x, .w = part(1, way, {w.dim(1), w.dim(2)}), .r = part(2, way, {r.dim(1), r.dim(2)})};
    one.backwards = direction == "reverse" || way == 1;
    one.steps = *steps;
    one.way = way;
    auto bias = [&](std::int64_t half) {
      if (!c.Has(3)) return Fill(c.b, 0, x.dtype(), {width * Dim(gates)});
      Value both = part(3, way, {2, width * Dim(gates)});
      return Reshape(SliceAxis(both, 0, half, half + 1), {width * Dim(gates)});
    };
    one.w_bias = bias(0);
    one.r_bias = bias(1);
    auto begin = [&](std::size_t input) {
      return c.Has(input) ? part(input, way, {batch, width}) : Fill(c.b, 0, x.dtype(), {batch, width});
    };
    one.h = begin(5);
    if (has_cell) one.cell = begin(6);
    const Made made = layer(c, one);
    if (!c.ok() || !made.all.valid()) return {};
    all.push_back(Reshape(made.all, {*steps, 1, batch, width}));
    last.push_back(Reshape(made.last, {1, batch, width}));
    if (has_cell) cells.push_back(Reshape(made.cell, {1, batch, width}));
  }
  if (!c.ok()) return {};
  auto joined = [&](const std::vector<Value>& parts, int axis) { return Operand::Of(parts.size() == 1 ? parts[0] : Concat(parts, axis)); };
  Operands results{joined(all, 1), joined(last, 0)};
  if (has_cell) results.push_back(joined(cells, 0));
  return results;
}

// The names of the activations of a direction, in lower case; those of the op where the file says none.
std::vector<std::string> Activations(NodeContext& c, const OneWay& one, std::vector<std::string> otherwise) {
  if (!c.node.Has("activations")) return otherwise;
  const auto names = c.node.Get("activations", std::vector<std::string>());
  const std::size_t count = otherwise.size(), first = static_cast<std::size_t>(one.way) * count;
  if (names.size() < first + count) return {"?"};
  std::vector<std::string> mine(names.begin() + static_cast<std::ptrdiff_t>(first),
                                names.begin() + static_cast<std::ptrdiff_t>(first + count));
  for (std::string& name : mine) std::transform(name.begin(), name.end(), name.begin(), [](unsigned char ch) { return std::tolower(ch); });
  return mine;
}

// --- LSTM ---

Made LstmWay(NodeContext& c, const OneWay& one) {
  if (const std::vector<std::string> plain = {"sigmoid", "tanh", "tanh"}; Activations(c, one, plain) != plain) {
    c.Refuse("other activations", "use the plain LSTM, as torch.nn.LSTM is");
    return {};
  }
  const Dim width = one.r.dim(1);
  auto ordered = [&](const Value& gates) {  // i, o, f, c of the file are i, f, c, o here
    std::vector<Value> parts;
    for (std::int64_t gate : {0, 2, 3, 1}) parts.push_back(SliceAxis(gates, 0, width * Dim(gate), width * Dim(gate + 1)));
    return Concat(parts, 0);
  };
  auto turned = [&](const Value& of) {  // the last step first
    if (!one.backwards || !of.valid()) return of;
    std::vector<std::int64_t> order;
    for (std::int64_t t = one.steps; t-- > 0;) order.push_back(t);
    return Gather(of, Constant(*of.builder, Literal::Of(Dtype::kI64, {one.steps}, order)));
  };
  LstmStates states =
      mlrunner::Lstm(turned(MatMul(one.x, ordered(one.w), false, true)), ordered(one.w_bias + one.r_bias), ordered(one.r), one.h, one.cell);
  if (!states.hidden.valid()) return {};
  const Value last = SliceAxis(states.hidden, 0, one.steps - 1, one.steps);
  return {turned(states.hidden), Reshape(last, {one.x.dim(1), width}), states.cell};
}
Operands LstmOp(NodeContext& c) {
  if (c.Has(7) || c.node.Int("input_forget", 0) != 0)
    return c.Refuse("peepholes or coupled gates", "use the plain LSTM, as torch.nn.LSTM is");
  return Recurrent(c, 4, kStepsMax, true, LstmWay);
}

// --- GRU and RNN ---

// The steps one after the other: h = next(what x gives to the gates of this step (B, G H), h).
template <class Next>
Made StepByStep(const OneWay& one, const Next& next) {
  const Dim batch = one.x.dim(1);
  const Value from_x = MatMul(one.x, one.w, false, true) + one.w_bias;
  if (!from_x.valid()) return {};
  std::vector<Value> all(static_cast<std::size_t>(one.steps));
  Value h = one.h;
  for (std::int64_t i = 0; i < one.steps; ++i) {
    const std::int64_t t = one.backwards ? one.steps - 1 - i : i;
    h = next(Reshape(SliceAxis(from_x, 0, t, t + 1), {batch, from_x.dim(2)}), h);
    if (!h.valid()) return {};
    all[static_cast<std::size_t>(t)] = Reshape(h, {1, batch, h.dim(1)});
  }
  return {all.size() == 1 ? all[0] : Concat(all, 0), h, {}};
}

// z = sigmoid(x Wz + h Rz + bz), r = sigmoid(x Wr + h Rr + br), n = tanh(x Wn + bwn + r (h Rn + brn)), h' = (1 - z) n + z h. Where the file
// resets before the map (linear_before_reset = 0), n = tanh(x Wn + bwn + (r h) Rn + brn).
Made GruWay(NodeContext& c, const OneWay& one) {
  if (Activations(c, one, {"sigmoid", "tanh"}) != std::vector<std::string>{"sigmoid", "tanh"}) {
    c.Refuse("other activations", "use the plain GRU, as torch.nn.GRU is");
    return {};
  }
  const bool maps_first = c.node.Int("linear_before_reset", 0) != 0;
  const Dim width = one.r.dim(1);
  auto gates = [&](const Value& of, int axis, std::int64_t from, std::int64_t to) {
    return SliceAxis(of, axis, width * Dim(from), width * Dim(to));
  };
  const Value r_two = gates(one.r, 0, 0, 2), r_new = gates(one.r, 0, 2, 3), b_two = gates(one.r_bias, 0, 0, 2),
              b_new = gates(one.r_bias, 0, 2, 3);
  return StepByStep(one, [&](const Value& x, const Value& h) {
    const Value both = Sigmoid(gates(x, 1, 0, 2) + MatMul(h, r_two, false, true) + b_two);
    const Value z = gates(both, 1, 0, 1), r = gates(both, 1, 1, 2);
    const Value from_h = maps_first ? r * (MatMul(h, r_new, false, true) + b_new) : MatMul(r * h, r_new, false, true) + b_new;
    const Value made = Tanh(gates(x, 1, 2, 3) + from_h);
    return made + z * (h - made);
  });
}
Operands GruOp(NodeContext& c) { return Recurrent(c, 3, kWrittenOutMax, false, GruWay); }

// h' = f(x W + h R + b)
Made RnnWay(NodeContext& c, const OneWay& one) {
  const std::vector<std::string> f = Activations(c, one, {"tanh"});
  if (f[0] != "tanh" && f[0] != "relu" && f[0] != "sigmoid") {
    c.Refuse("an activation that is none of Tanh, Relu and Sigmoid", "use one of these");
    return {};
  }
  return StepByStep(one, [&](const Value& x, const Value& h) {
    const Value sum = x + (MatMul(h, one.r, false, true) + one.r_bias);
    return f[0] == "tanh" ? Tanh(sum) : f[0] == "relu" ? Relu(sum) : Sigmoid(sum);
  });
}
Operands RnnOp(NodeContext& c) { return Recurrent(c, 1, kWrittenOutMax, false, RnnWay); }

}  // namespace

void AddRecurrent(Importers* table) { table->insert({{"GRU", GruOp}, {"LSTM", LstmOp}, {"RNN", RnnOp}}); }

}  // namespace ropewalk::mlrunner::onnx
