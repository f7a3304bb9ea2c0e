// ZeRO-1 (zero.h) stops, and goes on with another number of ranks: each rank writes its share of the moments, and reads what its share is
// then. A moment is checkpointed as the parameter's numbers side by side, without what pads it to whole shares, which is zero: so its
// logical shape does not depend on the ranks.
#include <cstring>
#include <memory>

#include "mlrunner/train/checkpoint_parts.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "tests/prototypes/zero.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

constexpr int kStop = 20;

Mesh MeshOf(std::int32_t ranks) { return {{{"data", ranks}}}; }

// What is checkpointed: the same for every number of ranks, but for who holds what.
std::vector<LogicalState> Kept(const Graph& graph) {
  std::vector<LogicalState> kept;
  for (const StateInfo& state : graph.states) {
    if (state.kind == StateKind::kChannel || state.name == kLearningRate) continue;
    Dims dims = Evaluate(state.logical, {kRows});
    if (state.kind == StateKind::kOptimizer) {
      kept.push_back({state.name, state.type.dtype, {NumElements(Evaluate(graph.state(state.of).logical, {kRows}))}, {{0}, {}}});
    } else {
      kept.push_back({state.name, state.type.dtype, std::move(dims), {}});
    }
  }
  return kept;
}

// The slices that `rank` writes of what it has trained.
std::vector<StateSlice> Written(const Trained& trained, std::int32_t rank, std::int32_t ranks) {
  const std::vector<LogicalState> kept = Kept(trained.graph);
  auto writers = WritersOf(kept, MeshOf(ranks), ranks, 0);
  EXPECT_TRUE(writers.ok()) << writers.status().ToString();
  std::vector<StateSlice> slices;
  for (const WrittenSlice& written : (*writers)[static_cast<std::size_t>(rank)]) {
    const LogicalState& state = kept[written.state];
    Tensor tensor = trained.states.Get(state.name);
    tensor.dims = LengthsOf(written.slice);
    tensor.bytes.resize(static_cast<std::size_t>(NumElements(written.slice)) * SizeOf(state.dtype));  // without what pads it
    slices.push_back({state.name, state.dims, written.slice, std::move(tensor)});
  }
  return slices;
}

// The states that `rank` of `ranks` goes on from, in the shapes of `graph`.
Status Take(const CheckpointReader& reader, const Graph& graph, std::int32_t rank, std::int32_t ranks, StateStore* states) {
  for (const LogicalState& state : Kept(graph)) {
    const StateInfo* info = nullptr;
    for (const StateInfo& each : graph.states)
      if (each.name == state.name) info = &each;
    // Where the graph has moments in the parameter's shape, each rank holds all of it.
    const bool is_cut = !info->sharding.IsReplicated();
    const Slice slice = SliceOf(state.dims, is_cut ? state.sharding : ShardingSpec{}, MeshOf(ranks), rank);
    ASSIGN_OR_RETURN(Tensor tensor, reader.Read(state.name, state.dtype, state.dims, slice));
    tensor.dims = Evaluate(info->type.shape, {kRows});
    tensor.bytes.resize(static_cast<std::size_t>(NumElements(tensor.dims)) * SizeOf(state.dtype));
    states->Set(state.name, std::move(tensor));
  }
  return {};
}

// Trains on `ranks` ranks from `begin` to `end`; from `from` where it is not empty, with its moments or without; saved into `to`.
struct Run {
  std::int32_t ranks = 1;
  Update update = Update::kSharded;
  int begin = 0, end = kSteps;
  std::string from, to;
  bool takes_moments = true;
};
std::vector<Trained> Train(const Run& run) {
  std::vector<std::int32_t> members;
  for (std::int32_t rank = 0; rank < run.ranks; ++rank) members.push_back(rank);
  World world(run.ranks, {{"data", members}});
  mlrunner::testing::Hall hall(run.ranks);
  std::vector<Trained> trained(static_cast<std::size_t>(run.ranks));
  auto train = [&](std::int32_t rank) -> Status {
    Trained& mine = trained[static_cast<std::size_t>(rank)];
    storage::LocalFileSystem files;
    if (!run.from.empty()) {
      ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(files, CheckpointPath(run.from, kStop)));
      const Graph graph = Model(rank, run.ranks, run.update, false);
      RETURN_IF_ERROR(Take(*reader, graph, rank, run.ranks, &mine.states));
      for (const StateInfo& state : graph.states) {
        if (state.kind != StateKind::kOptimizer || run.takes_moments) continue;
        Tensor zeros = mine.states.Get(state.name);
        std::fill(zeros.bytes.begin(), zeros.bytes.end(), std::byte{0});
        mine.states.Set(state.name, std::move(zeros));
      }
    }
    RETURN_IF_ERROR(TrainRank(world, rank, run.ranks, run.update, false, &mine, run.begin, run.end));
    if (run.to.empty()) return {};
    Checkpoint about{.step = run.end, .position = {}, .tensors = {}, .run = 1};
    return SaveTogether(files, run.to, about, Written(mine, rank, run.ranks), rank, {},
                        [&](std::string bytes) { return hall.Exchange(rank, std::move(bytes)); })
        .status();
  };
  Status status = world.Run([&](std::int32_t rank) {
    Status done = train(rank);
    if (!done.ok()) hall.Lose();
    return done;
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return trained;
}

// The loss of the whole batch at each step: ranks have parts of one size.
std::vector<double> Losses(const std::vector<Trained>& trained, std::size_t skipped = 0) {
  std::vector<double> losses(trained[0].losses.size() - skipped, 0);
  for (const Trained& rank : trained) {
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += rank.losses[skipped + i] / static_cast<double>(trained.size());
  }
  return losses;
}
double WorstRelative(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]) / b[i]);
  return worst;
}

TEST(ZeroCheckpoint, FourRanksStopAndOthersGoOn) {
  mlrunner::testing::TempFolder folder;
  const std::vector<Trained> whole = Train({.ranks = 4});
  Train({.ranks = 4, .end = kStop, .to = folder.path()});

  // No rank holds more than its share, and what is written of it lies where its rank has put it.
  storage::LocalFileSystem files;
  auto reader = CheckpointReader::Open(files, CheckpointPath(folder.path(), kStop));
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ((*reader)->index().files.size(), 4u);
  const StoredTensor& moment = (*reader)->index().tensors.at("first/b/first_moment");
  EXPECT_EQ(moment.dims, Dims{31});  // of 32 with its padding: 8, 8, 8 and 7
  ASSERT_EQ(moment.pieces.size(), 4u);

  // The same number of ranks: the same bits as without a break.
  const std::vector<Trained> four = Train({.ranks = 4, .begin = kStop, .from = folder.path()});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(four[rank].losses, (std::vector<double>(whole[rank].losses.begin() + kStop, whole[rank].losses.end())));
    EXPECT_EQ(Different(whole[0].graph, four[rank].states, whole[rank].states), std::vector<std::string>());
  }

  const std::vector<double> expected = Losses(whole, kStop);
  for (std::int32_t ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const std::vector<Trained> sharded = Train({.ranks = ranks, .begin = kStop, .from = folder.path()});
    // Data parallelism whose ranks hold all of the moments, from the same checkpoint: the same bits.
    const std::vector<Trained> replicated = Train({.ranks = ranks, .update = Update::kReplicated, .begin = kStop, .from = folder.path()});
    for (std::size_t rank = 0; rank < sharded.size(); ++rank) {
      EXPECT_EQ(sharded[rank].losses, replicated[rank].losses);
      EXPECT_EQ(Different(sharded[0].graph, sharded[rank].states, replicated[rank].states), std::vector<std::string>());
    }
    // Gradients are means over other parts of the batch, so that sums are rounded elsewhere. The first loss is that of the same parameters.
    // They were apart by 6e-8 in the first step and 3.5e-7 in all; ten times as much is let through.
    const std::vector<double> losses = Losses(sharded);
    EXPECT_LT(WorstRelative({losses[0]}, {expected[0]}), 6e-7);
    EXPECT_LT(WorstRelative(losses, expected), 3.5e-6);
  }
  // The control: without the moments it is another training, and .2 apart.
  const double without =
      WorstRelative(Losses(Train({.ranks = 2, .begin = kStop, .from = folder.path(), .takes_moments = false})), expected);
  EXPECT_GT(without, .02);
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
