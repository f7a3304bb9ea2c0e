// The models of tests/data/onnx, and how what is imported is run.
//
// Thread rule: functions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/onnx/import.h"
#include "mlrunner/tensors/safetensors.h"

namespace ropewalk::mlrunner::onnx::testing {

inline std::string DataPath(const std::string& name) { return std::string(ROPEWALK_ONNX_DATA) + "/" + name; }

// A model with the loss that export.py describes: outputs are those of the file, then the gradient of each parameter.
struct Imported {
  Graph graph;
  std::vector<std::string> inputs;      // in the order of graph.inputs: of the model, then the probes
  std::vector<std::string> parameters;  // names of states, in the order of the gradients
  std::size_t outputs = 0;
  std::map<std::string, Tensor> weights;
};
inline Result<Imported> ImportWithGradients(const std::string& path, ImportOptions options = {}) {
  Builder b;
  storage::LocalFileSystem files;
  ASSIGN_OR_RETURN(ImportedModel model, ImportOnnx(b, files, path, options));
  Imported made;
  made.weights = model.weights;
  for (const NamedResult& input : model.inputs) made.inputs.push_back("input." + input.name);
  Value loss = b.Number(0, model.outputs.at(0).value.dtype());
  for (const NamedResult& output : model.outputs) {
    b.Output(output.name, output.value);
    std::string name = "probe." + std::to_string(made.outputs++);
    loss = loss + ReduceSum(output.value * b.Input(name, output.value.dtype(), output.value.shape()));
    made.inputs.push_back(std::move(name));
  }
  for (const Parameter& parameter : model.parameters) made.parameters.push_back(b.graph().state(parameter.state).name);
  for (const Gradient& gradient : Grad(loss, {model.parameters.begin(), model.parameters.end()})) b.Output("gradient", gradient);
  ASSIGN_OR_RETURN(made.graph, b.Finish());
  return made;
}

// The largest difference, beside the largest number.
inline double Distance(const RefTensor& a, const RefTensor& b) {
  EXPECT_EQ(a.dims, b.dims);
  double worst = 0, largest = 1e-3;
  for (double value : b.data) largest = std::max(largest, std::fabs(value));
  for (std::size_t i = 0; i < std::min(a.data.size(), b.data.size()); ++i) {
    const double difference = std::fabs(a.data[i] - b.data[i]);
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  }
  return worst / largest;
}

inline std::size_t CountOps(const Graph& graph, std::string_view name) {
  return static_cast<std::size_t>(std::count_if(graph.ops.begin(), graph.ops.end(), [&](const Op& op) { return op.def->name == name; }));
}

}  // namespace ropewalk::mlrunner::onnx::testing
