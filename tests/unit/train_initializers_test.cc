// How parameters begin: moments, bounds, orthogonality, and that a rank's slice is that of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "mlrunner/kernels/philox.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

std::vector<double> Draw(const Initializer& init, const Shape& shape, std::int32_t ranks = 1, std::int32_t rank = 0) {
  Builder b;
  ShardingSpec cut;
  if (ranks > 1) {
    b.mutable_graph().mesh = {{{"model", ranks}}};
    cut.dims.assign(shape.size(), ShardingSpec::kReplicated);
    cut.dims[1] = 0;
  }
  b.NewParameter("w", shape, init, Dtype::kF64, cut);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return Initial(*graph, graph->states[0], {}, {.seed = 5, .rank = rank}).data;
}
double Deviation(const std::vector<double>& values) {
  double squares = 0;
  for (double v : values) squares += v * v;
  return std::sqrt(squares / static_cast<double>(values.size()));
}
double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (double v : values) largest = std::max(largest, std::fabs(v));
  return largest;
}

TEST(Initializers, FansGiveTheDeviation) {
  const Shape shape{300, 100};
  const double xavier = std::sqrt(2.0 / 400);
  struct Case {
    Initializer init;
    double deviation, bound;
  };
  for (const Case& test : {Case{XavierUniform(300, 100), xavier, std::sqrt(3.0) * xavier}, Case{XavierNormal(300, 100, 2), 2 * xavier, 1},
                           Case{KaimingUniform(300, std::sqrt(2.0)), std::sqrt(2.0 / 300), std::sqrt(6.0 / 300)},
                           Case{KaimingNormal(300, 1), std::sqrt(1.0 / 300), 1},
                           // As PyTorch begins nn.Linear(300, 100).
                           Case{KaimingUniform(300, std::sqrt(1.0 / 3)), std::sqrt(1.0 / 900), 1 / std::sqrt(300.0)}}) {
    const std::vector<double> values = Draw(test.init, shape);
    EXPECT_NEAR(Deviation(values), test.deviation, .02 * test.deviation);
    EXPECT_LE(Largest(values), test.bound);
    EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()), 0, .02 * test.deviation);
  }
}

// What a seed means stays as it is, to the last bit of f64: the numbers, and the order of the products that they go through.
TEST(Initializers, NormalsAreThoseOfTheSeed) {
  const std::uint64_t key = RandomKey(5, 0, Checksum64("w"), 0);
  const std::vector<double> values = Draw(Initializer::Normal(.02), {40, 5});
  int moved = 0;  // by another order: the control
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double u = UniformAt(key, 0, i), length = std::sqrt(-2 * std::log(1 - u)), turn = std::cos(2 * M_PI * UniformAt(key, 1, i));
    EXPECT_EQ(values[i], .02 * length * turn) << i;
    moved += values[i] != .02 * (length * turn);
  }
  EXPECT_GT(moved, 0);
}

TEST(Initializers, TruncatedNormalsAreCut) {
  for (double cut : {2.0, .5}) {
    const std::vector<double> values = Draw(Initializer::TruncatedNormal(.3, cut), {200, 100});
    EXPECT_LE(Largest(values), .3 * cut);
    EXPECT_GT(Largest(values), .3 * cut * .99);
    // Of a normal distribution that is cut at c: 1 - 2 c phi(c) / (2 Phi(c) - 1).
    const double density = std::exp(-.5 * cut * cut) / std::sqrt(2 * M_PI), inside = std::erf(cut / std::sqrt(2.0));
    EXPECT_NEAR(Deviation(values), .3 * std::sqrt(1 - 2 * cut * density / inside), .003);
  }
}

TEST(Initializers, OrthogonalMatricesAre) {
  for (const Shape& shape : {Shape{8, 20}, Shape{20, 8}, Shape{6, 3, 2, 2}, Shape{5, 5}}) {
    const Dims dims = Evaluate(shape, {});
    const std::vector<double> w = Draw(Initializer::Orthogonal(3), shape);
    const std::int64_t rows = dims[0], columns = static_cast<std::int64_t>(w.size()) / rows, count = std::min(rows, columns);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (std::int64_t k = 0; k < std::max(rows, columns); ++k) {
          dot += rows <= columns ? w[i * columns + k] * w[j * columns + k] : w[k * columns + i] * w[k * columns + j];
        }
        EXPECT_NEAR(dot, i == j ? 9 : 0, 1e-12) << i << " and " << j;
      }
    }
  }
}

// Each rank holds its columns of the same matrix.
TEST(Initializers, SlicesAreThoseOfTheWhole) {
  for (const Initializer& init :
       {Initializer::Orthogonal(), Initializer::TruncatedNormal(1), Initializer::Normal(1), XavierUniform(6, 8)}) {
    const std::vector<double> whole = Draw(init, {6, 8});
    for (std::int32_t rank : {0, 1}) {
      const std::vector<double> half = Draw(init, {6, 8}, 2, rank);
      ASSERT_EQ(half.size(), 24u);
      for (std::size_t i = 0; i < half.size(); ++i) EXPECT_EQ(half[i], whole[i / 4 * 8 + static_cast<std::size_t>(rank) * 4 + i % 4]);
    }
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
