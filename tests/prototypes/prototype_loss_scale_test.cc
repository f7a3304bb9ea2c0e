// Mixed precision over two ranks: the model computes in f16, the parameters are f32 masters, the loss is multiplied by a scale that is a
// scalar state. A rank whose gradients are not finite says so to all: every rank leaves the step out and halves the scale; after some clean
// steps it is doubled. No host looks at a number.
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kRanks = 2, kRows = 16, kSteps = 200, kCleanSteps = 60;

struct Options {
  bool half = true;        // f16, or f32 throughout
  bool tells_all = true;   // what is not finite on one rank is known to all
  bool leaves_out = true;  // steps that are not finite
  double scale = 1 << 24;  // far above what f16 gradients bear
};

Graph Model(const Options& options) {
  Builder b;
  b.mutable_graph().mesh = {{{"data", kRanks}}};
  StateId sums = b.NewChannel("data");
  auto scalar = [&](const char* name, double value) {
    return b.NewState(name, StateKind::kScalar, {Dtype::kF32, {}}, Initializer::Constant(value));
  };
  StateId scale = scalar("loss_scale", options.scale), clean = scalar("clean_steps", 0), rate = scalar(kLearningRate, .2);
  Dtype dtype = options.half ? Dtype::kF16 : Dtype::kF32;
  Value x = b.Input("x", Dtype::kF32, {kRows, 8}), labels = b.Input("labels", Dtype::kI32, {kRows});
  Linear first(b, "first", 8, 24), second(b, "second", 24, 4);
  auto linear = [&](const Value& v, const Linear& l) { return MatMul(v, Cast(l.w, dtype)) + Cast(l.c, dtype); };
  Value logits = linear(Relu(linear(Cast(x, dtype), first)), second);
  Value loss = Mean(CrossEntropy(Cast(logits, Dtype::kF32), labels));
  b.Output("loss", loss);

  std::vector<Parameter> parameters = {first.w, first.c, second.w, second.c};
  Value now = b.Read(scale);
  std::vector<Gradient> grads = Grad(loss * now, {parameters.begin(), parameters.end()});
  Value bad = b.Number(0, Dtype::kF32);  // how many gradients, over all ranks, hold what is not finite
  for (const Gradient& grad : grads) bad = bad + (1.0 + ReduceMax(-Cast(IsFinite(grad), Dtype::kF32)));
  if (options.tells_all) bad = AllReduce(bad, sums, "data");
  Value ok = options.leaves_out ? Less(bad, .5) : Less(bad * 0.0, .5);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto guard = b.With(UpdateScope(b, parameters[i]));
    // Each rank's own gradient is left out before the sum, so that nobody adds up what is not finite.
    Value own = Select(ok, grads[i].Dense(), Fill(b, 0, Dtype::kF32, parameters[i].shape()));
    Value mean = AllReduce(own / now, sums, "data") * (1.0 / kRanks);
    Value p = b.Read(parameters[i].state);
    b.Assign(parameters[i].state, Select(ok, p - b.Read(rate) * mean, p));
  }
  Scope scope;
  scope.region = RegionKind::kUpdate;
  scope.phase = Phase::kUpdate;
  scope.parameter = scale;
  auto guard = b.With(scope);
  Value next = Select(ok, b.Read(clean) + 1.0, b.Number(0, Dtype::kF32));
  Value full = Greater(next, kCleanSteps - .5);
  b.Assign(scale, Select(ok, Select(full, now * 2.0, now), now * .5));
  b.Assign(clean, Select(full, b.Number(0, Dtype::kF32), next));
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return RemoveDeadCode(MergeEqual(Simplify(*graph)));
}

struct Trained {
  StateStore states;
  std::vector<double> losses, scales;
  int left_out = 0;
};
// At step `poisoned` rank 1 alone gets a sample that is not finite.
std::vector<Trained> Train(const Options& options, int poisoned = -1) {
  World world(kRanks, {{"data", {0, 1}}});
  std::vector<Trained> trained(kRanks);
  Graph graph = Model(options);
  Status status = world.Run([&](std::int32_t rank) -> Status {
    Trained& mine = trained[rank];
    ASSIGN_OR_RETURN(auto executable, Compile(graph, {}, DefaultProgram(graph), world.Kernels(rank)));
    for (int step = 0; step < kSteps; ++step) {
      Batch batch = Part(MakeBatch(step, kRows * kRanks), rank, kRanks);
      if (step == poisoned && rank == 1) {
        RefTensor x = ToRef(batch.x);
        x.data[5] = HUGE_VAL;
        batch.x = ToTensor(Dtype::kF32, x);
      }
      Tensor before = mine.states.Get("first/w");
      ASSIGN_OR_RETURN(double loss, Step(*executable, batch, mine.states));
      mine.losses.push_back(loss);
      mine.scales.push_back(Scalar(mine.states.Get("loss_scale")));
      mine.left_out += step > 0 && before.bytes == mine.states.Get("first/w").bytes;
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}
bool IsFiniteEverywhere(const Tensor& tensor) {
  RefTensor values = ToRef(tensor);
  return std::all_of(values.data.begin(), values.data.end(), [](double v) { return std::isfinite(v); });
}

TEST(LossScale, FindsItsScaleAndLearnsAsF32Does) {
  std::vector<Trained> half = Train({}), single = Train({.half = false, .scale = 1});
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(half[rank].scales, half[0].scales);
    EXPECT_TRUE(IsFiniteEverywhere(half[rank].states.Get("first/w")));
    EXPECT_NEAR(MeanOfLast(half[rank].losses, 20), MeanOfLast(single[rank].losses, 20), .02);
  }
  EXPECT_EQ(half[0].states.Get("first/w").bytes, half[1].states.Get("first/w").bytes);
  EXPECT_LT(MeanOfLast(half[0].losses, 20), .5 * half[0].losses[0]);
  // It was halved until gradients fitted, and is doubled from time to time.
  double least = *std::min_element(half[0].scales.begin(), half[0].scales.end());
  std::printf("scale 2^%g at least, 2^%g at the end; %d steps left out\n", std::log2(least), std::log2(half[0].scales.back()),
              half[0].left_out);
  EXPECT_LT(least, 1 << 22);
  EXPECT_GT(half[0].left_out, 2);
  EXPECT_LT(half[0].left_out, kSteps / 4);
  bool doubled = false;
  for (std::size_t i = 1; i < half[0].scales.size(); ++i) doubled = doubled || half[0].scales[i] == 2 * half[0].scales[i - 1];
  EXPECT_TRUE(doubled);
}

TEST(LossScale, WhatOneRankFindsAllLeaveOut) {
  constexpr int kPoisoned = 150;
  std::vector<Trained> told = Train({}, kPoisoned);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_LE(told[rank].scales[kPoisoned], .5 * told[rank].scales[kPoisoned - 1]);
    EXPECT_TRUE(IsFiniteEverywhere(told[rank].states.Get("first/w")));
  }
  EXPECT_EQ(told[0].states.Get("first/w").bytes, told[1].states.Get("first/w").bytes);
  // The controls: a rank that is not told takes the step, and ranks differ from then on; ranks that leave nothing out lose their model.
  std::vector<Trained> alone = Train({.tells_all = false}, kPoisoned);
  EXPECT_NE(alone[0].states.Get("first/w").bytes, alone[1].states.Get("first/w").bytes);
  std::vector<Trained> all = Train({.leaves_out = false}, kPoisoned);
  EXPECT_FALSE(IsFiniteEverywhere(all[0].states.Get("first/w")));
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
