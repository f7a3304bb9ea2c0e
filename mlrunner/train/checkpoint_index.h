// What a checkpoint holds and where: each tensor by its logical slices, and for each of these the file and the place in it. It stands as
// JSON in the metadata of the checkpoint's own file ("slices"), which is written last.
//
//   w (6, 4) f32 ── [0:3, 0:4] ── file 0 at 96, checksum
//                └─ [3:6, 0:4] ── file 1 at 0, checksum
//
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/train/slices.h"

namespace ropewalk::mlrunner {

// What the metadata of a checkpoint's own file say as "format". Versions to come keep the first part and the checksum of the file, so that
// they are told from what is damaged.
inline constexpr std::string_view kCheckpointForms = "ropewalk-checkpoint-";
inline constexpr std::string_view kWholeForm = "ropewalk-checkpoint-1";   // all tensors are in that file, whole
inline constexpr std::string_view kSlicedForm = "ropewalk-checkpoint-2";  // there are others, and an index

struct StoredPiece {
  static constexpr std::int32_t kSameFile = -1;  // the one that has the index
  Slice slice;
  std::int32_t file = kSameFile;  // in CheckpointIndex::files
  std::uint64_t at = 0;           // in bytes, behind that file's header
  std::uint64_t checksum = 0;     // Checksum64 of its bytes
  friend bool operator==(const StoredPiece&, const StoredPiece&) = default;
};

struct StoredTensor {
  Dtype dtype = Dtype::kF32;
  Dims dims;
  std::vector<StoredPiece> pieces;
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

// In one piece, in the file that has the index.
StoredTensor InOnePiece(Dtype dtype, const Dims& dims);

struct StoredFile {
  std::string name;               // in the same folder
  std::uint64_t data_begins = 0;  // behind its header
  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

struct CheckpointIndex {
  std::vector<StoredFile> files;
  std::map<std::string, StoredTensor> tensors;
  friend bool operator==(const CheckpointIndex&, const CheckpointIndex&) = default;
};

std::string Encode(const CheckpointIndex& index);
// kDataLoss CKPT02: it is none, or has a piece that does not lie in its tensor. `path` is where it stands.
Result<CheckpointIndex> ParseCheckpointIndex(const std::string& text, const std::string& path);

// Adds what `part`, the index of one file without others, says of the file `name`. Why that cannot be; empty: it is done.
std::string AddPart(const CheckpointIndex& part, StoredFile file, CheckpointIndex* index);

// Why the pieces do not make up their tensors: each element has to lie in exactly one. Empty: they do.
std::string WhyNotWhole(const CheckpointIndex& index);

}  // namespace ropewalk::mlrunner
