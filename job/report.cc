#include "job/report.h"

#include <cstdio>

#include "base/escape.h"

namespace ropewalk::job {

std::string ErrorJson(const Status& status) {
  return "{\"error\":{\"code\":" + JsonString(CodeName(status.code())) + ",\"tag\":" + JsonString(status.tag()) +
         ",\"what\":" + JsonString(status.what()) + ",\"why\":" + JsonString(status.why()) + ",\"fix\":" + JsonString(status.fix()) + "}}";
}

void PrintError(const Status& status, OutputForm form) {
  std::fprintf(stderr, "%s\n", (form == OutputForm::kTable ? status.ToString() : ErrorJson(status)).c_str());
  std::fflush(stderr);
}

}  // namespace ropewalk::job
