// What numbers for the symbols make of a graph's shapes. A length is an expression (n - 3) until symbols have numbers, so that only then
// can be seen that there is no such tensor.
//
// Thread rule: pure functions.
#pragma once

#include "base/status.h"
#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

// Refuses (RUN04) bindings that give a value of `graph`, or of a body in it, a length below 0, or more bytes than memory has addresses;
// names the op and the line that made it. `bindings` must hold every symbol that occurs.
Status CheckLengths(const Graph& graph, const Bindings& bindings);
// The same of one value.
Status CheckLengths(const Graph& graph, ValueId value, const Bindings& bindings);

}  // namespace ropewalk::mlrunner
