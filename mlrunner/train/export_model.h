// What was trained, for others: as an ONNX file (onnx/export.h), or its parameters and statistics as a safetensors file.
//
// Thread rule: pure but for the file system.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "mlrunner/data/samples.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/train/job.h"
#include "storage/file_system.h"

namespace ropewalk::mlrunner {

// Whether a name says one of the forms: it ends in .onnx or .safetensors.
bool ExportsTo(std::string_view path);

// Before hours of steps are made for it: whether the job's model has a form in such a file, and whether job.export_to can be made. TRAIN09:
// it cannot be written; ONNX09: an op that ONNX has not.
Status CanExport(storage::FileSystem& files, const TrainJob& job, const Samples& samples);

// Writes job.export_to beside itself and renames it. `states`, by name, hold the parameters and statistics, which are written as the model
// has them, whatever the job computes with. TRAIN09, ONNX*, TENS*.
Status ExportTrained(storage::FileSystem& files, const TrainJob& job, const Samples& samples, const StateStore& states);

}  // namespace ropewalk::mlrunner
