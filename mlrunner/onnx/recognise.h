// Ops that exporters take apart, put together again: GELU by erf and by tanh, and layer norm over the last axis, become Gelu and
// LayerNormalization, for which there are fused kernels and gradients.
//
// Thread rule: pure functions.
#pragma once

#include "mlrunner/onnx/model.h"

namespace ropewalk::mlrunner::onnx {

// The nodes that made the last step of each are replaced; what only led to it is left, and needed by nothing.
GraphDef Recognise(const GraphDef& graph);

}  // namespace ropewalk::mlrunner::onnx
