// Tensors without elements: every op gives by fast kernels, and by the reference behind the executor, what the interpreter gives. Such a
// tensor of the caller, or a state, may lie nowhere (a null pointer), one that was computed does not.
#include <gtest/gtest.h>

#include <cmath>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/residual_norm.h"
#include "tests/unit/against_reference.h"

namespace ropewalk::mlrunner {
namespace {

struct Case {
  const char* name;
  std::vector<Shape> shapes;  // of floating-point tensors
  CaseFunction function;
};

Value NoInts(Builder& b) { return Constant(b, Literal::Of(Dtype::kI32, {0}, std::vector<std::int32_t>())); }

std::vector<Case> Cases() {
  auto product = [](bool ta, bool tb) { return WithGradient([=](Builder&, const Vars& v) { return MatMul(v[0], v[1], ta, tb); }); };
  return {
      {"binary", {{0, 4}, {4}}, WithGradient([](Builder&, const Vars& v) { return v[0] + v[1] * v[0] - v[0] / (v[1] + 3.0); })},
      {"binary of columns", {{3, 0}, {3, 1}}, WithGradient([](Builder&, const Vars& v) { return Maximum(v[0], v[1]) * Pow(v[1], 2); })},
      {"select", {{0, 4}, {1, 4}}, WithGradient([](Builder&, const Vars& v) { return Select(Greater(v[0], v[1]), v[0], v[1] * 2.0); })},
      {"unary",
       {{2, 0}},
       [](Builder&, const Vars& v) {
         const Value& x = v[0];
         return Vars{-x,
                     Exp(x),
                     Log(x),
                     Sqrt(x),
                     Rsqrt(x),
                     Tanh(x),
                     Sigmoid(x),
                     Erf(x),
                     Sin(x),
                     Cos(x),
                     Abs(x),
                     Sign(x),
                     Relu(x),
                     Gelu(x),
                     Cast(IsFinite(x), x.dtype()),
                     Cast(x, Dtype::kI32)};
       }},
      {"no rows", {{0, 4}, {4, 5}}, product(false, false)},
      {"no depth", {{3, 0}, {0, 5}}, product(false, false)},
      {"no depth, ta", {{0, 3}, {0, 5}}, product(true, false)},
      {"no columns, tb", {{3, 4}, {0, 4}}, product(false, true)},
      {"no matrices", {{0, 3, 4}, {0, 4, 5}}, product(false, false)},
      {"no matrices of one", {{0, 3, 4}, {1, 4, 5}}, product(false, false)},
      {"no wide rows", {{0, 65}, {65, 520}}, product(false, false)},
      {"no images", {{0, 3, 6, 6}, {4, 3, 3, 3}}, WithGradient([](Builder&, const Vars& v) { return Conv2D(v[0], v[1]); })},
      {"no channels", {{2, 0, 6, 6}, {4, 0, 3, 3}}, WithGradient([](Builder&, const Vars& v) { return Conv2D(v[0], v[1]); })},
      {"no kernels", {{2, 3, 6, 6}, {0, 3, 3, 3}}, WithGradient([](Builder&, const Vars& v) { return Conv2D(v[0], v[1]); })},
      {"largest of no images", {{0, 3, 4, 4}}, WithGradient([](Builder&, const Vars& v) { return MaxPool2D(v[0], 2, 2); })},
      {"means of no images", {{0, 3, 4, 4}}, WithGradient([](Builder&, const Vars& v) { return AvgPool2D(v[0], 2, 2); })},
      {"means of no whole images", {{0, 3, 4, 5}}, WithGradient([](Builder&, const Vars& v) { return GlobalAvgPool2D(v[0]); })},
      {"no images, biased", {{0, 4, 6, 6}, {4, 2, 3, 3}, {4}}, WithGradient([](Builder&, const Vars& v) {
         return Conv2D(v[0], v[1], {.groups = 2, .bias = v[2]});
       })},
      {"no channels, biased", {{2, 0, 6, 6}, {4, 0, 3, 3}, {4}}, WithGradient([](Builder&, const Vars& v) {
         return Conv2D(v[0], v[1], {.bias = v[2]});
       })},
      {"batch norm of no images", {{0, 3, 4, 4}, {3}, {3}}, WithGradient([](Builder&, const Vars& v) {
         return BatchNorm(v[0], v[1], v[2], MomentsOf(v[0]), {.relu = true});
       })},
      {"batch norm of no channels", {{2, 0, 4, 4}, {0}, {0}}, WithGradient([](Builder&, const Vars& v) {
         return BatchNorm(v[0], v[1], v[2], MomentsOf(v[0]));
       })},
      {"batch norm of rows that do not count", {{2, 3}, {3}, {3}}, WithGradient([](Builder& b, const Vars& v) {
         Moments m = MomentsOf(v[0], Fill(b, 0, v[0].dtype(), {2}));
         return BatchNorm(v[0], v[1], v[2], m) + m.mean + m.variance;
       })},
      {"batch norm of no rows by any moments", {{0, 3}, {3}, {3}, {3}}, WithGradient([](Builder&, const Vars& v) {
         return BatchNormInference(v[0], v[1], v[2], v[2], Square(v[3]) + .1);
       })},
      {"softmax", {{0, 4}}, WithGradient([](Builder&, const Vars& v) { return Softmax(v[0]) + LogSoftmax(v[0]); })},
      {"softmax of nothing", {{3, 0}}, WithGradient([](Builder&, const Vars& v) { return Softmax(v[0]) + LogSoftmax(v[0]); })},
      {"gelu", {{0, 4}}, WithGradient([](Builder&, const Vars& v) { return Gelu(v[0]); })},
      {"layer norm", {{0, 4}, {4}, {4}}, WithGradient([](Builder&, const Vars& v) { return LayerNorm(v[0], v[1], v[2]); })},
      {"layer norm of nothing", {{3, 0}, {0}, {0}}, WithGradient([](Builder&, const Vars& v) { return LayerNorm(v[0], v[1], v[2]); })},
      {"cross entropy", {{0, 10}}, WithGradient([](Builder& b, const Vars& v) { return CrossEntropy(v[0], NoInts(b)); })},
      {"sums",
       {{0, 3}},
       [](Builder&, const Vars& v) {
         return Vars{ReduceSum(v[0]), ReduceSum(v[0], {0}), ReduceSum(v[0], {1}), ReduceSum(v[0], {0}, true), Mean(v[0]), Mean(v[0], {1})};
       }},
      {"sums over axes apart", {{2, 3, 0}}, [](Builder&, const Vars& v) { return Vars{ReduceSum(v[0], {0, 2}), ReduceSum(v[0], {0})}; }},
      {"maxima", {{0, 3}}, WithGradient([](Builder&, const Vars& v) { return ReduceMax(v[0], {1}); })},
      {"maxima of nothing", {{0, 3}}, [](Builder&, const Vars& v) { return Vars{ReduceMax(v[0]), ReduceMax(v[0], {0}), ArgMax(v[0])}; }},
      {"whether any flag of none is up",
       {{0, 3}},
       [](Builder&, const Vars& v) {
         return Vars{Cast(ReduceMax(Greater(v[0], 0)), Dtype::kF32), Cast(ReduceMax(Greater(v[0], 0), {0}), Dtype::kF32)};
       }},
      {"moves",
       {{0, 3}},
       [](Builder&, const Vars& v) {
         return Vars{Transpose(v[0]),          Reshape(v[0], {3, 0, 2}), BroadcastTo(v[0], {2, 0, 3}), SliceAxis(v[0], 0, 0, 0),
                     SliceAxis(v[0], 1, 1, 2), PadAxis(v[0], 0, 1, 2),   PadAxis(v[0], 1, 1, 0)};
       }},
      {"slices of something", {{4, 3}}, WithGradient([](Builder&, const Vars& v) { return SliceAxis(SliceAxis(v[0], 0, 2, 2), 1, 1, 3); })},
      {"concat", {{0, 3}, {2, 3}}, WithGradient([](Builder&, const Vars& v) { return Concat({v[0], v[1], v[0]}, 0); })},
      {"concat of nothing", {{0, 3}, {0, 2}}, WithGradient([](Builder&, const Vars& v) { return Concat({v[0], v[1]}, 1); })},
      {"bucket", {{0, 3}, {2}}, [](Builder& b, const Vars& v) { return Vars{b.EmitOne(kBucket, {v[0], v[1], v[0]})}; }},
      {"gather", {{5, 3}}, WithGradient([](Builder& b, const Vars& v) { return Gather(v[0], NoInts(b)); })},
      {"gather of no rows", {{0, 3}}, WithGradient([](Builder& b, const Vars& v) { return Gather(v[0], NoInts(b)); })},
      {"scatter", {{0, 3}}, WithGradient([](Builder& b, const Vars& v) { return ScatterAdd(NoInts(b), v[0], 5); })},
      {"indices",
       {{0, 3}},
       [](Builder& b, const Vars& v) {
         Value ids = b.Input("ids", Dtype::kI64, {0});
         Value twice = Concat({ids, ids + 1}, 0);
         return Vars{twice, OneHot(ids, 4, v[0].dtype()), Gather(v[0], twice), Cast(ids, v[0].dtype())};
       }},
      {"rows of a stack", {{3, 0}, {0}}, WithGradient([](Builder& b, const Vars& v) {
         Value two = b.Number(2, Dtype::kI64);
         return At(SetAt(v[0], two, v[1]), two) * At(v[0], two);
       })},
      {"made",
       {},
       [](Builder& b, const Vars&) {
         return Vars{Fill(b, 1, Dtype::kF32, {0, 2}), Iota(b, Dtype::kF32, 0), RandomUniform(b, Dtype::kF32, {0, 3})};
       }},
      {"adamw",
       {{0}, {0}, {0}, {0}},
       [](Builder& b, const Vars& v) {
         return b.Emit(kAdamW, {v[0], v[1], v[2], v[3], b.Number(.01, v[0].dtype()), b.Number(3, v[0].dtype())},
                       {{Attr::kLow, .9}, {Attr::kHigh, .99}, {Attr::kEpsilon, 1e-6}, {Attr::kValue, .1}});
       }},
      {"lamb",
       {{0}, {0}, {0}, {0}},
       [](Builder& b, const Vars& v) {
         return b.Emit(kLamb, {v[0], v[1], v[2], v[3], b.Number(.01, v[0].dtype()), b.Number(3, v[0].dtype())},
                       {{Attr::kLow, .9}, {Attr::kHigh, .99}, {Attr::kEpsilon, 1e-6}, {Attr::kValue, .1}});
       }},
      {"adagrad",
       {{0}, {0}, {0}},
       [](Builder& b, const Vars& v) {
         return b.Emit(kAdagrad, {v[0], v[1], v[2], b.Number(.01, v[0].dtype())}, {{Attr::kEpsilon, 1e-6}});
       }},
      {"attention of no sample", {{0, 3, 2}, {0, 4, 2}, {0, 4, 2}}, WithGradient([](Builder&, const Vars& v) {
         return Attention(v[0], v[1], v[2]);
       })},
      {"attention of no place", {{2, 0, 2}, {2, 4, 2}, {2, 4, 2}}, WithGradient([](Builder&, const Vars& v) {
         return Attention(v[0], v[1], v[2]);
       })},
      {"rms norm of no row", {{0, 3}, {3}}, WithGradient([](Builder&, const Vars& v) { return RmsNorm(v[0], v[1]); })},
      {"layer norm of no sum", {{0, 3}, {0, 3}, {3}, {3}}, WithGradient([](Builder& b, const Vars& v) {
         return b.Emit(kAddLayerNorm, v, {{Attr::kEpsilon, 1e-3}})[0];
       })},
      {"while", {{0, 2}}, WithGradient([](Builder& b, const Vars& v) {
         return While(
             {b.Number(0, Dtype::kI64), v[0]}, 4, [](Builder&, const Vars& s) { return Less(s[0], 2); },
             [](Builder&, const Vars& s) { return Vars{s[0] + 1, Tanh(s[1])}; })[1];
       })},
      {"cond", {{0, 2}}, WithGradient([](Builder&, const Vars& v) {
         return Cond(
             Greater(ReduceSum(v[0]), -1), [&](Builder& c) { return Vars{Identity(c, v[0]) * 2.0}; },
             [&](Builder& c) { return Vars{Sin(Identity(c, v[0]))}; })[0];
       })},
  };
}

enum class Given { kByCaller, kComputed, kState };

void Check(const Case& test, Dtype dtype, Given given) {
  Builder b;
  Vars values;
  for (std::size_t i = 0; i < test.shapes.size(); ++i) {
    std::string name = "x" + std::to_string(i);
    if (given == Given::kState) {
      values.push_back(b.NewParameter(name, test.shapes[i], Initializer::Normal(1), dtype));
    } else {
      Value input = b.Input(name, dtype, test.shapes[i]);
      values.push_back(given == Given::kComputed ? Tanh(input) : input);
    }
  }
  for (const Value& y : test.function(b, values)) b.Output("y", y);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Graph passed = FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(*graph))));
  Random random(5);
  std::vector<RefTensor> refs;
  std::vector<Tensor> tensors;
  for (ValueId id : graph->inputs) {
    const TensorType& type = graph->value(id).type;
    RefTensor tensor{Evaluate(type.shape, {}), {}};
    for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) tensor.data.push_back(RoundTo(type.dtype, random.Unit()));
    tensors.push_back(ToTensor(type.dtype, tensor));
    refs.push_back(std::move(tensor));
  }
  RunInputs inputs;
  for (const Tensor& tensor : tensors) inputs.micro_batches[0].push_back(&tensor);
  std::map<std::string, RefTensor> states;
  auto expected = Evaluate(*graph, {}, refs, states);
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  for (Device device : {Device::kCpu, Device::kReference}) {
    for (const Graph* run : {&*graph, &passed}) {
      auto executable = Compile(*run, {}, {}, CpuKernels(), {.device = device});
      ASSERT_TRUE(executable.ok()) << executable.status().ToString();
      StateStore store;
      auto got = (*executable)->Run(inputs, store);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      for (std::size_t i = 0; i < expected->outputs.size(); ++i) {
        RefTensor have = ToRef(got->outputs[0][i]);
        const RefTensor& want = expected->outputs[i];
        ASSERT_EQ(have.dims, want.dims) << "output " << i;
        for (std::size_t k = 0; k < want.data.size(); ++k) {
          double h = have.data[k], w = want.data[k];
          // Some of 20 roundings of f32; those of 16 bits are the reference's own.
          bool same = h == w || (std::isnan(h) && std::isnan(w)) || std::fabs(h - w) <= 20 * 0x1p-24 * std::max(1.0, std::fabs(w));
          EXPECT_TRUE(same) << "output " << i << " at " << k << ": " << h << " instead of " << w;
        }
      }
    }
  }
}

TEST(Empty, EveryOpByFastKernels) {
  for (const Case& test : Cases()) {
    for (Given given : {Given::kByCaller, Given::kComputed, Given::kState}) {
      SCOPED_TRACE(std::string(test.name) + " " + std::to_string(static_cast<int>(given)));
      Check(test, Dtype::kF32, given);
    }
  }
}
TEST(Empty, EveryOpByTheReference) {
  for (const Case& test : Cases()) {
    for (Given given : {Given::kByCaller, Given::kComputed, Given::kState}) {
      SCOPED_TRACE(std::string(test.name) + " " + std::to_string(static_cast<int>(given)));
      Check(test, Dtype::kF64, given);
    }
  }
}

// A batch of no samples is a batch: its loss is 0, and the parameters stay.
TEST(Empty, AStepOnNoSamples) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B", 0, 8), 6}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  Parameter w = b.NewParameter("w", {6, 5}, Initializer::Normal(1)), c = b.NewParameter("c", {5}, Initializer::Normal(1)),
            v = b.NewParameter("v", {5, 3}, Initializer::Normal(1));
  Value loss = ReduceSum(CrossEntropy(MatMul(Relu(MatMul(x, w) + c), v), labels));
  b.Output("loss", loss);
  ApplySgd(b, {w, c, v}, Grad(loss, {w, c, v}), .1);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Graph passed = FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(*graph))));
  for (Device device : {Device::kCpu, Device::kReference}) {
    auto executable = Compile(passed, {0}, DefaultProgram(passed), CpuKernels(), {.device = device});
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    if (device == Device::kCpu) {
      EXPECT_EQ((*executable)->fallback_ops(), 0u);
    }
    Tensor no_rows = ToTensor(Dtype::kF32, {{0, 6}, {}}), no_labels = ToTensor(Dtype::kI32, {{0}, {}});
    RunInputs inputs;
    inputs.micro_batches[0] = {&no_rows, &no_labels};
    StateStore states, first;
    for (const StateInfo& state : graph->states) ASSERT_TRUE(first.Find(*graph, state, {0}, {}).ok());
    auto got = (*executable)->Run(inputs, states);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(ToRef(got->outputs[0][0]).data, std::vector<double>{0});
    for (const char* name : {"w", "c", "v"}) EXPECT_EQ(states.Get(name).bytes, first.Get(name).bytes) << name;
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
