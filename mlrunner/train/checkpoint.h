// Checkpoints: the states of a model by name and logical slice, and where in the data the training stood. They load at any number of ranks,
// and a training that goes on from one at the same number of ranks gives the same bits as one that never stopped.
//
// A checkpoint is a file (tensor_file.h), FOLDER/step-000000000120.safetensors, in a format that other tools read too. What one rank writes
// alone is all in it. Where several ranks write, each has a part file of its own (checkpoint_parts.h), and this one says which slice lies
// where (checkpoint_index.h). It is complete or not there: when all parts are safe it is written under a hidden name that no other writer
// has, synced, renamed, and the folder is synced.
//
//   step 100 ── 200 ── 300 ── 400     a training goes on from 200 (300 is damaged) or begins anew beside them (resume = false):
//                └▶ 250               its first save sets aside what it does not stand on (300, 400; all of them), and then keeps the
//                                     newest `keep` of what it stands on
//
// Thread rule: pure but for the file system. One training a folder; a rank 0 that was replaced may still be writing there.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/executor/executor.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

struct Checkpoint {
  std::int64_t step = 0;  // steps that were made
  SamplePosition position;
  std::uint64_t seed = 0;
  std::map<std::string, Tensor> tensors;  // whole
  // Not known (0, or no number) where an older version wrote it.
  std::uint64_t vocabulary = 0;                            // Samples::vocabulary_hash()
  std::uint64_t data = 0;                                  // Samples::content_hash() of what was learnt from
  std::int64_t samples = 0;                                // of an epoch
  std::uint64_t run = 0;                                   // CheckpointWriter::run
  double loss = std::numeric_limits<double>::quiet_NaN();  // of the last step
  std::int64_t best_step = -1;                             // after which the held-out loss was smallest so far; -1: nothing was evaluated
  double best_loss = std::numeric_limits<double>::quiet_NaN();  // then
  // Of the last of these steps, kKeptLossesMax at most; empty where the training keeps none (TrainHooks::losses).
  std::vector<double> losses;
};

inline constexpr std::size_t kKeptLossesMax = 64 * 1024;

struct CheckpointWriter {
  std::uint64_t run = 0;      // which training: the same in all formings of its gang, and no other's; 0: not known
  std::uint32_t forming = 0;  // of its gang: a later one has a larger number
  std::int32_t rank = 0;      // in it
};

// A file of slices that one rank has written, in the folder of the checkpoint that will name it.
struct CheckpointPart {
  std::string file;               // its name; empty: that rank had none to write
  std::uint64_t header_hash = 0;  // of what it says about itself
};

struct SaveOptions {
  std::int64_t keep = 1;
  std::int64_t stands_on = -1;  // the step of the last checkpoint that this training wrote, else of that which it began at; -1: of none
  std::uint32_t forming = 0;    // CheckpointWriter's
  std::vector<CheckpointPart> parts;  // what lies outside of the checkpoint's own file, and is part of it
};

struct SavedCheckpoint {
  std::vector<std::string> aside;  // where those lie now that were set aside, the newest first
  Status left;                     // CKPT01: one could not be
};

// Makes the folder if it is missing. The new one stays, and with it the newest of those that the training stands on, `keep` together; older
// ones are removed, only after this one is safe, and so is what killed saves left behind: earlier ones of this training, and any that
// nobody has written to for an hour. Those that the training does not stand on, of steps above `stands_on`, were passed over or disowned:
// they are renamed to aside-RUN-step-..., no longer looked for and never removed (a damaged one of the same step is replaced). Parts stay
// as long as a checkpoint that lies here names them, also one that was set aside, or to which somebody gave another name.
// An error means that it is not safe (CKPT01, with the reason; also where tensors and parts together leave a gap in a state or have
// something twice), and those that the training stands on are still there.
Result<SavedCheckpoint> SaveCheckpoint(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint,
                                       const SaveOptions& options);

// Makes the folder if it is missing, with those above it (CKPT01).
Status MakeCheckpointFolder(storage::FileSystem& files, const std::string& folder);
// An empty file in it, to see whether checkpoints can be made there (CKPT01). The caller removes it.
Status WriteTrial(storage::FileSystem& files, const std::string& folder, const std::string& path);

// Makes the folder if it is missing, and tries whether a file can be made there: better before a training than after it (CKPT01).
Status TryCheckpointFolder(storage::FileSystem& files, const std::string& folder, const CheckpointWriter& writer);

// With all of its tensors; checkpoint_reader.h reads slices of them. kDataLoss CKPT02: damaged, or no checkpoint. kVersionSkew CKPT05: one
// of another version of Ropewalk.
Result<Checkpoint> LoadCheckpoint(storage::FileSystem& files, const std::string& path);

// Where the checkpoint of `step` lies.
std::string CheckpointPath(const std::string& folder, std::int64_t step);

// Paths, the newest first. A folder that is missing holds none.
Result<std::vector<std::string>> ListCheckpoints(storage::FileSystem& files, const std::string& folder);

// The newest that is whole; step -1 where there is none. Damaged ones are passed over, each with its reason in `passed_over`. `run` other
// than 0: of that run only; those of other runs and of other versions play no part.
Result<Checkpoint> LoadNewestCheckpoint(storage::FileSystem& files, const std::string& folder, std::vector<Status>* passed_over,
                                        std::uint64_t run = 0);

}  // namespace ropewalk::mlrunner
