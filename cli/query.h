// The verbs that ask a master: job list|show|cancel|wait, logs, worker list, explain.
//
// Thread rule: once, from main's thread.
#pragma once

#include "base/config.h"
#include "base/status.h"
#include "cli/invocation.h"

namespace ropewalk::cli {

// Prints to stdout and returns the exit code: 0, or with `job wait` the job's own. A failure of the question itself is the Status.
Result<int> RunQuery(const Invocation& invocation, const Config& config);

}  // namespace ropewalk::cli
