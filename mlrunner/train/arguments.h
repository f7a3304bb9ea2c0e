// What `ropewalk train` is called with. Parsed before Init, so that a mistake is told at once and not by a cluster.
//
// Thread rule: values.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

struct TrainArguments {
  bool help = false;
  TrainJob job;
  // The call without the job's file and with absolute paths: with it an executor, which has neither the file nor the folder, makes the same
  // job. Flags of Ropewalk itself stay in it.
  std::vector<std::string> argv;
};

// `args` are main's. [JOB.toml] [MODEL.onnx] [--data PATH|KIND] [--export FILE] [--ranks N] [--set section.key=value]..., among flags of
// Ropewalk. A model is model.kind and model.path, over what the file says. `folder` is what relative paths start
// from. kInvalid TRAIN03 for the call, SPEC* for the job (base/config.h).
Result<TrainArguments> ParseTrainArguments(const std::vector<std::string>& args, const std::string& folder);

std::string TrainUsage();

}  // namespace ropewalk::mlrunner
