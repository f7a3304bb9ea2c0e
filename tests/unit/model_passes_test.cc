// Passes: what they must do, what they must leave alone, and that random graphs compute the same with them. Planted bugs are caught.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "mlrunner/graph/attention.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/graph/residual_norm.h"
#include "mlrunner/kernels/fold.h"
#include "mlrunner/kernels/reference.h"
#include "tests/unit/model_random.h"

namespace ropewalk::mlrunner {
namespace {

std::size_t Count(const Graph& graph, const OpDef& def) {
  return static_cast<std::size_t>(std::count_if(graph.ops.begin(), graph.ops.end(), [&](const Op& op) { return op.def == &def; }));
}

// A random graph with its gradients as outputs.
Graph WithGradients(std::uint64_t seed, int num_ops = 20, Dtype dtype = Dtype::kF64) {
  Builder b;
  RandomGraph made = MakeRandomGraph(b, seed, num_ops, dtype);
  b.Output("loss", made.loss);
  for (const Gradient& g : Grad(made.loss, made.parameters)) b.Output("grad", g);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return graph.ok() ? *std::move(graph) : Graph();
}

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kSpecial[] = {0.0, -0.0, 1, -1, kInf, -kInf, kNan, 1e-310};

// One in `special_every` is special; 0: none.
std::vector<RefTensor> Inputs(const Graph& graph, std::uint64_t seed, std::uint64_t special_every = 0) {
  Random random(seed);
  std::vector<RefTensor> inputs;
  for (ValueId id : graph.inputs) {
    RefTensor tensor{Evaluate(graph.value(id).type.shape, {}), {}};
    for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) tensor.data.push_back(random.Unit() * 2 - 1);
    for (double& value : tensor.data) {
      if (special_every > 0 && random.Below(special_every) == 0) value = kSpecial[random.Below(std::size(kSpecial))];
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

// The largest difference between the outputs of two graphs, relative to 1 and the outputs; 0 means bit for bit (of NaN there is one).
double Difference(const Graph& a, const Graph& b, std::uint64_t seed, std::uint64_t special_every = 0) {
  std::map<std::string, RefTensor> states_a, states_b;
  auto x = Evaluate(a, {}, Inputs(a, seed, special_every), states_a), y = Evaluate(b, {}, Inputs(b, seed, special_every), states_b);
  EXPECT_TRUE(x.ok()) << x.status().ToString();
  EXPECT_TRUE(y.ok()) << y.status().ToString();
  if (!x.ok() || !y.ok() || x->outputs.size() != y->outputs.size()) return HUGE_VAL;
  double worst = 0;
  for (std::size_t i = 0; i < x->outputs.size(); ++i) {
    for (std::size_t j = 0; j < x->outputs[i].data.size(); ++j) {
      double p = x->outputs[i].data[j], q = y->outputs[i].data[j];
      if (std::bit_cast<std::uint64_t>(p) == std::bit_cast<std::uint64_t>(q) || (std::isnan(p) && std::isnan(q))) continue;
      // Between 0 and -0 there is no distance, but a difference.
      double relative = p == q ? std::numeric_limits<double>::denorm_min() : std::fabs(p - q) / std::max({1.0, std::fabs(p), std::fabs(q)});
      worst = std::isnan(relative) ? HUGE_VAL : std::max(worst, relative);
    }
  }
  return worst;
}

Graph AllPasses(const Graph& graph) {
  return FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(FoldConstants(graph, FoldWith(ReferenceKernels()))))));
}

TEST(Passes, OnEqualsOffBitForBitOnRandomGraphs) {
  std::size_t ops = 0, left = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Graph graph = WithGradients(seed);
    Graph passed = AllPasses(graph);
    Status status = Check(passed);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(Difference(graph, passed, seed), 0);
    ops += graph.ops.size();
    left += passed.ops.size();
  }
  EXPECT_LT(left * 2, ops);  // they do something
}

// What is computed once a step, beside the last micro-batch's backward, is not there for the other micro-batches: equal ops stay apart. The
// control: of one region they become one.
TEST(Passes, EqualOpsOfRegionsThatRunOnceStayApart) {
  for (bool apart : {true, false})
    for (bool once_first : {true, false}) {
      Builder b;
      Parameter w = b.NewParameter("w", {3}, Initializer::Zeros());
      Value x = b.Input("x", Dtype::kF32, {3});
      Scope once = UpdateScope(b, w);
      once.region = RegionKind::kBackward;  // of a parameter: beside the last micro-batch's
      Scope each = once;
      each.parameter = {};
      if (!apart) once = each;
      for (bool is_once : {once_first, !once_first}) {
        auto guard = b.With(is_once ? once : each);
        b.Output(is_once ? "once" : "each", x * x);
      }
      auto graph = b.Finish();
      ASSERT_TRUE(graph.ok()) << graph.status().ToString();
      EXPECT_EQ(Count(MergeEqual(*graph), kMul), apart ? 2u : 1u);
    }
}

// What is small algebra for numbers need not be for 0 and -0, inf and NaN.
TEST(Passes, OnEqualsOffBitForBitOnSpecialValues) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Graph graph = WithGradients(seed);
    ASSERT_EQ(Difference(graph, AllPasses(graph), seed, 10), 0);
  }
  // Elementwise ops of a few values, special constants among them: many are alike but for the order of inputs or the sign of a 0.
  using Binary = Value (*)(Arg, Arg);
  const std::vector<Binary> binaries = {operator+, operator-, operator*, operator/, Maximum, Minimum};
  std::size_t ops = 0, left = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Builder b;
    Random random(seed);
    std::vector<Value> pool = {b.Input("x", Dtype::kF64, {16}), b.Input("y", Dtype::kF64, {16})};
    for (double number : kSpecial) pool.push_back(Fill(b, number, Dtype::kF64, {16}));
    auto any = [&] { return pool[random.Below(pool.size())]; };
    for (int i = 0; i < 24; ++i) {
      Value p = any(), q = any();
      Binary f = binaries[random.Below(binaries.size())];
      switch (random.Below(6)) {
        case 0:
          pool.push_back(-p);
          break;
        case 1:
          pool.push_back(Select(Less(p, q), p, q));
          break;
        case 2:
          pool.push_back(f(p, kSpecial[random.Below(std::size(kSpecial))]));
          break;
        case 3:
          pool.push_back(f(p, q));
          break;
        default:
          pool.push_back(f(p, q) / f(q, p));  // 1 where the order does not matter
      }
    }
    for (std::size_t i = 2; i < pool.size(); i += 3) b.Output("out", pool[i]);
    auto graph = b.Finish();
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    Graph passed = AllPasses(*graph);
    Status status = Check(passed);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(Difference(*graph, passed, seed, 2), 0);
    // Each pass by itself: fusion hides from the others what they would have got.
    for (const Graph& one :
         {MergeEqual(*graph), Simplify(*graph), FuseElementwise(*graph), FoldConstants(*graph, FoldWith(ReferenceKernels()))}) {
      ASSERT_EQ(Difference(*graph, one, seed, 2), 0);
    }
    ops += graph->ops.size();
    left += passed.ops.size();
  }
  EXPECT_LT(left, ops);
}

TEST(Passes, NumbersThatDifferInBitsAreNotMerged) {
  auto merged = [](double p, double q) {
    Builder b;
    b.Output("p", Fill(b, p, Dtype::kF64, {2}));
    b.Output("q", Fill(b, q, Dtype::kF64, {2}));
    return Count(MergeEqual(*b.Finish()), kFill) == 1;
  };
  EXPECT_TRUE(merged(0, 0));
  EXPECT_TRUE(merged(kNan, kNan));
  EXPECT_TRUE(merged(-kInf, -kInf));
  EXPECT_FALSE(merged(0, -0.0));
  EXPECT_FALSE(merged(0, 1e-310));
}

// Each fused op beside what its definition says that it is, all of its outputs.
TEST(Passes, EachFusedOpEqualsItsPrimitiveForm) {
  using Leaves = std::vector<Value>;
  auto labels = [](Builder& b) { return Constant(b, Literal::Of(Dtype::kI32, {2, 3}, std::vector<std::int32_t>{0, 4, 2, 2, 1, 3})); };
  auto gradient_of = [](const Value& y, const Value& x) { return Grad(ReduceSum(Sin(y)), {x})[0].Dense(); };
  auto ints = [](Builder& b, const std::vector<std::int32_t>& v) {
    return Constant(b, Literal::Of(Dtype::kI32, {static_cast<std::int64_t>(v.size())}, v));
  };
  auto table = [](const Leaves& v) { return Reshape(v[0], {6, 5}); };
  auto three_rows = [](const Leaves& v) { return Reshape(Concat({v[1], v[2], v[1] * v[2]}, 0), {3, 5}); };
  auto first_rows = [](const Leaves& v) { return Reshape(SliceAxis(v[0], 1, 0, 1), {2, 5}); };
  // (2, 3, 20), (20), (20, 5), (3, 5), (3, 5)
  auto lstm_inputs = [](const Leaves& v) {
    Value x = Concat({v[0], v[0] * .5, Sin(v[0]), -v[0]}, 2), bias = Concat({v[1], -v[1], v[2], v[1] * v[2]}, 0);
    Value w = Reshape(bias, {20, 1}) * Reshape(v[2], {1, 5}), h = Reshape(SliceAxis(v[0], 0, 1, 2), {3, 5});
    return Leaves{x, bias, w, h, h * 2.0};
  };
  auto counted = [](Builder& b) { return Constant(b, Literal::Of(Dtype::kF64, {2}, std::vector<double>{0, 1})); };
  auto normal = [](const Leaves& v, const Value& counts, bool relu) {  // of three channels
    return BatchNorm(v[0], SliceAxis(v[1], 0, 1, 4), SliceAxis(v[2], 0, 1, 4), MomentsOf(v[0], counts), {.epsilon = .01, .relu = relu});
  };
  const Attributes update_numbers = {{Attr::kLow, .9}, {Attr::kHigh, .99}, {Attr::kEpsilon, 1e-3}, {Attr::kValue, .1}};
  auto update = [](Builder& b, const Leaves& v, int moments, bool counts) {
    Leaves in{v[1]};
    for (int i = 0; i < moments; ++i) in.push_back(Square(v[2]));
    in.insert(in.end(), {v[1] * v[2], b.Number(.1, Dtype::kF64)});
    if (counts) in.push_back(b.Number(3, Dtype::kF64));
    return in;
  };
  // Two heads of three places, each of five numbers; with a mask, and numbers drawn.
  const Attributes dropping = {{Attr::kValue, .5}, {Attr::kTransposeB, std::int64_t{1}}, {Attr::kLow, .25}, {Attr::kKey, std::int64_t{77}}};
  auto attention_inputs = [](const Leaves& v) {
    return Leaves{v[0], Sin(v[0] * 2.0), v[0] * v[1] + v[2], Reshape(SliceAxis(v[1], 0, 0, 3), {1, 3}) * 2.0};
  };
  auto attention = [&](Builder& b, const OpDef& def, const Leaves& v) { return b.Emit(def, attention_inputs(v), dropping); };
  auto attention_grad = [&](Builder& b, const OpDef& def, const OpDef& grad, const Leaves& v) {
    const Leaves in = attention_inputs(v);
    const Vars out = b.Emit(def, in, dropping);
    return b.Emit(grad, {in[0], in[1], in[2], out[0], out[1], Sin(out[0]), in[3]}, dropping);
  };
  auto add_norm = [](Builder& b, const OpDef& def, const Leaves& in) { return b.Emit(def, in, {{Attr::kEpsilon, .01}}); };
  auto add_norm_grads = [&](Builder& b, const OpDef& def, const Leaves& in) {
    const Vars out = add_norm(b, def, in);
    auto grads = Grad(ReduceSum(Sin(out[0])) + ReduceSum(out[1] * out[1]), in);
    return Vars{grads.begin(), grads.end()};
  };
  struct Case {
    const OpDef* def;
    std::function<Vars(Builder&, const Leaves&)> function;  // of (2, 3, 5), (5), (5)
  };
  const std::vector<Case> cases = {
      {&kGelu, [](Builder&, const Leaves& v) { return Vars{Gelu(v[0])}; }},
      {&kGeluGrad, [&](Builder&, const Leaves& v) { return Vars{gradient_of(Gelu(v[0]), v[0])}; }},
      {&kGeluErf, [](Builder&, const Leaves& v) { return Vars{Gelu(v[0], GeluForm::kErf)}; }},
      {&kGeluErfGrad, [&](Builder&, const Leaves& v) { return Vars{gradient_of(Gelu(v[0], GeluForm::kErf), v[0])}; }},
      {&kLstm, [&](Builder& b, const Leaves& v) { return b.Emit(kLstm, lstm_inputs(v)); }},
      {&kLstmGrad,
       [&](Builder& b, const Leaves& v) {
         Leaves in = lstm_inputs(v);
         Vars forward = b.Emit(kLstm, in);
         return b.Emit(kLstmGrad, {in[2], in[4], forward[2], forward[3], Sin(forward[0]), Sin(forward[1])});
       }},
      {&kSumRows, [&](Builder& b, const Leaves& v) { return Vars{SumRows(table(v), ints(b, {0, 5, 2, 2}), ints(b, {1, 0, 1, 3}), 4)}; }},
      {&kAddRows, [&](Builder& b, const Leaves& v) { return Vars{AddRows(table(v), ints(b, {1, 3, 1}), three_rows(v))}; }},
      {&kAdagradRows,
       [&](Builder& b, const Leaves& v) {
         return b.Emit(kAdagradRows, {table(v), Square(table(v)), ints(b, {1, 3, 1}), three_rows(v), b.Number(.1, Dtype::kF64)},
                       {{Attr::kEpsilon, .01}});
       }},
      {&kPairDots, [&](Builder&, const Leaves& v) { return Vars{PairDots(first_rows(v), v[0])}; }},
      {&kPairDotsGrad,
       [&](Builder&, const Leaves& v) {
         Value x = first_rows(v);
         auto grads = Grad(ReduceSum(Sin(PairDots(x, v[0]))), {x, v[0]});
         return Vars{grads.begin(), grads.end()};
       }},
      {&kTopKGrad, [&](Builder&, const Leaves& v) { return Vars{gradient_of(TopK(v[0], 2).values, v[0])}; }},
      {&kBinaryCrossEntropy, [](Builder&, const Leaves& v) { return Vars{BinaryCrossEntropy(v[0] * 3.0, v[1])}; }},
      {&kBinaryCrossEntropyGrad, [&](Builder&, const Leaves& v) { return Vars{gradient_of(BinaryCrossEntropy(v[0] * 3.0, v[1]), v[0])}; }},
      {&kSoftmax, [](Builder&, const Leaves& v) { return Vars{Softmax(v[0])}; }},
      {&kSoftmaxGrad, [&](Builder&, const Leaves& v) { return Vars{gradient_of(Softmax(v[0]), v[0])}; }},
      {&kLogSoftmax, [](Builder&, const Leaves& v) { return Vars{LogSoftmax(v[0])}; }},
      {&kCrossEntropy, [&](Builder& b, const Leaves& v) { return b.Emit(kCrossEntropy, {v[0] * 3.0, labels(b)}); }},
      {&kCrossEntropyGrad, [&](Builder& b, const Leaves& v) { return Vars{gradient_of(CrossEntropy(v[0] * 3.0, labels(b)), v[0])}; }},
      {&kLayerNorm, [](Builder& b, const Leaves& v) { return b.Emit(kLayerNorm, {v[0], v[1], v[2]}, {{Attr::kEpsilon, .01}}); }},
      {&kLayerNormGrad,
       [](Builder&, const Leaves& v) {
         auto grads = Grad(ReduceSum(Sin(LayerNorm(v[0], v[1], v[2]))), v);
         return Vars{grads.begin(), grads.end()};
       }},
      {&kBatchMoments,
       [&](Builder& b, const Leaves& v) {
         Vars all = b.Emit(kBatchMoments, {v[0]}), some = b.Emit(kBatchMoments, {v[0], counted(b)});
         return Vars{all[0], all[1], some[0], some[1]};
       }},
      {&kBatchNorm, [&](Builder& b, const Leaves& v) { return Vars{normal(v, {}, false), normal(v, counted(b), true)}; }},
      {&kBatchNormInference,
       [&](Builder&, const Leaves& v) {
         auto three = [](const Value& five) { return SliceAxis(five, 0, 1, 4); };
         return Vars{BatchNormInference(v[0], three(v[1]), three(v[2]), three(v[2]), Square(three(v[1])) + .1),
                     BatchNormInference(v[0], three(v[1]), three(v[2]), three(v[2]), Square(three(v[1])) + .1, 1e-3, true)};
       }},
      {&kBatchNormSums,
       [&](Builder& b, const Leaves& v) {
         Vars sums;
         for (const Value& y : {normal(v, {}, false), normal(v, counted(b), true)}) {
           for (const Gradient& g : Grad(ReduceSum(Sin(y)), {v[1], v[2]})) sums.push_back(g);
         }
         return sums;
       }},
      {&kBatchNormInputGrad,
       [&](Builder& b, const Leaves& v) {
         return Vars{gradient_of(normal(v, {}, false), v[0]), gradient_of(normal(v, counted(b), true), v[0])};
       }},
      {&kAdamW,
       [](Builder& b, const Leaves& v) {
         Parameter w = b.NewParameter("w", {5}, Initializer::Normal(1), Dtype::kF64);
         ApplyAdamW(b, {w}, {Sin(v[1]) * v[2]}, .1, {.weight_decay = .2});
         Vars after;
         for (std::uint32_t i = 0; i < b.graph().states.size(); ++i) after.push_back(b.Read({i}));
         return after;
       }},
      {&kLamb, [&](Builder& b, const Leaves& v) { return b.Emit(kLamb, update(b, v, 2, true), update_numbers); }},
      {&kAdagrad, [&](Builder& b, const Leaves& v) { return b.Emit(kAdagrad, update(b, v, 1, false), update_numbers); }},
      {&kAttention, [&](Builder& b, const Leaves& v) { return attention(b, kAttention, v); }},
      {&kCausalAttention, [&](Builder& b, const Leaves& v) { return attention(b, kCausalAttention, v); }},
      {&kAttentionGrad, [&](Builder& b, const Leaves& v) { return attention_grad(b, kAttention, kAttentionGrad, v); }},
      {&kCausalAttentionGrad, [&](Builder& b, const Leaves& v) { return attention_grad(b, kCausalAttention, kCausalAttentionGrad, v); }},
      {&kRmsNorm, [](Builder& b, const Leaves& v) { return b.Emit(kRmsNorm, {v[0], v[1]}, {{Attr::kEpsilon, .01}}); }},
      {&kRmsNormGrad,
       [&](Builder&, const Leaves& v) { return Vars{gradient_of(RmsNorm(v[0], v[1]), v[0]), gradient_of(RmsNorm(v[0], v[1]), v[1])}; }},
      {&kAddLayerNorm, [&](Builder& b, const Leaves& v) { return add_norm(b, kAddLayerNorm, {v[0], Sin(v[0]), v[1], v[2], v[1] * v[2]}); }},
      {&kAddRmsNorm, [&](Builder& b, const Leaves& v) { return add_norm(b, kAddRmsNorm, {v[0], Sin(v[0]), v[1]}); }},
      {&kAddLayerNormGrad, [&](Builder& b, const Leaves& v) { return add_norm_grads(b, kAddLayerNorm, {v[0], Sin(v[0]), v[1], v[2]}); }},
      {&kAddRmsNormGrad, [&](Builder& b, const Leaves& v) { return add_norm_grads(b, kAddRmsNorm, {v[0], Sin(v[0]), v[1], v[2]}); }},
      {&kMap, [](Builder&, const Leaves& v) { return Vars{Tanh(v[0] * v[1]) * 2.0 + v[2]}; }},
  };
  for (const OpDef* def : BuiltinOps()) {
    bool has_row = std::any_of(cases.begin(), cases.end(), [&](const Case& test) { return test.def == def; });
    EXPECT_EQ(def->expand != nullptr, has_row) << def->name;
  }
  for (const Case& test : cases) {
    SCOPED_TRACE(test.def->name);
    Builder b;
    Leaves leaves = {b.Input("x", Dtype::kF64, {2, 3, 5}), b.Input("g", Dtype::kF64, {5}), b.Input("c", Dtype::kF64, {5})};
    Vars outputs = test.function(b, leaves);
    for (const Value& value : outputs) b.Output("out", value);
    auto built = b.Finish();
    ASSERT_TRUE(built.ok()) << built.status().ToString();
    Graph graph = test.def == &kMap ? FuseElementwise(*built) : *built;
    ASSERT_GT(Count(graph, *test.def), 0u);
    auto primitive = Expand(graph, {std::string(test.def->name)});
    ASSERT_TRUE(primitive.ok()) << primitive.status().ToString();
    Status status = Check(*primitive);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(Count(*primitive, *test.def), 0u);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) EXPECT_LT(Difference(graph, *primitive, seed), 1e-12) << "seed " << seed;
    // Control: a form that is wrong by a little, or leaves out an output, shows.
    for (std::size_t i = 0; i < primitive->outputs.size(); ++i) {
      Builder wrong(*primitive);
      Value changed = Value{&wrong, primitive->outputs[i].value} * (1 + 1e-6);
      ASSERT_TRUE(changed.valid()) << wrong.status().ToString();
      wrong.mutable_graph().outputs[i].value = changed.id;
      EXPECT_GT(Difference(graph, *wrong.Finish(), 1), 1e-12) << "output " << i;
    }
  }
}

TEST(Passes, FusedOpsEqualTheirPrimitiveForms) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Graph graph = WithGradients(seed);
    auto primitive = Expand(graph);
    ASSERT_TRUE(primitive.ok()) << primitive.status().ToString();
    Status status = Check(*primitive);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(Count(*primitive, kLayerNorm) + Count(*primitive, kGelu) + Count(*primitive, kSoftmax), 0u);
    ASSERT_LT(Difference(graph, *primitive, seed), 1e-12);
  }
}

// Controls: each planted bug must show on at least one of the same seeds.
TEST(Passes, PlantedBugsAreCaught) {
  auto caught = [](const std::function<bool(Graph&)>& plant) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      Graph graph = WithGradients(seed);
      Graph broken = AllPasses(graph);
      if (!plant(broken)) continue;
      if (!Check(broken).ok() || Difference(graph, broken, seed) != 0) return true;
    }
    return false;
  };
  auto first = [](Graph& g, const OpDef& def) {
    auto found = std::find_if(g.ops.begin(), g.ops.end(), [&](const Op& op) { return op.def == &def; });
    return found == g.ops.end() ? nullptr : &*found;
  };
  // Sub as if it were commutative.
  EXPECT_TRUE(caught([&](Graph& g) {
    Op* op = first(g, kSub);
    if (op != nullptr) std::swap(op->inputs[0], op->inputs[1]);
    return op != nullptr;
  }));
  // A merge that looks at inputs and not at attributes.
  EXPECT_TRUE(caught([&](Graph& g) {
    Op* op = first(g, kReduceSum);
    if (op != nullptr) op->attrs.Set(Attr::kAxes, std::vector<std::int64_t>{0});
    return op != nullptr;
  }));
  // A merge with the wrong value of the same type.
  EXPECT_TRUE(caught([&](Graph& g) {
    for (std::size_t i = g.ops.size(); i-- > 1;) {
      for (ValueId& in : g.ops[i].inputs) {
        for (std::size_t j = 0; j < i; ++j) {
          if (g.ops[j].outputs.size() == 1 && g.ops[j].outputs[0] != in && g.value(g.ops[j].outputs[0]).type == g.value(in).type) {
            in = g.ops[j].outputs[0];
            return true;
          }
        }
      }
    }
    return false;
  }));
  // Fusion that moves an op before what it needs.
  EXPECT_TRUE(caught([&](Graph& g) {
    for (std::size_t i = g.ops.size() - 1; i > 0; --i) {
      for (ValueId in : g.ops[i].inputs) {
        if (g.value(in).producer.value != i - 1) continue;
        std::swap(g.ops[i], g.ops[i - 1]);
        return true;
      }
    }
    return false;
  }));
}

TEST(Passes, ClonesAreNeverMergedBackAndDrawTheSameNumbers) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {4, 3});
  StateId mean = b.NewState("mean", StateKind::kStatistic, {Dtype::kF64, {}}, Initializer::Zeros());
  Value h = Dropout(Tanh(x * 2.0), .5);
  b.Assign(mean, b.Read(mean) * .9 + Mean(h) * .1);
  Value loss = ReduceSum(Square(Sin(h)));
  b.Output("loss", loss);
  b.Output("grad", Grad(loss, {x})[0]);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Graph again = Recompute(*graph, [](const Op& op) { return op.provenance.phase == Phase::kForward; });
  Status status = Check(again);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(Count(again, kAssign), 1u);  // no state is updated twice
  EXPECT_EQ(Count(again, kRandomUniform), 2u);
  EXPECT_EQ(Count(again, kTanh), 2u);
  EXPECT_EQ(Difference(*graph, again, 3), 0);
  Graph merged = RemoveDeadCode(MergeEqual(again));
  EXPECT_EQ(Count(merged, kRandomUniform), 2u);
  EXPECT_EQ(Count(merged, kTanh), 2u);
  EXPECT_EQ(Difference(*graph, merged, 3), 0);
  for (const Op& op : merged.ops) {
    if (op.clone > 0) {
      EXPECT_EQ(op.provenance.phase, Phase::kRecompute);
    }
  }
  // Control: were the clones not marked, they would be merged back.
  for (Op& op : again.ops) op.clone = 0;
  EXPECT_EQ(Count(RemoveDeadCode(MergeEqual(again)), kTanh), 1u);
}

TEST(Passes, DeadCodeGoesTapsAndVersionsStay) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {3});
  StateId state = b.NewState("s", StateKind::kStatistic, {Dtype::kF64, {3}}, Initializer::Zeros());
  Exp(x);
  b.Tap("sin", Sin(x));
  b.Assign(state, Cos(x));
  b.Output("y", Tanh(x));
  Graph graph = RemoveDeadCode(*b.Finish());
  EXPECT_EQ(Count(graph, kExp), 0u);
  EXPECT_EQ(Count(graph, kSin), 1u);
  EXPECT_EQ(Count(graph, kCos), 1u);
  Graph fused = FuseElementwise(graph);
  std::map<std::string, RefTensor> states;
  auto result = Evaluate(fused, {}, {{{3}, {1, 2, 3}}}, states);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->taps["sin"].data[1], std::sin(2.0));
  EXPECT_EQ(states["s"].data[1], std::cos(2.0));
}

TEST(Passes, RandomOpsAreMergedOnlyWithThemselves) {
  Builder b;
  Value u = RandomUniform(b, Dtype::kF64, {4}), v = RandomUniform(b, Dtype::kF64, {4});
  b.Output("difference", u - v);
  Graph graph = MergeEqual(*b.Finish());
  EXPECT_EQ(Count(graph, kRandomUniform), 2u);
}

TEST(Passes, ConstantsAreFolded) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {3});
  Value c = Constant(b, Literal::Of(Dtype::kF64, {3}, std::vector<double>{1, 2, 3}));
  b.Output("y", x * Exp(Square(c) + 1.0));
  Graph graph = *b.Finish();
  Graph folded = RemoveDeadCode(FoldConstants(graph, FoldWith(ReferenceKernels())));
  EXPECT_EQ(Count(folded, kExp), 0u);
  EXPECT_EQ(folded.ops.size(), 3u);  // input, constant, product
  EXPECT_EQ(Difference(graph, folded, 1), 0);
}

TEST(Passes, AnyOpMaySplit) {
  int splits = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Graph graph = WithGradients(seed, 10);
    for (std::uint32_t i = 0; i < graph.ops.size(); i += 5) {
      if (graph.ops[i].def->traits.source) continue;
      auto split = SplitStartDone(graph, {i}, 4);
      ASSERT_TRUE(split.ok()) << split.status().ToString();
      Status status = Check(*split);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(Difference(graph, *split, seed), 0);
      // The handle is no value of the op's, to no other pass.
      Graph passed = AllPasses(*split);
      status = Check(passed);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(Difference(graph, passed, seed), 0);
      ++splits;
    }
  }
  EXPECT_GT(splits, 50);
}

// Pairs of ops that a pass knows, with either half of the inner one split.
TEST(Passes, WhatIsSplitIsNotSimplified) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {2, 3});
  b.Output("neg", -(-x));
  b.Output("reshape", Reshape(Reshape(x, {6}), {3, 2}));
  b.Output("identity", Identity(b, Identity(b, x)));
  b.Output("one", x * b.Number(1, Dtype::kF64));
  b.Output("zero", x - b.Number(0, Dtype::kF64));
  b.Output("fused", Tanh(Exp(x) + b.Number(2, Dtype::kF64)));
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  int splits = 0;
  for (std::uint32_t i = 0; i < graph->ops.size(); ++i) {
    if (graph->ops[i].def->traits.source) continue;
    SCOPED_TRACE("op " + std::to_string(i) + ", " + std::string(graph->ops[i].def->name));
    auto split = SplitStartDone(*graph, {i}, 2);
    ASSERT_TRUE(split.ok()) << split.status().ToString();
    for (const Graph& passed : {Simplify(*split), MergeEqual(*split), FuseElementwise(*split), AllPasses(*split)}) {
      Status status = Check(passed);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(Difference(*graph, passed, 1), 0);
    }
    ++splits;
  }
  EXPECT_GT(splits, 10);
}

TEST(Passes, LayoutsMeetWithoutNeedlessConversions) {
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {2, 3, 6, 6}), w = b.Input("w", Dtype::kF64, {4, 3, 3, 3}),
        v = b.Input("v", Dtype::kF64, {5, 4, 3, 3});
  Value h = Relu(Conv2D(x, w) * 2.0);
  b.Output("y", Conv2D(h + h, v));
  Graph graph = *b.Finish();
  Layout nhwc{{0, 2, 3, 1}, {}};
  Graph laid = AssignLayouts(graph, [&](const Graph&, const Op& op, const std::vector<Layout>&) {
    return op.def == &kConv2D ? std::vector<Layout>{nhwc, Layout{}, nhwc} : std::vector<Layout>{};
  });
  Status status = Check(laid);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(Count(laid, kRelayout), 2u);  // in front of the first, behind the second; between them all is NHWC
  EXPECT_EQ(Difference(graph, laid, 1), 0);
  EXPECT_TRUE(laid.value(laid.outputs[0].value).layout.IsRowMajor());
  for (const Op& op : laid.ops) {
    if (op.def == &kRelu) {
      EXPECT_EQ(laid.value(op.outputs[0]).layout, nhwc);
    }
  }
}

TEST(Passes, SymbolsPassThrough) {
  Builder b;
  Dim n = b.NewSymbol("N", 1, 64);
  Value x = b.Input("x", Dtype::kF64, {n, 4});
  Value loss = Mean(Square(Tanh(x * 2.0) + 1.0));
  b.Output("loss", loss);
  b.Output("grad", Grad(loss, {x})[0]);
  Graph graph = *b.Finish(), passed = AllPasses(graph);
  for (std::int64_t rows : {1, 7}) {
    std::map<std::string, RefTensor> states;
    RefTensor input{{rows, 4}, std::vector<double>(rows * 4, .3)};
    auto x1 = Evaluate(graph, {rows}, {input}, states), x2 = Evaluate(passed, {rows}, {input}, states);
    ASSERT_TRUE(x1.ok() && x2.ok());
    EXPECT_EQ(x1->outputs[0].data, x2->outputs[0].data);
    EXPECT_EQ(x1->outputs[1].data, x2->outputs[1].data);
  }
}

TEST(Passes, UpdatesOfDifferentParametersStayIndependent) {
  Builder b;
  std::vector<Parameter> parameters = {b.NewParameter("v", {3}, Initializer::Ones()), b.NewParameter("w", {3}, Initializer::Ones())};
  Value loss = ReduceSum(parameters[0] * parameters[1]);
  ApplySgd(b, parameters, Grad(loss, {parameters.begin(), parameters.end()}), .1, {.momentum = .9, .weight_decay = .1});
  Graph graph = MergeEqual(*b.Finish());
  int updates = 0;
  for (const Op& op : graph.ops) {
    if (graph.region(op.region).kind != RegionKind::kUpdate) continue;
    ++updates;
    for (ValueId in : op.inputs) {
      RegionId from = graph.op(graph.value(in).producer).region;
      EXPECT_TRUE(from == op.region || graph.region(from).kind != RegionKind::kUpdate) << graph.Describe(in);
    }
  }
  EXPECT_GT(updates, 10);
}

}  // namespace
}  // namespace ropewalk::mlrunner
