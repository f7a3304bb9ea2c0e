// How a job's process tells its end: the three-part error, or the same fields in JSON.
//
// Thread rule: pure, but for PrintError.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "job/options.h"

namespace ropewalk::job {

// A copy of which no part is empty: what of why and fix the error does not say itself is what its code says (base/status.h).
Status Completed(const Status& status);

// {"error":{"code":"user_error","tag":"IO03","what":...,"why":...,"fix":...}} in one line.
std::string ErrorJson(const Status& status);
// To stderr, with a newline.
// What to say when the job's own output did not get out (`error`: errno of the write).
Status CannotPrint(int error);
void PrintError(const Status& status, OutputForm form);

// What a follower says of a worker that was lost with the work of `tasks` tasks, and of a master that does not answer.
std::string LossText(const std::string& worker, std::uint32_t tasks);
// The last line of a job that went well: "job j-713 succeeded in 2.31 s".
std::string EndText(const std::string& job, std::int64_t submitted_us, std::int64_t finished_us);
std::string WaitingText(const std::string& master, int patience_ms);

}  // namespace ropewalk::job
