// Norms over the last dimension of what is added to a residual stream, in one pass over it: s = x + r, y = norm(s). FuseResidualNorms
// (passes/fuse_ops.h) puts them in the place of a sum and a norm, and of a norm's gradient and what is added to that.
//
// Thread rule: as the builder's.
#pragma once

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// Root mean square norm (Zhang and Sennrich 2019): y = x / sqrt(mean(x^2) + epsilon) * gain. (x (..., n), gain (n)) -> y, 1 / root (...)
extern const OpDef kRmsNorm;
// (x, gain, 1 / root, g) -> dx, dgain
extern const OpDef kRmsNormGrad;

// (x, r, gain, bias[, c (n)]) -> y, s = x + (r + c), mean (...), 1 / deviation (...): a layer norm (Ba et al. 2016) of s.
extern const OpDef kAddLayerNorm;
// (x, r, gain[, c (n)]) -> y, s, 1 / root
extern const OpDef kAddRmsNorm;
// What comes to s past the norm, h, is added to what comes through it. (s, gain, mean, 1 / deviation, g, h) -> ds, dgain, dbias
extern const OpDef kAddLayerNormGrad;
// (s, gain, 1 / root, g, h) -> ds, dgain
extern const OpDef kAddRmsNormGrad;

Value RmsNorm(const Value& x, const Value& gain, double epsilon = 1e-6, Location where = {__builtin_FILE(), __builtin_LINE()});

}  // namespace ropewalk::mlrunner
