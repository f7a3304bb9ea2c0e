// Mixture of experts (Shazeer et al. 2017; Fedus et al. 2022): a router sends each token to its k likeliest experts, each of which is a
// map through `hidden` numbers and back, and takes no more tokens than its capacity. What is over it, and every token, goes on by the
// residual.
//
// Everything of the experts has them as its first dimension, (experts, ...), and they meet tokens in one tensor (experts, capacity, width):
// a strategy that cuts that dimension over ranks puts an all-to-all before and behind it, and changes nothing else.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

struct MoeOptions {
  std::int64_t experts = 8;       // E
  std::int64_t each = 2;          // k: of a token
  std::int64_t hidden = 1024;     // of each expert
  double capacity_factor = 1.25;  // cf
  double auxiliary = .01;
  bool normalise = true;  // the weights of a token's experts are divided by their sum; with one expert its weight stays a probability
  // Each of the first dimension of x is a group with a capacity of its own (Lepikhin et al. 2021): what becomes of a sample is no matter of
  // which others are in its batch, and its rank.
  bool grouped = false;
  bool adds_x = true;     // false: the residual is the caller's
  ShardingSpec sharding;  // of (experts, ...), all parameters of the experts alike; empty: whole
  // Where that cuts the experts over ranks: what brings the tokens that have seats at all of them, (experts, seats, C), to the ranks that
  // hold them, (experts here, seats of all ranks, C), and back. Its gradients are the strategy's to say.
  std::function<Value(const Value&)> to_experts{}, from_experts{};
};
struct MoeResult {
  Value y;  // as x: x + what its experts give
  // (), or (B) of each group: auxiliary * E * sum over experts of (share of the choices) * (mean probability); to be added to the loss
  Value auxiliary_loss;
  Value dropped;  // (), or (B) of each group: choices over capacity, a number for people; no gradient
};
// ceil(cf k T / E). Where the number of tokens has symbols, it must be exact, as with T = 8 B, k = 1, E = 4, cf = 1.5: 3 B.
Result<Dim> Capacity(const Dim& tokens, const MoeOptions& options, const std::vector<SymbolInfo>& symbols);
// x (..., C), all but the last dimension tokens
MoeResult MoeBlock(Builder& b, Layers& m, const std::string& name, const Value& x, const MoeOptions& options);

}  // namespace ropewalk::mlrunner
