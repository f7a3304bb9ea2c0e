// Explain: a graph as text and as a picture.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

// Regions in order; in each, one line for each op: outputs, op, inputs, attributes, module, source line.
std::string ExplainText(const Graph& graph);

// Ops as boxes, coloured by region, inputs above users. For graphs that a person can read: above `ops_max` ops the rest is counted.
std::string ExplainSvg(const Graph& graph, std::size_t ops_max = 400);

}  // namespace ropewalk::mlrunner
