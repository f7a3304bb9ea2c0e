#include "job/once.h"

#include "base/escape.h"
#include "worker/task/exception.h"

namespace ropewalk::job {

Result<std::string> ComputeOnceValue(const std::string& name, const std::function<Result<std::string>()>& compute) {
  auto failed = [&](const std::string& message) {
    return Status(Code::kUserError, "USER02", "Once(\"" + EscapeForLog(name, 200) + "\") threw " + message,
                  "the job's own code failed in main",
                  "mend it; a job that can do without the value catches the exception inside the function");
  };
  try {
    return compute();
  } catch (...) {
    return failed(task::DescribeCurrentException());
  }
}

}  // namespace ropewalk::job
