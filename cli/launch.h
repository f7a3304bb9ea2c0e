// `run`, `submit`, `train` and `bench collective`: all only start a job's executable with the right environment; Init() in job/ does the
// rest. The command itself is replaced by the job (exec), so exit codes, signals and output are the job's own.
//
// Thread rule: once, from main's thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "cli/invocation.h"

namespace ropewalk::cli {

struct Launch {
  std::string path;  // of the executable
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;  // an empty value: taken out
};

bool StartsJob(const std::string& verb);
// That has its built-in jobs: "ropewalk-jobs", "ropewalk-train", "ropewalk-bench".
std::string ProgramOf(const std::string& verb);

// Pure but for looking which files exist. `jobs_binary`: the path of ProgramOf(verb). kInvalid CLI02: no job, a flag that does not
// fit. kNotFound CLI03: no such job or file. kInvalid CLI04: a file that cannot be executed.
Result<Launch> PlanLaunch(const Invocation& invocation, const Config& config, const std::string& jobs_binary);

// Beside our own executable, or in ../libexec/ropewalk. kNotFound CLI05.
Result<std::string> FindJobsBinary(const std::string& name);

// Returns only when it fails.
Status Exec(const Launch& launch);

}  // namespace ropewalk::cli
