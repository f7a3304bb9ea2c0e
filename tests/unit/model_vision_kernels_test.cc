// Fast f32 kernels of what convolutional models are made of, against the float64 reference: row-major, and with the channels in blocks.
#include <gtest/gtest.h>

#include <algorithm>

#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/passes/pass.h"
#include "tests/unit/against_reference.h"

namespace ropewalk::mlrunner {
namespace {

struct Case {
  const char* name;
  std::vector<Shape> shapes;  // of f32 inputs
  CaseFunction function;
  // Relative to the largest magnitude of the output; why so much is said in model_kernels_test.cc.
  double tolerance = 4e-6;
  double low = -2, high = 2;
};

Value Counted(Builder& b, const std::vector<float>& rows) {
  return Constant(b, Literal::Of(Dtype::kF32, {static_cast<std::int64_t>(rows.size())}, rows));
}

// Every image with whole blocks of channels in blocks of `block`, at every op that knows planes of channels.
Graph InBlocks(const Graph& graph, std::int32_t block) {
  static const std::vector<const OpDef*> kOps = {&kConv2D,        &kConv2DInputGrad,    &kConv2DWeightGrad, &kMaxPool2D,
                                                 &kMaxPool2DGrad, &kAvgPool2D,          &kAvgPool2DGrad,    &kBatchMoments,
                                                 &kBatchNorm,     &kBatchNormInference, &kBatchNormSums,    &kBatchNormInputGrad};
  return AssignLayouts(graph, [&](const Graph& g, const Op& op, const std::vector<Layout>&) {
    std::vector<Layout> wish;
    const bool convolves = op.def == &kConv2D || op.def == &kConv2DInputGrad || op.def == &kConv2DWeightGrad;
    if (std::find(kOps.begin(), kOps.end(), op.def) == kOps.end()) return wish;
    auto add = [&](ValueId value, bool is_image) {
      const Shape& shape = g.value(value).type.shape;
      const bool whole = is_image && shape.size() == 4 && *shape[1].Constant() % block == 0;
      wish.push_back(whole ? Layout{{}, {{1, block}}} : Layout{});
    };
    // Kernels of convolutions have four dimensions, too.
    for (std::size_t i = 0; i < op.inputs.size(); ++i) add(op.inputs[i], !convolves || i == 0 || op.def == &kConv2DWeightGrad);
    for (ValueId out : op.outputs) add(out, op.def != &kConv2DWeightGrad);
    return wish;
  });
}

void Check(const std::vector<Case>& cases) {
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const auto graph = GraphOf(test.shapes, Dtype::kF32, test.function);
    ASSERT_TRUE(graph);
    const DrawnInputs inputs(test.shapes, Dtype::kF32, test.low, test.high);
    const std::vector<RefTensor> expected = ByReference(*graph, inputs, false);
    for (std::int32_t block : {0, 8, 16}) {
      const Graph laid = block == 0 ? *graph : InBlocks(*graph, block);
      for (int threads : {1, 2}) {
        SCOPED_TRACE("blocks of " + std::to_string(block) + ", threads: " + std::to_string(threads));
        const Ran ran = RunAgainst(expected, laid, inputs, CpuKernels(), {.num_threads = threads});
        EXPECT_LE(ran.error, test.tolerance);
        EXPECT_EQ(ran.fallbacks, 0u);
      }
    }
  }
}

TEST(VisionKernels, Convolutions) {
  auto conv = [](const Conv2DOptions& options) {
    return WithGradient([options](Builder&, const Vars& v) {
      Conv2DOptions with = options;
      if (v.size() > 2) with.bias = v[2];
      return Conv2D(v[0], v[1], with);
    });
  };
  Check({
      {"3 x 3", {{2, 16, 9, 9}, {32, 16, 3, 3}}, conv({.padding = {1, 1}})},
      {"of an image", {{2, 3, 12, 12}, {16, 3, 3, 3}}, conv({.padding = {1, 1}})},
      {"1 x 1, strided", {{2, 16, 8, 8}, {32, 16, 1, 1}}, conv({.stride = {2, 2}})},
      {"7 x 7, strided", {{1, 3, 20, 20}, {16, 3, 7, 7}}, conv({.stride = {2, 2}, .padding = {3, 3}})},
      {"with a bias", {{2, 16, 7, 6}, {16, 16, 3, 3}, {16}}, conv({.padding = {1, 1}})},
      {"from blocks to none", {{2, 16, 7, 7}, {6, 16, 3, 3}, {6}}, conv({})},
      {"dilated", {{1, 16, 11, 11}, {16, 16, 3, 3}}, conv({.padding = {2, 2}, .dilation = {2, 2}})},
      {"in groups", {{2, 32, 8, 8}, {32, 16, 3, 3}}, conv({.padding = {1, 1}, .groups = 2})},
      {"of each channel", {{2, 16, 8, 8}, {16, 1, 3, 3}}, conv({.padding = {1, 1}, .groups = 16})},
      {"of each channel, some of them odd", {{1, 5, 8, 8}, {10, 1, 3, 3}}, conv({.groups = 5})},
  });
}

TEST(VisionKernels, Pools) {
  auto largest = [](const Pool2DOptions& options) {
    return WithGradient([options](Builder&, const Vars& v) { return MaxPool2D(v[0], options); });
  };
  auto mean = [](const Pool2DOptions& options) {
    return WithGradient([options](Builder&, const Vars& v) { return AvgPool2D(v[0], options); });
  };
  const Shape odd = {2, 3, 9, 8}, whole = {3, 32, 9, 10};
  Check({
      {"largest of 2 x 2", {odd}, largest({})},
      {"largest of padded 3 x 3", {odd}, largest({{3, 3}, {2, 2}, {1, 1}})},
      {"largest of padded 3 x 3, whole blocks", {whole}, largest({{3, 3}, {2, 2}, {1, 1}})},
      {"largest of oblong windows", {whole}, largest({{2, 5}, {3, 1}, {1, 4}})},
      {"largest of equals", {{2, 16, 4, 4}}, WithGradient([](Builder&, const Vars& v) {
         return MaxPool2D(Sign(v[0]) * 3.0 + v[0] * 0.0, 2, 2);
       })},
      {"mean of 2 x 2", {whole}, mean({})},
      {"mean of padded windows", {whole}, mean({{3, 2}, {2, 1}, {2, 1}})},
      {"mean of all", {whole}, WithGradient([](Builder&, const Vars& v) { return GlobalAvgPool2D(v[0]); })},
      {"mean of all of odd channels", {odd}, WithGradient([](Builder&, const Vars& v) { return GlobalAvgPool2D(v[0]); })},
      {"images of one element", {{3, 16, 1, 1}}, largest({{1, 1}, {1, 1}})},
  });
}

TEST(VisionKernels, BatchNorms) {
  // A batch norm keeps its squares, whose gradient has nothing left by its input.
  auto norm = [](bool relu, const std::vector<float>& counted = {}) {
    return WithGradient(
        [relu, counted](Builder& b, const Vars& v) {
          return BatchNorm(v[0], v[1], v[2], MomentsOf(v[0], counted.empty() ? Value{} : Counted(b, counted)), {.relu = relu});
        },
        false);
  };
  auto moments = [](Builder&, const Vars& v) {
    Moments m = MomentsOf(v[0]);
    return Vars{m.mean, m.variance, m.count};
  };
  const auto far = WithGradient([](Builder&, const Vars& v) { return BatchNorm(v[0] + 30.0, v[1], v[2], MomentsOf(v[0] + 30.0)); }, false);
  const std::vector<float> some = {1, 0, 1, 1, 0};
  std::vector<float> first(40, 0);
  std::fill_n(first.begin(), 31, 1.f);
  const Shape odd = {5, 7, 9, 8}, whole = {5, 32, 9, 10};
  Check({
      {"odd channels", {odd, {7}, {7}}, norm(false)},
      {"odd channels, ReLU", {odd, {7}, {7}}, norm(true)},
      {"whole blocks", {whole, {32}, {32}}, norm(false)},
      {"whole blocks, ReLU", {whole, {32}, {32}}, norm(true)},
      {"some rows count", {whole, {32}, {32}}, norm(true, some)},
      {"some rows of odd channels count", {odd, {7}, {7}}, norm(false, some)},
      {"rows", {{33, 50}, {50}, {50}}, norm(true)},
      {"some rows of nothing but channels count", {{40, 50}, {50}, {50}}, norm(false, first)},
      {"rows of few channels", {{33, 5}, {5}, {5}}, norm(false)},
      {"images of one element", {{21, 16, 1, 1}, {16}, {16}}, norm(true)},
      {"signals", {{4, 3, 5000}, {3}, {3}}, norm(true)},
      // Far from 0 the sum of squares alone would have no digits of the variance left; and the elements themselves are rounded then.
      {"moments of what lies far from 0", {{8, 16, 20, 20}}, moments, 4e-6, 1000, 1001},
      // As layers have them deep in a network: few rows of small images, whose mean is 26 times their deviation. What is added to them
      // is rounded once here, and not by the reference.
      {"far from 0, small images", {{3, 32, 7, 7}, {32}, {32}}, far, 1e-5},
      {"far from 0, rows", {{12, 50}, {50}, {50}}, far, 1e-5},
      {"by any moments", {whole, {32}, {32}, {32}}, WithGradient([](Builder&, const Vars& v) {
         return BatchNormInference(v[0], v[1], v[2], v[3], Square(v[3]) + .5, 1e-5, true);
       })},
  });
}

}  // namespace
}  // namespace ropewalk::mlrunner
