// What PyTorch exported (export.py), imported and run: how far outputs and gradients are from PyTorch's, and what an import takes.
//
// usage: bench_onnx FOLDER [threads=N] [model=NAME]
//   For each FOLDER/MODEL.EXPORTER.onnx a row: the worst relative difference of an output and of a gradient from what PyTorch computed in
//   float64 (FOLDER/MODEL.safetensors); the same of PyTorch itself in float32, where the file has it; seconds to import, to compile and to
//   run a step (forward and backward, the second one). Ends with 1 where something was refused, or is worse than the tolerance.
//
// A difference is relative to the largest element of its tensor, or, of tensors that are much smaller than the others of the model, to
// kSmall of the largest element of all outputs or of all gradients: what should be zero (a bias before a softmax) is all rounding.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/builder.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/kernel.h"
#include "mlrunner/onnx/import.h"
#include "mlrunner/tensors/safetensors.h"

using namespace ropewalk;
using namespace ropewalk::mlrunner;

namespace {

constexpr double kTolerance = 1e-3;  // of float32, through a hundred layers
constexpr double kSmall = 1e-4;

using Clock = std::chrono::steady_clock;
double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

// One tensor beside the one that PyTorch has in float64.
struct Pair {
  std::string name;
  double difference = 0, largest = 0;
};
Pair Compared(std::string name, const RefTensor& got, const RefTensor& expected) {
  Pair pair{std::move(name), got.dims == expected.dims ? 0 : HUGE_VAL, 0};
  for (std::size_t i = 0; i < std::min(got.data.size(), expected.data.size()); ++i) {
    const double difference = std::fabs(got.data[i] - expected.data[i]);
    pair.difference = std::isnan(difference) ? HUGE_VAL : std::max(pair.difference, difference);
    pair.largest = std::max(pair.largest, std::fabs(expected.data[i]));
  }
  return pair;
}
std::pair<double, std::string> Worst(const std::vector<Pair>& pairs) {
  double largest = 0;
  for (const Pair& pair : pairs) largest = std::max(largest, pair.largest);
  std::pair<double, std::string> worst{0, ""};
  for (const Pair& pair : pairs) {
    const double relative = pair.difference / std::max({pair.largest, kSmall * largest, 1e-30});
    if (!(relative <= worst.first)) worst = {relative, pair.name};
  }
  return worst;
}

struct Row {
  std::vector<Pair> outputs, gradients, peer_outputs, peer_gradients;
  double import_s = 0, compile_s = 0, step_s = 0;
  std::size_t ops = 0, parameters = 0;
};

Result<Row> Compare(storage::FileSystem& files, const std::string& path, const SafetensorsFile& values, onnx::ImportMode mode,
                    int threads) {
  Row row;
  Clock::time_point begin = Clock::now();
  Builder b;
  ASSIGN_OR_RETURN(onnx::ImportedModel model, onnx::ImportOnnx(b, files, path, {.mode = mode}));
  row.import_s = Seconds(begin);

  begin = Clock::now();
  std::vector<std::string> inputs;
  for (const onnx::NamedResult& input : model.inputs) inputs.push_back("input." + input.name);
  Value loss = b.Number(0, model.outputs.at(0).value.dtype());
  std::vector<std::string> names;
  for (const onnx::NamedResult& output : model.outputs) {
    const std::string number = std::to_string(names.size());
    b.Output(output.name, output.value);
    loss = loss + ReduceSum(output.value * b.Input("probe." + number, output.value.dtype(), output.value.shape()));
    inputs.push_back("probe." + number);
    names.push_back("output." + number);
  }
  const std::size_t num_outputs = names.size();
  for (const Gradient& gradient : Grad(loss, {model.parameters.begin(), model.parameters.end()})) b.Output("gradient", gradient);
  for (const Parameter& parameter : model.parameters) names.push_back("grad." + b.graph().state(parameter.state).name);
  ASSIGN_OR_RETURN(Graph graph, b.Finish());
  graph = AssignLayouts(FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(graph)))), CpuLayouts());
  row.ops = graph.ops.size();

  StateStore states;
  for (auto& [name, tensor] : model.weights) {
    row.parameters += static_cast<std::size_t>(NumElements(tensor.dims));
    states.Set(name, std::move(tensor));
  }
  std::vector<Tensor> given;
  for (const std::string& name : inputs) {
    ASSIGN_OR_RETURN(Tensor value, values.Read(name));
    given.push_back(value.dtype == Dtype::kF64 ? ConvertTo(value, Dtype::kF32) : std::move(value));
  }
  RunInputs run;
  for (const Tensor& tensor : given) run.micro_batches[0].push_back(&tensor);
  // Lengths that the file names are the batch.
  const Bindings bindings(graph.symbols.size(), given.at(0).dims.at(0));
  ASSIGN_OR_RETURN(auto executable, Compile(graph, bindings, DefaultProgram(graph), CpuKernels(), {.num_threads = threads}));
  row.compile_s = Seconds(begin);
  {
    ASSIGN_OR_RETURN(RunOutputs first, executable->Run(run, states));
    for (std::size_t i = 0; i < names.size(); ++i) {
      ASSIGN_OR_RETURN(const Tensor expected, values.Read(names[i]));
      const RefTensor yardstick = ToRef(expected);
      const bool is_output = i < num_outputs;
      (is_output ? row.outputs : row.gradients).push_back(Compared(names[i], ToRef(first.outputs[0][i]), yardstick));
      if (!values.header().tensors.contains("float32." + names[i])) continue;
      ASSIGN_OR_RETURN(const Tensor peer, values.Read("float32." + names[i]));
      (is_output ? row.peer_outputs : row.peer_gradients).push_back(Compared(names[i], ToRef(peer), yardstick));
    }
  }
  begin = Clock::now();
  RETURN_IF_ERROR(executable->Run(run, states).status());
  row.step_s = Seconds(begin);
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> keys;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t at = argument.find('=');
    if (at != std::string::npos) keys[argument.substr(0, at)] = argument.substr(at + 1);
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_onnx FOLDER [threads=N] [model=NAME]\n");
    return 2;
  }
  const int threads = keys.contains("threads") ? std::atoi(keys["threads"].c_str()) : 1;
  omp_set_num_threads(threads);
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".onnx" && (!keys.contains("model") || name.starts_with(keys["model"] + "."))) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    std::fprintf(stderr, "error[BENCH10] %s has no such .onnx file\n  make some: bench/onnx/export.py --full FOLDER\n", argv[1]);
    return 1;
  }
  storage::LocalFileSystem files;
  bool all_hold = true;
  fmt::print(
      "| file | parameters | ops | outputs | PyTorch | gradients | PyTorch | the worst gradient | import s | compile s | step s |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const std::filesystem::path& path : paths) {
    const std::string file = path.filename().string(), name = file.substr(0, file.find('.'));
    auto values = SafetensorsFile::Open(files, (path.parent_path() / (name + ".safetensors")).string());
    // What the newer exporter has lost (docs/mlrunner.md).
    const auto mode = file.find(".dynamo.") != std::string::npos ? onnx::ImportMode::kTraining : onnx::ImportMode::kAsTheFileSays;
    Result<Row> row = values.ok() ? Compare(files, path.string(), *values, mode, threads) : Result<Row>(values.status());
    if (!row.ok()) {
      fmt::print("| {} | refused |\n{}\n", file, row.status().ToString());
      all_hold = false;
      continue;
    }
    auto peer = [](const std::vector<Pair>& pairs) { return pairs.empty() ? std::string("-") : fmt::format("{:.1e}", Worst(pairs).first); };
    const auto outputs = Worst(row->outputs), gradients = Worst(row->gradients);
    const bool holds = outputs.first <= kTolerance && gradients.first <= kTolerance;
    all_hold = all_hold && holds;
    fmt::print("| {} | {} | {} | {:.1e} | {} | {:.1e} | {} | {} | {:.2f} | {:.2f} | {:.2f} |{}\n", file, row->parameters, row->ops,
               outputs.first, peer(row->peer_outputs), gradients.first, peer(row->peer_gradients),
               gradients.second.substr(gradients.second.find('.') + 1), row->import_s, row->compile_s, row->step_s,
               holds ? "" : fmt::format("  worse than {:.0e}", kTolerance));
    std::fflush(stdout);
  }
  return all_hold ? 0 : 1;
}
