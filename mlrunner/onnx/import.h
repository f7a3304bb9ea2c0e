// Bring your own model: an ONNX file becomes a part of a model graph, to be trained, fine-tuned or run.
//
//   Builder b;
//   ASSIGN_OR_RETURN(onnx::ImportedModel model, onnx::ImportOnnx(b, files, "bert.onnx", {}));
//   Value loss = Mean(CrossEntropy(model.outputs[0].value, labels));
//   std::vector<Gradient> grads = Grad(loss, {model.parameters.begin(), model.parameters.end()});
//   ...
//   for (auto& [name, tensor] : model.weights) states.Set(name, tensor);      // else parameters begin as zeros
//
// Floating-point initializers become parameters; what else the file holds becomes constants. Lengths that the file names ("batch") become
// symbols, and whatever the file computes of lengths is computed here, once, on polynomials of symbols: Shape, Gather, Concat, Reshape and
// their like leave nothing in the graph. Decomposed GELU and layer norm become one op again (recognise.h).
//
// Which ops are known: SupportedOps(); docs/mlrunner.md has the list and its limits.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/builder.h"
#include "mlrunner/onnx/model.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner::onnx {

// What batch norms and dropouts are imported for: as the file says, or whatever it says. PyTorch's newer exporter (dynamo) writes batch
// norms of a model in training mode as if they were in evaluation mode; and who trains a model evaluates it too.
enum class ImportMode : std::uint8_t { kAsTheFileSays, kTraining, kEvaluation };

struct ImportOptions {
  // What stands for a length that the file names, by its name: the caller's symbol, or a number. Others become new symbols.
  std::map<std::string, Dim> lengths;
  // Values of the builder that stand for inputs of the file, by name. Others become inputs of the graph.
  std::map<std::string, Value> inputs;
  // Which floating-point initializers are trained; empty: all. Others become constants. (The file does not tell a buffer from a parameter.)
  std::function<bool(const std::string& name)> trainable;
  ImportMode mode = ImportMode::kAsTheFileSays;
  // Batch norms go by the file's running statistics, in training too: then nothing moves these. It is usual where a few samples tune what
  // many have trained.
  bool running_batch_norm = false;
  // As LayerOptions (models/layers.h): the axis of the mesh over whose ranks the moments of batch norms are taken together, and (N) weights
  // of rows, of which those of weight 0 are left out of moments.
  std::string ranks;
  Value weights{};
  bool recognise = true;  // decomposed ops become one again
};

struct NamedResult {
  std::string name;
  Value value;
};
struct ImportedModel {
  std::vector<NamedResult> inputs, outputs;  // in the file's order
  std::vector<Parameter> parameters;         // what is trained, in the file's order
  std::map<std::string, Tensor> weights;     // by the state's name: what the file has of parameters and running statistics
};

// ONNX01, 02, 04, 07: as ReadModel. ONNX03: an op that is not supported, with node and suggestion. ONNX05: a node whose inputs or
// attributes do not fit. ONNX06: a shape that depends on the values of a run. Else what the builder says of a node, with its name. The
// builder has failed, too.
Result<ImportedModel> ImportOnnx(Builder& b, storage::FileSystem& files, const std::string& path, const ImportOptions& options = {});

// The same of a file that has been read; `path` is how messages call it.
Result<ImportedModel> ImportModel(Builder& b, const ModelDef& model, const std::string& path, const ImportOptions& options = {});

// All values, initializers and inputs among them, that these outputs need.
std::set<std::string> NamesNeeded(const GraphDef& graph, const std::vector<std::string>& outputs);

// Names of the ops that are known, in order.
std::vector<std::string> SupportedOps();

}  // namespace ropewalk::mlrunner::onnx
