// Parameters that stay as they begin (train.frozen), by patterns of their names: "encoder.*, *.bias".
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// Those of `parameters` whose name fits none of the patterns, which commas part: * is any number of characters, ? one, [a-c] one of these.
// kUserError TRAIN11: a pattern that no name fits, which would be silently trained; or all are frozen.
Result<std::vector<Parameter>> WithoutFrozen(const Graph& graph, const std::vector<Parameter>& parameters, const std::string& patterns);

}  // namespace ropewalk::mlrunner
