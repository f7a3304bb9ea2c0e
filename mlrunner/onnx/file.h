// ONNX files on disk, with the data that lies in files beside them.
//
// Thread rule: pure but for the file system.
#pragma once

#include <string>

#include "base/status.h"
#include "mlrunner/onnx/model.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner::onnx {

// ONNX01: it cannot be read, is cut off, or is none; ONNX02: an opset that is not supported; ONNX04: data in another file that is missing,
// too short, or lies outside of the model's folder; ONNX07: a tensor whose type, shape or bytes do not fit.
Result<ModelDef> ReadModel(storage::FileSystem& files, const std::string& path);

// Written beside `path`, synced and renamed. ONNX01; ONNX09: larger than the 2 GiB that a file of this format can be.
Status WriteModel(storage::FileSystem& files, const std::string& path, const ModelDef& model);

}  // namespace ropewalk::mlrunner::onnx
