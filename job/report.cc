#include "job/report.h"

#include <cstdio>
#include <cstring>

#include "base/escape.h"

namespace ropewalk::job {

Status Completed(const Status& status) {
  struct Parts {
    const char *why, *fix;
  };
  const Parts parts = [&]() -> Parts {
    switch (status.code()) {
      case Code::kInternal:
        return {"Ropewalk is at fault", "run it again, and please report this message"};
      case Code::kStale:
        return {"what it belongs to has been replaced", "run it again"};
      case Code::kDataLoss:
        return {"bytes are missing or damaged", "run it again"};
      case Code::kUnavailable:
        return {"the other side is gone or does not answer", "try again; is it running?"};
      case Code::kCancelled:
        return {"somebody asked for it", "run it again if it is still wanted"};
      default:
        return {"no more is known",
                "look into the job's logs"};  // only an error from elsewhere (tests/style/errors.py): of an older master
    }
  }();
  if (status.ok() || (!status.why().empty() && !status.fix().empty())) return status;
  return Status(status.code(), status.tag(), status.what(), status.why().empty() ? parts.why : status.why(),
                status.fix().empty() ? parts.fix : status.fix());
}

std::string ErrorJson(const Status& incomplete) {
  const Status status = Completed(incomplete);
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

std::string EndText(const std::string& job, std::int64_t submitted_us, std::int64_t finished_us) {
  if (submitted_us == 0 || finished_us < submitted_us) return "job " + job + " succeeded";
  char text[64];
  std::snprintf(text, sizeof text, " succeeded in %.2f s", static_cast<double>(finished_us - submitted_us) / 1e6);
  return "job " + job + text;
}

std::string WaitingText(const std::string& master, int patience_ms) {
  return "the master at " + EscapeForLog(master, 64) + " does not answer; trying again for " + std::to_string(patience_ms / 1000) + " s\n";
}

void PrintError(const Status& status, OutputForm form) {
  std::fprintf(stderr, "%s\n", (form == OutputForm::kTable ? Completed(status).ToString() : ErrorJson(status)).c_str());
  std::fflush(stderr);
}

}  // namespace ropewalk::job
