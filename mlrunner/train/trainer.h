// What each rank of a training job does: data parallel, the same model on every rank, a part of each global batch. Gradients are summed in
// buckets while backward goes on; each rank then makes the same update of its own copy.
//
//   data ─ sampler ─ global batch ─ share ─▶ forward ─▶ backward ──▶ update ─▶ next step
//                                              bucket 0 ══ sum ══▶┘
//                                                bucket 1 ══ sum ══▶┘
//
// Thread rule: TrainRank runs on the thread that calls it (and the kernels' OpenMP team); any number of ranks may be threads of one
// process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dag/gang.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/train/job.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

struct TrainSummary {
  std::int64_t steps = 0;          // of the whole training, those before a resumption included
  std::int64_t resumed_from = -1;  // the step of the checkpoint that it went on from; -1: it began anew
  double loss = 0;                 // of the last step; not a number where none was made
  double seconds = 0;              // of this run's steps
  double samples_per_s = 0;
  double held_out_loss = 0;  // the mean over all labels
  std::int64_t held_out_hits = 0, held_out_labels = 0;
  bool labels_are_characters = false;
};
std::string Encode(const TrainSummary& summary);
Result<TrainSummary> DecodeTrainSummary(const std::string& bytes);

// What tests look at and put in other places.
struct TrainHooks {
  std::function<void(std::int64_t step, double loss)> on_step;  // after each, on the rank's thread
  std::vector<OpTime>* times = nullptr;                         // of the last step; their ops are gone when TrainRank returns
  storage::FileSystem* files = nullptr;                         // for checkpoints; null: this machine's
  // Null: Communicator::Connect.
  std::function<Result<std::unique_ptr<collective::Communicator>>(dag::GangContext&, const collective::CommunicatorOptions&)> connect;
};

// Rank 0's TrainSummary, encoded; empty on the others. kUserError TRAIN01: the loss of a step is no number, or a state that is to be
// checkpointed is none (names the step and the state). TRAIN02: ranks that do not train the same thing. CKPT03: a checkpoint that does not
// fit the job. CKPT04: a rank that does not see rank 0's checkpoint. DATA*: what is wrong with the data.
Result<std::string> TrainRank(dag::GangContext& gang, const TrainJob& job, const TrainHooks& hooks = {});

}  // namespace ropewalk::mlrunner
