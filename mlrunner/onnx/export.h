// A trained graph for others to run: its forward part as an ONNX file of opset 17, with the weights.
//
// Thread rule: pure but for the file system.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/onnx/model.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner::onnx {

struct ExportOptions {
  // Names of outputs and taps of the graph; empty: all its outputs. What they do not need is left out, the inputs too: of a graph that is
  // trained one names the logits, and neither labels nor updates come into the file.
  std::vector<std::string> outputs;
  // The value of a state: StateStore::Get, or CheckpointReader::Read. One without bytes is an error.
  std::function<Result<Tensor>(const StateInfo& state)> state;
};

// Fused ops that ONNX has not are written as their primitive forms. ONNX09: an op that has no counterpart (ops between ranks, control flow,
// random numbers), with its module; a symbol that no input has as a length; a name that is no output. ONNX10: a state without a value.
Result<ModelDef> ToOnnx(const Graph& graph, const ExportOptions& options);
Status ExportOnnx(const Graph& graph, const ExportOptions& options, storage::FileSystem& files, const std::string& path);

}  // namespace ropewalk::mlrunner::onnx
