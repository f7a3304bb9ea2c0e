// Checkpoints: the states of a model by name, whole logical tensors, and where in the data the training stood. They load at any number of
// ranks, and a training that goes on from one at the same number of ranks gives the same bits as one that never stopped.
//
// A checkpoint is one file (tensor_file.h), FOLDER/step-000000000120.safetensors, in a format that other tools read too. It is complete
// or not there: it is written under a hidden name, synced, renamed, and the folder is synced.
//
// Thread rule: one writer a folder.
#pragma once

#include <cstdint>
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
  std::map<std::string, Tensor> tensors;
  std::uint64_t vocabulary = 0;  // Samples::vocabulary_hash(); 0 also where an older version wrote it
};

// Makes the folder if it is missing. Older checkpoints than the newest `keep` are removed, only after this one is safe; so is what a killed
// save left behind. An error means that it was not written (CKPT01, with the reason), and the older ones are still there.
Status SaveCheckpoint(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint, std::int64_t keep);

// Makes the folder if it is missing, and tries whether a file can be made there: better before a training than after it (CKPT01).
Status TryCheckpointFolder(storage::FileSystem& files, const std::string& folder);

// kDataLoss CKPT02: damaged, or no checkpoint.
Result<Checkpoint> LoadCheckpoint(storage::FileSystem& files, const std::string& path);

// Where the checkpoint of `step` lies.
std::string CheckpointPath(const std::string& folder, std::int64_t step);

// Paths, the newest first. A folder that is missing holds none.
Result<std::vector<std::string>> ListCheckpoints(storage::FileSystem& files, const std::string& folder);

// The newest that is whole; step -1 where there is none. Damaged ones are passed over, each with its reason in `passed_over`.
Result<Checkpoint> LoadNewestCheckpoint(storage::FileSystem& files, const std::string& folder, std::vector<Status>* passed_over);

}  // namespace ropewalk::mlrunner
