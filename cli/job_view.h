// Jobs and workers as people and programs see them.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "job/options.h"

namespace ropewalk::wire {  // proto/client.pb.h, for .cc files only
class JobList;
class JobState;
class WorkerList;
}  // namespace ropewalk::wire

namespace ropewalk::cli {

// All take the present as microseconds since 1970, for the age of what still runs.
std::string ShowJobs(const wire::JobList& jobs, job::OutputForm form, std::int64_t now_us);
std::string ShowJob(const wire::JobState& job, job::OutputForm form, std::int64_t now_us);
std::string ShowWorkers(const wire::WorkerList& workers, job::OutputForm form);
std::string ShowPlan(const wire::JobState& job, job::OutputForm form);

bool IsOver(const wire::JobState& job);
// How the job ended, as the Status that its own submitting process would have printed; OK when it succeeded.
Status EndOf(const wire::JobState& job);

}  // namespace ropewalk::cli
