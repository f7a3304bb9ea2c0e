// ZeRO-1: each rank keeps the optimiser's state of its share of every parameter. The gradient is reduce-scattered, the share is updated,
// the new parameter is gathered. With sums in the order of the ranks it is data parallelism bit for bit.
#include "mlrunner/collective/check/check.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kSteps = 50, kRows = 24;

// --- two collectives of this file: the bound count is that of a share, the whole has `ranks` of them ---

using collective::ChunkId, collective::Writer;
constexpr std::int32_t kIn = 0, kOut = 1;

Status DeclareApart(collective::Header* header) {
  header->buffers.push_back({.name = "in", .role = collective::Role::kIn});
  header->buffers.push_back({.name = "out", .role = collective::Role::kOut});
  return {};
}
template <class W>
ChunkId ShareOf(W& w, std::int32_t buffer, std::int32_t rank) {
  return w.At(buffer, w.Span(1, 0, rank, 0));
}
void WriteReduceScatter(Writer& w) {
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Send(ShareOf(w, kIn, w.Around(d)), w.Around(d));
  std::vector<collective::Operand> operands;
  for (std::int32_t from = 0; from < w.ranks(); ++from) {
    ChunkId share = ShareOf(w, kIn, w.rank());
    operands.push_back(from == w.rank() ? collective::Local(share) : collective::From(from, share));
  }
  w.Fold(w.ranks() == 1 ? collective::Op::kCopy : collective::Op::kRecvReduce, operands, {.dst = w.At(kOut, w.Whole())});
}
void PromiseReduceScatter(collective::PostWriter& post) {
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank)
    post.Fold(rank, post.At(kOut, post.Whole()), {{.rank = collective::kEveryRank, .chunk = ShareOf(post, kIn, rank)}});
}
void WriteAllGather(Writer& w) {
  ChunkId own = w.At(kIn, w.Whole());
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Send(own, w.Around(d));
  w.Copy(own, ShareOf(w, kOut, w.rank()));
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Recv(w.Around(-d), ShareOf(w, kOut, w.Around(-d)));
}
void PromiseAllGather(collective::PostWriter& post) {
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank)
    post.Fold(collective::kEveryRank, ShareOf(post, kOut, rank), {{.rank = rank, .chunk = post.At(kIn, post.Whole())}});
}
const collective::Algorithm kDirectReduceScatter{
    "direct_reduce_scatter", collective::Collective::kReduceScatter, true, DeclareApart, WriteReduceScatter, PromiseReduceScatter};
const collective::Algorithm kDirectAllGather{"direct_allgather", collective::Collective::kAllgather, true, DeclareApart, WriteAllGather,
                                             PromiseAllGather};

collective::Request Asked(const collective::Algorithm& algorithm, std::int32_t ranks) {
  return {.collective = algorithm.collective, .ranks = ranks, .deterministic = true};
}

KernelTable KernelsOf(World& world, std::int32_t rank) {
  KernelTable table = world.Kernels(rank);
  auto add = [&](const OpDef& def, const collective::Algorithm& algorithm, bool share_comes_in) {
    table.Add(def, Device::kCpu, Dtype::kF32, [&world, rank, &algorithm, share_comes_in](const KernelRequest& r) -> Result<CompiledKernel> {
      std::string channel = World::ChannelOf(r);
      auto plan = collective::BuildProgram(algorithm, Asked(algorithm, world.SizeOf(channel)), world.PlaceIn(channel, rank));
      std::int64_t share = NumElements(share_comes_in ? r.in[1].dims : r.out[1].dims);
      ASSIGN_OR_RETURN(auto bound, Bound::Make(std::move(plan), share, world.EndOf(channel, rank)));
      return KernelOf(bound, 1, 1);
    });
  };
  add(kReduceScatter, kDirectReduceScatter, false);
  add(kAllGather, kDirectAllGather, true);
  return table;
}

TEST(Zero, ItsCollectivesAreProved) {
  for (std::int32_t ranks : {1, 2, 3, 8}) {
    for (const collective::Algorithm* algorithm : {&kDirectReduceScatter, &kDirectAllGather}) {
      auto plan = collective::BuildPlan(*algorithm, Asked(*algorithm, ranks));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      Status status = collective::CheckAll(*plan);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
}

// --- the optimiser ---

enum class Update { kReplicated, kSharded, kWithoutGather };

// The update of this rank's share. The moments are sharded states of the flat, padded parameter.
void ApplyZero1(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
                StateId channel, std::int32_t rank, std::int32_t ranks, bool gathers) {
  StateId rate = b.NewState(kLearningRate, StateKind::kScalar, {Dtype::kF32, {}}, Initializer::Constant(learning_rate));
  StateId step = b.NewState("optimizer/step", StateKind::kScalar, {Dtype::kF32, {}}, Initializer::Zeros());
  {
    Scope scope = UpdateScope(b, parameters[0]);
    scope.parameter = step;
    auto guard = b.With(scope);
    b.Assign(step, b.Read(step) + 1.0);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const StateInfo info = b.graph().state(parameters[i].state);
    std::int64_t count = *NumElements(info.type.shape).Constant(), share = (count + ranks - 1) / ranks, padded = share * ranks;
    auto moment = [&](const char* name) {
      return b.NewState(info.name + name, StateKind::kOptimizer, {Dtype::kF32, {padded}}, Initializer::Zeros(), parameters[i].state,
                        {{0}, {}});
    };
    StateId m = moment("/first_moment"), v = moment("/second_moment");
    auto guard = b.With(UpdateScope(b, parameters[i]));
    auto flat = [&](const Value& value) { return PadAxis(Reshape(value, {count}), 0, 0, padded - count); };
    Value p = flat(b.Read(parameters[i].state));
    auto part = [&](std::int64_t of) { return SliceAxis(p, 0, of * share, (of + 1) * share); };
    Value g = ReduceScatter(flat(gradients[i]), channel, "data", 0) * (1.0 / ranks);
    std::vector<Value> next = b.Emit(kAdamW, {part(rank), b.Read(m), b.Read(v), g, b.Read(rate), b.Read(step)},
                                     {{Attr::kLow, .9}, {Attr::kHigh, .999}, {Attr::kEpsilon, 1e-8}, {Attr::kValue, .01}});
    b.Assign(m, next[1]);
    b.Assign(v, next[2]);
    std::vector<Value> parts;
    for (std::int64_t of = 0; of < ranks; ++of) parts.push_back(of == rank ? next[0] : part(of));
    Value all = gathers ? AllGather(next[0], channel, "data", 0) : Concat(parts, 0);
    b.Assign(parameters[i].state, Reshape(SliceAxis(all, 0, 0, count), info.type.shape));
  }
}

// `overlaps`: messages are on their way while other parameters are updated.
Graph Model(std::int32_t rank, std::int32_t ranks, Update update, bool overlaps) {
  Builder b;
  b.mutable_graph().mesh = {{{"data", ranks}}};
  StateId channel = b.NewChannel("data");
  Value x = b.Input("x", Dtype::kF32, {b.NewSymbol("B", 1, 64), 8}), labels = b.Input("labels", Dtype::kI32, {x.dim(0)});
  Linear first(b, "first", 8, 31), second(b, "second", 31, 4);  // 31: shares are unequal, and padded
  Value loss = Mean(CrossEntropy(second(Relu(first(x))), labels));
  b.Output("loss", loss);
  std::vector<Parameter> parameters = {first.w, first.c, second.w, second.c};
  std::vector<Gradient> grads = Grad(loss, {parameters.begin(), parameters.end()});
  if (update == Update::kReplicated) {
    for (Gradient& grad : grads) {
      if (ranks > 1) grad = AllReduce(grad, channel, "data") * (1.0 / ranks);
    }
    ApplyAdamW(b, parameters, grads, .02);
  } else {
    ApplyZero1(b, parameters, grads, .02, channel, rank, ranks, update == Update::kSharded);
  }
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  Graph passed = RemoveDeadCode(MergeEqual(Simplify(*graph)));
  return overlaps ? OverlapCollectives(passed) : passed;
}

struct Trained {
  Graph graph;
  StateStore states;
  std::vector<double> losses;
};

Status TrainRank(World& world, std::int32_t rank, std::int32_t ranks, Update update, bool overlaps, Trained* trained) {
  trained->graph = Model(rank, ranks, update, overlaps);
  ASSIGN_OR_RETURN(auto executable, Compile(trained->graph, {kRows / ranks}, DefaultProgram(trained->graph), KernelsOf(world, rank)));
  for (int step = 0; step < kSteps; ++step) {
    ASSIGN_OR_RETURN(double loss, Step(*executable, Part(MakeBatch(step, kRows), rank, ranks), trained->states, rank));
    trained->losses.push_back(loss);
  }
  return {};
}
std::vector<Trained> Train(std::int32_t ranks, Update update, bool overlaps = false) {
  std::vector<std::int32_t> members;
  for (std::int32_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
  World world(ranks, {{"data", members}});
  std::vector<Trained> trained(ranks);
  Status status = world.Run([&](std::int32_t rank) { return TrainRank(world, rank, ranks, update, overlaps, &trained[rank]); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

std::size_t OptimizerBytes(const Trained& trained) {
  std::size_t bytes = 0;
  for (const StateInfo& state : trained.graph.states) {
    if (state.kind == StateKind::kOptimizer) bytes += trained.states.Get(state.name).bytes.size();
  }
  return bytes;
}

TEST(Zero, EqualsDataParallelBitForBit) {
  std::vector<Trained> one = Train(1, Update::kReplicated);
  for (std::int32_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    std::vector<Trained> replicated = Train(ranks, Update::kReplicated), sharded = Train(ranks, Update::kSharded, ranks == 4);
    double mean = 0;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(sharded[rank].losses, replicated[rank].losses);
      EXPECT_EQ(Different(sharded[0].graph, sharded[rank].states, replicated[rank].states), std::vector<std::string>());
      mean += sharded[rank].losses.back() / ranks;
      // Two moments of four parameters, 31·8, 31, 31·4 and 4 numbers, each padded to whole shares.
      std::int64_t shares = 0;
      for (std::int64_t count : {31 * 8, 31, 31 * 4, 4}) shares += (count + ranks - 1) / ranks;
      EXPECT_EQ(OptimizerBytes(sharded[rank]), 2u * sizeof(float) * static_cast<std::size_t>(shares));
    }
    EXPECT_EQ(OptimizerBytes(replicated[0]), 2u * sizeof(float) * (31 * 8 + 31 + 31 * 4 + 4));
    EXPECT_NEAR(mean, one[0].losses.back(), 1e-3 * mean);
  }
  EXPECT_LT(MeanOfLast(one[0].losses, 10), .5 * one[0].losses.front());
}

// The control: without the gather each rank goes on with old values of the others' shares.
TEST(Zero, WithoutTheGatherRanksDriftApart) {
  std::vector<Trained> right = Train(2, Update::kSharded), wrong = Train(2, Update::kWithoutGather);
  EXPECT_EQ(Different(right[0].graph, right[0].states, right[1].states), std::vector<std::string>());
  EXPECT_EQ(Different(wrong[0].graph, wrong[0].states, wrong[1].states).size(), 4u);
  EXPECT_GT(std::fabs(wrong[0].losses.back() - right[0].losses.back()), 1e-3);
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
