// ZeRO-3: each rank keeps its share of every parameter, and of its gradient and moments. A parameter is gathered before it is used, its
// gradient is reduce-scattered. A weight that is used twice is gathered once: a rank sums the gradients of both uses before ranks sum them,
// as data parallelism does, since shares that were summed behind two reduce-scatters would be sums in another order. With that, and sums in
// the order of the ranks, it is data parallelism bit for bit; weights that are frozen and weights that are tied stay what they are.
#include "tests/prototypes/zero.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kWidth = 32;

enum class Where { kReplicated, kSharded, kWithoutOneGradient };

// x ─ tied ─ ReLU ─ frozen ─ ReLU ─ tied, transposed ─▶ eight labels, of which four occur.
Graph TiedModel(std::int32_t ranks, Where where) {
  Builder b;
  b.mutable_graph().mesh = {{{"data", ranks}}};
  StateId channel = b.NewChannel("data");
  const bool cut = where != Where::kReplicated;
  auto weight = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    return b.NewParameter(name, {rows, columns}, Initializer::Normal(1 / std::sqrt(static_cast<double>(rows))), Dtype::kF32,
                          cut ? ShardingSpec{{0, ShardingSpec::kReplicated}, {}} : ShardingSpec{});
  };
  // The whole of a weight, for all of its uses.
  auto whole = [&](const Parameter& share) -> Value {
    if (!cut) return share;
    return b.CustomGradient({share}, {AllGather(share, channel, "data", 0)}, [=](const GradientContext& c) {
      return std::vector<Gradient>{ReduceScatter(c.grads[0], channel, "data", 0)};
    })[0];
  };
  const Parameter tied = weight("tied/w", 8, kWidth), frozen = weight("frozen/w", kWidth, kWidth);
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B", 1, 64), 8}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  const Value w = whole(tied);
  Value h = Relu(MatMul(Relu(MatMul(x, w)), whole(frozen)));
  Value loss = Mean(CrossEntropy(MatMul(h, where == Where::kWithoutOneGradient ? StopGradient(w) : w, false, true), labels));
  b.Output("loss", loss);
  std::vector<Gradient> gradients = Grad(loss, {tied});
  Value gradient = gradients[0];
  if (ranks > 1) gradient = (cut ? gradient : AllReduce(gradient, channel, "data")) * (1.0 / ranks);
  ApplyAdamW(b, {tied}, {gradient}, .01);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return RemoveDeadCode(MergeEqual(Simplify(*graph)));
}

std::vector<Trained> TrainTied(std::int32_t ranks, Where where) {
  std::vector<std::int32_t> members;
  for (std::int32_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
  World world(ranks, {{"data", members}});
  std::vector<Trained> trained(static_cast<std::size_t>(ranks));
  Status status = world.Run([&](std::int32_t rank) -> Status {
    Trained& mine = trained[static_cast<std::size_t>(rank)];
    mine.graph = TiedModel(ranks, where);
    ASSIGN_OR_RETURN(auto executable, Compile(mine.graph, {kRows / ranks}, DefaultProgram(mine.graph), KernelsOf(world, rank)));
    for (int step = 0; step < kSteps; ++step) {
      ASSIGN_OR_RETURN(double loss, Step(*executable, Part(MakeBatch(step, kRows), rank, ranks), mine.states, rank));
      mine.losses.push_back(loss);
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

// The shares of all ranks, one after the other.
std::vector<std::byte> Together(const std::vector<Trained>& ranks, const std::string& state) {
  std::vector<std::byte> bytes;
  for (const Trained& rank : ranks) {
    const Tensor share = rank.states.Get(state);
    bytes.insert(bytes.end(), share.bytes.begin(), share.bytes.end());
  }
  return bytes;
}

TEST(Zero3, FrozenAndTiedWeightsSurvive) {
  const std::vector<Trained> one = TrainTied(1, Where::kReplicated);
  EXPECT_LT(MeanOfLast(one[0].losses, 10), .7 * one[0].losses.front());
  StateStore begun;
  for (const StateInfo& state : one[0].graph.states) {
    if (state.name == "frozen/w") {
      ASSERT_TRUE(begun.Find(one[0].graph, state, {kRows}, {}).ok());
    }
  }
  for (std::int32_t ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const std::vector<Trained> replicated = TrainTied(ranks, Where::kReplicated), sharded = TrainTied(ranks, Where::kSharded);
    for (std::size_t rank = 0; rank < sharded.size(); ++rank) EXPECT_EQ(sharded[rank].losses, replicated[rank].losses);
    for (const char* state : {"tied/w", "tied/w/first_moment", "tied/w/second_moment"})
      EXPECT_EQ(Together(sharded, state), replicated[0].states.Get(state).bytes) << state;
    EXPECT_EQ(Together(sharded, "frozen/w"), begun.Get("frozen/w").bytes);
    EXPECT_TRUE(sharded[0].states.Get("frozen/w/first_moment").bytes.empty());
    EXPECT_EQ(sharded[0].states.Get("tied/w").bytes.size(), sizeof(float) * 8 * kWidth / static_cast<std::size_t>(ranks));
  }
}

// The control: a weight of which only one use is learnt from is another model.
TEST(Zero3, BothUsesOfATiedWeightCount) {
  EXPECT_NE(TrainTied(2, Where::kWithoutOneGradient)[0].losses.back(), TrainTied(2, Where::kSharded)[0].losses.back());
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
