// What `ropewalk bench collective` is called with. Parsed before Init, so that a mistake is told at once and not by a cluster.
//
// Thread rule: values.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/measure/job.h"

namespace ropewalk::measure {

struct BenchArguments {
  bool help = false;
  BenchJob job;
  // The call with absolute paths, so that any process of the job makes the same BenchJob. Flags of Ropewalk itself stay in it.
  std::vector<std::string> argv;
};

// `args` are main's: flags of this command among flags of Ropewalk. `folder` is what relative paths start from. kInvalid BENCH21.
Result<BenchArguments> ParseBenchArguments(const std::vector<std::string>& args, const std::string& folder);

std::string BenchUsage();

}  // namespace ropewalk::measure
