// How a job's process tells its end: the three-part error, or the same fields in JSON.
//
// Thread rule: pure, but for PrintError.
#pragma once

#include <string>

#include "base/status.h"
#include "job/options.h"

namespace ropewalk::job {

// {"error":{"code":"user_error","tag":"IO03","what":...,"why":...,"fix":...}} in one line.
std::string ErrorJson(const Status& status);
// To stderr, with a newline.
// What to say when the job's own output did not get out (`error`: errno of the write).
Status CannotPrint(int error);
void PrintError(const Status& status, OutputForm form);

// What a follower says of a worker that was lost with the work of `tasks` tasks, and of a master that does not answer.
std::string LossText(const std::string& worker, std::uint32_t tasks);
std::string WaitingText(const std::string& master, int patience_ms);

}  // namespace ropewalk::job
