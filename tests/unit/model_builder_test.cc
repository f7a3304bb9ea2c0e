// Values, shapes, states and errors of the model graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/reference.h"

namespace ropewalk::mlrunner {
namespace {

TEST(Dim, IsAPolynomialWithOneForm) {
  std::vector<SymbolInfo> symbols = {{"B", 1, 8}, {"T", 1, 128}};
  Dim b = Symbol{0}, t = Symbol{1};
  EXPECT_EQ(b * t, t * b);
  EXPECT_EQ((b + 1) * (b - 1), b * b - 1);
  EXPECT_NE(b, t);
  EXPECT_EQ((b * t * 6).DividedBy(t * 2), b * 3);
  EXPECT_FALSE((b * t + 1).DividedBy(t).has_value());
  EXPECT_EQ((b * t + 2).Evaluate({3, 5}), 17);
  EXPECT_EQ((b * t + 2).UpperBound(symbols), 8 * 128 + 2);
  EXPECT_FALSE((Dim(4) - b).UpperBound(symbols).has_value());
  EXPECT_EQ((b * t * 2 + 1).ToString(symbols), "2*B*T + 1");
  EXPECT_TRUE((b - b).Is(0));
}

TEST(Layout, PlacesEachElementOnce) {
  for (const Layout& layout : {Layout{}, Layout{{0, 2, 3, 1}, {}}, Layout{{}, {{1, 4}}}, Layout{{1, 0, 2, 3}, {{1, 4}, {0, 2}}}}) {
    Dims dims{3, 6, 2, 2};
    std::vector<int> seen(layout.PhysicalElements(dims));
    Dims index(4);
    for (index[0] = 0; index[0] < 3; ++index[0])
      for (index[1] = 0; index[1] < 6; ++index[1])
        for (index[2] = 0; index[2] < 2; ++index[2])
          for (index[3] = 0; index[3] < 2; ++index[3]) ASSERT_EQ(seen.at(layout.Offset(dims, index))++, 0) << layout.ToString();
  }
  EXPECT_EQ((Layout{{}, {{1, 16}}}).PhysicalElements({2, 3, 4, 5}), 2 * 16 * 4 * 5);
  EXPECT_EQ((Layout{{0, 2, 3, 1}, {}}).Strides({2, 3, 4, 5}), Dims({60, 1, 15, 3}));
}

TEST(Sharding, SlicesCoverTheLogicalTensorOnce) {
  Mesh mesh{{{"data", 2}, {"tensor", 4}}};
  ShardingSpec spec{{ShardingSpec::kReplicated, 1}, {}};
  EXPECT_EQ(SliceOf({3, 6}, spec, mesh, 5), (Slice{{0, 2}, {3, 4}}));
  EXPECT_EQ(SliceOf({3, 6}, spec, mesh, 3), (Slice{{0, 6}, {3, 6}}));  // empty
  EXPECT_EQ(spec.ToString(mesh), "[_, tensor]");
  EXPECT_EQ(mesh.Coordinates(6), (std::vector<std::int32_t>{1, 2}));
}

TEST(Builder, ShapeErrorsShowBothShapesAndTheUsersLine) {
  Builder b;
  Dim batch = b.NewSymbol("B", 1, 64);
  Value x = b.Input("x", Dtype::kF32, {batch, 784});
  Parameter w = b.NewParameter("w", {512, 10}, Initializer::Zeros());
  int line = __LINE__ + 1;
  Value y = Relu(MatMul(x, w) + 1.0);
  EXPECT_FALSE(y.valid());
  auto graph = b.Finish();
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().tag(), "GRAPH01");
  EXPECT_NE(graph.status().what().find("MatMul of (B, 784) f32 and (512, 10) f32"), std::string::npos) << graph.status().ToString();
  EXPECT_NE(graph.status().what().find("model_builder_test.cc:" + std::to_string(line) + ":"), std::string::npos)
      << graph.status().ToString();
  EXPECT_NE(graph.status().why().find("784 and 512"), std::string::npos);
}

TEST(Builder, OperatorsNameTheirLineToo) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {3, 4}), y = b.Input("y", Dtype::kF32, {3, 5}), z = b.Input("z", Dtype::kF64, {3, 4});
  int line = __LINE__ + 1;
  (void)(x + y);
  EXPECT_NE(b.status().what().find(std::to_string(line) + ": Add of (3, 4) f32 and (3, 5) f32"), std::string::npos)
      << b.status().ToString();
  Builder other;
  Value p = other.Input("p", Dtype::kF32, {3}), q = other.Input("q", Dtype::kF64, {3});
  (void)(p * q);
  EXPECT_NE(other.status().why().find("element types differ"), std::string::npos);
  (void)z;
}

TEST(Builder, PaddingBelowZeroIsRefused) {
  for (auto [low, high] : {std::pair{-1, 0}, {0, -1}, {-1, 1}}) {
    Builder b;
    Value x = b.Input("x", Dtype::kF32, {4});
    int line = __LINE__ + 1;
    PadAxis(x, 0, low, high);
    EXPECT_EQ(b.status().tag(), "GRAPH01") << low << " " << high;
    EXPECT_NE(b.status().what().find(std::to_string(line) + ": Pad of (4) f32"), std::string::npos) << b.status().ToString();
  }
}

TEST(Builder, WindowsThatDoNotExistAreRefused) {
  using Pair = std::vector<std::int64_t>;
  auto conv = [](Pair stride, Pair padding, Shape w = {4, 3, 3, 3}, Conv2DOptions options = {}) {
    options.stride = stride;
    options.padding = padding;
    return [=](Builder& b, const Value& x) { return Conv2D(x, b.Input("w", Dtype::kF32, w), options); };
  };
  auto grad = [](const OpDef& def, Shape a, Shape other, Shape made, Pair stride) {
    return [=, &def](Builder& b, const Value&) {
      return b.EmitOne(def, {b.Input("a", Dtype::kF32, a), b.Input("b", Dtype::kF32, other)},
                       {{Attr::kStrides, stride},
                        {Attr::kPadding, Pair{0, 0}},
                        {Attr::kShape, made},
                        {Attr::kDtype, static_cast<std::int64_t>(Dtype::kF32)}});
    };
  };
  auto pooled = [](const OpDef& def, std::vector<Shape> in, std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0) {
    return [=, &def](Builder& b, const Value&) {
      std::vector<Value> inputs;
      for (const Shape& shape : in) inputs.push_back(b.Input("in" + std::to_string(inputs.size()), Dtype::kF32, shape));
      return b.EmitOne(def, inputs,
                       {{Attr::kKernel, Pair{kernel, kernel}},
                        {Attr::kStrides, Pair{stride, stride}},
                        {Attr::kPadding, Pair{padding, padding}},
                        {Attr::kShape, Shape{2, 3, 6, 6}},
                        {Attr::kDtype, static_cast<std::int64_t>(Dtype::kF32)}});
    };
  };
  struct Case {
    bool is_legal;
    std::function<Value(Builder&, const Value&)> function;
  };
  const Shape images = {2, 3, 6, 6}, kernels = {4, 3, 3, 3}, cells = {2, 4, 4, 4};
  const Case cases[] = {
      {true, conv({1, 1}, {0, 0})},
      {true, conv({2, 1}, {0, 4})},
      {false, conv({2}, {1})},
      {false, conv({1, 1}, {0})},
      {false, conv({}, {0, 0})},
      {false, conv({1, 1, 1}, {0, 0})},
      {false, conv({0, 1}, {0, 0})},
      {false, conv({1, -1}, {0, 0})},
      {false, conv({1, 1}, {0, -1})},
      {false, conv({1, 1}, {std::int64_t{1} << 62, 0})},
      {false, conv({1, 1}, {0, 0}, {4, 3, 0, 3})},
      {true, grad(kConv2DInputGrad, cells, kernels, images, {1, 1})},
      {false, grad(kConv2DInputGrad, cells, kernels, images, {1})},
      {false, grad(kConv2DInputGrad, cells, kernels, images, {2, 1})},
      {false, grad(kConv2DInputGrad, cells, kernels, {2, 3, 7, 6}, {1, 1})},
      {true, grad(kConv2DWeightGrad, images, cells, kernels, {1, 1})},
      {false, grad(kConv2DWeightGrad, images, cells, kernels, {0, 1})},
      {false, grad(kConv2DWeightGrad, images, cells, {4, 3, 5, 3}, {1, 1})},
      {true, conv({1, 1}, {0, 0}, {4, 3, 3, 3}, {.dilation = {2, 1}})},
      {false, conv({1, 1}, {0, 0}, {4, 3, 3, 3}, {.dilation = {3, 1}})},  // reaches over 7
      {true, conv({1, 1}, {1, 0}, {4, 3, 3, 3}, {.dilation = {3, 1}})},
      {false, conv({1, 1}, {0, 0}, {4, 3, 3, 3}, {.dilation = {0, 1}})},
      {false, conv({1, 1}, {0, 0}, {4, 3, 3, 3}, {.dilation = {1}})},
      {true, conv({1, 1}, {0, 0}, {6, 1, 3, 3}, {.groups = 3})},
      {false, conv({1, 1}, {0, 0}, {4, 1, 3, 3}, {.groups = 3})},
      {false, conv({1, 1}, {0, 0}, {6, 3, 3, 3}, {.groups = 3})},
      {false, conv({1, 1}, {0, 0}, {6, 1, 3, 3}, {.groups = 0})},
      {true,
       [&](Builder& b, const Value& x) { return Conv2D(x, b.Input("w", Dtype::kF32, kernels), {.bias = b.Input("c", Dtype::kF32, {4})}); }},
      {false,
       [&](Builder& b, const Value& x) { return Conv2D(x, b.Input("w", Dtype::kF32, kernels), {.bias = b.Input("c", Dtype::kF32, {3})}); }},
      {false,
       [&](Builder& b, const Value& x) { return Conv2D(x, b.Input("w", Dtype::kF32, kernels), {.bias = b.Input("c", Dtype::kF64, {4})}); }},
      {true, [](Builder&, const Value& x) { return MaxPool2D(x, 3, 2, 1); }},
      {true, [](Builder&, const Value& x) { return MaxPool2D(x, 7, 1, 1); }},
      {false, [](Builder&, const Value& x) { return MaxPool2D(x, 2, 2, 2); }},
      {false, [](Builder&, const Value& x) { return AvgPool2D(x, 2, 2, -1); }},
      {false, [](Builder&, const Value& x) { return MaxPool2D(x, {.kernel = {2}}); }},
      {false, [](Builder&, const Value& x) { return MaxPool2D(x, {.stride = {1, 2, 3}}); }},
      {false, [](Builder&, const Value& x) { return GlobalAvgPool2D(Reshape(x, {2, 108})); }},
      {true, [](Builder&, const Value& x) { return MaxPool2D(x, 6, 9); }},
      {false, [](Builder&, const Value& x) { return MaxPool2D(x, 2, 0); }},
      {false, [](Builder&, const Value& x) { return MaxPool2D(x, 2, -1); }},
      {false, [](Builder&, const Value& x) { return MaxPool2D(x, 0, 1); }},
      {false, [](Builder&, const Value& x) { return MaxPool2D(x, 7, 1); }},
      {false, [](Builder&, const Value& x) { return AvgPool2D(x, -1, 1); }},
      {false, [](Builder&, const Value& x) { return AvgPool2D(x, 2, 0); }},
      {true, pooled(kMaxPool2DGrad, {images, {2, 3, 3, 3}}, 2, 2)},
      {false, pooled(kMaxPool2DGrad, {images, {2, 3, 3, 3}}, 2, 0)},
      {false, pooled(kMaxPool2DGrad, {images, {2, 3, 3, 3}}, 2, 1)},
      {true, pooled(kMaxPool2DGrad, {images, {2, 3, 4, 4}}, 2, 2, 1)},
      {false, pooled(kMaxPool2DGrad, {images, {2, 3, 3, 3}}, 2, 2, 1)},
      {true, pooled(kAvgPool2DGrad, {{2, 3, 3, 3}}, 2, 2)},
      {false, pooled(kAvgPool2DGrad, {{2, 3, 3, 3}}, 0, 2)},
      {false, pooled(kAvgPool2DGrad, {{2, 3, 3, 3}}, 3, 2)},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE("case " + std::to_string(&test - cases));
    Builder b;
    Value y = test.function(b, b.Input("x", Dtype::kF32, images));
    EXPECT_EQ(y.valid(), test.is_legal) << b.status().ToString();
    if (test.is_legal) continue;
    EXPECT_EQ(b.status().tag(), "GRAPH01");
    EXPECT_NE(b.status().what().find("(2, "), std::string::npos) << b.status().ToString();  // shows the shapes
  }
}

// A small linear model as most tests use it.
TEST(Builder, StatesHaveVersions) {
  Builder b;
  Parameter w = b.NewParameter("w", {2}, Initializer::Ones());
  Value before = w * 1.0;
  b.Assign(w.state, w + 1.0);
  Value after = b.Read(w.state);
  b.Assign(w.state, after * 10.0);
  b.Output("before", before);
  b.Output("after", after);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  std::map<std::string, RefTensor> states;
  for (double begin : {1.0, 20.0}) {
    auto result = Evaluate(*graph, {}, {}, states);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->outputs[0].data[0], begin);
    EXPECT_EQ(result->outputs[1].data[0], begin + 1);
    EXPECT_EQ(states["w"].data[0], (begin + 1) * 10);
  }
}

TEST(Builder, TwoHistoriesOfOneStateAreRefused) {
  Builder b;
  Parameter w = b.NewParameter("w", {2}, Initializer::Ones());
  Value version = b.Token(w.state);
  b.Assign(w.state, w + 1.0);
  b.EmitOne(kAssign, {version, w + 2.0});
  auto graph = b.Finish();
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().tag(), "GRAPH18");
}

TEST(Builder, SameNamesAreRefusedAndModulesTellThemApart) {
  Builder b;
  {
    auto module = b.Module("block0", 0);
    b.NewParameter("w", {2}, Initializer::Ones());
  }
  {
    auto module = b.Module("block1", 1);
    b.NewParameter("w", {2}, Initializer::Ones());
    EXPECT_TRUE(b.status().ok());
    b.NewParameter("w", {2}, Initializer::Ones());
  }
  EXPECT_EQ(b.status().tag(), "GRAPH02");
}

TEST(Builder, OriginsAreKeptAndGradientsBelongToTheLayerOfTheirForwardOp) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {2, 3});
  Value h = x;
  std::vector<Value> parameters;
  for (int layer = 0; layer < 2; ++layer) {
    auto module = b.Module("block" + std::to_string(layer), layer);
    Parameter w = b.NewParameter("w", {3, 3}, Initializer::Normal(1));
    parameters.push_back(w);
    h = Tanh(MatMul(h, w));
  }
  for (const Gradient& g : Grad(Mean(h), parameters)) b.Output("grad", g);
  auto built = b.Finish();
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  Graph graph = RemoveDeadCode(*built);
  int backward_products[2] = {0, 0};
  for (const Op& op : graph.ops) {
    if (op.def != &kMatMul) continue;
    ASSERT_GE(op.provenance.layer, 0);
    EXPECT_EQ(op.provenance.module, "block" + std::to_string(op.provenance.layer));
    bool backward = op.provenance.phase == Phase::kBackward;
    EXPECT_EQ(graph.region(op.region).kind, backward ? RegionKind::kBackward : RegionKind::kForward);
    backward_products[op.provenance.layer] += backward;
  }
  EXPECT_EQ(backward_products[0], 1);  // the input needs no gradient
  EXPECT_EQ(backward_products[1], 2);
}

TEST(Builder, StableIdsDoNotDependOnWhatOtherModulesHold) {
  auto build = [](bool extra) {
    Builder b;
    if (extra) {
      auto other = b.Module("extra");
      Exp(b.Input("e", Dtype::kF32, {1}));
    }
    auto module = b.Module("block");
    Value y = Exp(b.Input("x", Dtype::kF32, {1}));
    return b.graph().op(b.graph().value(y.id).producer).stable_id;
  };
  EXPECT_EQ(build(false), build(true));
}

TEST(Builder, FingerprintsTellPlansApartAndIgnoreNamesOfFiles) {
  auto build = [](double factor) {
    Builder b;
    Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B"), 3});
    b.Output("y", Tanh(x * factor));
    return Fingerprint(*b.Finish());
  };
  EXPECT_EQ(build(2), build(2));
  EXPECT_NE(build(2), build(3));
}

TEST(While, EqualsItsUnrolledFormBitForBit) {
  constexpr int kRounds = 1000;
  Builder b;
  Value x = b.Input("x", Dtype::kF64, {4}), w = b.Input("w", Dtype::kF64, {4});
  auto step = [&](const Value& s) { return Tanh(s * w + .1); };
  Vars out = While(
      {b.Number(0, Dtype::kI64), x}, kRounds, [](Builder&, const Vars& s) { return Less(s[0], kRounds); },
      [&](Builder&, const Vars& s) { return Vars{s[0] + 1, step(s[1])}; });
  Value unrolled = x;
  for (int i = 0; i < kRounds; ++i) unrolled = step(unrolled);
  auto grads = Grad(ReduceSum(out[1]), {x}), unrolled_grads = Grad(ReduceSum(unrolled), {x});
  for (const Value& v : {out[1], unrolled, grads[0].Dense(), unrolled_grads[0].Dense(), out[2]}) b.Output("out", v);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  std::map<std::string, RefTensor> states;
  auto result = Evaluate(*graph, {}, {{{4}, {.1, -.2, .3, 2}}, {{4}, {.9, 1.1, -.5, .99}}}, states);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->outputs[0].data, result->outputs[1].data);
  EXPECT_EQ(result->outputs[2].data, result->outputs[3].data);
  EXPECT_EQ(result->outputs[4].data[0], kRounds);
}

TEST(While, OverItsBoundIsAnError) {
  Builder b;
  Value x = b.Input("x", Dtype::kI64, {});
  b.Output(
      "y",
      While({x}, 3, [](Builder&, const Vars& s) { return Less(s[0], 10); }, [](Builder&, const Vars& s) { return Vars{s[0] + 1}; })[0]);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  std::map<std::string, RefTensor> states;
  EXPECT_EQ(Evaluate(*graph, {}, {{{}, {7}}}, states)->outputs[0].data[0], 10);
  EXPECT_EQ(Evaluate(*graph, {}, {{{}, {6}}}, states).status().tag(), "RUN03");
}

TEST(Random, NumbersBelongToSamplesNotToBatches) {
  auto draw = [](std::int64_t batch, std::int64_t offset, std::uint64_t step) {
    Builder b;
    b.Output("u", RandomUniform(b, Dtype::kF32, {Dim(batch), 3}));
    std::map<std::string, RefTensor> states;
    auto graph = b.Finish();
    return Evaluate(*graph, {}, {}, states, {.seed = 5, .step = step, .sample_offset = offset})->outputs[0].data;
  };
  std::vector<double> all = draw(6, 0, 1), tail = draw(2, 4, 1);
  EXPECT_EQ(std::vector<double>(all.begin() + 12, all.end()), tail);
  EXPECT_NE(draw(6, 0, 2), all);
}

TEST(Random, ShardsOfATensorDrawItsOwnNumbers) {
  Builder b;
  Value u = RandomUniform(b, Dtype::kF32, {2, 3}, -1);
  Graph& g = b.mutable_graph();
  g.mesh = {{{"tensor", 2}}};
  g.value(u.id).logical = {2, 6};
  g.value(u.id).sharding = {{ShardingSpec::kReplicated, 0}, {}};
  b.Output("u", u);
  Builder whole;
  whole.Output("u", RandomUniform(whole, Dtype::kF32, {2, 6}, -1));
  std::map<std::string, RefTensor> states;
  auto all = Evaluate(*whole.Finish(), {}, {}, states)->outputs[0].data;
  auto graph = b.Finish();
  auto right = Evaluate(*graph, {}, {}, states, {.rank = 1})->outputs[0].data;
  EXPECT_EQ(right, (std::vector<double>{all[3], all[4], all[5], all[9], all[10], all[11]}));
}

TEST(Random, DropoutKeepsWhatDoesNotLieBelowItsRate) {
  constexpr std::int64_t kCount = 4096;
  // The numbers drawn, and what is left of `value` repeated.
  auto draw = [](double rate, double value) {
    Builder b;
    Value y = Dropout(Fill(b, value, Dtype::kF32, {kCount}), rate);
    for (const Op& op : b.graph().ops) {
      if (op.def == &kRandomUniform) b.Output("u", {&b, op.outputs[0]});
    }
    b.Output("y", y);
    std::map<std::string, RefTensor> states;
    auto result = Evaluate(*b.Finish(), {}, {}, states, {.seed = 5});
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return std::pair(result->outputs.at(0).data, result->outputs.at(1).data);
  };
  EXPECT_EQ(draw(0, 3).second, std::vector<double>(kCount, 3));
  std::vector<double> u = draw(.5, 3).first;
  const double one_of_them = *std::find_if(u.begin(), u.end(), [](double number) { return number > .2 && number < .3; });
  for (double rate : {.5, one_of_them}) {
    auto [drawn, left] = draw(rate, 3);
    EXPECT_EQ(drawn, u);
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      EXPECT_NEAR(left[i], u[i] < rate ? 0 : 3 / (1 - rate), 1e-6) << i;
      kept += left[i] != 0;
    }
    EXPECT_NEAR(static_cast<double>(kept) / kCount, 1 - rate, .04);
  }
  // What is left out is 0, whatever it was.
  for (double value : draw(.5, HUGE_VAL).second) EXPECT_TRUE(value == 0 || value == HUGE_VAL) << value;
}

TEST(Reference, LabelsOutOfRangeAreNamed) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {2, 10});
  Value labels = b.Input("labels", Dtype::kI32, {2});
  b.Output("loss", Mean(CrossEntropy(x, labels)));
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  std::map<std::string, RefTensor> states;
  Status status = Evaluate(*graph, {}, {{{2, 10}, std::vector<double>(20)}, {{2}, {3, 10}}}, states).status();
  EXPECT_EQ(status.code(), Code::kUserError);
  EXPECT_NE(status.ToString().find("label of sample 1 is 10"), std::string::npos) << status.ToString();
  EXPECT_NE(status.ToString().find("[0, 10)"), std::string::npos);
}

}  // namespace
}  // namespace ropewalk::mlrunner
