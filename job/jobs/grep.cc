#include <re2/re2.h>
#include <string.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "base/escape.h"
#include "job/jobs/jobs.h"

namespace ropewalk::jobs {
namespace {

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    // Most lines are ASCII: eight bytes at a time.
    if (std::uint64_t piece; text.size() >= sizeof piece) {
      std::memcpy(&piece, text.data(), sizeof piece);
      if ((piece & 0x8080808080808080u) == 0) {
        text.remove_prefix(sizeof piece);
        continue;
      }
    }
    std::size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Characters where pattern and line are UTF-8, bytes (as in Latin-1) where one of them is not: no byte is beyond a pattern's reach.
class Pattern {
 public:
  explicit Pattern(const Arguments& a) {
    RE2::Options options;
    options.set_log_errors(false);
    options.set_case_sensitive(!a.ignore_case);
    options.set_literal(!a.regex);
    if (IsUtf8(a.pattern)) characters_ = std::make_unique<RE2>(a.pattern, options);
    options.set_encoding(RE2::Options::EncodingLatin1);
    bytes_ = std::make_unique<RE2>(a.pattern, options);
  }
  const RE2& first() const { return characters_ == nullptr ? *bytes_ : *characters_; }
  bool Matches(std::string_view line) const {
    return RE2::PartialMatch(line, characters_ != nullptr && IsUtf8(line) ? *characters_ : *bytes_);
  }

 private:
  std::unique_ptr<RE2> characters_, bytes_;
};

// Without -E and -i the pattern is bytes to be found.
bool IsPlain(const Arguments& a) { return !a.regex && !a.ignore_case; }

}  // namespace

Status CheckPattern(const Arguments& a) {
  if (IsPlain(a)) return Status();
  Pattern pattern(a);
  if (pattern.first().ok()) return Status();
  return Status(Code::kInvalid, "JOBS02", "the pattern " + EscapeForLog(a.pattern) + " cannot be used", pattern.first().error(),
                "see RE2's syntax; without -E it is taken as it stands");
}

Written Grep(Job& job, const Arguments& a) {
  auto lines = job.ReadLines(a.inputs);
  WriteOptions options{.overwrite = a.overwrite};
  if (!IsPlain(a)) {
    auto pattern = std::make_shared<const Pattern>(a);
    return lines.Filter([pattern](std::string_view line) { return pattern->Matches(line); }).WriteText(a.output, options);
  }
  std::string text = a.pattern;
  return lines.Filter([text](std::string_view line) { return memmem(line.data(), line.size(), text.data(), text.size()) != nullptr; })
      .WriteText(a.output, options);
}

}  // namespace ropewalk::jobs
