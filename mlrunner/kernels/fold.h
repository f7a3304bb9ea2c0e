// Constant folding with the reference kernels: what graph/passes needs of this floor.
//
// Thread rule: pure functions.
#pragma once

#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/reference.h"

namespace ropewalk::mlrunner {

EvaluateOp FoldWith(const RefTable& table);

// A tensor of doubles as the bytes of a literal, and back.
Literal ToLiteral(Dtype dtype, const RefTensor& tensor);
RefTensor FromLiteral(const Literal& literal);

}  // namespace ropewalk::mlrunner
