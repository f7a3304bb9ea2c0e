// ropewalk-jobs: the built-in jobs in one binary, run by `ropewalk run` and `ropewalk submit` or by itself.
#include <cstdio>
#include <cstdlib>

#include "base/known_names.h"
#include "job/jobs/jobs.h"
#include "job/jobs/summary.h"
#include "job/options.h"
#include "job/report.h"

namespace {

using namespace ropewalk;

// Told before anything is started or sent.
Result<jobs::Arguments> Parse(int argc, char** argv) {
  std::vector<std::string> args(argv, argv + argc);
  if (!job::IsExecutor()) RETURN_IF_ERROR(CheckVariables());
  ASSIGN_OR_RETURN(job::JobOptions options, job::TakeOptions(&args, [](const char* name) { return std::getenv(name); }));
  ASSIGN_OR_RETURN(jobs::Arguments parsed, jobs::ParseArguments(args));
  if (parsed.job == "grep") RETURN_IF_ERROR(jobs::CheckPattern(parsed));
  return parsed;
}

}  // namespace

int main(int argc, char** argv) {
  Result<jobs::Arguments> arguments = Parse(argc, argv);
  if (!arguments.ok()) {
    job::PrintError(arguments.status(), job::FormOfErrors());
    return ExitCode(arguments.status().code());
  }
  if (arguments->job == "help") {
    std::fputs(jobs::Usage(arguments->help_of, argc > 0 ? argv[0] : "").c_str(), stdout);
    return 0;
  }
  setenv("ROPEWALK_NAME", arguments->job.c_str(), 0);  // a job is called by what it does, not by this binary

  Job job = Init(argc, argv);
  jobs::Summary summary(&job, *arguments);
  if (arguments->job == "wordcount") {
    summary.Print(jobs::WordCount(job, *arguments), "different words");
  } else if (arguments->job == "sort") {
    summary.Print(jobs::Sort(job, *arguments), arguments->record_bytes != 0 ? "records" : "lines");
  } else {
    summary.Print(jobs::Grep(job, *arguments), "lines");
  }
  return 0;
}
