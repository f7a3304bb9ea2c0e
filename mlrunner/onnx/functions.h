// Functions that a file defines itself: their nodes take the places of the nodes that call them, so that an import sees ops only.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "base/status.h"

namespace onnx {
class ModelProto;
}

namespace ropewalk::mlrunner::onnx {

// `path` is how messages call the file. Of a model without functions nothing changes. ONNX03: a function that calls itself, two of one
// name, one of another opset than the model, one whose attribute is a graph by default, or one that becomes too much.
Status InlineFunctions(const std::string& path, ::onnx::ModelProto* model);

}  // namespace ropewalk::mlrunner::onnx
