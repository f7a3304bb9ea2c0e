// Graph networks: beside products with the whole adjacency, nodes that hear nobody, sampled targets, gradients.
#include <gtest/gtest.h>

#include "mlrunner/models/gnn.h"
#include "tests/unit/built_models.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::int64_t kNodes = 5, kFeatures = 3, kOut = 2;
// Node 4 hears nobody; 0 hears 1 twice.
const std::vector<std::int32_t> kFrom = {0, 1, 1, 2, 4, 1, 3}, kTo = {1, 0, 2, 1, 3, 0, 2};

Edges MakeEdges(Builder& b) {
  auto vector = [&](const std::vector<std::int32_t>& v) {
    return Constant(b, Literal::Of(Dtype::kI32, {static_cast<std::int64_t>(v.size())}, v));
  };
  return {vector(kFrom), vector(kTo)};
}
std::vector<double> Sines(std::int64_t count, double start) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(std::sin(start + .9 * static_cast<double>(i)));
  return values;
}
// (rows, inner) x (inner, columns)
std::vector<double> Times(const std::vector<double>& a, const std::vector<double>& b, std::int64_t rows, std::int64_t inner) {
  const std::int64_t columns = static_cast<std::int64_t>(b.size()) / inner;
  std::vector<double> c(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < inner; ++k)
      for (std::int64_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
  return c;
}

// What a layer gives on sines for x and all parameters.
std::vector<double> RunLayer(const std::function<Value(Builder&, Layers&, const Value&)>& layer, std::map<std::string, RefTensor>* states) {
  Builder b;
  Layers m(b);
  Value x = b.Input("x", Dtype::kF32, {kNodes, kFeatures});
  b.Output("y", layer(b, m, x));
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  if (!graph.ok()) return {};
  auto wide = ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
  double start = 1;
  for (const StateInfo& state : wide->states) {
    Dims dims = Evaluate(state.logical, {});
    (*states)[state.name] = {dims, Sines(NumElements(dims), start++)};
  }
  auto result = Evaluate(*wide, {}, {{{kNodes, kFeatures}, Sines(kNodes * kFeatures, 9)}}, *states);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? result->outputs[0].data : std::vector<double>();
}

TEST(Gnn, GcnIsTheProductWithTheWholeAdjacency) {
  std::map<std::string, RefTensor> states;
  const std::vector<double> y =
      RunLayer([](Builder& b, Layers& m, const Value& x) { return GcnLayer(m, "gcn", x, MakeEdges(b), kOut); }, &states);
  std::vector<double> adjacency(kNodes * kNodes), degree(kNodes, 1);
  for (std::int64_t n = 0; n < kNodes; ++n) adjacency[n * kNodes + n] = 1;
  for (std::size_t e = 0; e < kFrom.size(); ++e) {
    adjacency[kTo[e] * kNodes + kFrom[e]] += 1;
    degree[kTo[e]] += 1;
  }
  for (std::int64_t i = 0; i < kNodes; ++i)
    for (std::int64_t j = 0; j < kNodes; ++j) adjacency[i * kNodes + j] /= std::sqrt(degree[i] * degree[j]);
  std::vector<double> want = Times(adjacency, Times(Sines(kNodes * kFeatures, 9), states["gcn/w"].data, kNodes, kFeatures), kNodes, kNodes);
  ASSERT_EQ(y.size(), want.size());
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], want[i] + states["gcn/b"].data[i % kOut], 1e-13) << i;
}

TEST(Gnn, SageIsOwnAndMeanOfNeighbours) {
  std::map<std::string, RefTensor> states;
  const std::vector<double> y =
      RunLayer([](Builder& b, Layers& m, const Value& x) { return SageLayer(m, "sage", x, MakeEdges(b), kNodes, kOut); }, &states);
  const std::vector<double> x = Sines(kNodes * kFeatures, 9);
  std::vector<double> mean(x.size()), degree(kNodes);
  for (std::size_t e = 0; e < kFrom.size(); ++e) {
    degree[kTo[e]] += 1;
    for (std::int64_t k = 0; k < kFeatures; ++k) mean[kTo[e] * kFeatures + k] += x[kFrom[e] * kFeatures + k];
  }
  for (std::int64_t i = 0; i < kNodes * kFeatures; ++i) mean[i] /= std::max(1.0, degree[i / kFeatures]);
  EXPECT_EQ(degree[4], 0);  // it has zeros
  const std::vector<double> own = Times(x, states["sage/w_self"].data, kNodes, kFeatures),
                            others = Times(mean, states["sage/w_neighbours"].data, kNodes, kFeatures);
  ASSERT_EQ(y.size(), own.size());
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], own[i] + others[i] + states["sage/b"].data[i % kOut], 1e-13) << i;
}

// The first targets of a sample are what the whole graph gives them, where all of their neighbours are in it.
TEST(Gnn, SampledTargetsAreThoseOfTheWholeGraph) {
  std::map<std::string, RefTensor> states;
  auto run = [&](std::int64_t targets) {
    return RunLayer(
        [=](Builder& b, Layers& m, const Value& x) {
          Edges edges = MakeEdges(b);
          if (targets < kNodes) {  // those to node 0
            auto some = [&](std::vector<std::int32_t> v) { return Constant(b, Literal::Of(Dtype::kI32, {2}, v)); };
            edges = {some({1, 1}), some({0, 0})};
          }
          return SageLayer(m, "sage", x, edges, targets, kOut);
        },
        &states);
  };
  const std::vector<double> whole = run(kNodes), sampled = run(1);
  ASSERT_EQ(sampled.size(), static_cast<std::size_t>(kOut));
  for (std::size_t i = 0; i < sampled.size(); ++i) EXPECT_EQ(sampled[i], whole[i]);
}

Built Build(bool sage) {
  Builder b;
  // As many nodes as rows: each hears the one before it, and node 0 twice.
  Dim nodes = b.NewSymbol("N");
  Value x = b.Input("x", Dtype::kF32, {nodes, kFeatures}), labels = b.Input("labels", Dtype::kI32, {nodes});
  auto vector = [&](const std::vector<std::int32_t>& v) { return Constant(b, Literal::Of(Dtype::kI32, {4}, v)); };
  Edges edges{vector({0, 1, 0, 0}), vector({1, 2, 2, 2})};
  GnnShape shape{.hidden = {4}, .classes = kOut};
  return Finish(b, sage ? Sage(b, shape, x, edges) : Gcn(b, shape, x, edges), labels);
}

TEST(Gnn, GradientsAreThoseOfTheLoss) {
  Built gcn = Build(false), sage = Build(true);
  EXPECT_EQ(gcn.logits, "(N, 2)");
  EXPECT_EQ(gcn.numbers, 3 * 4 + 4 + 4 * 2 + 2);
  EXPECT_EQ(gcn.parameters, (std::vector<std::string>{"layer0/sum/w", "layer0/sum/b", "layer1/sum/w", "layer1/sum/b"}));
  EXPECT_EQ(sage.numbers, 2 * 3 * 4 + 4 + 2 * 4 * 2 + 2);
  GradientsAreDifferences(gcn, kOut);
  GradientsAreDifferences(sage, kOut);
}

}  // namespace
}  // namespace ropewalk::mlrunner
