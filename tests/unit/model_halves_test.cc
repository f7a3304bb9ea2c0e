// Kernels of bf16 and f16: conversions bit by bit, and each kernel against the float64 reference on the same numbers.
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>

#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/half_blocks.h"
#include "mlrunner/types/half.h"
#include "tests/unit/against_reference.h"

namespace ropewalk::mlrunner {
namespace {

constexpr Dtype kHalves[] = {Dtype::kBF16, Dtype::kF16};
// Half of the distance between two neighbours, relative to the larger one at most.
double UnitOf(Dtype dtype) { return dtype == Dtype::kBF16 ? 0x1p-8 : 0x1p-11; }

TEST(HalfBlocks, EachNumberOf16BitsIsWidened) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> floats(all.size());
  for (Dtype dtype : kHalves) {
    WidenHalves(dtype, all.data(), floats.data(), static_cast<std::int64_t>(all.size()));
    for (std::size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), std::bit_cast<std::uint32_t>(HalfToFloat(dtype, all[i]))) << i;
  }
}

// Floats of every exponent, around each place where rounding changes its mind, and drawn ones.
TEST(HalfBlocks, FloatsAreRoundedAsOneByOne) {
  std::vector<float> floats;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (std::uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      floats.push_back(std::bit_cast<float>(high << 16 | low));
  }
  constexpr std::uint64_t kSeed = 5;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  Random random(kSeed);
  for (int i = 0; i < 200'000; ++i) floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  std::vector<std::uint16_t> halves(floats.size());
  for (Dtype dtype : kHalves) {
    NarrowToHalves(dtype, floats.data(), halves.data(), static_cast<std::int64_t>(floats.size()));
    for (std::size_t i = 0; i < floats.size(); ++i)
      ASSERT_EQ(halves[i], FloatToHalf(dtype, floats[i])) << std::hex << std::bit_cast<std::uint32_t>(floats[i]);
  }
}

struct Case {
  const char* name;
  std::vector<Shape> shapes;
  CaseFunction function;
  double units = 1.01;  // the error that is allowed, in units of the type relative to the largest output; of one rounding it is 1
  double low = -2, high = 2;
};

void Check(const std::vector<Case>& cases) {
  for (Dtype dtype : kHalves) {
    for (const Case& test : cases) {
      SCOPED_TRACE(std::string(Name(dtype)) + " " + test.name);
      const auto graph = GraphOf(test.shapes, dtype, test.function);
      ASSERT_TRUE(graph);
      const DrawnInputs inputs(test.shapes, dtype, test.low, test.high);
      for (bool fuse : {false, true}) {
        const Graph made = fuse ? FuseElementwise(*graph) : *graph;
        const std::vector<RefTensor> expected = ByReference(made, inputs, false);
        for (int threads : {1, 2}) {
          const Ran ran = RunAgainst(expected, made, inputs, CpuKernels(), {.num_threads = threads});
          EXPECT_LE(ran.error, test.units * UnitOf(dtype)) << "fused " << fuse << ", threads " << threads;
          EXPECT_EQ(ran.fallbacks, 0u);
        }
      }
    }
  }
}

TEST(HalfKernels, Products) {
  Check({
      {"plain", {{33, 65}, {65, 47}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
      {"ta", {{65, 33}, {65, 47}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], true, false)}; }},
      {"wide tb", {{33, 65}, {520, 65}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], false, true)}; }},
      {"long sums", {{3, 4096}, {4096, 5}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
      {"large", {{300, 200}, {200, 260}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
      {"batch broadcast", {{3, 9, 17}, {2, 1, 17, 5}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
      {"over nothing", {{3, 0}, {0, 5}}, [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; }},
      {"convolution", {{2, 3, 14, 13}, {6, 3, 5, 5}}, [](Builder&, const Vars& v) { return Vars{Conv2D(v[0], v[1], {{1, 1}, {2, 2}})}; }},
      {"convolution with bias",
       {{2, 3, 14, 13}, {6, 3, 3, 3}, {6}},
       [](Builder&, const Vars& v) {
         Conv2DOptions options;
         options.bias = v[2];
         return Vars{Conv2D(v[0], v[1], options)};
       }},
      // The gradient that comes in is the output, which is rounded: two roundings, and sums of rounded numbers.
      {"gradients of a convolution",
       {{2, 16, 15, 15}, {32, 16, 3, 3}},
       WithGradient([](Builder&, const Vars& v) { return Conv2D(v[0], v[1], {{2, 2}, {1, 1}}); }),
       2.5},
  });
}

// Written in f32, a product of 16 bits has the error of one of f32: its operands are exact, and so is each of their products.
TEST(HalfKernels, ProductsWrittenInF32AreNotRounded) {
  for (Dtype dtype : kHalves) {
    const std::vector<Shape> of_matrices = {{33, 365}, {365, 47}}, of_images = {{2, 16, 9, 9}, {8, 16, 3, 3}};
    const Attributes f32{{Attr::kDtype, static_cast<std::int64_t>(Dtype::kF32)}};
    auto product = [&](Builder& b, const Vars& v) { return Vars{b.EmitOne(kMatMul, v, f32)}; };
    auto convolution = [&](Builder& b, const Vars& v) {
      Attributes attrs = f32;
      attrs.Set(Attr::kStrides, std::vector<std::int64_t>{1, 1});
      attrs.Set(Attr::kPadding, std::vector<std::int64_t>{1, 1});
      return Vars{b.EmitOne(kConv2D, v, attrs)};
    };
    for (const auto& [shapes, function] : {std::pair<std::vector<Shape>, CaseFunction>{of_matrices, product}, {of_images, convolution}}) {
      const auto graph = GraphOf(shapes, dtype, function);
      ASSERT_TRUE(graph);
      EXPECT_EQ(graph->value(graph->outputs[0].value).type.dtype, Dtype::kF32);
      const DrawnInputs inputs(shapes, dtype, -2, 2);
      const Ran ran = RunAgainst(ByReference(*graph, inputs, false), *graph, inputs, CpuKernels(), {});
      EXPECT_LE(ran.error, 2e-6);
      EXPECT_EQ(ran.fallbacks, 0u);
    }
  }
  // And no product gives what its operands cannot be summed in.
  const auto attrs = Attributes{{Attr::kDtype, static_cast<std::int64_t>(Dtype::kF16)}};
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {3, 3});
  EXPECT_FALSE(b.EmitOne(kMatMul, {x, x}, attrs).valid());
  EXPECT_EQ(b.status().tag(), "GRAPH01");
}

TEST(HalfKernels, Elementwise) {
  const Shape big = {37, 1031};
  Check({
      {"add row", {big, {1031}}, [](Builder&, const Vars& v) { return Vars{v[0] + v[1]}; }},
      {"sub column", {big, {37, 1}}, [](Builder&, const Vars& v) { return Vars{v[0] - v[1]}; }},
      {"mul of both ways", {{5, 1, 7}, {3, 1}}, [](Builder&, const Vars& v) { return Vars{v[0] * v[1]}; }},
      {"scalar", {big, {}}, [](Builder&, const Vars& v) { return Vars{(v[0] + v[1]) * 3.0}; }, 2.1},
      {"max, select, compare",
       {big, big},
       [](Builder&, const Vars& v) { return Vars{Maximum(v[0], v[1]), Select(Greater(v[0], v[1]), v[0], v[1]), Relu(v[0])}; }},
      {"gelu, tanh, sigmoid, exp",
       {big},
       [](Builder&, const Vars& v) { return Vars{Gelu(v[0]), Gelu(v[0], GeluForm::kErf), Tanh(v[0]), Sigmoid(v[0]), Exp(v[0])}; }},
      {"casts", {big}, [](Builder&, const Vars& v) { return Vars{Cast(v[0], Dtype::kF32), Cast(Cast(v[0], Dtype::kF32), v[0].dtype())}; }},
      {"a cast of flags", {big}, [](Builder&, const Vars& v) { return Vars{Cast(Less(v[0], 0.0), v[0].dtype())}; }},
  });
}

TEST(HalfKernels, RowsAndShapes) {
  Check({
      {"softmax", {{37, 103}}, [](Builder&, const Vars& v) { return Vars{Softmax(v[0])}; }},
      {"layer norm", {{37, 103}, {103}, {103}}, [](Builder&, const Vars& v) { return Vars{LayerNorm(v[0], v[1], v[2])}; }},
      {"sums", {{137, 103}}, [](Builder&, const Vars& v) { return Vars{ReduceSum(v[0]), ReduceSum(v[0], {0}), ReduceMax(v[0], {1})}; }},
      {"moves",
       {{5, 6, 7}, {5, 6, 7}},
       [](Builder&, const Vars& v) {
         return Vars{Transpose(v[0], {2, 0, 1}), Concat(v, 1), SliceAxis(v[0], 1, 2, 5), PadAxis(v[0], 2, 1, 3)};
       }},
      {"pools", {{2, 8, 12, 12}}, [](Builder&, const Vars& v) { return Vars{MaxPool2D(v[0], 2, 2), AvgPool2D(v[0], 3, 2)}; }},
  });
}

// A chain that is one op gives the bits of its links one by one: what has 16 bits on the way is rounded on the way.
TEST(HalfKernels, FusedChainsHaveTheSameBits) {
  for (Dtype dtype : kHalves) {
    const std::vector<Shape> shapes = {{64, 700}, {700}};
    const auto graph = GraphOf(shapes, dtype, [&](Builder&, const Vars& v) {
      Value x = Gelu(v[0] * 1.7 + v[1]) * .3;
      return Vars{Cast(x, Dtype::kF32) * 3.0 + 1.0, Cast(Cast(x, Dtype::kF32) / 3.0, dtype)};
    });
    ASSERT_TRUE(graph);
    const Graph fused = FuseElementwise(*graph);
    ASSERT_LT(fused.ops.size(), graph->ops.size());
    const DrawnInputs inputs(shapes, dtype, -2, 2);
    std::vector<std::vector<Tensor>> outputs;
    for (const Graph* g : {&*graph, &fused}) {
      auto executable = Compile(*g, {}, {}, CpuKernels());
      ASSERT_TRUE(executable.ok()) << executable.status().ToString();
      RunInputs run;
      for (const Tensor& tensor : inputs.tensors) run.micro_batches[0].push_back(&tensor);
      StateStore store;
      auto ran = (*executable)->Run(run, store);
      ASSERT_TRUE(ran.ok()) << ran.status().ToString();
      outputs.push_back(std::move(ran->outputs[0]));
    }
    for (std::size_t i = 0; i < outputs[0].size(); ++i) EXPECT_EQ(outputs[0][i].bytes, outputs[1][i].bytes) << i;
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
