// Reads any slice of any tensor of a checkpoint, whichever ranks have written it and however it was cut.
//
//   saved by 4 ranks  │ 0 │ 1 │ 2 │ 3 │         a slice that is asked for is put together from the pieces that it meets; each of them is
//   read by 3         │  0 │  1 │  2  │         read whole, for its checksum
//
// Owner: the caller, also of the file system, which has to live as long. Thread rule: one reader, one thread; pure but for the file system.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/checkpoint_index.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

class CheckpointReader {
 public:
  // Reads the checkpoint's own file. kDataLoss CKPT02: damaged, no checkpoint, or its slices leave a gap or have something twice.
  // kVersionSkew CKPT05: one of another version of Ropewalk.
  static Result<std::unique_ptr<CheckpointReader>> Open(storage::FileSystem& files, const std::string& path);

  const std::string& path() const { return path_; }
  const Checkpoint& about() const { return about_; }  // without its tensors
  const CheckpointIndex& index() const { return index_; }

  // A slice of the state `name`. kUserError CKPT03: the checkpoint has no such state, or one of another type or logical shape. kDataLoss
  // CKPT02: what has to be read is damaged or missing.
  Result<Tensor> Read(const std::string& name, Dtype dtype, const Dims& logical, const Slice& slice) const;

  // As Read, and for once: a state that lies whole in the checkpoint's own file is handed over, not copied, so that it is in memory once.
  // Asked for again it is kInternal CKPT03.
  Result<Tensor> Take(const std::string& name, Dtype dtype, const Dims& logical, const Slice& slice);

  // All of it.
  Result<Checkpoint> ReadAll() const;
  // Reads all that lies in other files, and throws it away: kDataLoss CKPT02 where Read would say so. It holds little of it at a time: how
  // long pieces are is so far only what the index says.
  Status Verify() const;

 private:
  // What is stored of it; CKPT03 where that is no such state.
  Result<const StoredTensor*> Find(const std::string& name, Dtype dtype, const Dims& logical) const;
  Status WasTaken(const std::string& name) const;
  CheckpointReader(storage::FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  // The bytes of a piece that lies in another file, and whether they are those that were written. Where `into` has less room it is filled
  // again and again.
  Status ReadPiece(const std::string& name, const StoredPiece& piece, std::uint64_t bytes, std::span<std::byte> into) const;

  storage::FileSystem& files_;
  std::string path_;
  Checkpoint about_;
  CheckpointIndex index_;
  std::map<std::string, Tensor> own_;  // what lies in the checkpoint's own file
};

// CKPT03: the checkpoint at `path` is of something else than what is trained.
Status CheckpointMisfit(const std::string& path, const std::string& why);

// The newest of which everything is whole; null where there is none. As LoadNewestCheckpoint, without keeping the tensors.
Result<std::unique_ptr<CheckpointReader>> OpenNewestCheckpoint(storage::FileSystem& files, const std::string& folder,
                                                               std::vector<Status>* passed_over, std::uint64_t run = 0);

}  // namespace ropewalk::mlrunner
