#include "cli/command.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "base/escape.h"
#include "base/standard_descriptors.h"
#include "cli/invocation.h"
#include "cli/launch.h"
#include "cli/print.h"
#include "cli/query.h"
#include "cli/settings.h"
#include "cli/start.h"
#include "cli/version.h"
#include "job/report.h"

namespace ropewalk::cli {
namespace {

Status PrintText(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  // A full disk behind stdout must not look like success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return Status(Code::kUserError, "CLI06", "cannot write to stdout", std::strerror(errno), "free space where it goes");
  return {};
}

Status ShowConfig(const Config& config, job::OutputForm form) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> objects;
  for (const ConfigEntry& entry : ShownConfig(config)) {
    rows.push_back({entry.name, EscapeForLog(entry.value), EscapeForLog(entry.origin)});
    objects.push_back(JsonObject().Text("key", entry.name).Text("value", entry.value).Text("origin", entry.origin).str());
  }
  return PrintText(Listing(form, "config", {"KEY", "VALUE", "ORIGIN"}, rows, objects));
}

Result<int> Do(Invocation invocation) {
  if (invocation.verb.empty()) {
    RETURN_IF_ERROR(PrintText(invocation.text));
    return 0;
  }
  if (invocation.verb == "version") {
    RETURN_IF_ERROR(PrintText(invocation.output == job::OutputForm::kTable ? std::string("ropewalk ") + kVersion + "\n"
                                                                           : JsonObject().Text("version", kVersion).str() + "\n"));
    return 0;
  }
  ASSIGN_OR_RETURN(Config config, LoadConfig(invocation));
  if (!invocation.output_given && !ParseOutputForm(config.Text("command.output"), &invocation.output))
    return Status(Code::kInvalid, "SPEC02",
                  "command.output: \"" + EscapeForLog(config.Text("command.output"), 100) + "\" is no form of output",
                  "it takes table, json or jsonl", "mend the value");
  if (StartsJob(invocation.verb)) {
    auto jobs_binary = FindJobsBinary(ProgramOf(invocation.verb));
    ASSIGN_OR_RETURN(Launch launch, PlanLaunch(invocation, config, jobs_binary.ok() ? *jobs_binary : ""));
    if (launch.path.empty()) return jobs_binary.status();
    return Exec(launch);
  }
  if (invocation.verb == "config show") {
    RETURN_IF_ERROR(ShowConfig(config, invocation.output));
    return 0;
  }
  if (invocation.verb.starts_with("start ")) {
    RETURN_IF_ERROR(Start(invocation, config));
    return 0;
  }
  return RunQuery(invocation, config);
}

}  // namespace

int RunCommand(const std::vector<std::string>& args) {
  OpenStandardDescriptors();
  job::OutputForm form = GuessOutputForm(args);
  auto fail = [&](const Status& status) {
    job::PrintError(status, form);
    return ExitCode(status.code());
  };
  try {
    auto invocation = ParseArguments(args);
    if (!invocation.ok()) return fail(invocation.status());
    auto code = Do(*invocation);
    return code.ok() ? *code : fail(code.status());
  } catch (const std::exception& error) {
    return fail(Status(Code::kInternal, "CLI99", "the command failed unexpectedly", error.what(), "please report this"));
  }
}

}  // namespace ropewalk::cli
