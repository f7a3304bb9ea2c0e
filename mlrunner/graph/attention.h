// Attention as one op: softmax(scale q k' + mask) v for each head, of which backward computes the weights again from the logarithms of
// their sums (FlashAttention: Dao et al. 2022), so that no tensor of all pairs of places need be kept. FuseAttention (passes/fuse_ops.h)
// puts it in the place of the composed form.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// (q, k, v[, mask]) -> mixed values (..., T, E), and the log of the sum of exponentials of each row (..., T). q (..., T, D), k (..., S, D),
// or (..., D, S) where kTransposeB is 0, v (..., S, E); mask: what is added to the scaled products, broadcast to (..., T, S), its last
// dimension S. The causal form lets place t look at places up to t alone: T is S.
//   kValue: the scale. Of dropout, where there is one: kLow, the rate at which weights are left out (the others are divided by 1 - rate),
//   and kKey, the stable id of the op whose random numbers it draws; their sample is dimension 0 of the weights (..., T, S).
extern const OpDef kAttention, kCausalAttention;
// (q, k, v, mixed values, log sums, gradient of the mixed values[, mask]) -> gradients of q, k, v.
extern const OpDef kAttentionGrad, kCausalAttentionGrad;

struct AttentionOptions {
  double scale = 1;
  bool causal = false;
  bool transpose_k = true;  // k is (..., S, D), as the second factor of a product with transpose_b
  Value mask = {};          // not valid(): none
};
Value Attention(const Value& q, const Value& k, const Value& v, const AttentionOptions& options = {},
                Location where = {__builtin_FILE(), __builtin_LINE()});

inline bool IsCausal(const OpDef& def) { return &def == &kCausalAttention || &def == &kCausalAttentionGrad; }

}  // namespace ropewalk::mlrunner
