// How each ONNX op becomes a part of a graph: functions by name, in tables by kind (ops_*.cc).
//
// Thread rule: constants.
#pragma once

#include <map>
#include <string_view>

#include "mlrunner/onnx/node_context.h"

namespace ropewalk::mlrunner::onnx {

using Importer = Operands (*)(NodeContext&);
using Importers = std::map<std::string_view, Importer>;

void AddElementwise(Importers* table);
void AddShapes(Importers* table);  // what is about lengths, and moves elements
void AddRows(Importers* table);    // gathers, scatters, reductions along axes
void AddLayers(Importers* table);  // products, convolutions, norms, pooling
void AddRecurrent(Importers* table);
void AddControl(Importers* table);  // If, Loop, lists of tensors

}  // namespace ropewalk::mlrunner::onnx
