#include "base/status.h"

#include <array>

namespace ropewalk {
namespace {

struct CodeFacts {
  std::string_view name;
  int exit_code;
};

constexpr std::array<CodeFacts, 14> kFacts = {{
    {"ok", 0},
    {"invalid", 2},
    {"not_found", 3},
    {"unauthenticated", 4},
    {"unavailable", 5},
    {"unplaceable", 6},
    {"cancelled", 7},
    {"version_skew", 8},
    {"resource_exhausted", 1},
    {"data_loss", 1},
    {"user_error", 1},
    {"stale", 70},
    {"deadline_exceeded", 124},
    {"internal", 70},
}};

const CodeFacts& Facts(Code code) {
  auto index = static_cast<std::size_t>(code);
  // A code from the wire may be newer than this binary: treat it as our bug, never as success.
  return kFacts[index < kFacts.size() ? index : static_cast<std::size_t>(Code::kInternal)];
}

const std::string& Empty() {
  static const std::string empty;
  return empty;
}

}  // namespace

std::string_view CodeName(Code code) { return Facts(code).name; }
int ExitCode(Code code) { return Facts(code).exit_code; }

Status::Status(Code code, std::string tag, std::string what, std::string why, std::string fix) {
  if (code != Code::kOk) {
    rep_ = std::make_unique<Rep>(Rep{code, std::move(tag), std::move(what), std::move(why), std::move(fix)});
  }
}

Status::Status(const Status& other) : rep_(other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) rep_ = other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr;
  return *this;
}

const std::string& Status::tag() const { return rep_ ? rep_->tag : Empty(); }
const std::string& Status::what() const { return rep_ ? rep_->what : Empty(); }
const std::string& Status::why() const { return rep_ ? rep_->why : Empty(); }
const std::string& Status::fix() const { return rep_ ? rep_->fix : Empty(); }

Status Status::WithContext(std::string_view context) const {
  Status copy = *this;
  if (copy.rep_) copy.rep_->what = std::string(context) + ": " + copy.rep_->what;
  return copy;
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  std::string text = "error[" + tag() + "] " + what();
  if (!why().empty() || !fix().empty()) {
    text += "\n  ";
    if (!why().empty()) text += "why: " + why();
    if (!why().empty() && !fix().empty()) text += "   ";
    if (!fix().empty()) text += "fix: " + fix();
  }
  return text;
}

}  // namespace ropewalk
