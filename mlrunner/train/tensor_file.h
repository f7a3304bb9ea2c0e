// Files of named tensors in the safetensors format (tensors/safetensors.h), in whose metadata one of the texts is ours: a checksum of
// everything. Those of other programs have none, and are no checkpoints.
//
// Thread rule: pure but for the file system.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "mlrunner/executor/executor.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> tensors;
};

// Writes and syncs, and gives a hash of the header, by which others can tell that they read this one. CKPT01 with the reason; a part of the
// file may be there then.
Result<std::uint64_t> WriteTensorFile(storage::FileSystem& files, const std::string& path,
                                      const std::map<std::string, std::string>& metadata, const std::map<std::string, Tensor>& tensors);

// The length and the header, without the tensors. Nothing but its form is checked.
struct TensorFileHeader {
  std::map<std::string, std::string> metadata;
  std::uint64_t hash = 0;         // as WriteTensorFile gave it
  std::uint64_t data_begins = 0;  // where the tensors' bytes begin in the file
};
Result<TensorFileHeader> ReadTensorFileHeader(storage::FileSystem& files, const std::string& path);

// kDataLoss CKPT02: it is damaged, or another program's. Otherwise what the file system says, as CKPT02.
Result<TensorFile> ReadTensorFile(storage::FileSystem& files, const std::string& path);

// A failed operation on `path`: "cannot WHAT the checkpoint PATH". OK for 0.
Status TensorFileError(int error, const std::string& path, const char* what);
Status DamagedTensorFile(const std::string& path, const std::string& why);

}  // namespace ropewalk::mlrunner
