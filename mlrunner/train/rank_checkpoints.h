// The checkpoints of one rank's training: which of its states go into them, which slices this rank writes, and the saves that are under
// way.
//
//   states ─ kept ─ divided over the ranks ─▶ slices of this rank ─ Saver (beside the steps) ─▶ FOLDER/step-..., FOLDER/best/step-...
//
// Owner: the trainer, once a forming; it waits for what is under way when it is destroyed. Thread rule: the step thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dag/gang.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/graph.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/checkpoint_parts.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "mlrunner/train/job.h"
#include "mlrunner/train/saver.h"
#include "mlrunner/train/slices.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

class RankCheckpoints {
 public:
  struct Options {
    storage::FileSystem* files = nullptr;
    dag::GangContext* gang = nullptr;
    const TrainJob* job = nullptr;  // it names a folder
    std::uint64_t run = 0;          // RunOf() of the job
    std::uint64_t spread_bytes = 0;
    std::function<void(const std::string&)> warn;    // a line for people
    std::function<void(std::int64_t step)> on_safe;  // rank 0: the checkpoint of that step is
  };
  // Of the states of `graph` with so many rows. All that is named outlives it.
  static Result<std::unique_ptr<RankCheckpoints>> Make(Options options, const Graph& graph, std::int64_t rows);

  // Before the first step: can checkpoints be made in the folder? All ranks call it. CKPT01.
  Status TryFolder();

  // Rank 0: the newest that this training may go on from; null: none, or the job begins anew. Damaged ones are warned of.
  Result<std::unique_ptr<CheckpointReader>> OpenNewest();
  // This rank's slices of all states. kUserError CKPT03: the checkpoint holds other states.
  Status Take(CheckpointReader& reader, StateStore* states);

  // Begins to save `states`, when what is under way has ended. A state that is no number is not checkpointed (TRAIN01). `about` has no
  // tensors and is the same on all ranks.
  Status Begin(const Checkpoint& about, const StateStore& states);
  // The same into FOLDER/best, where it takes the place of the best one of before (its step; -1: there is none), and waits for it.
  Status SaveBest(const Checkpoint& about, const StateStore& states, std::int64_t before);

  enum class Wait : std::uint8_t { kNo, kYes };
  // What became of the save that is under way, if it has ended.
  Status Ended(Wait wait);

  // The step of the newest checkpoint that this training stands on, or is writing; -1: none.
  std::int64_t newest() const { return newest_; }

 private:
  RankCheckpoints(Options options, const Graph& graph) : options_(std::move(options)), graph_(graph) {}
  std::unique_ptr<Saver> SaverFor(const std::string& folder, std::int64_t keep, std::int64_t stands_on);
  ExchangeBytes Exchanging();
  Result<std::vector<StateSlice>> Mine(const StateStore& states, std::int64_t steps) const;
  bool writes() const { return together_ || options_.gang->rank() == 0; }

  const Options options_;
  const Graph& graph_;
  std::vector<LogicalState> kept_;
  std::vector<std::vector<WrittenSlice>> writers_;  // by rank: what it writes of them
  bool together_ = false;                           // other ranks than 0 write too
  std::int64_t newest_ = -1;
  std::unique_ptr<Saver> saver_, best_saver_;  // made for the first save
};

}  // namespace ropewalk::mlrunner
