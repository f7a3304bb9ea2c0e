#include "mlrunner/models/gpt.h"

#include <cmath>
#include <string>

#include "mlrunner/graph/maths.h"
#include "mlrunner/models/moe.h"

namespace ropewalk::mlrunner {
namespace {

constexpr double kDeviation = .02;  // of all tables and maps, as in GPT-2

// (T, T): zeros where place t may look at place s <= t, else so far below zero that softmax gives it nothing.
Value CausalMask(Builder& b, std::int64_t length) {
  Value from = Reshape(Iota(b, Dtype::kF32, length), {length, 1}), to = Iota(b, Dtype::kF32, length);
  return Select(Less(from, to), b.Number(-1e9, Dtype::kF32), b.Number(0, Dtype::kF32));
}

// x (B, T, C) -> (B, T, C): softmax(q k' / sqrt(D) + mask) v for each head of width D = C / heads.
Value Attention(const GptShape& s, Layers& m, const Value& x, const Value& mask, Initializer out_init) {
  const std::int64_t d = s.width / s.heads;
  Value qkv = m.Linear("qkv", x, 3 * s.width, Initializer::Normal(kDeviation));
  auto heads = [&](std::int64_t part) {  // (B, T, 3 C) -> (B, heads, T, D)
    return Transpose(Reshape(SliceAxis(qkv, -1, part * s.width, (part + 1) * s.width), {x.dim(0), s.length, s.heads, d}), {0, 2, 1, 3});
  };
  Value q = heads(0), k = heads(1), v = heads(2);
  Value weights = Softmax(MatMul(q, k, false, true) * (1 / std::sqrt(static_cast<double>(d))) + mask);
  Value mixed = Reshape(Transpose(MatMul(weights, v), {0, 2, 1, 3}), {x.dim(0), s.length, s.width});
  return m.Linear("out", mixed, s.width, out_init);
}

}  // namespace

GptModel Gpt(Builder& b, const GptShape& s, const Value& ids) {
  Layers m(b);
  // 2 L maps add to the residual stream: each is made smaller, so that the sum is not larger than the stream.
  const Initializer to_stream = Initializer::Normal(kDeviation / std::sqrt(2.0 * static_cast<double>(s.layers)));
  Parameter tokens = m.New("tokens", {s.vocabulary, s.width}, Initializer::Normal(kDeviation));
  Parameter places = m.New("places", {s.length, s.width}, Initializer::Normal(kDeviation));
  Value mask = CausalMask(b, s.length);
  Value x = Gather(tokens, ids) + places, auxiliary_loss, dropped;
  for (std::int32_t layer = 0; layer < s.layers; ++layer) {
    auto module = b.Module("block" + std::to_string(layer), layer);
    x = x + Attention(s, m, m.Norm("norm1", x), mask, to_stream);
    Value normed = m.Norm("norm2", x);
    if (s.experts > 0 && (layer + 1) % s.experts_every == 0) {
      MoeResult mixed = MoeBlock(b, m, "moe", normed,
                                 {.experts = s.experts,
                                  .each = s.top_k,
                                  .hidden = 4 * s.width,
                                  .capacity_factor = s.capacity_factor,
                                  .grouped = true,
                                  .adds_x = false,
                                  .sharding = {}});
      x = x + mixed.y;
      auxiliary_loss = auxiliary_loss.valid() ? auxiliary_loss + mixed.auxiliary_loss : mixed.auxiliary_loss;
      dropped = dropped.valid() ? dropped + mixed.dropped : mixed.dropped;
    } else {
      x = x + m.Linear("down", Gelu(m.Linear("up", normed, 4 * s.width, Initializer::Normal(kDeviation))), s.width, to_stream);
    }
  }
  x = m.Norm("norm", x);
  Value logits =
      s.tied ? MatMul(x, tokens, false, true) : MatMul(x, m.New("head", {s.width, s.vocabulary}, Initializer::Normal(kDeviation)));
  return {{logits, m.parameters()}, auxiliary_loss, dropped};
}

}  // namespace ropewalk::mlrunner
