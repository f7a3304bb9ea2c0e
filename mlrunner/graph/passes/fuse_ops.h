// Passes that put one fused op in the place of several, where whole chains fit and nobody else sees what lies between. They know forward
// and backward as models and Grad write them; dead code must be gone, for what nobody uses is a user, too. Before FuseElementwise, which
// would take ops out of these chains.
//
// Thread rule: pure functions.
#pragma once

#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

// softmax(scale q k' + mask) v, its dropout, and their gradients become Attention and AttentionGrad, causal where the mask is known to be
// that. Not where values are cut over ranks.
Graph FuseAttention(const Graph& graph);

// x + r, or x + (r + c) with a vector c, before a layer or RMS norm becomes a part of the norm; what is added to a norm's gradient a part
// of that gradient.
Graph FuseResidualNorms(const Graph& graph);

}  // namespace ropewalk::mlrunner
