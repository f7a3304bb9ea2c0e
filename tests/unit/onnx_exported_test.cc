// Models that PyTorch has exported (bench/onnx/export.py): outputs and gradients are PyTorch's, in float64 by the reference and in float32
// by the kernels of the CPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "mlrunner/graph/passes/fuse_ops.h"
#include "tests/unit/onnx_models.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using testing::CountOps;
using testing::DataPath;
using testing::Distance;
using testing::Imported;

struct Case {
  const char* file;
  const char* values;
  ImportMode mode = ImportMode::kAsTheFileSays;  // what one exporter has lost
};
constexpr Case kCases[] = {
    {"mlp.torchscript.onnx", "mlp"},
    {"mlp.opset14.onnx", "mlp"},
    {"mlp.dynamo.onnx", "mlp"},
    {"resnet.torchscript.onnx", "resnet"},
    {"resnet.dynamo.onnx", "resnet", ImportMode::kTraining},
    {"gpt2.torchscript.onnx", "gpt2"},
    {"gpt2.dynamo.onnx", "gpt2"},
    {"bert.torchscript.onnx", "bert"},
    {"bert.dynamo.onnx", "bert"},
    {"lstm.torchscript.onnx", "lstm"},
    {"lstm.dynamo.onnx", "lstm"},
    {"dlrm.torchscript.onnx", "dlrm"},
    {"dlrm.dynamo.onnx", "dlrm"},
};

class Exported : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto made = testing::ImportWithGradients(DataPath(GetParam().file), {.mode = GetParam().mode});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    model_ = *std::move(made);
    auto file = SafetensorsFile::Open(files_, DataPath(std::string(GetParam().values) + ".safetensors"));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    auto values = file->ReadAll();
    ASSERT_TRUE(values.ok());
    values_ = *std::move(values);
    batch_ = values_.at("probe.0").dims[0];
  }
  Bindings Batch() const { return Bindings(model_.graph.symbols.size(), batch_); }
  const Tensor& Expected(std::size_t output) const {
    return values_.at(output < model_.outputs ? "output." + std::to_string(output) : "grad." + model_.parameters[output - model_.outputs]);
  }
  std::string What(std::size_t output) const {
    return output < model_.outputs ? "output " + std::to_string(output) : "gradient of " + model_.parameters[output - model_.outputs];
  }
  storage::LocalFileSystem files_;
  Imported model_;
  std::map<std::string, Tensor> values_;
  std::int64_t batch_ = 0;
};

TEST_P(Exported, InFloat64AsPyTorch) {
  auto wide = ChangeFloats(model_.graph, Dtype::kF32, Dtype::kF64);
  ASSERT_TRUE(wide.ok()) << wide.status().ToString();
  ASSERT_TRUE(Check(*wide).ok()) << Check(*wide).ToString();
  std::vector<RefTensor> inputs;
  for (const std::string& name : model_.inputs) inputs.push_back(ToRef(values_.at(name)));
  std::map<std::string, RefTensor> states;
  for (const auto& [name, tensor] : model_.weights) states[name] = ToRef(tensor);
  auto got = Evaluate(*wide, Batch(), inputs, states);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ASSERT_EQ(got->outputs.size(), model_.outputs + model_.parameters.size());
  for (std::size_t i = 0; i < got->outputs.size(); ++i) EXPECT_LT(Distance(got->outputs[i], ToRef(Expected(i))), 1e-6) << What(i);
}

// As it is, and with attention and sums before norms as fused ops.
TEST_P(Exported, InFloat32ByFastKernels) {
  StateStore states;
  for (const auto& [name, tensor] : model_.weights) states.Set(name, tensor);
  std::vector<Tensor> narrow;
  for (const std::string& name : model_.inputs) {
    const Tensor& value = values_.at(name);
    narrow.push_back(value.dtype == Dtype::kF64 ? ConvertTo(value, Dtype::kF32) : value);
  }
  RunInputs inputs;
  for (const Tensor& tensor : narrow) inputs.micro_batches[0].push_back(&tensor);
  const Graph plain = RemoveDeadCode(MergeEqual(Simplify(model_.graph)));
  for (const bool fuse : {false, true}) {
    SCOPED_TRACE(fuse ? "fused" : "plain");
    const Graph passed = FuseElementwise(fuse ? RemoveDeadCode(FuseResidualNorms(FuseAttention(plain))) : plain);
    if (const std::string values = GetParam().values; fuse && (values == "gpt2" || values == "bert")) {
      EXPECT_EQ(CountOps(passed, "Attention"), 1u);
      EXPECT_EQ(CountOps(passed, "AttentionGrad"), 1u);
      EXPECT_EQ(CountOps(passed, "Softmax"), 0u);
      EXPECT_EQ(CountOps(passed, "AddLayerNorm"), 2u);
    }
    auto executable = Compile(passed, Batch(), DefaultProgram(passed), CpuKernels(), {.num_threads = 1});
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    auto got = (*executable)->Run(inputs, states);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (std::size_t i = 0; i < got->outputs[0].size(); ++i)
      EXPECT_LT(Distance(ToRef(got->outputs[0][i]), ToRef(Expected(i))), 1e-4) << What(i);
  }
}

// Every gradient that PyTorch gives is compared, and what has none there is no parameter here.
TEST_P(Exported, ParametersAreThoseOfTheModel) {
  const std::set<std::string> parameters(model_.parameters.begin(), model_.parameters.end());
  for (const std::string& name : parameters) EXPECT_TRUE(values_.contains("grad." + name)) << name;
  for (const auto& [name, tensor] : values_) {
    if (!name.starts_with("grad.") || parameters.contains(name.substr(5))) continue;
    // A parameter of two names is in the file under one of them.
    const std::vector<std::byte>& bytes = tensor.bytes;
    EXPECT_TRUE(std::any_of(parameters.begin(), parameters.end(), [&](const std::string& other) {
      return values_.at("grad." + other).bytes == bytes;
    })) << name;
  }
}

// Lengths are computed when the model is read: nothing in the graph asks for one but means, counts and row numbers.
TEST_P(Exported, FusedOpsAreFoundAgain) {
  const std::string values = GetParam().values;
  if (values == "mlp") {
    EXPECT_EQ(CountOps(model_.graph, "LayerNorm"), 1u);
    EXPECT_EQ(CountOps(model_.graph, "Sqrt") + CountOps(model_.graph, "Pow"), 0u);
  }
  if (values == "gpt2") {
    EXPECT_EQ(CountOps(model_.graph, "Gelu"), 1u);
    EXPECT_EQ(CountOps(model_.graph, "Tanh") + CountOps(model_.graph, "Pow"), 0u);
    EXPECT_EQ(CountOps(model_.graph, "LayerNorm"), 3u);
  }
  if (values == "dlrm") {
    EXPECT_EQ(CountOps(model_.graph, "While") + CountOps(model_.graph, "Cond"), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Exported, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.file;
  name.resize(name.size() - 5);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

// A file that is there and not tested would be thought to work.
TEST(ExportedModels, AllAreTested) {
  std::set<std::string> there, tested;
  for (const auto& entry : std::filesystem::directory_iterator(ROPEWALK_ONNX_DATA)) {
    if (entry.path().extension() == ".onnx") there.insert(entry.path().filename());
  }
  for (const Case& each : kCases) tested.insert(each.file);
  EXPECT_EQ(there, tested);
}

}  // namespace
}  // namespace ropewalk::mlrunner::onnx
