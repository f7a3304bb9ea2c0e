// Export: what is written and read again computes what the graph does, in float64 to the last digits; what has no counterpart is refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/models/gpt.h"
#include "mlrunner/models/mlp.h"
#include "mlrunner/onnx/export.h"
#include "tests/unit/model_random.h"
#include "tests/unit/onnx_models.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner::onnx {
namespace {

using testing::DataPath;
using testing::Distance;

constexpr std::int64_t kRows = 3;

RefTensor Drawn(Random& random, const TensorType& type, const Bindings& bindings, std::uint64_t ids) {
  RefTensor tensor{Evaluate(type.shape, bindings), {}};
  for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) {
    tensor.data.push_back(IsFloat(type.dtype) ? random.Unit() * 2 - 1 : static_cast<double>(random.Below(ids)));
  }
  return tensor;
}

class OnnxExport : public ::testing::Test {
 protected:
  std::string Path() const { return folder_.path() + "/model.onnx"; }
  // The graph's outputs, of states drawn from a seed, beside those of the file that it becomes. Both are computed in float64.
  void ComesBack(const Graph& graph, const std::vector<std::string>& outputs, double tolerance = 1e-12) {
    auto wide = ChangeFloats(graph, Dtype::kF32, Dtype::kF64);
    ASSERT_TRUE(wide.ok()) << wide.status().ToString();
    const Bindings bindings(graph.symbols.size(), kRows);
    Random random(17);
    std::map<std::string, RefTensor> states, inputs;
    for (const StateInfo& state : wide->states) {
      if (state.kind != StateKind::kChannel) states[state.name] = Drawn(random, state.type, bindings, 2);
    }
    std::vector<RefTensor> given;
    for (ValueId id : wide->inputs) {
      given.push_back(Drawn(random, wide->value(id).type, bindings, 4));
      inputs[wide->value(id).name] = given.back();
    }
    const std::map<std::string, RefTensor> begin = states;
    auto expected = Evaluate(*wide, bindings, given, states);
    ASSERT_TRUE(expected.ok()) << expected.status().ToString();

    ExportOptions options{outputs,
                          [&](const StateInfo& state) -> Result<Tensor> { return ToTensor(state.type.dtype, begin.at(state.name)); }};
    Status written = ExportOnnx(*wide, options, files_, Path());
    ASSERT_TRUE(written.ok()) << written.ToString();
    Builder b;
    auto model = ImportOnnx(b, files_, Path());
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    for (const NamedResult& output : model->outputs) b.Output(output.name, output.value);
    auto again = b.Finish();
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    std::vector<RefTensor> same;
    for (const NamedResult& input : model->inputs) same.push_back(inputs.at(input.name));
    std::map<std::string, RefTensor> weights;
    for (const auto& [name, tensor] : model->weights) weights[name] = ToRef(tensor);
    auto got = Evaluate(*again, Bindings(again->symbols.size(), kRows), same, weights);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ASSERT_EQ(got->outputs.size(), outputs.empty() ? wide->outputs.size() : outputs.size());
    for (std::size_t i = 0; i < got->outputs.size(); ++i) {
      const std::string& name = again->outputs[i].name;
      auto place = std::find_if(wide->outputs.begin(), wide->outputs.end(), [&](const NamedValue& v) { return v.name == name; });
      ASSERT_NE(place, wide->outputs.end()) << name;
      EXPECT_LT(Distance(got->outputs[i], expected->outputs[static_cast<std::size_t>(place - wide->outputs.begin())]), tolerance) << name;
    }
  }
  mlrunner::testing::TempFolder folder_;
  storage::LocalFileSystem files_;
};

// With labels, loss, gradients and updates around it, which stay behind.
Graph Trained(const std::function<Model(Builder&, Dim)>& make) {
  Builder b;
  Model model = make(b, b.NewSymbol("B"));
  b.Output("logits", model.logits);
  Shape rows(model.logits.shape().begin(), model.logits.shape().end() - 1);
  Value loss = Mean(CrossEntropy(model.logits, b.Input("labels", Dtype::kI32, rows)));
  b.Output("loss", loss);
  ApplyAdamW(b, model.parameters, Grad(loss, {model.parameters.begin(), model.parameters.end()}), .1);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return graph.ok() ? *graph : Graph();
}
Model SmallMlp(Builder& b, Dim batch) { return Mlp(b, {.hidden = {6, 5}, .classes = 4}, b.Input("x", Dtype::kF32, {batch, 7})); }
Model SmallGpt(Builder& b, Dim batch) {
  return Gpt(b, {.vocabulary = 7, .length = 5, .width = 6, .heads = 2, .layers = 2, .tied = true}, b.Input("ids", Dtype::kI32, {batch, 5}));
}

TEST_F(OnnxExport, AnMlpComesBack) { ComesBack(Trained(SmallMlp), {"logits"}); }
TEST_F(OnnxExport, AGptComesBack) { ComesBack(Trained(SmallGpt), {"logits"}); }
TEST_F(OnnxExport, ALossComesBackToo) { ComesBack(Trained(SmallGpt), {"loss", "logits"}); }

TEST_F(OnnxExport, WhatIsNotNeededStaysBehind) {
  Graph graph = Trained(SmallMlp);
  auto model = ToOnnx(graph, {{"logits"}, [](const StateInfo& state) -> Result<Tensor> {
                                return ToTensor(state.type.dtype, Initial(Graph(), state, {}, {}));
                              }});
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  ASSERT_EQ(model->graph.inputs.size(), 1u);
  EXPECT_EQ(model->graph.inputs[0].name, "x");
  EXPECT_EQ(model->graph.inputs[0].dims[0].symbol, "B");
  for (const auto& [name, literal] : model->graph.initializers) EXPECT_EQ(name.find("moment"), std::string::npos) << name;
  EXPECT_EQ(model->opset, 17);
}

// Convolutions, pooling, scatters, one-hots, lengths that are sums and products of symbols.
TEST_F(OnnxExport, OpsOfImagesAndRowsComeBack) {
  Builder b;
  Dim batch = b.NewSymbol("B");
  Value x = b.Input("x", Dtype::kF32, {batch, 2, 6, 6}), ids = b.Input("ids", Dtype::kI64, {batch, 2});
  Parameter w = b.NewParameter("w", {3, 2, 3, 3}, Initializer::Normal(1)), table = b.NewParameter("table", {4, 5}, Initializer::Normal(1));
  Value y = Relu(Conv2D(x, w, {.stride = {2, 1}, .padding = {1, 0}}));
  b.Output("conv", y);
  b.Output("max", MaxPool2D(x, 2, 2));
  b.Output("mean", AvgPool2D(x, 3, 1));
  Value rows = Gather(table, ids);
  b.Output("rows", rows);
  b.Output("added", ScatterAdd(Reshape(ids, {batch * Dim(2)}), Reshape(rows, {batch * Dim(2), 5}), 4));
  b.Output("one_hot", OneHot(ids, 4, Dtype::kF32));
  b.Output("found", ArgMax(rows, -1));
  b.Output("padded", PadAxis(rows, 1, 1, 2));
  b.Output("flat", Reshape(rows, {batch * Dim(10)}));
  b.Output("joined", Concat({rows, SliceAxis(rows, 1, 1, 2)}, 1));
  b.Output("row", Iota(b, Dtype::kF32, batch * batch + Dim(2)) * DimSize(b, batch * Dim(3), Dtype::kF32));
  b.Output("filled", Fill(b, 2.5, Dtype::kF32, {batch + Dim(1), 2}));
  b.Output("flags", Cast(Maximum(Less(x, 0), Greater(x, .5)), Dtype::kF32) + Cast(IsFinite(x), Dtype::kF32));
  b.Output("largest", ReduceMax(x, {1, -1}, true));
  b.Output("turned", MatMul(rows, rows, true, false));
  b.Output("at", At(rows, b.Number(1, Dtype::kI64)));
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  ComesBack(*graph, {});
}

TEST_F(OnnxExport, RandomGraphsComeBack) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Builder b;
    RandomGraph made = MakeRandomGraph(b, seed, 20, Dtype::kF32);
    b.Output("loss", made.loss);
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    ComesBack(*graph, {}, 1e-10);
  }
}

TEST_F(OnnxExport, WhatPyTorchMadeComesBack) {
  for (const char* name : {"mlp.torchscript", "resnet.torchscript", "gpt2.dynamo", "bert.torchscript", "lstm.dynamo", "dlrm.torchscript"}) {
    SCOPED_TRACE(name);
    Builder b;
    auto model = ImportOnnx(b, files_, DataPath(std::string(name) + ".onnx"));
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    for (const NamedResult& output : model->outputs) b.Output(output.name, output.value);
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    ComesBack(*graph, {}, 1e-10);
  }
}

TEST_F(OnnxExport, WhatHasNoCounterpartIsSaid) {
  auto refused = [&](const std::function<void(Builder&)>& make, ExportOptions options = {}) {
    Builder b;
    make(b);
    auto graph = b.Finish();
    EXPECT_TRUE(graph.ok()) << graph.status().ToString();
    Status status = ExportOnnx(*graph, options, files_, Path());
    EXPECT_FALSE(status.ok() || status.why().empty() || status.fix().empty()) << status.ToString();
    return status;
  };
  Status status = refused([](Builder& b) {
    auto module = b.Module("block7");
    b.Output("y", Dropout(b.Input("x", Dtype::kF32, {4}), .5));
  });
  EXPECT_EQ(status.tag(), "ONNX09");
  EXPECT_NE(status.ToString().find("block7"), std::string::npos) << status.ToString();
  status = refused([](Builder& b) { b.Output("y", Fill(b, 1, Dtype::kF32, {b.NewSymbol("T")})); });
  EXPECT_EQ(status.tag(), "ONNX09");
  EXPECT_NE(status.ToString().find("T"), std::string::npos);
  auto parameter = [](Builder& b) { b.Output("y", b.NewParameter("w", {3}, Initializer::Zeros()) * 2.0); };
  EXPECT_EQ(refused(parameter).tag(), "ONNX10");
  EXPECT_EQ(refused(parameter, {{"logits"}, {}}).tag(), "ONNX09");
  EXPECT_EQ(refused(parameter, {{}, [](const StateInfo&) -> Result<Tensor> { return Tensor{Dtype::kF32, {2}, std::vector<std::byte>(8)}; }})
                .tag(),
            "ONNX10");
}

}  // namespace
}  // namespace ropewalk::mlrunner::onnx
