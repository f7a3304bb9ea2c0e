// Fast f32 kernels against the float64 reference, op by op.
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/graph/passes/pass.h"
#include "tests/unit/against_reference.h"

namespace ropewalk::mlrunner {
namespace {

struct Case {
  const char* name;
  std::vector<Shape> shapes;  // of f32 inputs
  CaseFunction function;
  // Relative to the largest magnitude of the output. With u = 2^-24 an element alone has some 8 u; a sum of k terms has about sqrt(k) u
  // of the root of its squares, which the largest output is not below, and a gradient goes through two such. 2e-6 (33 u) is for k up to
  // 364 (the weights of the convolutions), 4e-6 (67 u) for up to 6699 (the sum of everything) and for chains of sums.
  double tolerance = 2e-6;
  double low = -2, high = 2;
};

Value Ints(Builder& b, std::vector<std::int32_t> values) {
  Dims dims{static_cast<std::int64_t>(values.size())};
  return Constant(b, Literal::Of(Dtype::kI32, dims, values));
}

void Check(const std::vector<Case>& cases, std::size_t fallbacks_allowed) {
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const auto graph = GraphOf(test.shapes, Dtype::kF32, test.function);
    ASSERT_TRUE(graph);
    const DrawnInputs inputs(test.shapes, Dtype::kF32, test.low, test.high);
    for (bool fuse : {false, true}) {
      const Graph made = fuse ? FuseElementwise(*graph) : *graph;
      const std::vector<RefTensor> expected = ByReference(made, inputs, false);
      for (int threads : {1, 2}) {
        SCOPED_TRACE((fuse ? "fused, threads: " : "threads: ") + std::to_string(threads));
        const Ran ran = RunAgainst(expected, made, inputs, CpuKernels(), {.num_threads = threads});
        EXPECT_LE(ran.error, test.tolerance);
        EXPECT_LE(ran.fallbacks, fallbacks_allowed);
      }
    }
  }
}

TEST(CpuKernels, Elementwise) {
  const Shape big = {37, 1031};
  Check(
      {
          {"add row", {big, {1031}}, [](Builder&, const Vars& v) { return Vars{v[0] + v[1]}; }},
          {"sub column", {big, {37, 1}}, [](Builder&, const Vars& v) { return Vars{v[0] - v[1]}; }},
          {"mul of both ways", {{5, 1, 7}, {3, 1}}, [](Builder&, const Vars& v) { return Vars{v[0] * v[1]}; }},
          {"div", {big, big}, [](Builder&, const Vars& v) { return Vars{v[0] / v[1]}; }, 2e-6, .5, 2},
          {"scalar", {big, {}}, [](Builder&, const Vars& v) { return Vars{(v[0] + v[1]) * 3.0}; }},
          {"max, min", {big, big}, [](Builder&, const Vars& v) { return Vars{Maximum(v[0], v[1]) + Minimum(v[0], v[1] * .5)}; }},
          {"select", {big, big}, [](Builder&, const Vars& v) { return Vars{Select(Greater(v[0], v[1]), v[0] * 2.0, v[1])}; }},
          {"compare",
           {big, big},
           [](Builder&, const Vars& v) { return Vars{Cast(Less(v[0], v[1]), Dtype::kF32), Cast(Equal(v[0], v[0]), Dtype::kF32)}; }},
          {"exp", {big}, [](Builder&, const Vars& v) { return Vars{Exp(v[0])}; }, 1e-6, -20, 2},
          {"log", {big}, [](Builder&, const Vars& v) { return Vars{Log(v[0])}; }, 1e-6, .01, 9},
          {"roots", {big}, [](Builder&, const Vars& v) { return Vars{Sqrt(v[0]), Rsqrt(v[0])}; }, 1e-6, .1, 9},
          {"tanh", {big}, [](Builder&, const Vars& v) { return Vars{Tanh(v[0])}; }, 1e-6, -6, 6},
          {"tanh of small", {big}, [](Builder&, const Vars& v) { return Vars{Tanh(v[0])}; }, 1e-6, -.4, .4},
          {"sigmoid", {big}, [](Builder&, const Vars& v) { return Vars{Sigmoid(v[0])}; }, 1e-6, -30, 30},
          {"gelu", {big}, [](Builder&, const Vars& v) { return Vars{Gelu(v[0])}; }, 1e-6, -5, 5},
          {"gelu gradient",
           {big},
           [](Builder&, const Vars& v) { return Vars{Grad(ReduceSum(Gelu(v[0])), {v[0]})[0].Dense()}; },
           2e-6,
           -5,
           5},
          {"gelu of erf", {big}, [](Builder&, const Vars& v) { return Vars{Gelu(v[0], GeluForm::kErf)}; }, 1e-6, -5, 5},
          {"gelu of erf, gradient",
           {big},
           [](Builder&, const Vars& v) { return Vars{Grad(ReduceSum(Gelu(v[0], GeluForm::kErf)), {v[0]})[0].Dense()}; },
           2e-6,
           -5,
           5},
          {"rest",
           {big, big},
           [](Builder&, const Vars& v) { return Vars{Abs(v[0]), -v[1], Relu(v[0]), Sign(v[1]), Sin(v[0]), Cos(v[0]), Erf(v[1])}; }},
          {"pow", {big, big}, [](Builder&, const Vars& v) { return Vars{Pow(v[0], v[1])}; }, 2e-6, .2, 2},
          {"finite",
           {big},
           [](Builder&, const Vars& v) {
             return Vars{Cast(IsFinite(v[0] / (v[0] - v[0])), Dtype::kF32), Cast(IsFinite(v[0]), Dtype::kF32)};
           }},
      },
      0);
}

TEST(CpuKernels, Products) {
  Check(
      {
          {"plain", {{33, 65}, {65, 47}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
          {"ta", {{65, 33}, {65, 47}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], true, false)}; }},
          {"tb", {{33, 65}, {47, 65}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], false, true)}; }},
          {"ta tb", {{65, 33}, {47, 65}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], true, true)}; }},
          {"ta, rows of a multiple of 2 KiB",
           {{520, 512}, {520, 512}},
           [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], true, false)}; }},
          {"ta, of one factor", {{600, 65}, {600, 512}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], true, false)}; }},
          {"wide", {{33, 65}, {65, 520}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
          {"wide ta", {{65, 33}, {65, 520}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], true, false)}; }},
          {"wide tb", {{33, 65}, {520, 65}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], false, true)}; }},
          {"wide ta tb", {{65, 33}, {520, 65}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], true, true)}; }},
          {"wide batch", {{2, 33, 65}, {2, 65, 520}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
          {"batch", {{2, 3, 9, 17}, {2, 3, 17, 5}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
          {"batch broadcast", {{3, 9, 17}, {2, 1, 17, 5}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
          {"rows and a matrix", {{2, 9, 17}, {17, 5}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
          {"vector", {{1, 17}, {17, 1}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
          {"convolution", {{2, 3, 14, 13}, {6, 3, 5, 5}}, WithGradient([](Builder&, const Vars& v) {
             return Conv2D(v[0], v[1], {{1, 1}, {2, 2}});
           })},
          {"convolution of one channel",
           {{1, 1, 28, 28}, {6, 1, 5, 5}},
           WithGradient([](Builder&, const Vars& v) { return Conv2D(v[0], v[1], {{1, 1}, {2, 2}}); }),
           4e-6},
          {"strided convolution", {{2, 16, 15, 15}, {32, 16, 3, 3}}, WithGradient([](Builder&, const Vars& v) {
             return Conv2D(v[0], v[1], {{2, 2}, {1, 1}});
           })},
      },
      0);
}

TEST(CpuKernels, Rows) {
  const Shape rows = {3, 29, 77};
  Check(
      {
          {"softmax", {rows}, WithGradient([](Builder&, const Vars& v) { return Softmax(v[0]); })},
          {"log softmax", {rows}, WithGradient([](Builder&, const Vars& v) { return LogSoftmax(v[0]); }), 4e-6},
          {"cross entropy", {{4, 77}}, WithGradient([](Builder& b, const Vars& v) { return CrossEntropy(v[0], Ints(b, {0, 76, 3, 3})); })},
          {"layer norm", {rows, {77}, {77}}, WithGradient([](Builder&, const Vars& v) { return LayerNorm(v[0], v[1], v[2]); }), 4e-6},
          {"sums",
           {rows},
           [](Builder&, const Vars& v) {
             return Vars{ReduceSum(v[0]), ReduceSum(v[0], {0}), ReduceSum(v[0], {-1}), ReduceSum(v[0], {1}, true), ReduceSum(v[0], {0, 1})};
           },
           4e-6},
          {"sums over axes apart",
           {{5, 6, 7, 8}},
           [](Builder&, const Vars& v) {
             return Vars{ReduceSum(v[0], {0, 2, 3}), ReduceSum(v[0], {0, 2}), ReduceSum(v[0], {1, 3}, true), ReduceMax(v[0], {0, 3})};
           },
           4e-6},
          {"maxima", {rows}, [](Builder&, const Vars& v) { return Vars{ReduceMax(v[0], {-1}), ReduceMax(v[0], {0}), ReduceMax(v[0])}; }},
          {"transposes",
           {rows},
           [](Builder&, const Vars& v) { return Vars{Transpose(v[0]), Transpose(v[0], {1, 2, 0}), Transpose(v[0], {1, 0, 2})}; }},
          {"transposes of indices",
           {{9, 33}},
           [](Builder& b, const Vars& v) {
             auto three = [&](Dtype dtype) {
               return Cast(Transpose(Reshape(Cast(Ints(b, {8, 0, 8, 2, 1, 5}), dtype), {2, 3})), Dtype::kI32);
             };
             return Vars{Gather(v[0], three(Dtype::kI32))};
           }},
          {"moves",
           {rows},
           [](Builder&, const Vars& v) {
             Value part = SliceAxis(v[0], 1, 3, 20), end = SliceAxis(v[0], -1, 70, 77);
             return Vars{
                 part, end, PadAxis(end, -1, 2, 3), PadAxis(part, 1, 1, 0), Concat({part, v[0]}, 1), BroadcastTo(v[0], {2, 3, 29, 77})};
           }},
          {"gather", {{9, 33}}, WithGradient([](Builder& b, const Vars& v) { return Gather(v[0], Ints(b, {8, 0, 8, 2})); })},
          {"pool", {{2, 3, 9, 8}}, WithGradient([](Builder&, const Vars& v) { return MaxPool2D(v[0], 2, 2); })},
          {"average pool", {{2, 3, 9, 8}}, WithGradient([](Builder&, const Vars& v) { return AvgPool2D(v[0], 2, 2); })},
          {"average pool, windows overlap", {{2, 3, 9, 8}}, WithGradient([](Builder&, const Vars& v) { return AvgPool2D(v[0], 3, 2); })},
          {"lamb",
           {{40000}, {40000}, {40000}, {40000}},
           [](Builder& b, const Vars& v) {
             return b.Emit(kLamb, {v[0], v[1], v[2], v[3], b.Number(.01, Dtype::kF32), b.Number(3, Dtype::kF32)},
                           {{Attr::kLow, .9}, {Attr::kHigh, .99}, {Attr::kEpsilon, 1e-6}, {Attr::kValue, .1}});
           },
           2e-6,
           .1,
           2},
          {"adagrad",
           {{40000}, {40000}, {40000}},
           [](Builder& b, const Vars& v) {
             return b.Emit(kAdagrad, {v[0], v[1], v[2], b.Number(.01, Dtype::kF32)}, {{Attr::kEpsilon, 1e-6}, {Attr::kValue, .1}});
           },
           2e-6,
           .1,
           2},
          {"adamw",
           {{1000}, {1000}, {1000}, {1000}},
           [](Builder& b, const Vars& v) {
             return b.Emit(kAdamW, {v[0], v[1], v[2], v[3], b.Number(.01, Dtype::kF32), b.Number(3, Dtype::kF32)},
                           {{Attr::kLow, .9}, {Attr::kHigh, .99}, {Attr::kEpsilon, 1e-6}, {Attr::kValue, .1}});
           },
           2e-6,
           .1,
           2},
      },
      0);
}

TEST(CpuKernels, Sequences) {
  // T, B, H: one row, lengths that no vector divides, and enough for two threads.
  auto shapes = [](int t, int b, int h) { return std::vector<Shape>{{t, b, 4 * h}, {4 * h}, {4 * h, h}, {b, h}, {b, h}}; };
  auto lstm = [](Builder&, const Vars& v) {
    LstmStates s = Lstm(v[0], v[1], v[2] * .2, v[3], v[4]);
    Vars all{s.hidden, s.cell};
    for (const Gradient& g : Grad(ReduceSum(s.hidden * s.hidden) + ReduceSum(s.cell), v)) all.push_back(g);
    return all;
  };
  Check({{"one row", shapes(3, 1, 5), lstm, 4e-6},
         {"one step", shapes(1, 4, 17), lstm, 4e-6},
         {"some", shapes(6, 5, 33), lstm, 4e-6},
         {"two threads", shapes(12, 9, 96), lstm, 4e-6},
         {"two threads, one row", shapes(90, 1, 96), lstm, 4e-6}},
        0);
}

TEST(CpuKernels, Tables) {
  // Drawn places; n * width is enough for two threads where n is 1,100.
  auto places = [](Builder& b, std::int32_t n, std::int32_t below, Dtype dtype) {
    std::vector<std::int32_t> v;
    Random random(5);
    for (std::int32_t i = 0; i < n; ++i) v.push_back(static_cast<std::int32_t>(random.Below(static_cast<std::uint64_t>(below))));
    return dtype == Dtype::kI32 ? Ints(b, v) : Constant(b, Literal::Of(Dtype::kI64, {n}, std::vector<std::int64_t>(v.begin(), v.end())));
  };
  for (Dtype dtype : {Dtype::kI32, Dtype::kI64}) {
    Check(
        {
            {"sum of rows, and back",
             {{40, 33}},
             [&](Builder& b, const Vars& v) {
               Value y = SumRows(v[0], places(b, 1100, 40, dtype), places(b, 1100, 7, dtype), 9);
               return Vars{y, Grad(ReduceSum(y * y * .5), v)[0].Dense()};
             },
             4e-6},
            {"add rows",
             {{40, 33}, {1100, 33}},
             [&](Builder& b, const Vars& v) { return Vars{AddRows(v[0], places(b, 1100, 40, dtype), v[1])}; }},
            {"adagrad of rows",
             {{40, 33}, {40, 33}, {1100, 33}},
             [&](Builder& b, const Vars& v) {
               return b.Emit(kAdagradRows, {v[0], v[1], places(b, 1100, 40, dtype), v[2], b.Number(.1, Dtype::kF32)},
                             {{Attr::kEpsilon, 1e-6}});
             },
             4e-6,
             .1,
             1},
            {"rows of tables",
             {{30, 5}},
             [&](Builder& b, const Vars& v) {
               Value ids = Reshape(places(b, 24, 10, dtype), {4, 3, 2});
               return Vars{Gather(v[0], StackedRows(ids, {10, 9 + 1, 10}, 1))};
             }},
            {"bags",
             {{30, 5}},
             [&](Builder& b, const Vars& v) {
               Value offsets = dtype == Dtype::kI32 ? Ints(b, {0, 3, 3, 20})
                                                    : Constant(b, Literal::Of(Dtype::kI64, {4}, std::vector<std::int64_t>{0, 3, 3, 20}));
               return Vars{EmbeddingBags(v[0], places(b, 24, 30, dtype), offsets, Bag::kMean)};
             }},
        },
        0);
  }
  Check({{"top k, and its gradient",
          {{700, 64}},
          [](Builder& b, const Vars& v) {
            TopKResult top = TopK(v[0], 3);
            return Vars{top.values, Grad(ReduceSum(Square(top.values)), v)[0].Dense(), Gather(Iota(b, Dtype::kF32, 64), top.places)};
          }},
         {"seats at experts",
          {{13}},
          [](Builder& b, const Vars& v) {
            Value experts = Ints(b, {2, 0, 2, 2, 1, 2, 0});
            Value wide = Reshape(BroadcastTo(Iota(b, Dtype::kI64, 3), {2, 3}), {6});  // 0, 1, 2, 0, 1, 2
            return Vars{Gather(v[0], ExpertSlots(experts, 3, 3)), Gather(v[0], ExpertSlots(wide, 4, 1))};
          }}},
        0);
  const CaseFunction pairs = WithGradient([](Builder&, const Vars& v) { return PairDots(v[0], v[1]); });
  Check({{"pairs", {{3, 16}, {3, 26, 16}}, pairs, 4e-6},
         {"pairs of many, two threads", {{21, 7}, {21, 40, 7}}, pairs, 4e-6},
         {"one pair", {{2, 5}, {2, 1, 5}}, pairs},
         {"binary cross entropy",
          {{1031}, {1031}},
          [](Builder&, const Vars& v) {
            Value y = BinaryCrossEntropy(v[0] * 8.0, v[1]);
            return Vars{y, Grad(ReduceSum(y), {v[0]})[0].Dense()};
          },
          2e-6,
          0,
          1}},
        0);
}

// Zeros, infinities, not-a-number, and the ends of the range: each pair of them, and rows with one of them among ordinary numbers.
TEST(CpuKernels, SpecialValuesAsByTheReference) {
  const float inf = HUGE_VALF, nan = std::nanf("");
  const std::vector<float> special = {0,      -0.f,  1,      -1,    .3f,    -2.5f,  inf, -inf,   nan,    1e30f,
                                      -1e30f, 3e38f, 1e-30f, 88.7f, 88.72f, 88.73f, 89,  -87.3f, -87.4f, -104};
  const auto n = static_cast<std::int64_t>(special.size());
  RefTensor a{{n, n}, {}}, c{{n, n}, {}}, rows{{n, 37}, {}};
  for (float x : special) {
    for (float y : special) {
      a.data.push_back(x);
      c.data.push_back(y);
    }
    for (int i = 0; i < 37; ++i) rows.data.push_back(i == 20 ? x : RoundTo(Dtype::kF32, std::sin(i)));
  }
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {n, n}), y = b.Input("y", Dtype::kF32, {n, n}), r = b.Input("r", Dtype::kF32, {n, 37});
  auto number = [](const Value& v) { return Cast(v, Dtype::kF32); };
  std::vector<std::pair<const char*, Value>> all = {{"add", x + y},
                                                    {"sub", x - y},
                                                    {"mul", x * y},
                                                    {"div", x / y},
                                                    {"max", Maximum(x, y)},
                                                    {"min", Minimum(x, y)},
                                                    {"less", number(Less(x, y))},
                                                    {"greater", number(Greater(x, y))},
                                                    {"equal", number(Equal(x, y))},
                                                    {"select", Select(Less(x, y), x, y)},
                                                    {"finite", number(IsFinite(x))},
                                                    {"neg", -x},
                                                    {"abs", Abs(x)},
                                                    {"sign", Sign(x)},
                                                    {"relu", Relu(x)},
                                                    {"exp", Exp(x)},
                                                    {"log", Log(x)},
                                                    {"sqrt", Sqrt(x)},
                                                    {"rsqrt", Rsqrt(x)},
                                                    {"tanh", Tanh(x)},
                                                    {"sigmoid", Sigmoid(x)},
                                                    {"pow", Pow(x, y)},
                                                    {"erf", Erf(x)},
                                                    {"max of a row", ReduceMax(r, {-1})},
                                                    {"max of a column", ReduceMax(r, {0})},
                                                    {"sum of a row", ReduceSum(r, {-1})},
                                                    {"sum of a column", ReduceSum(r, {0})},
                                                    {"softmax", Softmax(r)},
                                                    {"log softmax", LogSoftmax(r)}};
  // By the reference's formula -inf gives not-a-number, where the kernels give the limit: so these get no infinities.
  Value low = Maximum(Minimum(x, 1e30), -1e30);
  all.emplace_back("gelu", Gelu(low));
  all.emplace_back("gelu of erf", Gelu(low, GeluForm::kErf));
  all.emplace_back("gelu gradient", b.EmitOne(kGeluGrad, {low, Maximum(Minimum(y, 1e30), -1e30)}));
  all.emplace_back("gelu of erf, gradient", b.EmitOne(kGeluErfGrad, {low, Maximum(Minimum(y, 1e30), -1e30)}));
  for (const auto& [name, value] : all) b.Output(name, value);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  std::map<std::string, RefTensor> states;
  auto expected = Evaluate(*graph, {}, {a, c, rows}, states);
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  auto executable = Compile(*graph, {}, {}, CpuKernels());
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  EXPECT_EQ((*executable)->fallback_ops(), 0u);
  Tensor at = ToTensor(Dtype::kF32, a), ct = ToTensor(Dtype::kF32, c), rt = ToTensor(Dtype::kF32, rows);
  RunInputs inputs;
  inputs.micro_batches[0] = {&at, &ct, &rt};
  StateStore store;
  auto got = (*executable)->Run(inputs, store);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  for (std::size_t i = 0; i < all.size(); ++i) {
    RefTensor have = ToRef(got->outputs[0][i]);
    const RefTensor& want = expected->outputs[i];
    ASSERT_EQ(have.data.size(), want.data.size());
    int shown = 0;
    for (std::size_t k = 0; k < want.data.size() && shown < 5; ++k) {
      double h = have.data[k], w = want.data[k];
      if (std::isnan(w) ? std::isnan(h) : h == w) continue;
      // 8 roundings; and what is below the least normal float may be 0. The exponent of gelu, at most 5.2 where it matters (x = -2.5), has
      // 5 roundings that it multiplies.
      double roundings = std::string_view(all[i].first).starts_with("gelu") ? 8 + 5 * 5.2 : 8;
      // A sum is as far off as its terms are large.
      double size = std::fabs(w);
      for (std::int64_t t = 0, n = rows.dims[1]; t < n && all[i].first == std::string_view("sum of a row"); ++t) {
        size = std::max(size, std::fabs(rows.data[static_cast<std::int64_t>(k) * n + t]));
      }
      bool close = std::isfinite(w) && std::fabs(h - w) <= roundings * 0x1p-24 * size + 0x1p-126;
      EXPECT_TRUE(close) << all[i].first << " at " << k << ": " << h << " instead of " << w << (++shown, "");
    }
  }
}

TEST(CpuKernels, LabelsOutOfRangeAreNamedAsByTheReference) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {2, 10});
  b.Output("loss", CrossEntropy(x, Ints(b, {3, 10})));
  Graph graph = *b.Finish();
  auto executable = Compile(graph, {}, {}, CpuKernels());
  ASSERT_TRUE(executable.ok());
  Tensor zeros = ToTensor(Dtype::kF32, {{2, 10}, std::vector<double>(20)});
  RunInputs inputs;
  inputs.micro_batches[0] = {&zeros};
  StateStore states;
  Status status = (*executable)->Run(inputs, states).status();
  EXPECT_EQ(status.code(), Code::kUserError);
  EXPECT_NE(status.ToString().find("label of sample 1 is 10"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace ropewalk::mlrunner
