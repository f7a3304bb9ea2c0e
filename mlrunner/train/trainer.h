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
#include "dag/settings.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/train/job.h"
#include "mlrunner/train/summary.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

// What a caller looks at and puts in other places.
struct TrainHooks {
  std::function<Result<DataSet>()> load;                        // instead of what the job's [data] names; held_out may be null
  std::function<void(std::int64_t step, double loss)> on_step;  // after each, on the rank's thread
  // Rank 0: gets the loss of each step; of a training that goes on from a checkpoint first those of the steps before it, as far as it has
  // them (Checkpoint::losses). Null: checkpoints hold none.
  std::vector<double>* losses = nullptr;
  // Rank 0, before the first step: the checkpoint at `path`, of so many steps, is gone on from.
  std::function<void(std::int64_t step, const std::string& path)> on_resumed;
  std::function<void(const std::string& name, Tensor)> on_parameter;  // rank 0: each one, when all steps are made
  // Of 8 bytes: what the caller can hold of all parameters and the losses of all steps; 0: any.
  std::int64_t result_words_max = 0;
  std::vector<OpTime>* times = nullptr;       // of the last step; their ops are gone when TrainRank returns
  std::function<void(KernelTable*)> kernels;  // puts others in the places of the trainer's
  storage::FileSystem* files = nullptr;       // for checkpoints; null: this machine's
  // A checkpoint of so many bytes and more is written by all ranks, each its part of the states; a smaller one by rank 0 into one file.
  std::uint64_t spread_bytes = std::uint64_t{64} << 20;
  // RunOf() of the job. 0: not known; with checkpoint.resume = false each forming of the gang begins anew then.
  std::uint64_t run = 0;
  // Null: Communicator::Connect.
  std::function<Result<std::unique_ptr<collective::Communicator>>(dag::GangContext&, const collective::CommunicatorOptions&)> connect;
};

// Which training it is: the same in all replicas of main and all formings of the gang, and no other job's. `number` tells the trainings of
// one job apart.
std::uint64_t RunOf(const dag::Settings& settings, std::uint64_t number = 0);

// Rank 0's TrainSummary, encoded; empty on the others. kUserError TRAIN01: the loss of a step is no number, or a parameter behind the last
// one or a state that is to be checkpointed is none (names the step and the state). TRAIN02: ranks that do not train the same thing.
// TRAIN06: more parameters than the caller can hold, before the first step. CKPT03: a checkpoint that does not fit the job. CKPT04: a rank
// that cannot read rank 0's checkpoint, with the code of what it met. CKPT05: one of another version. DATA*: what is wrong with the data.
Result<std::string> TrainRank(dag::GangContext& gang, const TrainJob& job, const TrainHooks& hooks = {});

}  // namespace ropewalk::mlrunner
