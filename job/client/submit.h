// The submitting process: sends itself to the master, follows the job, and ends as the job ended.
//
// Thread rule: called once, from main's thread.
#pragma once

#include <string>
#include <vector>

#include "dag/settings.h"
#include "job/options.h"

namespace ropewalk::job {

struct SubmitRequest {
  JobOptions options;
  dag::Settings settings;                // slots, seed, now_us are 0: the master's to fill in
  std::vector<std::string> argv;         // without our flags
  std::vector<std::string> environment;  // "NAME=value", allow-listed
  std::uint32_t cpu_level = 1;           // N of x86-64-vN that the program was built for
};

// Returns the exit code of docs/cli.md. Everything that people should read went to stderr, the driver's output to stdout and stderr, and
// with
// --detach the job's id, and nothing else, to stdout.
int SubmitAndFollow(const SubmitRequest& request);

}  // namespace ropewalk::job
