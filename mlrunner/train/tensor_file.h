// Files of named tensors in the safetensors format: the length of a header, the header (JSON: type, shape and place of each tensor, and
// "__metadata__": texts by name), the tensors' bytes side by side. One of the texts is ours: a checksum of everything.
//
// Thread rule: pure but for the file system.
#pragma once

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

// Writes and syncs. CKPT01 with the reason; a part of the file may be there then.
Status WriteTensorFile(storage::FileSystem& files, const std::string& path, const std::map<std::string, std::string>& metadata,
                       const std::map<std::string, Tensor>& tensors);

// kDataLoss CKPT02: it is damaged, or another program's. Otherwise what the file system says, as CKPT02.
Result<TensorFile> ReadTensorFile(storage::FileSystem& files, const std::string& path);

// A failed operation on `path`: "cannot WHAT the checkpoint PATH". OK for 0.
Status TensorFileError(int error, const std::string& path, const char* what);
Status DamagedTensorFile(const std::string& path, const std::string& why);

}  // namespace ropewalk::mlrunner
