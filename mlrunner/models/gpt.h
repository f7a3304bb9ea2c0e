// GPT: a decoder of pre-norm blocks with causal attention and learned positions, after Radford et al. 2019 (GPT-2), with one linear map for
// queries, keys and values, and GELU in its tanh form.
//
// Attention is written in primitives, so that parallel cuts and fused kernels both have something to start from.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

struct GptShape {
  std::int64_t vocabulary = 0;
  std::int64_t length = 128;  // T: of the sequences
  std::int64_t width = 256;   // C: a multiple of heads
  std::int64_t heads = 4;
  std::int64_t layers = 4;
  bool tied = false;  // the last map is the token table
  // Of each `experts_every`-th block the perceptron is a mixture of so many experts of its size (moe.h); 0: of none.
  std::int64_t experts = 0;
  std::int64_t top_k = 2;  // experts of a token
  double capacity_factor = 1.25;
  std::int64_t experts_every = 2;
};

struct GptModel : Model {
  // (B), of each sequence, which is a group of its own: sums over the blocks with experts. Not valid() without any.
  Value auxiliary_loss, dropped;
};

// ids (B, T) -> logits (B, T, vocabulary): of the token that comes next at each place
GptModel Gpt(Builder& b, const GptShape& shape, const Value& ids);

}  // namespace ropewalk::mlrunner
