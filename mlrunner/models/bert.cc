#include "mlrunner/models/bert.h"

#include <cmath>
#include <string>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {
namespace {

const Initializer kInit = Initializer::Normal(.02);
constexpr double kEpsilon = 1e-12;  // of norms, as in the paper's code

Value Drop(const BertShape& s, const Value& x) { return s.dropout > 0 ? Dropout(x, s.dropout) : x; }

// x (B, T, C) -> (B, T, C); `hidden_below` (B, 1, 1, T), far below zero where nothing may look, or not valid().
Value Attention(const BertShape& s, Layers& m, const Value& x, const Value& hidden_below) {
  const std::int64_t d = s.width / s.heads;
  const Dim rows = x.dim(0), length = x.dim(1);
  Value qkv = m.Linear("qkv", x, 3 * s.width, kInit);
  auto heads = [&](std::int64_t part) {  // (B, T, 3 C) -> (B, heads, T, D)
    return Transpose(Reshape(SliceAxis(qkv, -1, part * s.width, (part + 1) * s.width), {rows, length, s.heads, d}), {0, 2, 1, 3});
  };
  Value q = heads(0), k = heads(1), v = heads(2);
  Value scores = MatMul(q, k, false, true) * (1 / std::sqrt(static_cast<double>(d)));
  if (hidden_below.valid()) scores = scores + hidden_below;
  Value mixed = MatMul(Drop(s, Softmax(scores)), v);
  return m.Linear("out", Reshape(Transpose(mixed, {0, 2, 1, 3}), {rows, length, s.width}), s.width, kInit);
}

Value Embed(const BertShape& s, Layers& m, const BertInputs& in) {
  Parameter tokens = m.New("tokens", {s.vocabulary, s.width}, kInit);
  Parameter places = m.New("places", {s.places, s.width}, kInit);
  Parameter segments = m.New("segments", {s.segments, s.width}, kInit);
  Value segment = in.segments.valid() ? Gather(segments, in.segments) : SliceAxis(segments, 0, 0, 1);
  Value x = Gather(tokens, in.ids) + SliceAxis(places, 0, 0, in.ids.dim(1)) + segment;
  return Drop(s, m.Norm("norm", x, kEpsilon));
}

}  // namespace

BertResult BertEncoder(Builder& b, Layers& m, const BertShape& s, const BertInputs& in) {
  Value x = Embed(s, m, in), hidden_below;
  if (in.mask.valid()) hidden_below = Reshape((1.0 - Value(in.mask)) * -1e9, {in.mask.dim(0), 1, 1, in.mask.dim(1)});
  for (std::int32_t layer = 0; layer < s.layers; ++layer) {
    auto module = b.Module("layer" + std::to_string(layer), layer);
    x = m.Norm("norm1", x + Drop(s, Attention(s, m, x, hidden_below)), kEpsilon);
    Value inner = Gelu(m.Linear("up", x, s.inner, kInit), GeluForm::kErf);
    x = m.Norm("norm2", x + Drop(s, m.Linear("down", inner, s.width, kInit)), kEpsilon);
  }
  Value first = Reshape(SliceAxis(x, 1, 0, 1), {x.dim(0), s.width});
  return {x, Tanh(m.Linear("pooler", first, s.width, kInit))};
}

Model BertClassifier(Builder& b, const BertShape& s, std::int64_t classes, const BertInputs& in) {
  Layers m(b);
  Value pooled = Drop(s, BertEncoder(b, m, s, in).pooled);
  return {m.Linear("head", pooled, classes, kInit), m.parameters()};
}

Model BertMaskedLanguage(Builder& b, const BertShape& s, const BertInputs& in) {
  Layers m(b);
  Value x = BertEncoder(b, m, s, in).hidden;
  const Parameter tokens = m.parameters().front();
  x = m.Norm("head/norm", Gelu(m.Linear("head/linear", x, s.width, kInit), GeluForm::kErf), kEpsilon);
  return {MatMul(x, tokens, false, true) + m.New("head/b", {s.vocabulary}, Initializer::Zeros()), m.parameters()};
}

}  // namespace ropewalk::mlrunner
