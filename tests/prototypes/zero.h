// ZeRO-1: each rank keeps the optimiser's state of its share of every parameter. The gradient is reduce-scattered, the share is updated,
// the new parameter is gathered.
//
// Thread rule: what a rank builds and trains belongs to its thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {

constexpr int kSteps = 50, kRows = 24;

// --- two collectives of its own: the bound count is that of a share, the whole has `ranks` of them ---

using collective::ChunkId, collective::Writer;
constexpr std::int32_t kIn = 0, kOut = 1;

inline Status DeclareApart(collective::Header* header) {
  header->buffers.push_back({.name = "in", .role = collective::Role::kIn});
  header->buffers.push_back({.name = "out", .role = collective::Role::kOut});
  return {};
}
template <class W>
ChunkId ShareOf(W& w, std::int32_t buffer, std::int32_t rank) {
  return w.At(buffer, w.Span(1, 0, rank, 0));
}
inline void WriteReduceScatter(Writer& w) {
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Send(ShareOf(w, kIn, w.Around(d)), w.Around(d));
  std::vector<collective::Operand> operands;
  for (std::int32_t from = 0; from < w.ranks(); ++from) {
    ChunkId share = ShareOf(w, kIn, w.rank());
    operands.push_back(from == w.rank() ? collective::Local(share) : collective::From(from, share));
  }
  w.Fold(w.ranks() == 1 ? collective::Op::kCopy : collective::Op::kRecvReduce, operands, {.dst = w.At(kOut, w.Whole())});
}
inline void PromiseReduceScatter(collective::PostWriter& post) {
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank)
    post.Fold(rank, post.At(kOut, post.Whole()), {{.rank = collective::kEveryRank, .chunk = ShareOf(post, kIn, rank)}});
}
inline void WriteAllGather(Writer& w) {
  ChunkId own = w.At(kIn, w.Whole());
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Send(own, w.Around(d));
  w.Copy(own, ShareOf(w, kOut, w.rank()));
  for (std::int32_t d = 1; d < w.ranks(); ++d) w.Recv(w.Around(-d), ShareOf(w, kOut, w.Around(-d)));
}
inline void PromiseAllGather(collective::PostWriter& post) {
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank)
    post.Fold(collective::kEveryRank, ShareOf(post, kOut, rank), {{.rank = rank, .chunk = post.At(kIn, post.Whole())}});
}
inline const collective::Algorithm kDirectReduceScatter{
    "direct_reduce_scatter", collective::Collective::kReduceScatter, true, DeclareApart, WriteReduceScatter, PromiseReduceScatter};
inline const collective::Algorithm kDirectAllGather{
    "direct_allgather", collective::Collective::kAllgather, true, DeclareApart, WriteAllGather, PromiseAllGather};

inline collective::Request Asked(const collective::Algorithm& algorithm, std::int32_t ranks) {
  return {.collective = algorithm.collective, .ranks = ranks, .deterministic = true};
}

inline KernelTable KernelsOf(World& world, std::int32_t rank) {
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

// --- the optimiser ---

enum class Update { kReplicated, kSharded, kWithoutGather };

// The update of this rank's share. The moments are sharded states of the flat, padded parameter.
inline void ApplyZero1(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
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
inline Graph Model(std::int32_t rank, std::int32_t ranks, Update update, bool overlaps) {
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

// Steps [begin, end), from the states that are there.
inline Status TrainRank(World& world, std::int32_t rank, std::int32_t ranks, Update update, bool overlaps, Trained* trained, int begin = 0,
                        int end = kSteps) {
  trained->graph = Model(rank, ranks, update, overlaps);
  ASSIGN_OR_RETURN(auto executable, Compile(trained->graph, {kRows / ranks}, DefaultProgram(trained->graph), KernelsOf(world, rank)));
  for (int step = begin; step < end; ++step) {
    ASSIGN_OR_RETURN(double loss, Step(*executable, Part(MakeBatch(step, kRows), rank, ranks), trained->states, rank));
    trained->losses.push_back(loss);
  }
  return {};
}

}  // namespace ropewalk::mlrunner::prototypes
