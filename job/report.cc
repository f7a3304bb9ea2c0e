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

void PrintError(const Status& status, OutputForm form) {
  std::fprintf(stderr, "%s\n", (form == OutputForm::kTable ? status.ToString() : ErrorJson(status)).c_str());
  std::fflush(stderr);
}

}  // namespace ropewalk::job
