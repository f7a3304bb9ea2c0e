// Attention, and norms with a sum in them: kernels against the reference, and the passes that put them in the place of what models compose.
#include <gtest/gtest.h>

#include <cmath>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/fuse_ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/residual_norm.h"
#include "mlrunner/kernels/philox.h"
#include "mlrunner/kernels/uniform_row.h"
#include "mlrunner/models/bert.h"
#include "mlrunner/models/gpt.h"
#include "tests/unit/against_reference.h"

namespace ropewalk::mlrunner {
namespace {

std::size_t Count(const Graph& graph, const OpDef& def) {
  return static_cast<std::size_t>(std::count_if(graph.ops.begin(), graph.ops.end(), [&](const Op& op) { return op.def == &def; }));
}

// Fast kernels with one and two threads against the reference.
void Check(const char* name, const std::vector<Shape>& shapes, const CaseFunction& function, double tolerance) {
  SCOPED_TRACE(name);
  const auto graph = GraphOf(shapes, Dtype::kF32, function);
  ASSERT_TRUE(graph);
  const DrawnInputs inputs(shapes, Dtype::kF32, -2, 2);
  const std::vector<RefTensor> expected = ByReference(*graph, inputs, false);
  for (int threads : {1, 2}) {
    const Ran ran = RunAgainst(expected, *graph, inputs, CpuKernels(), {.num_threads = threads});
    EXPECT_LE(ran.error, tolerance) << threads << " threads";
    EXPECT_EQ(ran.fallbacks, 0u);
  }
}

// Sums of up to 300 terms, and gradients through two such: see model_kernels_test.cc.
constexpr double kTolerance = 4e-6;

TEST(FusedKernels, Attention) {
  auto attention = [](const AttentionOptions& options, bool masked = false) {
    return WithGradient([=](Builder&, const Vars& v) {
      AttentionOptions with = options;
      if (masked) with.mask = v[3];
      return Attention(v[0], v[1], v[2], with);
    });
  };
  const Shape q = {2, 3, 70, 16}, k = {2, 3, 130, 16}, v = {2, 3, 130, 24}, same = {2, 3, 130, 16};
  Check("cross", {q, k, v}, attention({.scale = .25}), kTolerance);
  Check("causal", {same, k, v}, attention({.scale = .25, .causal = true}), kTolerance);
  Check("keys as columns", {q, {2, 3, 16, 130}, v}, attention({.scale = .25, .transpose_k = false}), kTolerance);
  Check("keys as columns, causal", {{130, 16}, {16, 130}, {130, 8}}, attention({.scale = .25, .causal = true, .transpose_k = false}),
        kTolerance);
  // What is added to all rows of a sample, to one row of each, and to each place: their gradient comes by the primitive form.
  for (const Shape& mask : {Shape{2, 1, 1, 130}, Shape{3, 1, 130}, Shape{70, 130}, Shape{130}, Shape{2, 3, 70, 130}}) {
    Check("mask", {q, k, v, mask}, attention({.scale = .25}, true), kTolerance);
  }
  Check("rows of a multiple of a kilobyte", {{1, 5, 16}, {1, 256, 16}, {1, 256, 16}}, attention({.scale = .25}), kTolerance);
  Check("one place", {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}}, attention({}), kTolerance);
}

// Far outside of what exp has.
TEST(FusedKernels, AttentionOfLargeScores) {
  auto large = [](Builder&, const Vars& v) {
    return Vars{Attention(v[0] * 100.0, v[1], v[2]), Attention(v[0] * 100.0, v[1], v[2], {.causal = true})};
  };
  Check("large", {{2, 9, 8}, {2, 9, 8}, {2, 9, 8}}, large, 1e-4);  // scores of 1e3 have an absolute error of 1e-4
}

Vars AddNorm(Builder& b, const OpDef& def, const Vars& in) {
  Vars out = b.Emit(def, in, {{Attr::kEpsilon, .01}});
  Value loss = ReduceSum(Sin(out[0])) + ReduceSum(out[1] * out[1]) * .5, past = ReduceSum(Sin(out[1]));
  for (const Value& of : {loss, past, ReduceSum(Sin(out[0]))}) {  // by both results, and by each alone
    for (const Gradient& g : Grad(of, in)) out.push_back(g);
  }
  return out;
}

TEST(FusedKernels, ResidualNorms) {
  const Shape x = {3, 29, 77}, n = {77};
  Check("rms", {x, n}, WithGradient([](Builder&, const Vars& v) { return RmsNorm(v[0], v[1], .01); }), kTolerance);
  auto of = [](const OpDef& def) { return [&def](Builder& b, const Vars& v) { return AddNorm(b, def, v); }; };
  Check("layer norm", {x, x, n, n}, of(kAddLayerNorm), kTolerance);
  Check("layer norm, with a vector", {x, x, n, n, n}, of(kAddLayerNorm), kTolerance);
  Check("rms norm", {x, x, n}, of(kAddRmsNorm), kTolerance);
  Check("rms norm, with a vector", {x, x, n, n}, of(kAddRmsNorm), kTolerance);
  Check("two threads", {{512, 96}, {512, 96}, {96}, {96}}, of(kAddLayerNorm), kTolerance);
}

TEST(FusedKernels, RandomNumbers) {
  Check(
      "random numbers", {},
      [](Builder& b, const Vars&) {
        return Vars{RandomUniform(b, Dtype::kF32, {7, 3, 1031}), RandomUniform(b, Dtype::kF32, {7, 1031}, -1),
                    RandomUniform(b, Dtype::kF32, {5})};
      },
      0);
}

TEST(FusedKernels, RowsOfRandomNumbersAreThoseOfPhilox) {
  const std::uint64_t key = RandomKey(1, 2, 3, 4), sample = (std::uint64_t{1} << 33) + 5;
  for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{258}, (std::uint64_t{1} << 34) - 2}) {
    std::vector<float> row(700), dropped(700, 3);
    UniformRow(key, sample, first, 700, row.data());
    DropRow(key, sample, first, .25f, dropped.data(), 700);
    for (std::uint64_t i = 0; i < row.size(); ++i) {
      const float want = UniformAt(key, sample, first + i);
      ASSERT_EQ(row[i], want) << first << " + " << i;
      ASSERT_EQ(dropped[i], want < .25f ? 0 : 4) << first << " + " << i;
    }
  }
}

// --- the passes ---

Graph Prepared(const Graph& graph) { return RemoveDeadCode(MergeEqual(Simplify(graph))); }
Graph Fused(const Graph& graph) { return RemoveDeadCode(FuseResidualNorms(FuseAttention(Prepared(graph)))); }

// The loss, and the gradient of each parameter.
Graph WithGradients(Builder& b, const Model& model, const Value& labels) {
  Value loss = Mean(CrossEntropy(model.logits, labels));
  b.Output("loss", loss);
  for (const Gradient& g : Grad(loss, {model.parameters.begin(), model.parameters.end()})) b.Output("gradient", g);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return *graph;
}
Graph GptGraph(std::int64_t length, std::int64_t width, std::int64_t layers = 2) {
  Builder b;
  Dim rows = b.NewSymbol("B");
  Value ids = b.Input("ids", Dtype::kI32, {rows, length}), labels = b.Input("labels", Dtype::kI32, {rows, length});
  return WithGradients(b, Gpt(b, {.vocabulary = 7, .length = length, .width = width, .heads = 2, .layers = layers}, ids), labels);
}
Graph BertGraph(double dropout, bool masked) {
  Builder b;
  Dim rows = b.NewSymbol("B");
  BertInputs in{b.Input("ids", Dtype::kI32, {rows, 5}), {}, {}};
  if (masked) in.mask = b.Input("mask", Dtype::kF32, {rows, 5});
  Value labels = b.Input("labels", Dtype::kI32, {rows});
  const BertShape shape{.vocabulary = 7, .places = 6, .width = 8, .heads = 2, .layers = 2, .inner = 12, .dropout = dropout};
  return WithGradients(b, BertClassifier(b, shape, 3, in), labels);
}

constexpr std::int64_t kRows = 3;
std::vector<RefTensor> InputsOf(const Graph& graph) {
  Random random(5);
  std::vector<RefTensor> inputs;
  for (ValueId id : graph.inputs) {
    RefTensor tensor{Evaluate(graph.value(id).type.shape, {kRows}), {}};
    const bool real = IsFloat(graph.value(id).type.dtype);  // a mask
    for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) tensor.data.push_back(static_cast<double>(random.Below(real ? 2 : 3)));
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}
// The largest difference of any output, beside the largest number of that output, in float64 by the reference.
double Difference(const Graph& a, const Graph& b, const RunContext& run) {
  std::vector<std::vector<RefTensor>> of;
  for (const Graph* graph : {&a, &b}) {
    std::map<std::string, RefTensor> states;
    auto result = Evaluate(*graph, {kRows}, InputsOf(*graph), states, run, {.round = false});
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    if (!result.ok()) return HUGE_VAL;
    of.push_back(std::move(result->outputs));
  }
  double worst = 0;
  for (std::size_t i = 0; i < of[0].size(); ++i) {
    double largest = 1e-9, difference = 0;
    for (std::size_t k = 0; k < of[0][i].data.size(); ++k) {
      largest = std::max(largest, std::fabs(of[0][i].data[k]));
      difference = std::max(difference, std::fabs(of[0][i].data[k] - of[1][i].data[k]));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

TEST(FusePasses, GptAndBertGetFusedOpsThatComputeTheSame) {
  struct Case {
    const char* name;
    Graph graph;
    bool causal;
  };
  for (const Case& test : {Case{"gpt", GptGraph(6, 8), true}, Case{"bert", BertGraph(0, false), false},
                           Case{"bert with a mask", BertGraph(0, true), false}, Case{"bert with dropout", BertGraph(.25, true), false}}) {
    SCOPED_TRACE(test.name);
    const Graph fused = Fused(test.graph);
    const Status status = mlrunner::Check(fused);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(Count(fused, test.causal ? kCausalAttention : kAttention), 2u);
    EXPECT_EQ(Count(fused, test.causal ? kCausalAttentionGrad : kAttentionGrad), 2u);
    EXPECT_EQ(Count(fused, kSoftmax) + Count(fused, kSoftmaxGrad), 0u);
    // Pre-norm: each norm but the first is behind a sum, and each gradient of one but the last is added to. Post-norm: all but the first.
    EXPECT_EQ(Count(fused, kAddLayerNorm), 4u);
    EXPECT_EQ(Count(fused, kLayerNorm), 1u);
    EXPECT_EQ(Count(fused, kAddLayerNormGrad), test.causal ? 4u : 0u);
    // Dropout: other numbers in each step, and of each sample.
    for (std::uint64_t step : {1, 2}) EXPECT_LT(Difference(test.graph, fused, {.seed = 3, .step = step, .sample_offset = 4}), 1e-11);
    auto primitive = Expand(fused);
    ASSERT_TRUE(primitive.ok()) << primitive.status().ToString();
    EXPECT_LT(Difference(test.graph, *primitive, {.seed = 3, .step = 1, .sample_offset = 4}), 1e-11);
  }
}

// Forward alone, as an evaluation has it.
TEST(FusePasses, ForwardAlone) {
  Builder b;
  Value ids = b.Input("ids", Dtype::kI32, {b.NewSymbol("B"), 6});
  b.Output("logits", Gpt(b, {.vocabulary = 7, .length = 6, .width = 8, .heads = 2, .layers = 2}, ids).logits);
  const Graph graph = *b.Finish(), fused = Fused(graph);
  EXPECT_EQ(Count(fused, kCausalAttention), 2u);
  EXPECT_EQ(Count(fused, kSoftmax), 0u);
  EXPECT_LT(Difference(graph, fused, {}), 1e-11);
}

// Kernels of a fused training step, also of one that draws numbers, beside the reference of the composed one.
TEST(FusePasses, FusedStepsRunByFastKernels) {
  for (const Graph& graph : {GptGraph(70, 32), BertGraph(.25, true)}) {
    const Graph fused = Fused(graph);
    std::map<std::string, RefTensor> states;
    RunInputs run;
    run.run = {.seed = 3, .step = 1, .sample_offset = 4};
    auto expected = Evaluate(graph, {kRows}, InputsOf(graph), states, run.run);
    ASSERT_TRUE(expected.ok()) << expected.status().ToString();
    auto executable = Compile(fused, {kRows}, DefaultProgram(fused), CpuKernels(), {.num_threads = 2});
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    EXPECT_EQ((*executable)->fallback_ops(), 0u);
    std::vector<Tensor> tensors;
    const std::vector<RefTensor> inputs = InputsOf(graph);
    for (std::size_t i = 0; i < inputs.size(); ++i) tensors.push_back(ToTensor(graph.value(graph.inputs[i]).type.dtype, inputs[i]));
    for (const Tensor& tensor : tensors) run.micro_batches[0].push_back(&tensor);
    StateStore store;
    auto result = (*executable)->Run(run, store);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    for (std::size_t i = 0; i < expected->outputs.size(); ++i) {
      const RefTensor got = ToRef(result->outputs[0][i]), &want = expected->outputs[i];
      // Of each gradient's own size; keys' biases have gradients of nothing but roundings.
      double largest = 1e-4;
      for (double value : want.data) largest = std::max(largest, std::fabs(value));
      for (std::size_t k = 0; k < got.data.size(); ++k) ASSERT_NEAR(got.data[k], want.data[k], 1e-4 * largest) << i << ", " << k;
    }
  }
}

// The squares of scores are what the composed form's memory is.
TEST(FusePasses, AttentionHoldsNoSquares) {
  const Graph composed = Prepared(GptGraph(512, 16, 1)), fused = Fused(composed);
  std::size_t bytes[2];
  for (int k : {0, 1}) {
    const Graph& graph = k == 0 ? composed : fused;
    auto executable = Compile(graph, {kRows}, DefaultProgram(graph), CpuKernels(), {.num_threads = 2});
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    bytes[k] = (*executable)->arena_bytes();
  }
  const std::size_t square = kRows * 2 * 512 * 512 * sizeof(float);
  EXPECT_GE(bytes[0], square);
  EXPECT_LT(bytes[1], square / 2);
}

TEST(FusePasses, WhatOthersSeeStays) {
  using Change = std::function<void(Builder&, const Vars&)>;
  // q, k, v (2, 4, 3); scores, weights, mixed
  auto attention_of = [](const Change& change) {
    Builder b;
    Vars v;
    for (const char* name : {"q", "k", "v"}) v.push_back(b.Input(name, Dtype::kF64, {2, 4, 3}));
    Value scores = MatMul(v[0], v[1], false, true) * .5, weights = Softmax(scores), mixed = MatMul(weights, v[2]);
    b.Output("mixed", mixed);
    change(b, {v[0], v[1], v[2], scores, weights, mixed});
    const Graph graph = Prepared(*b.Finish()), fused = FuseAttention(graph);
    EXPECT_LT(Difference(graph, fused, {}), 1e-11);
    return Count(fused, kAttention);
  };
  auto all_gradients = [](Builder& b, const Vars& v) {
    for (const Gradient& g : Grad(ReduceSum(Sin(v[5])), {v[0], v[1], v[2]})) b.Output("g", g);
  };
  EXPECT_EQ(attention_of([](Builder&, const Vars&) {}), 1u);
  EXPECT_EQ(attention_of(all_gradients), 1u);
  EXPECT_EQ(attention_of([](Builder& b, const Vars& v) { b.Output("weights", v[4]); }), 0u);
  EXPECT_EQ(attention_of([](Builder& b, const Vars& v) { b.Tap("scores", v[3]); }), 0u);
  EXPECT_EQ(attention_of([](Builder& b, const Vars& v) { b.Output("more", ReduceSum(v[4] * v[4])); }), 0u);
  // A gradient that is of less than all three is left as it is, and so is its forward.
  EXPECT_EQ(attention_of([](Builder& b, const Vars& v) { b.Output("g", Grad(ReduceSum(Sin(v[5])), {v[0]})[0]); }), 0u);
}

TEST(FusePasses, NormsTakeInOnlySumsOfTheirShape) {
  auto norms_of = [](const std::function<Value(const Vars&)>& function) {
    Builder b;
    Vars v{b.Input("x", Dtype::kF64, {2, 4, 3}), b.Input("r", Dtype::kF64, {2, 4, 3}), b.Input("c", Dtype::kF64, {3})};
    b.Output("y", function(v));
    const Graph graph = Prepared(*b.Finish()), fused = FuseResidualNorms(graph);
    EXPECT_LT(Difference(graph, fused, {}), 1e-11);
    return Count(fused, kAddLayerNorm) + Count(fused, kAddRmsNorm);
  };
  auto norm = [](const Value& x, const Vars& v) { return LayerNorm(x, v[2], v[2] * 2.0, .01); };
  EXPECT_EQ(norms_of([&](const Vars& v) { return norm(v[0] + v[1], v); }), 1u);
  EXPECT_EQ(norms_of([&](const Vars& v) { return norm(v[0] + (v[1] + v[2]), v); }), 1u);
  EXPECT_EQ(norms_of([&](const Vars& v) { return RmsNorm(v[0] + (v[1] + v[2]), v[2]); }), 1u);
  EXPECT_EQ(norms_of([&](const Vars& v) { return norm(v[0] + v[2], v); }), 0u);
  EXPECT_EQ(norms_of([&](const Vars& v) { return norm(v[0] + v[0], v); }), 0u);
  // One norm takes the sum in, the other finds it made; what is made before the norm finds no sum.
  EXPECT_EQ(norms_of([&](const Vars& v) {
              Value s = v[0] + v[1];
              return norm(s, v) * norm(s * 2.0, v) + RmsNorm(s, v[2]);
            }),
            1u);
  EXPECT_EQ(norms_of([&](const Vars& v) {
              Value s = v[0] + v[1], twice = s * 2.0;
              return norm(s, v) + twice;
            }),
            0u);
}

}  // namespace
}  // namespace ropewalk::mlrunner
