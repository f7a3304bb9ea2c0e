// Gradients: each op and random graphs of 20 ops against central differences in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <functional>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/residual_norm.h"
#include "mlrunner/kernels/reference.h"
#include "tests/unit/model_random.h"

namespace ropewalk::mlrunner {
namespace {

RefTensor RandomTensor(const Value& value, Random& random, double low = -1, double high = 1) {
  RefTensor tensor{Evaluate(value.shape(), {}), {}};
  for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) tensor.data.push_back(low + (high - low) * random.Unit());
  return tensor;
}

double LossOf(const Graph& graph, const std::vector<RefTensor>& inputs) {
  std::map<std::string, RefTensor> states;
  auto result = Evaluate(graph, {}, inputs, states);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? result->outputs[0].data[0] : NAN;
}

// The worst difference between the gradients (outputs 1...) and fourth-order central differences along random directions, relative to the
// larger of the two and 1e-3. A direction on which two step sizes disagree crosses a kink and is drawn again.
double GradientError(const Graph& graph, std::vector<RefTensor> inputs, Random& random, int directions = 4) {
  std::map<std::string, RefTensor> states;
  auto result = Evaluate(graph, {}, inputs, states);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  if (!result.ok()) return NAN;
  double worst = 0;
  for (int k = 0, kinks = 0; k < directions;) {
    std::vector<RefTensor> direction = inputs;
    double expected = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      for (std::size_t j = 0; j < inputs[i].data.size(); ++j) {
        direction[i].data[j] = random.Unit() * 2 - 1;
        expected += direction[i].data[j] * result->outputs[1 + i].data[j];
      }
    }
    auto at = [&](double h) {
      std::vector<RefTensor> moved = inputs;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        for (std::size_t j = 0; j < inputs[i].data.size(); ++j) moved[i].data[j] += h * direction[i].data[j];
      }
      return LossOf(graph, moved);
    };
    auto slope = [&](double h) { return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h); };
    double coarse = slope(4e-4), fine = slope(2e-4), scale = std::max({std::fabs(fine), std::fabs(expected), 1e-3});
    if (std::fabs(coarse - fine) > 1e-6 * scale && kinks < 20) {
      ++kinks;
      continue;
    }
    EXPECT_LT(kinks, 20) << "the function is not smooth anywhere near";
    worst = std::max(worst, std::fabs(expected - fine) / scale);
    ++k;
  }
  return worst;
}

TEST(Grad, RandomGraphsOfTwentyOps) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Builder b;
    RandomGraph made = MakeRandomGraph(b, seed, 20);
    b.Output("loss", made.loss);
    for (const Gradient& g : Grad(made.loss, made.parameters)) b.Output("grad", g);
    Random random(seed + 1000);
    std::vector<RefTensor> inputs;
    for (const Value& p : made.parameters) inputs.push_back(RandomTensor(p, random));
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    ASSERT_LT(GradientError(*graph, inputs, random), 1e-6);
  }
}

// Control: the same check says no to a rule that is wrong by a little.
TEST(Grad, AWrongRuleIsNoticed) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {3});
  Value y = b.CustomGradient({x}, {Tanh(x)}, [](const GradientContext& c) {
    return std::vector<Gradient>{c.grads[0].Dense() * (1.0001 - c.out[0] * c.out[0])};
  })[0];
  Value loss = ReduceSum(y);
  b.Output("loss", loss);
  b.Output("grad", Grad(loss, {x})[0]);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Random random(1);
  EXPECT_GT(GradientError(*graph, {{{3}, {.1, .2, .3}}}, random), 1e-5);
}

Value AdamWSum(Builder& b, const std::vector<Value>& v) {
  auto out = b.Emit(kAdamW, {v[0], v[1], v[2], v[3], b.Number(.01, Dtype::kF64), b.Number(3, Dtype::kF64)},
                    {{Attr::kLow, .9}, {Attr::kHigh, .99}, {Attr::kEpsilon, 1e-3}, {Attr::kValue, .1}});
  return out[0] * 10.0 + out[1] + out[2];
}

struct Case {
  const char* name;
  std::vector<Shape> shapes;
  std::function<Value(Builder&, const std::vector<Value>&)> function;
};

TEST(Grad, EachOp) {
  auto ints = [](Builder& b, std::vector<std::int32_t> v) {
    Dims dims{static_cast<std::int64_t>(v.size())};
    return Constant(b, Literal::Of(Dtype::kI32, dims, v));
  };
  using Vs = std::vector<Value>;
  const Attributes dropping = {{Attr::kValue, .5}, {Attr::kTransposeB, std::int64_t{1}}, {Attr::kLow, .25}, {Attr::kKey, std::int64_t{9}}};
  const std::vector<Case> cases = {
      {"matmul batch broadcast", {{2, 3, 4}, {4, 5}}, [](Builder&, const Vs& v) { return MatMul(v[0], v[1]); }},
      {"matmul ta", {{2, 4, 3}, {2, 4, 5}}, [](Builder&, const Vs& v) { return MatMul(v[0], v[1], true, false); }},
      {"matmul tb", {{3, 4}, {5, 4}}, [](Builder&, const Vs& v) { return MatMul(v[0], v[1], false, true); }},
      {"matmul ta tb", {{4, 3}, {2, 5, 4}}, [](Builder&, const Vs& v) { return MatMul(v[0], v[1], true, true); }},
      {"matmul leading 1", {{1, 3, 4}, {2, 4, 1}}, [](Builder&, const Vs& v) { return MatMul(v[0], v[1]); }},
      {"conv", {{2, 3, 6, 5}, {4, 3, 3, 2}}, [](Builder&, const Vs& v) { return Conv2D(v[0], v[1], {{2, 1}, {1, 1}}); }},
      {"conv twice",
       {{1, 2, 5, 5}, {3, 2, 3, 3}, {2, 3, 2, 2}},
       [](Builder&, const Vs& v) { return Conv2D(Tanh(Conv2D(v[0], v[1])), v[2], {{1, 1}, {1, 0}}); }},
      {"conv of groups, dilated, with a bias",
       {{2, 4, 7, 6}, {6, 2, 3, 2}, {6}},
       [](Builder&, const Vs& v) {
         return Conv2D(v[0], v[1], {.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 3}, .groups = 2, .bias = v[2]});
       }},
      {"conv of each channel", {{1, 3, 5, 5}, {3, 1, 3, 3}}, [](Builder&, const Vs& v) { return Conv2D(v[0], v[1], {.groups = 3}); }},
      {"max pool, padded", {{1, 2, 5, 6}}, [](Builder&, const Vs& v) { return MaxPool2D(v[0], 3, 2, 1); }},
      {"max pool, oblong",
       {{1, 2, 5, 6}},
       [](Builder&, const Vs& v) { return MaxPool2D(v[0], {.kernel = {2, 3}, .stride = {1, 2}, .padding = {1, 0}}); }},
      {"avg pool, padded",
       {{1, 2, 5, 4}},
       [](Builder&, const Vs& v) { return AvgPool2D(v[0], {.kernel = {3, 2}, .stride = {2, 1}, .padding = {2, 1}}); }},
      {"global avg pool", {{2, 3, 4, 5}}, [](Builder&, const Vs& v) { return GlobalAvgPool2D(v[0]); }},
      {"batch norm", {{4, 3, 2, 2}, {3}, {3}}, [](Builder&, const Vs& v) { return BatchNorm(v[0], v[1], v[2], MomentsOf(v[0])); }},
      {"batch norm of rows", {{5, 3}, {3}, {3}}, [](Builder&, const Vs& v) { return BatchNorm(v[0], v[1], v[2], MomentsOf(v[0])); }},
      {"batch norm with a ReLU",
       {{4, 3, 2, 2}, {3}, {3}},
       [](Builder&, const Vs& v) { return BatchNorm(v[0], v[1], v[2] - .6, MomentsOf(v[0]), {.epsilon = .01, .relu = true}); }},
      {"batch norm of which some rows count",
       {{4, 2, 3}, {2}, {2}},
       [](Builder& b, const Vs& v) {
         Value counted = Constant(b, Literal::Of(Dtype::kF64, {4}, std::vector<double>{1, 0, 1, 1}));
         return BatchNorm(v[0], v[1], v[2], MomentsOf(v[0], counted), {.relu = true});
       }},
      {"batch norm by any moments",
       {{4, 3, 2}, {3}, {3}, {3}, {3}},
       [](Builder&, const Vs& v) { return BatchNormInference(v[0], v[1], v[2] - .4, v[3], v[4], 1e-5, true); }},
      {"moments",
       {{4, 3, 2}},
       [](Builder&, const Vs& v) {
         Moments m = MomentsOf(v[0]);
         return m.mean * 2.0 + Sqrt(m.variance);
       }},
      {"second order of batch norm",
       {{4, 2, 3}, {2}, {2}},
       [](Builder&, const Vs& v) {
         auto grads = Grad(ReduceSum(Sin(BatchNorm(v[0], v[1], v[2], MomentsOf(v[0])))), v);
         return ReduceSum(Square(grads[0].Dense())) + ReduceSum(Square(grads[1].Dense()) * grads[2].Dense());
       }},
      {"max pool", {{1, 2, 5, 5}}, [](Builder&, const Vs& v) { return MaxPool2D(v[0], 3, 2); }},
      {"avg pool", {{1, 2, 5, 4}}, [](Builder&, const Vs& v) { return AvgPool2D(v[0], 2, 2); }},
      {"gather twice",
       {{5, 2}},
       [&](Builder& b, const Vs& v) { return Gather(v[0], ints(b, {1, 3, 1})) * Gather(v[0], ints(b, {4, 1, 0})); }},
      {"gather of a computed table",
       {{5, 2}},
       [&](Builder& b, const Vs& v) { return Gather(Tanh(v[0]), ints(b, {1, 3, 1})) + ReduceSum(v[0]); }},
      {"scatter", {{3, 2}}, [&](Builder& b, const Vs& v) { return ScatterAdd(ints(b, {1, 3, 1}), v[0], 5); }},
      {"cross entropy", {{3, 4}}, [&](Builder& b, const Vs& v) { return CrossEntropy(v[0], ints(b, {3, 0, 1})); }},
      {"layer norm", {{3, 4}, {4}, {4}}, [](Builder&, const Vs& v) { return LayerNorm(v[0], v[1], v[2]); }},
      {"at, set at",
       {{3, 2}, {2}},
       [](Builder& b, const Vs& v) {
         Value two = b.Number(2, Dtype::kI64);
         return At(SetAt(v[0], two, v[1] * v[1]), two) * At(v[0], b.Number(0, Dtype::kI64));
       }},
      {"second order of the fused",
       {{2, 3}, {3}, {3}},
       [](Builder&, const Vs& v) {
         Value y = ReduceSum(Square(LayerNorm(Gelu(v[0]), v[1], v[2]))) + ReduceSum(Square(Softmax(v[0])));
         return ReduceSum(Square(Grad(y, {v[0]})[0].Dense()));
       }},
      {"pow", {{3}, {2, 3}}, [](Builder&, const Vs& v) { return Pow(v[0], v[1]); }},
      {"second order of pow",
       {{2}, {2}},
       [](Builder&, const Vs& v) {
         auto grads = Grad(ReduceSum(Pow(v[0], v[1])), {v[0], v[1]});
         return ReduceSum(Square(grads[0].Dense()) + grads[0].Dense() * grads[1].Dense());
       }},
      {"second order of conv",
       {{1, 2, 4, 5}, {3, 2, 2, 3}},
       [](Builder&, const Vs& v) {
         auto grads = Grad(ReduceSum(Sin(Conv2D(v[0], v[1], {{1, 2}, {1, 1}}))), {v[0], v[1]});
         return ReduceSum(Square(grads[0].Dense())) + ReduceSum(Square(grads[1].Dense()));
       }},
      {"second order of avg pool",
       {{1, 2, 5, 4}},
       [](Builder&, const Vs& v) { return ReduceSum(Square(Grad(ReduceSum(Sin(AvgPool2D(v[0], 2, 2))), {v[0]})[0].Dense())); }},
      {"second order of cross entropy",
       {{2, 3}},
       [&](Builder& b, const Vs& v) {
         Value y = ReduceSum(Square(CrossEntropy(v[0], ints(b, {2, 0}))));
         return ReduceSum(Square(Grad(y, {v[0]})[0].Dense()));
       }},
      {"while",
       {{3}, {3}},
       [](Builder& b, const Vs& v) {
         Vars out = While(
             {b.Number(0, Dtype::kI64), v[0]}, 8, [](Builder&, const Vars& s) { return Less(s[0], 5); },
             [&](Builder&, const Vars& s) { return Vars{s[0] + 1, Tanh(s[1] * v[1] + s[1])}; });
         return out[1];
       }},
      {"while in while",
       {{2}, {2}},
       [](Builder& b, const Vs& v) {
         Value zero = b.Number(0, Dtype::kI64);
         return While(
             {zero, v[0]}, 4, [](Builder&, const Vars& s) { return Less(s[0], 3); },
             [&](Builder& outer, const Vars& s) {
               Vars in = While(
                   {outer.Number(0, Dtype::kI64), s[1]}, 4, [](Builder&, const Vars& t) { return Less(t[0], 2); },
                   [&](Builder&, const Vars& t) { return Vars{t[0] + 1, Sin(t[1] + v[1] * s[1])}; });
               return Vars{s[0] + 1, in[1]};
             })[1];
       }},
      {"second order of while",
       {{2}, {2}},
       [](Builder& b, const Vs& v) {
         Vars out = While(
             {b.Number(0, Dtype::kI64), v[0]}, 4, [](Builder&, const Vars& s) { return Less(s[0], 3); },
             [&](Builder&, const Vars& s) { return Vars{s[0] + 1, Sin(s[1] * v[1] + s[1])}; });
         auto grads = Grad(ReduceSum(Square(out[1])), {v[0], v[1]});
         return ReduceSum(Square(grads[0].Dense()) + grads[0].Dense() * grads[1].Dense());
       }},
      {"second order of while in while",
       {{2}, {2}},
       [](Builder& b, const Vs& v) {
         Value zero = b.Number(0, Dtype::kI64);
         Value y = While(
             {zero, v[0]}, 3, [](Builder&, const Vars& s) { return Less(s[0], 2); },
             [&](Builder& outer, const Vars& s) {
               Vars in = While(
                   {outer.Number(0, Dtype::kI64), s[1]}, 3, [](Builder&, const Vars& t) { return Less(t[0], 2); },
                   [&](Builder&, const Vars& t) { return Vars{t[0] + 1, Sin(t[1] * s[1] + v[1])}; });
               return Vars{s[0] + 1, in[1]};
             })[1];
         auto grads = Grad(ReduceSum(y), {v[0], v[1]});
         return ReduceSum(Square(grads[0].Dense()) + grads[0].Dense() * grads[1].Dense());
       }},
      {"second order of cond",
       {{3}, {3}},
       [](Builder&, const Vs& v) {
         auto yes = [&](Builder& b) { return Vars{Sin(Identity(b, v[0]) * v[1])}; };
         Value y = Cond(Greater(ReduceSum(Square(v[0])), 0), yes, [&](Builder& b) { return Vars{Identity(b, v[0])}; })[0];
         return ReduceSum(Square(Grad(ReduceSum(y), {v[0]})[0].Dense()));
       }},
      {"cond",
       {{3}, {3}},
       [](Builder&, const Vs& v) {
         return Cond(
             Greater(ReduceSum(Square(v[0])), 0), [&](Builder& b) { return Vars{Identity(b, v[0]) * v[1]}; },
             [&](Builder& b) { return Vars{Sin(Identity(b, v[0]))}; })[0];
       }},
      {"cond, the other way",
       {{3}, {3}},
       [](Builder&, const Vs& v) {
         return Cond(
             Less(ReduceSum(Square(v[0])), 0), [&](Builder& b) { return Vars{Identity(b, v[0]) * v[1]}; },
             [&](Builder& b) { return Vars{Sin(Identity(b, v[0]))}; })[0];
       }},
      {"sum of rows", {{5, 2}}, [&](Builder& b, const Vs& v) { return SumRows(v[0], ints(b, {1, 3, 1, 4}), ints(b, {0, 2, 0, 2}), 3); }},
      {"bags", {{5, 2}}, [&](Builder& b, const Vs& v) { return EmbeddingBags(v[0], ints(b, {1, 3, 1, 4}), ints(b, {0, 3, 3})); }},
      {"bags, averaged",
       {{5, 2}},
       [&](Builder& b, const Vs& v) { return EmbeddingBags(Tanh(v[0]), ints(b, {1, 3, 1, 4}), ints(b, {0, 3, 3}), Bag::kMean); }},
      {"bags of three",
       {{5, 2}},
       [&](Builder& b, const Vs& v) { return EmbeddingBag(v[0], Reshape(ints(b, {1, 3, 1, 4, 0, 0}), {2, 3}), Bag::kMean); }},
      {"bags of one", {{5, 2}}, [&](Builder& b, const Vs& v) { return EmbeddingBag(v[0], Reshape(ints(b, {1, 3, 1}), {3, 1})); }},
      {"add rows", {{5, 2}, {3, 2}}, [&](Builder& b, const Vs& v) { return AddRows(v[0], ints(b, {1, 3, 1}), v[1]); }},
      {"adagrad of rows",
       {{5, 2}, {5, 2}, {3, 2}},
       [&](Builder& b, const Vs& v) {
         auto out = b.Emit(kAdagradRows, {v[0], v[1], ints(b, {1, 3, 1}), v[2], b.Number(.1, Dtype::kF64)}, {{Attr::kEpsilon, 1e-3}});
         return out[0] * 3.0 + out[1];
       }},
      {"top k", {{2, 5}}, [](Builder&, const Vs& v) { return TopK(Sin(v[0] * 7.0), 3).values; }},
      {"second order of top k",
       {{2, 5}},
       [](Builder&, const Vs& v) {
         return ReduceSum(Square(Grad(ReduceSum(Square(TopK(Sin(v[0] * 7.0), 2).values)), {v[0]})[0].Dense()));
       }},
      {"pair dots", {{2, 3}, {2, 4, 3}}, [](Builder&, const Vs& v) { return PairDots(v[0], v[1]); }},
      {"second order of pair dots",
       {{2, 3}, {2, 2, 3}},
       [](Builder&, const Vs& v) {
         auto grads = Grad(ReduceSum(Sin(PairDots(v[0], v[1]))), v);
         return ReduceSum(Square(grads[0].Dense())) + ReduceSum(Square(grads[1].Dense()));
       }},
      {"binary cross entropy", {{2, 3}, {3}}, [](Builder&, const Vs& v) { return BinaryCrossEntropy(v[0] * 4.0 - 2.0, v[1]); }},
      {"second order of binary cross entropy",
       {{3}, {3}},
       [](Builder&, const Vs& v) {
         auto grads = Grad(ReduceSum(Sin(BinaryCrossEntropy(v[0] * 4.0 - 2.0, v[1]))), v);
         return ReduceSum(Square(grads[0].Dense()) + grads[0].Dense() * grads[1].Dense());
       }},
      {"gelu of erf", {{2, 3}}, [](Builder&, const Vs& v) { return Gelu(v[0] * 2.0 - 1.0, GeluForm::kErf); }},
      {"second order of gelu of erf",
       {{2, 3}},
       [](Builder&, const Vs& v) {
         return ReduceSum(Square(Grad(ReduceSum(Sin(Gelu(v[0] * 2.0 - 1.0, GeluForm::kErf))), {v[0]})[0].Dense()));
       }},
      {"lstm, states after each step",
       {{3, 2, 12}, {12}, {12, 3}, {2, 3}, {2, 3}},
       [](Builder&, const Vs& v) { return Lstm(v[0] * 2.0 - 1.0, v[1], v[2] - .5, v[3], v[4]).hidden; }},
      {"lstm, last cell and one state",
       {{3, 2, 12}, {12}, {12, 3}, {2, 3}, {2, 3}},
       [](Builder&, const Vs& v) {
         LstmStates s = Lstm(v[0] * 2.0 - 1.0, v[1], v[2] - .5, v[3], v[4]);
         return s.cell * 2.0 + Reshape(SliceAxis(s.hidden, 0, 1, 2), {2, 3});
       }},
      {"lstm of one step",
       {{1, 2, 8}, {8}, {8, 2}, {2, 2}, {2, 2}},
       [](Builder&, const Vs& v) { return Lstm(v[0], v[1], v[2] - .5, v[3], v[4]).cell; }},
      {"second order of lstm",
       {{3, 2, 8}, {8}, {8, 2}, {2, 2}, {2, 2}},
       [](Builder&, const Vs& v) {
         LstmStates s = Lstm(v[0] * 2.0 - 1.0, v[1], v[2] - .5, v[3], v[4]);
         auto grads = Grad(ReduceSum(Square(s.hidden)) + ReduceSum(Square(s.cell)), v);
         Value sum;
         for (const Gradient& g : grads) sum = sum.valid() ? sum + ReduceSum(Square(g.Dense())) : ReduceSum(Square(g.Dense()));
         return sum;
       }},
      {"adamw", {{3}, {3}, {3}, {3}}, [](Builder& b, const Vs& v) { return AdamWSum(b, v); }},
      {"lamb",
       {{3}, {3}, {3}, {3}},
       [](Builder& b, const Vs& v) {
         auto out = b.Emit(kLamb, {v[0], v[1], v[2], v[3], b.Number(.1, Dtype::kF64), b.Number(3, Dtype::kF64)},
                           {{Attr::kLow, .9}, {Attr::kHigh, .99}, {Attr::kEpsilon, 1e-3}, {Attr::kValue, .1}});
         return out[0] * 10.0 + out[1] + out[2];
       }},
      {"adagrad",
       {{3}, {3}, {3}},
       [](Builder& b, const Vs& v) {
         auto out =
             b.Emit(kAdagrad, {v[0], v[1], v[2], b.Number(.1, Dtype::kF64)}, {{Attr::kEpsilon, 1e-3}, {Attr::kValue, .1}});
         return out[0] * 3.0 + out[1];
       }},
      {"attention",
       {{2, 2, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 3}, {2, 1, 1, 5}},
       [](Builder&, const Vs& v) { return Attention(v[0], v[1], v[2], {.scale = .5, .mask = v[3]}); }},
      {"attention, causal", {{2, 4, 3}, {2, 3, 4}, {2, 4, 3}}, [](Builder&, const Vs& v) {
         return Attention(v[0], v[1], v[2], {.scale = .7, .causal = true, .transpose_k = false});
       }},
      {"attention with dropout, by what is mixed and by the sums",
       {{2, 3, 4}, {2, 5, 4}, {2, 5, 3}},
       [&](Builder& b, const Vs& v) {
         auto out = b.Emit(kAttention, v, dropping);
         return ReduceSum(out[0], {-1}) * out[1] + out[1];
       }},
      {"second order of attention",
       {{2, 3}, {2, 3}, {2, 3}},
       [](Builder&, const Vs& v) {
         auto grads = Grad(ReduceSum(Sin(Attention(v[0], v[1], v[2]))), v);
         return ReduceSum(Square(grads[0].Dense()) + grads[1].Dense() * grads[2].Dense());
       }},
      {"attention with dropout",
       {{2, 3, 4}, {2, 5, 4}, {2, 5, 3}},
       [&](Builder& b, const Vs& v) {
         return b.Emit(kAttention, v, dropping)[0];
       }},
      {"rms norm", {{2, 3}, {3}}, [](Builder&, const Vs& v) { return RmsNorm(v[0], v[1], .01); }},
      {"layer norm of a sum",
       {{2, 3}, {2, 3}, {3}, {3}, {3}},
       [](Builder& b, const Vs& v) {
         auto out = b.Emit(kAddLayerNorm, v, {{Attr::kEpsilon, .01}});
         return out[0] * 2.0 + Sin(out[1]);
       }},
      {"rms norm of a sum",
       {{2, 3}, {2, 3}, {3}},
       [](Builder& b, const Vs& v) { return b.Emit(kAddRmsNorm, v, {{Attr::kEpsilon, .01}})[0]; }},
      {"second order of a norm of a sum",
       {{2, 3}, {2, 3}, {3}},
       [](Builder& b, const Vs& v) {
         auto out = b.Emit(kAddRmsNorm, v, {{Attr::kEpsilon, .1}});
         return ReduceSum(Square(Grad(ReduceSum(Sin(out[0])) + ReduceSum(Square(out[1])), {v[0]})[0].Dense()));
       }},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    Builder b;
    std::vector<Value> leaves;
    for (std::size_t i = 0; i < test.shapes.size(); ++i) leaves.push_back(b.Input("x" + std::to_string(i), Dtype::kF64, test.shapes[i]));
    Value y = test.function(b, leaves);
    Random random(7);
    // Random weights, so that no symmetry hides a mistake.
    Value loss = ReduceSum(Sin(y * 1.3 + .4));
    b.Output("loss", loss);
    for (const Gradient& g : Grad(loss, leaves)) b.Output("grad", g);
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    std::vector<RefTensor> inputs;
    for (const Shape& shape : test.shapes) {
      RefTensor tensor{Evaluate(shape, {}), {}};
      for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) tensor.data.push_back(random.Unit() + .1);
      inputs.push_back(tensor);
    }
    EXPECT_LT(GradientError(*graph, inputs, random), 1e-6);
  }
}

// Where 0 and infinity would be multiplied.
TEST(Grad, OfPowersOfZero) {
  struct Case {
    double x, p, dx, dp, d2x;
  };
  const double kInf = HUGE_VAL;
  const std::vector<Case> cases = {
      {0, 2, 0, 0, 2},
      {0, 3, 0, 0, 0},
      {0, 1, 1, 0, 0},
      {0, 0, 0, 0, 0},
      {-0.0, 2, 0, 0, 2},
      {0, .5, kInf, 0, -kInf},
      {0, -1, -kInf, -kInf, kInf},
      {2, 0, 0, std::log(2), 0},
      {2, 3, 12, 8 * std::log(2), 12},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(std::to_string(test.x) + " to the " + std::to_string(test.p));
    Builder b;
    Value x = b.Input("x", Dtype::kF64, {}), p = b.Input("p", Dtype::kF64, {});
    auto grads = Grad(Pow(x, p), {x, p});
    b.Output("dx", grads[0]);
    b.Output("dp", grads[1]);
    b.Output("d2x", Grad(grads[0], {x})[0]);
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    std::map<std::string, RefTensor> states;
    auto result = Evaluate(*graph, {}, {RefTensor::Scalar(test.x), RefTensor::Scalar(test.p)}, states);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_DOUBLE_EQ(result->outputs[0].data[0], test.dx);
    EXPECT_DOUBLE_EQ(result->outputs[1].data[0], test.dp);
    EXPECT_DOUBLE_EQ(result->outputs[2].data[0], test.d2x);
  }
}

TEST(Grad, RowsStayRowsAndUsesAreSummed) {
  Builder b;
  Parameter table = b.NewParameter("table", {100, 4}, Initializer::Normal(1));
  Value ids = b.Input("ids", Dtype::kI64, {3});
  Value loss = ReduceSum(Square(Gather(table, ids))) + ReduceSum(Gather(table, ids));
  Gradient g = Grad(loss, {table})[0];
  ASSERT_TRUE(g.IsRows());
  EXPECT_EQ(g.rows().indices.shape(), Shape({6}));  // both uses, side by side
  EXPECT_EQ(g.rows().rows.shape(), Shape({6, 4}));
  b.Output("dense", g);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  std::map<std::string, RefTensor> states;
  auto result = Evaluate(*graph, {}, {{{3}, {7, 9, 7}}}, states);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  const std::vector<double>&dense = result->outputs[0].data, &w = states["table"].data;
  for (int row : {7, 9, 8}) {
    double uses = row == 7 ? 2 : row == 9 ? 1 : 0;
    EXPECT_NEAR(dense[row * 4], uses * (2 * w[row * 4] + 1), 1e-5);
  }
}

TEST(Grad, OfValuesInBetweenAndOfWhatTheLossDoesNotUse) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {2}), unused = b.Input("unused", Dtype::kF64, {3});
  Value h = x * 3.0;
  Value loss = ReduceSum(h * h);
  auto grads = Grad(loss, {h, unused});
  b.Output("dh", grads[0]);
  b.Output("zero", grads[1]);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  std::map<std::string, RefTensor> states;
  auto result = Evaluate(*graph, {}, {{{2}, {1, 2}}, {{3}, {1, 1, 1}}}, states);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->outputs[0].data, (std::vector<double>{6, 12}));
  EXPECT_EQ(result->outputs[1].data, (std::vector<double>{0, 0, 0}));
}

TEST(Grad, WhatHasNoGradientSaysSo) {
  Builder b;
  StateId channel = b.NewChannel("c");
  Value x = b.Input("x", Dtype::kF64, {2});
  Grad(ReduceSum(AllReduce(x, channel, "data")), {x});
  auto graph = b.Finish();
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().tag(), "GRAPH06");
}

}  // namespace
}  // namespace ropewalk::mlrunner
