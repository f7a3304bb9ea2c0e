#include "job/report.h"

#include <cstdio>
#include <cstring>

#include "base/escape.h"

namespace ropewalk::job {

std::string ErrorJson(const Status& status) {
  return "{\"error\":{\"code\":" + JsonString(CodeName(status.code())) + ",\"tag\":" + JsonString(status.tag()) +
         ",\"what\":" + JsonString(status.what()) + ",\"why\":" + JsonString(status.why()) + ",\"fix\":" + JsonString(status.fix()) + "}}";
}

Status CannotPrint(int error) {
  return {Code::kUserError, "JOB07", "the job's standard output could not be written", std::strerror(error),
          "free space where it goes; what the job wrote to files is complete"};
}

std::string LossText(const std::string& worker, std::uint32_t tasks) {
  std::string text = EscapeForLog(worker, 64) + " was lost";
  if (tasks > 0)
    text += ", and with it the work of " + std::to_string(tasks) + (tasks == 1 ? " task" : " tasks") + ": run again where needed";
  return text;
}

std::string WaitingText(const std::string& master, int patience_ms) {
  return "the master at " + EscapeForLog(master, 64) + " does not answer; trying again for " + std::to_string(patience_ms / 1000) + " s\n";
}

void PrintError(const Status& status, OutputForm form) {
  std::fprintf(stderr, "%s\n", (form == OutputForm::kTable ? status.ToString() : ErrorJson(status)).c_str());
  std::fflush(stderr);
}

}  // namespace ropewalk::job
