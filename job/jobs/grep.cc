#include <re2/re2.h>
#include <string.h>

#include <memory>

#include "job/jobs/jobs.h"

namespace ropewalk::jobs {
namespace {

std::shared_ptr<const RE2> Compile(const Arguments& a) {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_case_sensitive(!a.ignore_case);
  options.set_literal(!a.regex);
  return std::make_shared<const RE2>(a.pattern, options);
}

}  // namespace

Status CheckPattern(const Arguments& a) {
  auto regex = Compile(a);
  if (regex->ok()) return Status();
  return Status(Code::kInvalid, "JOBS02", "the pattern " + a.pattern + " cannot be used", regex->error(),
                "see RE2's syntax; without -E it is taken as it stands");
}

void Grep(Job& job, const Arguments& a) {
  auto lines = job.ReadLines(a.inputs);
  WriteOptions options{.overwrite = a.overwrite};
  if (a.regex || a.ignore_case) {
    auto regex = Compile(a);
    lines.Filter([regex](std::string_view line) { return RE2::PartialMatch(line, *regex); }).WriteText(a.output, options);
  } else {
    std::string text = a.pattern;
    lines.Filter([text](std::string_view line) { return memmem(line.data(), line.size(), text.data(), text.size()) != nullptr; })
        .WriteText(a.output, options);
  }
}

}  // namespace ropewalk::jobs
