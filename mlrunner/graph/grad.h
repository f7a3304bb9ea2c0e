// Gradients as ordinary values, by walking the graph backwards (reverse mode).
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// d(loss)/d(with), one for each entry of `with`: parameters, inputs, or any value in between (K-FAC asks for those of layer outputs). The
// loss is a scalar. Uses are summed. What the loss does not depend on gets zeros. The ops are of phase backward, and lie in the backward
// region of the stage of the forward op that they come from.
std::vector<Gradient> Grad(const Value& loss, const std::vector<Value>& with, Location where = {__builtin_FILE(), __builtin_LINE()});
// The same with given gradients of several values (a pipeline stage gets them from the next one).
std::vector<Gradient> Grad(const std::vector<Value>& of, const std::vector<Gradient>& seeds, const std::vector<Value>& with);
// Where ops of a stage's backward go, seeds among them.
Scope BackwardScope(Builder& b, std::int32_t stage);

}  // namespace ropewalk::mlrunner
