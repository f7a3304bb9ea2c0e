#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>

#include "job/init_with.h"
#include "job/options.h"
#include "job/report.h"
#include "mlrunner/launch/torch.h"

namespace ropewalk::launch {
namespace {

// Told before anything is started or sent.
Result<TorchArguments> Parse(const std::vector<std::string>& args) {
  RETURN_IF_ERROR(job::CheckOptions(args));
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof folder) == nullptr)
    return Status(Code::kUserError, "LAUNCH02", "train torch: the working folder cannot be read", "it is gone, or its path is too long",
                  "start it elsewhere");
  return ParseTorchArguments(args, folder);
}

}  // namespace

int TorchMain(const std::vector<std::string>& args) {
  Result<TorchArguments> arguments = Parse(args);
  if (!arguments.ok()) {
    job::PrintError(arguments.status(), job::FormOfErrors());
    return ExitCode(arguments.status().code());
  }
  if (arguments->help) {
    std::fputs(TorchUsage().c_str(), stdout);
    return 0;
  }
  const TorchJob& torch = arguments->job;
  setenv("ROPEWALK_NAME", "torch", 0);
  Job job = job::InitWith(arguments->argv);
  const std::string run = std::to_string(job.settings().job.value);
  Result<std::string> result = RunGang(job, "torch", static_cast<std::uint32_t>(torch.ranks),
                                       [torch, run](GangContext& gang) { return RunTorchRank(gang, torch, run); },
                                       {.attempts_max = torch.restarts_max + 1,
                                        .ranks_min = static_cast<std::uint32_t>(torch.ranks_min),
                                        .shrink_after_ms = static_cast<std::uint64_t>(torch.shrink_after) * 1000});
  if (!result.ok()) job.context().Fail(result.status());
  return 0;
}

}  // namespace ropewalk::launch
