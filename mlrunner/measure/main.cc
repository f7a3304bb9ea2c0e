// ropewalk-bench: what `ropewalk bench collective` starts. A job like a user's own: it could be written with the public API.
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "job/init_with.h"
#include "job/options.h"
#include "job/report.h"
#include "mlrunner/measure/arguments.h"
#include "mlrunner/measure/measure.h"
#include "mlrunner/measure/report.h"
#include "storage/io_error.h"

namespace {

using namespace ropewalk;

std::string FolderOf(const std::string& file) { return file.substr(0, file.rfind('/') + 1); }

// 0, or why no file can be made there.
int LookAt(const std::string& folder) { return access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno; }

Status CannotWrite(int error, const std::string& what) {
  const Status status = storage::IoError(error, "BENCH24", what);
  return Status(
      status.code(), status.tag(), status.what(), status.why(),
      "name a folder that is there for the process that writes, on a cluster on a worker's machine; or take what --output json prints");
}

// A report that cannot be written is told before the work, not after it.
Status CheckFolderOf(const std::string& file) {
  if (file.empty()) return {};
  const int error = LookAt(FolderOf(file));
  return error == 0 ? Status() : CannotWrite(error, "no file can be made in " + storage::QuotedPath(FolderOf(file)));
}

// The same where the job runs, which may be another machine: by the process that will write.
void CheckFolderOf(Job& job, const std::string& file) {
  if (file.empty()) return;
  const int error = job.Once("look at the folder of " + file, [&] { return LookAt(FolderOf(file)); });
  if (error != 0) job.context().Fail(CannotWrite(error, "no file can be made in " + storage::QuotedPath(FolderOf(file))));
}

// Told before anything is started or sent.
Result<measure::BenchArguments> Parse(int argc, char** argv) {
  const std::vector<std::string> args(argv, argv + argc);
  RETURN_IF_ERROR(job::CheckOptions(args));
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof folder) == nullptr)
    return Status(Code::kUserError, "BENCH21", "the working folder cannot be read", "it is gone, or its path is too long",
                  "start the bench elsewhere");
  ASSIGN_OR_RETURN(measure::BenchArguments arguments, measure::ParseBenchArguments(args, folder));
  if (!job::IsExecutor())
    for (const std::string& file : {arguments.job.json, arguments.job.plot}) RETURN_IF_ERROR(CheckFolderOf(file));
  return arguments;
}

// 0, or why it failed.
int Write(const std::string& file, const std::string& text) {
  std::FILE* out = std::fopen(file.c_str(), "w");
  if (out == nullptr) return errno;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  const int error = is_written ? 0 : errno;
  return std::fclose(out) != 0 && error == 0 ? errno : error;
}

// By one process of the job.
void WriteFile(Job& job, const std::string& file, const std::string& text) {
  if (file.empty()) return;
  const int error = job.Once("write " + file, [&] { return Write(file, text); });
  if (error != 0) job.context().Fail(CannotWrite(error, "writing " + storage::QuotedPath(file)));
}

}  // namespace

int main(int argc, char** argv) {
  Result<measure::BenchArguments> arguments = Parse(argc, argv);
  if (!arguments.ok()) {
    job::PrintError(arguments.status(), job::FormOfErrors());
    return ExitCode(arguments.status().code());
  }
  if (arguments->help) {
    std::fputs(measure::BenchUsage().c_str(), stdout);
    return 0;
  }
  const measure::BenchJob& bench = arguments->job;
  setenv("ROPEWALK_NAME", "bench", 0);

  Job job = job::InitWith(arguments->argv);
  for (const std::string& file : {bench.json, bench.plot}) CheckFolderOf(job, file);
  // Over as many machines as there are: it is their links that are measured. What the program finds wrong is wrong the next time, too.
  Result<std::string> result =
      RunGang(job, measure::Title(bench), static_cast<std::uint32_t>(bench.ranks),
              [bench](GangContext& gang) { return measure::BenchRank(gang, bench); }, {.spread = true, .attempts_max = 1});
  if (!result.ok()) job.context().Fail(result.status());
  Result<measure::BenchReport> report = measure::DecodeBenchReport(*result);
  if (!report.ok()) job.context().Fail(report.status());
  const std::string json = measure::AsJson(bench, *report);
  WriteFile(job, bench.json, json);
  WriteFile(job, bench.plot, measure::AsSvg(bench, *report));
  switch (job::FormOfErrors()) {
    case job::OutputForm::kTable:
      fmt::print("{}", measure::AsTable(bench, *report));
      break;
    case job::OutputForm::kJson:
      fmt::print("{}", json);
      break;
    case job::OutputForm::kJsonLines:
      fmt::print("{}", measure::AsJsonLines(bench, *report));
      break;
  }
  if (std::fflush(stdout) != 0) job.context().Fail(job::CannotPrint(errno));
  if (Status right = measure::CheckRight(*report); !right.ok()) job.context().Fail(right);
  return 0;
}
