// Batch norm over ranks: statistics are those of the global batch, whatever each rank has of it, so a training of four ranks equals that of
// one; rows that only fill a rank's batch up play no part.
#include <gtest/gtest.h>

#include <cmath>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/models/resnet.h"
#include "mlrunner/train/buckets.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr std::int64_t kBatch = 10, kSize = 6, kClasses = 3;
enum class Over { kOneRank, kAllRanks };

Graph StepOf(std::int32_t ranks, Over over, Dtype dtype, std::vector<std::int64_t> blocks = {1}) {
  Builder b;
  b.mutable_graph().mesh = {{{"data", ranks}}};
  Dim rows = b.NewSymbol("B");
  Value x = b.Input("x", Dtype::kF32, {rows, 1, kSize, kSize}), labels = b.Input("labels", Dtype::kI32, {rows}),
        weights = b.Input("weights", Dtype::kF32, {rows});
  const ResNetShape shape{.blocks = std::move(blocks), .width = 3, .classes = kClasses};
  Model model = ResNet(b, shape, x, {.ranks = over == Over::kAllRanks ? "data" : "", .weights = weights});
  Value loss = ReduceSum(CrossEntropy(model.logits, labels) * weights);
  std::vector<Gradient> grads = Grad(loss, {model.parameters.begin(), model.parameters.end()});
  std::vector<Value> losses{loss};
  if (ranks > 1) grads = SumOverRanks(b, model.parameters, grads, &losses, {.group = "data"});
  b.Output("loss", losses[0]);
  ApplySgd(b, model.parameters, grads, .05, {.momentum = .9});
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  auto wide = ChangeFloats(*graph, Dtype::kF32, dtype);
  EXPECT_TRUE(wide.ok() && Check(*wide).ok());
  return OverlapCollectives(FuseElementwise(RemoveDeadCode(MergeEqual(Simplify(*wide)))));
}

struct Trained {
  StateStore states;
  std::vector<double> losses;
};
// `steps` of SGD on batches of kBatch samples, which the ranks share as the trainer has them: the first ones have one more, and the others
// a row that counts nothing.
std::vector<Trained> Train(const Graph& graph, std::int32_t ranks, int steps, Dtype dtype) {
  std::map<std::string, std::vector<std::int32_t>> channels;
  for (const StateInfo& state : graph.states) {
    if (state.kind != StateKind::kChannel) continue;
    for (std::int32_t rank = 0; rank < ranks; ++rank) channels[state.name].push_back(rank);
  }
  World world(ranks, channels);
  std::vector<Trained> trained(ranks);
  const std::int64_t rows = (kBatch + ranks - 1) / ranks;
  Status status = world.Run([&](std::int32_t rank) -> Status {
    ASSIGN_OR_RETURN(auto executable, Compile(graph, {rows}, DefaultProgram(graph), world.Kernels(rank)));
    for (int step = 0; step < steps; ++step) {
      Random random(static_cast<std::uint64_t>(step) + 3);
      RefTensor x{{rows, 1, kSize, kSize}, {}}, labels{{rows}, {}}, weights{{rows}, {}};
      for (std::int64_t sample = 0; sample < kBatch; ++sample) {
        const auto label = static_cast<double>(random.Below(kClasses));
        // In turn, so that each rank has its share wherever it begins.
        const bool mine = sample % ranks == rank;
        for (std::int64_t at = 0; at < kSize * kSize; ++at) {
          const double pixel = random.Unit() + label * static_cast<double>(at % 3 == 0) + 1;
          if (mine) x.data.push_back(RoundTo(dtype, pixel));
        }
        if (mine) labels.data.push_back(label);
        if (mine) weights.data.push_back(1.0 / kBatch);
      }
      for (auto& [tensor, filling] : std::vector<std::pair<RefTensor*, double>>{{&x, 100}, {&labels, 0}, {&weights, 0}})
        tensor->data.resize(static_cast<std::size_t>(NumElements(tensor->dims)), filling);
      const Tensor xt = ToTensor(dtype, x), lt = ToTensor(Dtype::kI32, labels), wt = ToTensor(dtype, weights);
      RunInputs inputs;
      inputs.micro_batches[0] = {&xt, &lt, &wt};
      inputs.run.rank = rank;
      ASSIGN_OR_RETURN(RunOutputs outputs, executable->Run(inputs, trained[rank].states));
      trained[rank].losses.push_back(Scalar(outputs.outputs[0][0]));
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

// The largest difference of any parameter or running statistic.
double Apart(const Graph& graph, const Trained& a, const Trained& b) {
  double worst = 0;
  for (const StateInfo& state : graph.states) {
    if (state.kind != StateKind::kParameter && state.kind != StateKind::kStatistic) continue;
    if (state.name == kLearningRate) continue;
    worst = std::max(worst, Distance(a.states.Get(state.name), b.states.Get(state.name)));
  }
  return worst;
}

TEST(BatchNormOverRanks, FourEqualOneInFloat64) {
  constexpr int kSteps = 100;
  const Graph whole = StepOf(1, Over::kAllRanks, Dtype::kF64);
  const std::vector<Trained> one = Train(whole, 1, kSteps, Dtype::kF64);
  EXPECT_LT(one[0].losses.back(), .5 * one[0].losses.front());
  const Graph cut = StepOf(4, Over::kAllRanks, Dtype::kF64);
  const std::vector<Trained> four = Train(cut, 4, kSteps, Dtype::kF64);
  for (const Trained& rank : four) {
    EXPECT_LT(Apart(whole, one[0], rank), 1e-9);
    for (int step = 0; step < kSteps; ++step) EXPECT_NEAR(rank.losses[step], one[0].losses[step], 1e-9) << step;
    EXPECT_EQ(Apart(whole, four[0], rank), 0);  // all ranks have the same bits
  }
  // The control: moments of each rank alone make another model.
  const std::vector<Trained> local = Train(StepOf(4, Over::kOneRank, Dtype::kF64), 4, 10, Dtype::kF64);
  EXPECT_GT(std::fabs(local[0].losses.back() - one[0].losses[9]), 1e-4);
}

// Rounding parts the two: little at first, and then as much more as a training makes of it.
TEST(BatchNormOverRanks, FourAreNearOneInFloat32) {
  struct Case {
    std::vector<std::int64_t> blocks;
    int steps;
  };
  for (const Case& c : {Case{{1, 1}, 10}, Case{{1}, 100}}) {
    const std::vector<Trained> one = Train(StepOf(1, Over::kAllRanks, Dtype::kF32, c.blocks), 1, c.steps, Dtype::kF32);
    const std::vector<Trained> four = Train(StepOf(4, Over::kAllRanks, Dtype::kF32, c.blocks), 4, c.steps, Dtype::kF32);
    double first = 0, later = 0;  // the largest relative differences
    for (int step = 0; step < c.steps; ++step) {
      double& apart = step < 10 ? first : later;
      apart = std::max(apart, std::fabs(four[0].losses[step] / one[0].losses[step] - 1));
    }
    EXPECT_LE(first, 1e-5);
    EXPECT_LE(later, 1e-3);
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
