#include "mlrunner/models/lstm.h"

#include <cmath>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {
namespace {

Value FirstOf(Builder& b, const std::vector<Value>& given, std::size_t at, const Value& x, std::int64_t width) {
  return at < given.size() ? given[at] : Fill(b, 0, x.dtype(), {x.dim(1), width});
}

// x (T, ...), the last step first; T a number.
Value Reversed(Builder& b, const Value& x) {
  std::vector<std::int32_t> steps(static_cast<std::size_t>(x.dim(0).Constant().value_or(0)));
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<std::int32_t>(steps.size() - 1 - i);
  return Gather(x, Constant(b, Literal::Of(Dtype::kI32, {static_cast<std::int64_t>(steps.size())}, steps)));
}

// One direction of a layer; its states are put behind those of `result`.
Value OneWay(Builder& b, Layers& m, const Value& x, const LstmOptions& options, LstmResult* result) {
  const std::int64_t h = options.hidden;
  // As PyTorch begins all of its parameters.
  const double bound = 1 / std::sqrt(static_cast<double>(h));
  const Initializer init = Initializer::Uniform(-bound, bound);
  Parameter w_ih = m.New("w_ih", {4 * h, x.dim(-1)}, init), w_hh = m.New("w_hh", {4 * h, h}, init);
  Parameter b_ih = m.New("b_ih", {4 * h}, init), b_hh = m.New("b_hh", {4 * h}, init);
  const std::size_t at = result->hidden.size();
  LstmStates states = Lstm(MatMul(x, w_ih, false, true), b_ih + b_hh, w_hh, FirstOf(b, options.hidden_first, at, x, h),
                           FirstOf(b, options.cell_first, at, x, h));
  const Dim steps = x.dim(0);
  result->hidden.push_back(Reshape(SliceAxis(states.hidden, 0, steps - 1, steps), {x.dim(1), h}));
  result->cell.push_back(states.cell);
  return states.hidden;
}

LstmResult Encode(Builder& b, Layers& m, const LstmShape& s, const Value& ids) {
  Parameter table = m.New("tokens", {s.symbols, s.width}, Initializer::Normal(1));
  // Of the ids, not of what they stand for: that is as many numbers as the table is wide.
  Value x = Gather(table, Transpose(ids));
  return LstmLayers(b, m, "lstm", x,
                    {.hidden = s.hidden,
                     .layers = s.layers,
                     .dropout = s.dropout,
                     .bidirectional = s.bidirectional,
                     .hidden_first = {},
                     .cell_first = {}});
}

}  // namespace

LstmResult LstmLayers(Builder& b, Layers& m, const std::string& name, Value x, const LstmOptions& options) {
  LstmResult result;
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    auto module = b.Module(name + "/layer" + std::to_string(layer), static_cast<std::int32_t>(layer));
    if (layer > 0 && options.dropout > 0) x = Dropout(x, options.dropout, 1);
    Value y = OneWay(b, m, x, options, &result);
    if (options.bidirectional && x.valid()) {
      auto reverse = b.Module("reverse", static_cast<std::int32_t>(layer));
      y = Concat({y, Reversed(b, OneWay(b, m, Reversed(b, x), options, &result))}, 2);
    }
    x = y;
  }
  result.y = x;
  return result;
}

Model LstmLanguage(Builder& b, const LstmShape& shape, const Value& ids) {
  Layers m(b);
  if (shape.bidirectional) {
    b.Fail(Status(Code::kInvalid, "GRAPH09", "a model of the next symbol goes in both directions",
                  "backwards it would see what it shall say", "take bidirectional out, or build a classifier"));
    return {};
  }
  Value y = Transpose(Encode(b, m, shape, ids).y, {1, 0, 2});  // (B, T, H)
  return {m.Linear("head", y, shape.symbols, FanIn(y, 1)), m.parameters()};
}

Model LstmClassifier(Builder& b, const LstmShape& shape, std::int64_t classes, const Value& ids) {
  Layers m(b);
  const std::vector<Value> hidden = Encode(b, m, shape, ids).hidden;
  if (!b.status().ok()) return {};
  Value last = shape.bidirectional ? Concat({hidden[hidden.size() - 2], hidden.back()}, 1) : hidden.back();
  return {m.Linear("head", last, classes, FanIn(last, 1)), m.parameters()};
}

}  // namespace ropewalk::mlrunner
