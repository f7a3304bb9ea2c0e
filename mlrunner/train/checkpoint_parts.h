// Checkpoints that several ranks write together: each writes the slices that are its to write (WritersOf) into a file of its own, and when
// all of them are safe rank 0 commits the checkpoint that names them.
//
//   rank 0 ── part ──┐                                 what dies before the rename leaves parts that nothing names: the next save of
//   rank 1 ── part ──┼─ exchange ─▶ rank 0: step-...   the training removes them
//   rank 2 ── part ──┘
//
// Thread rule: pure but for the file system and `exchange`, which is called on the caller's thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/slices.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

struct StateSlice {
  std::string name;
  Dims logical;
  Slice slice;
  Tensor tensor;  // of the slice's lengths
};

// Gives every rank the bytes of all, by rank (GangContext::Exchange).
using ExchangeBytes = std::function<Result<std::vector<std::string>>(std::string mine)>;

// Writes, syncs, and syncs the folder: a file that no checkpoint names yet, beside any that are there. No slices: no file. CKPT01 with the
// reason; nothing is left then.
Result<CheckpointPart> WriteCheckpointPart(storage::FileSystem& files, const std::string& folder, std::int64_t step,
                                           const CheckpointWriter& writer, std::vector<StateSlice> slices);

// All ranks call it, each with the slices that it writes, or the reason why it cannot: then nothing is saved, and all ranks return that.
// `about` is the same on all ranks, and its tensors are empty. Rank 0 saves as SaveCheckpoint does (options.parts is made here); what is
// given back on the others is empty, and does not wait for that.
Result<SavedCheckpoint> SaveTogether(storage::FileSystem& files, const std::string& folder, const Checkpoint& about,
                                     Result<std::vector<StateSlice>> mine, std::int32_t rank, const SaveOptions& options,
                                     const ExchangeBytes& exchange);

// TryCheckpointFolder for all ranks, which all call it: can each make a file there, and do all see the files of all?
Status TryFolderTogether(storage::FileSystem& files, const std::string& folder, const CheckpointWriter& writer,
                         const ExchangeBytes& exchange);

}  // namespace ropewalk::mlrunner
