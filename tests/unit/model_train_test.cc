// Training: an MLP, a small GPT and a small LeNet on made-up data. The f32 losses of ten steps are those of the float64 reference, and the
// loss falls.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/explain.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"

namespace ropewalk::mlrunner {
namespace {

struct Linear {
  Parameter w, c;
  Linear(Builder& b, std::string name, int in, int out)
      : w(b.NewParameter(name + "/w", {in, out}, Initializer::Normal(1 / std::sqrt(in)))),
        c(b.NewParameter(name + "/b", {out}, Initializer::Zeros())) {}
  Value operator()(const Value& x) const { return MatMul(x, w) + c; }
};

Graph Mlp() {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B", 1, 256), 8}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  Linear first(b, "first", 8, 32), second(b, "second", 32, 4);
  Value loss = Mean(CrossEntropy(second(Relu(first(x))), labels));
  b.Output("loss", loss);
  std::vector<Parameter> parameters = {first.w, first.c, second.w, second.c};
  ApplySgd(b, parameters, Grad(loss, {parameters.begin(), parameters.end()}), .2, {.momentum = .9});
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return *graph;
}

// Pre-norm blocks; attention from primitives, so that tensor parallel cuts and fused kernels both have something to start from.
Graph Gpt() {
  constexpr int kVocab = 12, kWidth = 16, kHeads = 2, kLength = 8, kLayers = 2, kHead = kWidth / kHeads;
  Builder b;
  Dim batch = b.NewSymbol("B", 1, 64);
  Value ids = b.Input("ids", Dtype::kI32, {batch, kLength}), targets = b.Input("targets", Dtype::kI32, {batch, kLength});
  std::vector<Parameter> parameters;
  auto keep = [&](Parameter p) { return parameters.emplace_back(p); };
  auto linear = [&](std::string name, const Value& x, int in, int out) {
    Linear l(b, std::move(name), in, out);
    keep(l.w);
    keep(l.c);
    return l(x);
  };
  auto norm = [&](std::string name, const Value& x) {
    Parameter gain = keep(b.NewParameter(name + "/gain", {kWidth}, Initializer::Ones()));
    Parameter bias = keep(b.NewParameter(name + "/bias", {kWidth}, Initializer::Zeros()));
    return LayerNorm(x, gain, bias);
  };
  Parameter tokens = keep(b.NewParameter("tokens", {kVocab, kWidth}, Initializer::Normal(.3)));
  Parameter places = keep(b.NewParameter("places", {kLength, kWidth}, Initializer::Normal(.3)));
  Value x = Gather(tokens, ids) + places;
  Value row = Reshape(Iota(b, Dtype::kF32, kLength), {kLength, 1}), column = Iota(b, Dtype::kF32, kLength);
  Value mask = Select(Less(row, column), b.Number(-1e9, Dtype::kF32), b.Number(0, Dtype::kF32));
  for (int layer = 0; layer < kLayers; ++layer) {
    auto module = b.Module("block" + std::to_string(layer), layer);
    Value qkv = linear("qkv", norm("norm1", x), kWidth, 3 * kWidth);
    auto heads = [&](int part) {  // (B, T, C) -> (B, heads, T, C / heads)
      return Transpose(Reshape(SliceAxis(qkv, -1, part * kWidth, (part + 1) * kWidth), {batch, kLength, kHeads, kHead}), {0, 2, 1, 3});
    };
    Value scores = Softmax(MatMul(heads(0), heads(1), false, true) * (1 / std::sqrt(kHead)) + mask);
    Value mixed = Reshape(Transpose(MatMul(scores, heads(2)), {0, 2, 1, 3}), {batch, kLength, kWidth});
    x = x + linear("out", mixed, kWidth, kWidth);
    x = x + linear("down", Gelu(linear("up", norm("norm2", x), kWidth, 4 * kWidth)), 4 * kWidth, kWidth);
  }
  Value logits = MatMul(norm("norm", x), tokens, false, true);  // tied with the embedding
  Value loss = Mean(CrossEntropy(logits, targets));
  b.Output("loss", loss);
  ApplyAdamW(b, parameters, Grad(loss, {parameters.begin(), parameters.end()}), .01);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return *graph;
}

// LeCun et al. 1998, in small: twice a convolution, a bias, a bend and a pooling of 2 x 2; then two linear layers. Theirs bend by tanh and
// pool by means, what came later by relu and the largest.
Graph LeNet(bool later) {
  Builder b;
  Dim batch = b.NewSymbol("B", 1, 256);
  Value x = b.Input("x", Dtype::kF32, {batch, 1, 16, 16}), labels = b.Input("labels", Dtype::kI32, {batch});
  std::vector<Parameter> parameters;
  auto convolution = [&](const std::string& name, const Value& in, int from, int to, std::int64_t padding) {
    Parameter w = b.NewParameter(name + "/w", {to, from, 5, 5}, Initializer::Normal(std::sqrt(2.0 / (from * 25)))),
              c = b.NewParameter(name + "/b", {to}, Initializer::Zeros());
    parameters.insert(parameters.end(), {w, c});
    Value y = Conv2D(in, w, {{1, 1}, {padding, padding}}) + Reshape(c, {to, 1, 1});
    return later ? MaxPool2D(Relu(y), 2, 2) : AvgPool2D(Tanh(y), 2, 2);
  };
  Value h = convolution("conv1", x, 1, 6, 2);  // (B, 6, 8, 8)
  h = convolution("conv2", h, 6, 16, 0);       // (B, 16, 2, 2)
  Linear first(b, "first", 64, 32), second(b, "second", 32, 4);
  parameters.insert(parameters.end(), {first.w, first.c, second.w, second.c});
  Value loss = Mean(CrossEntropy(second(Relu(first(Reshape(h, {batch, 64})))), labels));
  b.Output("loss", loss);
  ApplySgd(b, parameters, Grad(loss, {parameters.begin(), parameters.end()}), .05, {.momentum = .9});
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return *graph;
}

using Batch = std::vector<RefTensor>;
// A line across an image with noise: lying, standing, falling or rising.
Batch LineBatch(std::uint64_t step, std::int64_t rows) {
  Random random(step + 55);
  Batch batch{{{rows, 1, 16, 16}, {}}, {{rows}, {}}};
  for (std::int64_t i = 0; i < rows; ++i) {
    std::int64_t kind = static_cast<std::int64_t>(random.Below(4)), at = static_cast<std::int64_t>(random.Below(12)) + 2;
    for (std::int64_t r = 0; r < 16; ++r) {
      for (std::int64_t c = 0; c < 16; ++c) {
        std::int64_t off = kind == 0 ? r - at : kind == 1 ? c - at : kind == 2 ? (r - c + at) % 8 : (r + c + at) % 8;
        batch[0].data.push_back(RoundTo(Dtype::kF32, random.Unit() * .5 + (off == 0 ? 1 : 0)));
      }
    }
    batch[1].data.push_back(static_cast<double>(kind));
  }
  return batch;
}
// Four classes: the largest of four sums.
Batch MlpBatch(std::uint64_t step, std::int64_t rows) {
  Random random(step + 77);
  Batch batch{{{rows, 8}, {}}, {{rows}, {}}};
  for (std::int64_t i = 0; i < rows; ++i) {
    double best = -10, label = 0;
    for (int k = 0; k < 4; ++k) {
      double a = RoundTo(Dtype::kF32, random.Unit() * 2 - 1), c = RoundTo(Dtype::kF32, random.Unit() * 2 - 1);
      batch[0].data.insert(batch[0].data.end(), {a, c});
      if (a + c > best) {
        best = a + c;
        label = k;
      }
    }
    batch[1].data.push_back(label);
  }
  return batch;
}
// Counting with a step that the first two symbols tell.
Batch GptBatch(std::uint64_t step, std::int64_t rows) {
  Random random(step + 99);
  Batch batch{{{rows, 8}, {}}, {{rows, 8}, {}}};
  for (std::int64_t i = 0; i < rows; ++i) {
    std::uint64_t at = random.Below(12), stride = 1 + random.Below(3);
    for (int t = 0; t < 8; ++t) {
      batch[0].data.push_back(static_cast<double>((at + t * stride) % 12));
      batch[1].data.push_back(static_cast<double>((at + (t + 1) * stride) % 12));
    }
  }
  return batch;
}

std::vector<double> TrainFast(const Graph& graph, Batch (*make)(std::uint64_t, std::int64_t), int steps, int threads, StateStore& store) {
  Graph passed = FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(graph))));
  auto executable = Compile(passed, {16}, DefaultProgram(passed), CpuKernels(), {.num_threads = threads});
  EXPECT_TRUE(executable.ok()) << executable.status().ToString();
  if (executable.ok()) {
    EXPECT_EQ((*executable)->fallback_ops(), 0u);
  }
  std::vector<double> losses;
  for (int step = 0; executable.ok() && step < steps; ++step) {
    std::vector<Tensor> tensors;
    Batch batch = make(static_cast<std::uint64_t>(step), 16);
    for (std::size_t i = 0; i < batch.size(); ++i) tensors.push_back(ToTensor(graph.value(graph.inputs[i]).type.dtype, batch[i]));
    RunInputs inputs;
    for (const Tensor& tensor : tensors) inputs.micro_batches[0].push_back(&tensor);
    inputs.run.step = static_cast<std::uint64_t>(step);
    auto result = (*executable)->Run(inputs, store);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    if (!result.ok()) break;
    losses.push_back(ToRef(result->outputs[0][0]).data[0]);
  }
  return losses;
}

std::vector<double> TrainReference(const Graph& graph, Batch (*make)(std::uint64_t, std::int64_t), int steps, const StateStore& first) {
  auto wide = ChangeFloats(graph, Dtype::kF32, Dtype::kF64);
  EXPECT_TRUE(wide.ok() && Check(*wide).ok());
  std::map<std::string, RefTensor> states;
  for (const StateInfo& state : graph.states) states[state.name] = ToRef(first.Get(state.name));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    auto result = Evaluate(*wide, {16}, make(static_cast<std::uint64_t>(step), 16), states, {.step = static_cast<std::uint64_t>(step)});
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    if (!result.ok()) break;
    losses.push_back(result->outputs[0].data[0]);
  }
  return losses;
}

void TenStepsAgree(const Graph& graph, Batch (*make)(std::uint64_t, std::int64_t)) {
  // The first values in f32, before any step.
  StateStore first;
  for (const StateInfo& state : graph.states) ASSERT_TRUE(first.Find(graph, state, {16}, {}).ok());
  StateStore store, two;
  std::vector<double> fast = TrainFast(graph, make, 10, 1, store), expected = TrainReference(graph, make, 10, first);
  // Forward is about 40 ops of a few roundings each: 40 * 4 * 2^-24, about 1e-5. A step in the wrong place shows at the size of the
  // learning rate, 1e-2.
  ASSERT_EQ(fast.size(), 10u);
  ASSERT_EQ(expected.size(), 10u);
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(fast[i], expected[i], 1e-5 * expected[i]) << "step " << i;
  std::vector<double> threaded = TrainFast(graph, make, 10, 2, two);
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(threaded[i], expected[i], 1e-5 * expected[i]) << "step " << i;
}

TEST(Train, MlpTenStepsAreThoseOfTheReference) { TenStepsAgree(Mlp(), MlpBatch); }
TEST(Train, GptTenStepsAreThoseOfTheReference) { TenStepsAgree(Gpt(), GptBatch); }
TEST(Train, LeNetTenStepsAreThoseOfTheReference) { TenStepsAgree(LeNet(true), LineBatch); }
TEST(Train, LeNetOf1998TenStepsAreThoseOfTheReference) { TenStepsAgree(LeNet(false), LineBatch); }

TEST(Train, MlpLearns) {
  StateStore store;
  std::vector<double> losses = TrainFast(Mlp(), MlpBatch, 300, 1, store);
  ASSERT_EQ(losses.size(), 300u);
  double end = 0;
  for (int i = 280; i < 300; ++i) end += losses[i] / 20;
  EXPECT_LT(end, .5 * losses[0]);
}

TEST(Train, LeNetLearnsLines) {
  StateStore store;
  std::vector<double> losses = TrainFast(LeNet(true), LineBatch, 150, 1, store);
  ASSERT_EQ(losses.size(), 150u);
  double end = 0;
  for (int i = 130; i < 150; ++i) end += losses[i] / 20;
  EXPECT_LT(end, .3 * losses[0]);
}

TEST(Train, GptLearnsToCount) {
  StateStore store;
  std::vector<double> losses = TrainFast(Gpt(), GptBatch, 300, 1, store);
  ASSERT_EQ(losses.size(), 300u);
  double end = 0;
  for (int i = 280; i < 300; ++i) end += losses[i] / 20;
  EXPECT_GT(losses[0], 2);
  EXPECT_LT(end, .7);  // the second symbol cannot be known: about ln(3) / 8
}

// Steps are counted, and rates held, in f32 at least: bf16 has no 257. After each of 300 steps the update of a parameter of 16 bits is that
// of one of f32, whose moments it gets, so that only its own roundings are in it. By the kernel and by its primitive form.
TEST(Train, AdamWCountsBeyond256For16Bits) {
  constexpr int kSteps = 300;
  const RefTensor gradient{{4}, {1, -.5, .25, 2}};
  auto build = [](Dtype dtype, bool primitive) {
    Builder b;
    Value g = b.Input("g", dtype, {4});
    Parameter w = b.NewParameter("w", {4}, Initializer::Zeros(), dtype);
    ApplyAdamW(b, {w}, {g}, .3, {.weight_decay = 0});
    auto graph = b.Finish();
    EXPECT_TRUE(graph.ok()) << graph.status().ToString();
    return primitive ? *Expand(*graph) : *graph;
  };
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (bool primitive : {false, true}) {
      SCOPED_TRACE(std::string(Name(dtype)) + (primitive ? " primitive" : ""));
      Graph single = build(Dtype::kF32, false), half = build(dtype, primitive);
      auto a = Compile(single, {}, DefaultProgram(single), CpuKernels()), c = Compile(half, {}, DefaultProgram(half), CpuKernels());
      ASSERT_TRUE(a.ok() && c.ok()) << a.status().ToString() << c.status().ToString();
      Tensor g32 = ToTensor(Dtype::kF32, gradient), g16 = ToTensor(dtype, gradient);
      RunInputs in32, in16;
      in32.micro_batches[0] = {&g32};
      in16.micro_batches[0] = {&g16};
      StateStore s32, s16;
      for (int step = 1; step <= kSteps; ++step) {
        // From zero, so that what is seen is the update.
        s32.Set("w", ToTensor(Dtype::kF32, {{4}, std::vector<double>(4)}));
        s16.Set("w", ToTensor(dtype, {{4}, std::vector<double>(4)}));
        for (const char* moment : {"w/first_moment", "w/second_moment"}) {
          if (step > 1) s16.Set(moment, ToTensor(dtype, ToRef(s32.Get(moment))));
        }
        auto p = (*a)->Run(in32, s32), q = (*c)->Run(in16, s16);
        ASSERT_TRUE(p.ok() && q.ok()) << p.status().ToString() << q.status().ToString();
        RefTensor w32 = ToRef(s32.Get("w")), w16 = ToRef(s16.Get("w"));
        // Roundings to 8 bits: of two moments (one under a root) and of the result. A step that stays at 256 makes 7%.
        for (int i = 0; i < 4; ++i) ASSERT_NEAR(w16.data[i], w32.data[i], 2.5 * 0x1p-8 * std::fabs(w32.data[i])) << "step " << step;
        ASSERT_EQ(ToRef(s16.Get("optimizer/step")).data[0], step);
        ASSERT_EQ(ToRef(s16.Get(kLearningRate)).data[0], ToRef(s32.Get(kLearningRate)).data[0]);
      }
    }
  }
}

TEST(Explain, ShowsStatesRegionsOpsAndLines) {
  Graph graph = Mlp();
  std::string text = ExplainText(graph);
  for (const char* part : {"state first/w: parameter, (8, 32) f32", "forward:", "backward:", "update of second/b:", "MatMul(",
                           "(B, 32) f32", "model_train_test.cc:", "output loss"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
