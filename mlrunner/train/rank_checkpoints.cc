#include "mlrunner/train/rank_checkpoints.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "mlrunner/graph/optimizers.h"
#include "mlrunner/train/nan_watch.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

// All that hold bytes, but for the learning rate, which the job file says, and sums over micro-batches, which are zero between steps.
bool IsKept(const StateInfo& state) {
  return SizeOf(state.type.dtype) > 0 && state.name != kLearningRate && state.kind != StateKind::kAccumulator;
}

}  // namespace

Result<std::unique_ptr<RankCheckpoints>> RankCheckpoints::Make(Options options, const Graph& graph, std::int64_t rows) {
  std::unique_ptr<RankCheckpoints> made(new RankCheckpoints(std::move(options), graph));
  for (const StateInfo& state : graph.states)
    if (IsKept(state)) made->kept_.push_back({state.name, state.type.dtype, Evaluate(state.logical, {rows}), state.sharding});
  const Options& o = made->options_;
  ASSIGN_OR_RETURN(made->writers_, WritersOf(made->kept_, graph.mesh, o.gang->ranks(), o.spread_bytes));
  made->together_ = std::any_of(made->writers_.begin() + 1, made->writers_.end(), [](const auto& slices) { return !slices.empty(); });
  return made;
}

ExchangeBytes RankCheckpoints::Exchanging() {
  return [gang = options_.gang](std::string mine) { return gang->Exchange(std::move(mine)); };
}

std::unique_ptr<Saver> RankCheckpoints::SaverFor(const std::string& folder, std::int64_t keep, std::int64_t stands_on) {
  Saver::Options options{.files = options_.files,
                         .folder = folder,
                         .keep = keep,
                         .stands_on = stands_on,
                         .forming = options_.gang->epoch(),
                         .rank = options_.gang->rank()};
  if (together_) options.exchange = Exchanging();
  return std::make_unique<Saver>(std::move(options));
}

Status RankCheckpoints::TryFolder() {
  const std::string& folder = options_.job->checkpoint.folder;
  const CheckpointWriter writer{.run = options_.run, .forming = options_.gang->epoch(), .rank = options_.gang->rank()};
  if (together_) return TryFolderTogether(*options_.files, folder, writer, Exchanging());
  return options_.gang->rank() == 0 ? TryCheckpointFolder(*options_.files, folder, writer) : Status();
}

Result<std::unique_ptr<CheckpointReader>> RankCheckpoints::OpenNewest() {
  // One that shall not begin at what it finds goes on from what earlier formings of its own gang have written all the same.
  const bool of_any = options_.job->checkpoint.resume, of_its_own = options_.gang->epoch() > 0 && options_.run != 0;
  if (!of_any && !of_its_own) return std::unique_ptr<CheckpointReader>();
  std::vector<Status> passed_over;
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> newest,
                   OpenNewestCheckpoint(*options_.files, options_.job->checkpoint.folder, &passed_over, of_any ? 0 : options_.run));
  for (const Status& status : passed_over) options_.warn(fmt::format("passed over: {} ({})", status.what(), status.why()));
  return newest;
}

Status RankCheckpoints::Take(CheckpointReader& reader, StateStore* states) {
  for (const LogicalState& state : kept_) {
    const Slice slice = SliceOf(state.dims, state.sharding, graph_.mesh, options_.gang->rank());
    ASSIGN_OR_RETURN(Tensor tensor, reader.Take(state.name, state.dtype, state.dims, slice));
    states->Set(state.name, std::move(tensor));
  }
  if (const std::size_t held = reader.index().tensors.size(); held != kept_.size())
    return CheckpointMisfit(reader.path(), fmt::format("it holds {} states, and the job has {}", held, kept_.size()));
  newest_ = reader.about().step;
  return {};
}

// A loss that is a number can still have spoilt a parameter: then there is no checkpoint of it, and the one before is the good one.
Result<std::vector<StateSlice>> RankCheckpoints::Mine(const StateStore& states, std::int64_t steps) const {
  std::vector<StateSlice> slices;
  for (const WrittenSlice& written : writers_[static_cast<std::size_t>(options_.gang->rank())]) {
    const LogicalState& state = kept_[written.state];
    Tensor tensor = states.Get(state.name);
    if (tensor.bytes.empty()) continue;  // nothing was trained yet
    if (mlrunner::IsFloat(state.dtype) && !IsFinite(tensor))
      return NoNumber(*options_.job, steps - 1, fmt::format("state {} holds what is no number", state.name), "so it is not checkpointed");
    slices.push_back({state.name, state.dims, written.slice, std::move(tensor)});
  }
  return slices;
}

Status RankCheckpoints::Begin(const Checkpoint& about, const StateStore& states) {
  RETURN_IF_ERROR(Ended(Wait::kYes));
  const CheckpointSpec& spec = options_.job->checkpoint;
  if (saver_ == nullptr) saver_ = SaverFor(spec.folder, spec.keep, newest_);
  newest_ = about.step;
  if (!writes()) return {};
  auto mine = Mine(states, about.step);
  const bool can = mine.ok();
  if (!together_ && can && mine->empty()) return {};
  saver_->Begin(about, std::move(mine));
  return can ? Status() : Ended(Wait::kYes);
}

Status RankCheckpoints::SaveBest(const Checkpoint& about, const StateStore& states, std::int64_t before) {
  if (best_saver_ == nullptr) {
    const std::string folder = options_.job->checkpoint.folder + "/best";
    RETURN_IF_ERROR(MakeCheckpointFolder(*options_.files, folder));
    best_saver_ = SaverFor(folder, 1, before);
  }
  if (!writes()) return {};
  best_saver_->Begin(about, Mine(states, about.step));
  return best_saver_->Take().status();
}

Status RankCheckpoints::Ended(Wait wait) {
  if (saver_ == nullptr || !saver_->IsUnderWay() || (wait == Wait::kNo && !saver_->HasEnded())) return {};
  ASSIGN_OR_RETURN(const Saver::Outcome outcome, saver_->Take());
  if (options_.gang->rank() != 0) return {};
  const SavedCheckpoint& saved = outcome.saved;
  if (const std::size_t count = saved.aside.size(); count > 0) {
    const std::string newest = storage::QuotedPath(saved.aside[0]);
    options_.warn(
        count == 1 ? "a checkpoint that this training does not go on from was set aside as " + newest
                   : fmt::format("{} checkpoints that this training does not go on from were set aside, the newest as {}", count, newest));
  }
  if (!saved.left.ok()) options_.warn(fmt::format("{} ({})", saved.left.what(), saved.left.why()));
  options_.on_safe(outcome.step);
  return {};
}

}  // namespace ropewalk::mlrunner
