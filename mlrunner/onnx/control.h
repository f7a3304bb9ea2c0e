// Bodies of loops, done for all rounds at once.
//
// Thread rule: as the builder's.
#pragma once

#include "mlrunner/onnx/ops.h"

namespace ropewalk::mlrunner::onnx {

// The outputs of a node of which an input is another value in each round, for all rounds.
Operands ForAllRounds(NodeContext& c, Importer importer);

}  // namespace ropewalk::mlrunner::onnx
