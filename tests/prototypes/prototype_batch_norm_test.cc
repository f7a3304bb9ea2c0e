// Batch norm that says whether it is local or synchronised over ranks. Synchronised, its two sums are sums over ranks, forward and (by a
// custom gradient) backward, and data parallelism equals one process on the whole batch. Its running mean and variance are states that are
// written in the forward, once, also where the forward is computed again.
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kWidth = 12, kRows = 24, kSteps = 30;
enum class Norm { kLocal, kSynchronised };

struct Site {  // where a model is built for
  std::int32_t ranks = 1;
  Norm norm = Norm::kSynchronised;
  StateId channel;
};

// The sum over ranks of what depends on every rank's samples: what each rank's loss says of it is summed too.
Value SumOverRanks(Builder& b, const Value& v, const Site& site) {
  if (site.ranks == 1 || site.norm == Norm::kLocal) return v;
  return b.CustomGradient({v}, {AllReduce(v, site.channel, "data")}, [channel = site.channel](const GradientContext& c) {
    return std::vector<Gradient>{AllReduce(c.grads[0], channel, "data")};
  })[0];
}

// (B, C) -> (B, C)
Value BatchNorm(Builder& b, const Value& x, const Parameter& gain, const Parameter& bias, const Site& site) {
  auto running = [&](const char* name, Initializer init) {
    return b.NewState(b.scope().module + "/" + name, StateKind::kStatistic, gain.type(), init, gain.state);
  };
  StateId mean_state = running("running_mean", Initializer::Zeros()), variance_state = running("running_variance", Initializer::Ones());
  Value sums = SumOverRanks(b, Concat({ReduceSum(x, {0}), ReduceSum(Square(x), {0})}, 0), site);
  double ranks = site.norm == Norm::kSynchronised ? site.ranks : 1;
  Value count = DimSize(b, x.dim(0), x.dtype()) * ranks;
  Value mean = SliceAxis(sums, 0, 0, kWidth) / count;
  Value variance = SliceAxis(sums, 0, kWidth, 2 * kWidth) / count - Square(mean);
  b.Assign(mean_state, b.Read(mean_state) * .9 + mean * .1);
  b.Assign(variance_state, b.Read(variance_state) * .9 + variance * .1);
  return (x - mean) * Rsqrt(variance + 1e-5) * gain + bias;
}

Graph Model(std::int32_t ranks, Norm norm) {
  Builder b;
  b.mutable_graph().mesh = {{{"data", ranks}}};
  Site site{ranks, norm, b.NewChannel("norm")};
  StateId sums = b.NewChannel("data");
  Value x = b.Input("x", Dtype::kF64, {b.NewSymbol("B", 1, 64), 8}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  Linear first(b, "first", 8, kWidth, Dtype::kF64), second(b, "second", kWidth, 4, Dtype::kF64);
  std::vector<Parameter> parameters = {first.w, second.w, second.c};
  Value h;
  {
    auto guard = b.Module("norm");
    parameters.push_back(b.NewParameter("gain", {kWidth}, Initializer::Ones(), Dtype::kF64));
    parameters.push_back(b.NewParameter("bias", {kWidth}, Initializer::Zeros(), Dtype::kF64));
    h = BatchNorm(b, MatMul(x, first.w), parameters[3], parameters[4], site);
  }
  Value loss = Mean(CrossEntropy(second(Relu(h)), labels));
  b.Output("loss", loss);
  std::vector<Gradient> grads = Grad(loss, {parameters.begin(), parameters.end()});
  for (Gradient& grad : grads) {
    if (ranks > 1) grad = AllReduce(grad, sums, "data") * (1.0 / ranks);
  }
  ApplySgd(b, parameters, grads, .3);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return RemoveDeadCode(MergeEqual(Simplify(*graph)));
}
// The forward again in the backward, but for its products.
Graph Recomputed(const Graph& graph) {
  return Recompute(graph, [](const Op& op) { return op.def != &kMatMul; });
}

struct Trained {
  StateStore states;
  std::vector<double> losses;
};
std::vector<Trained> Train(const Graph& graph, std::int32_t ranks) {
  std::vector<std::int32_t> members;
  for (std::int32_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
  World world(ranks, {{"norm", members}, {"data", members}});
  std::vector<Trained> trained(ranks);
  Status status = world.Run([&](std::int32_t rank) -> Status {
    ASSIGN_OR_RETURN(auto executable, Compile(graph, {kRows / ranks}, DefaultProgram(graph), world.Kernels(rank)));
    for (int step = 0; step < kSteps; ++step) {
      Batch batch = Part(MakeBatch(step, kRows, Dtype::kF64), rank, ranks);
      ASSIGN_OR_RETURN(double loss, Step(*executable, batch, trained[rank].states));
      trained[rank].losses.push_back(loss);
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

// The largest difference of any state of `graph`, statistics too.
double Apart(const Graph& graph, const Trained& a, const Trained& b) {
  double worst = 0;
  for (const StateInfo& state : graph.states)
    if (state.kind == StateKind::kParameter || state.kind == StateKind::kStatistic) {
      if (a.states.Get(state.name).bytes.empty() && b.states.Get(state.name).bytes.empty()) continue;  // read by nobody
      worst = std::max(worst, Distance(a.states.Get(state.name), b.states.Get(state.name)));
    }
  return worst;
}

TEST(BatchNorm, SynchronisedEqualsOneProcessAndLocalDoesNot) {
  Graph whole = Model(1, Norm::kSynchronised);
  std::vector<Trained> one = Train(whole, 1);
  EXPECT_LT(one[0].losses.back(), .7 * one[0].losses.front());
  for (std::int32_t ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    std::vector<Trained> synchronised = Train(Model(ranks, Norm::kSynchronised), ranks), local = Train(Model(ranks, Norm::kLocal), ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) EXPECT_LT(Apart(whole, one[0], synchronised[rank]), 1e-9) << rank;
    for (int step = 0; step < kSteps; ++step) {
      double mean = 0;
      for (const Trained& rank : synchronised) mean += rank.losses[step] / ranks;
      EXPECT_NEAR(mean, one[0].losses[step], 1e-9);
    }
    // The control: local norms see other means on each rank, and make another model.
    EXPECT_GT(Apart(whole, one[0], local[0]), 1e-2);
    EXPECT_NE(local[0].states.Get("norm/running_mean").bytes, local[1].states.Get("norm/running_mean").bytes);
  }
}

TEST(BatchNorm, RecomputingRepeatsNoUpdateOfItsState) {
  Graph graph = Model(2, Norm::kSynchronised), again = Recomputed(graph);
  ASSERT_TRUE(Check(again).ok());
  int clones = 0, writes[2] = {0, 0}, sums[2] = {0, 0};
  for (const Graph* one : {&graph, &again}) {
    for (const Op& op : one->ops) {
      clones += op.clone > 0;
      writes[one == &again] += op.def == &kAssign;
      sums[one == &again] += op.def == &kAllReduce;
    }
  }
  EXPECT_GT(clones, 5);
  EXPECT_EQ(writes[1], writes[0]);
  EXPECT_EQ(sums[1], sums[0]);
  std::vector<Trained> kept = Train(graph, 2), repeated = Train(again, 2);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(Apart(graph, kept[rank], repeated[rank]), 0);
  EXPECT_FALSE(kept[0].states.Get("norm/running_mean").bytes.empty());
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
