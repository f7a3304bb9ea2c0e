// What backward computes again in the place of what forward would keep for it (Chen et al. 2016), as a job file says it.
//
// Thread rule: pure functions.
#pragma once

#include "base/status.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

// The same function with the same bits, of a step's graph behind its gradients and before elementwise ops are fused. kUserError TRAIN08:
// marks of blocks, and the model has none (its ops lie in no layer).
Result<Graph> RecomputeAs(const Graph& graph, RecomputeMarks marks);

}  // namespace ropewalk::mlrunner
