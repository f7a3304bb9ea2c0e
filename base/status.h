// Status and Result: how every failure travels in Ropewalk.
//
// A failure is data: it is sent over the wire, compared, counted and retried. Each code has exactly one recovery, so a
// caller never has to parse a message to know what to do. A message has three parts, as the user will read it:
// what happened, why, and how to mend it.
//
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ropewalk {

// A closed set. The comment after each code is its recovery.
enum class Code : std::uint8_t {
  kOk = 0,
  kInvalid = 1,            // the request, flag or plan is wrong: mend it; never retry
  kNotFound = 2,           // mend the name; never retry
  kUnauthenticated = 3,    // mend the token; never retry
  kUnavailable = 4,        // retry elsewhere or later
  kUnplaceable = 5,        // no worker fits, or a quota is used up: wait, or ask for less
  kCancelled = 6,          // somebody asked for it; never retry
  kVersionSkew = 7,        // upgrade one side
  kResourceExhausted = 8,  // back off, or give more memory or disk
  kDataLoss = 9,           // run the producer again
  kUserError = 10,         // the user's code or data: report it, never blame the machine
  kStale = 11,             // a message of a replaced attempt or epoch: drop it
  kDeadlineExceeded = 12,  // the time limit that the user set is over
  kInternal = 13,          // our bug: report it
};

// The code's stable lower-case name, e.g. "data_loss".
std::string_view CodeName(Code code);

// The process exit code that tells the truth about `code` (the list in docs/cli.md); 0 for kOk.
int ExitCode(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  // `tag` is the stable short name shown in brackets, e.g. "IO03"; `what` names the file, task or flag.
  Status(Code code, std::string tag, std::string what, std::string why = "", std::string fix = "");

  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& tag() const;
  const std::string& what() const;
  const std::string& why() const;
  const std::string& fix() const;

  // The same failure seen from further out: `context` is put before `what` ("reading a.gz: ...").
  Status WithContext(std::string_view context) const;

  // error[TAG] what\n  why: ...   fix: ...   (parts that are empty are left out; no trailing newline)
  std::string ToString() const;

 private:
  struct Rep {
    Code code;
    std::string tag, what, why, fix;
  };
  std::unique_ptr<Rep> rep_;  // null means OK, so that success costs one pointer
};

// A value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by design; `status` must not be OK
  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace ropewalk

#define ROPEWALK_CONCAT_INNER(a, b) a##b
#define ROPEWALK_CONCAT(a, b) ROPEWALK_CONCAT_INNER(a, b)

// The variable's name is one that no argument has: it would be initialised from itself.
#define RETURN_IF_ERROR(expr)                                                                                         \
  do {                                                                                                                \
    if (::ropewalk::Status ropewalk_error_status = (expr); !ropewalk_error_status.ok()) return ropewalk_error_status; \
  } while (0)

// ASSIGN_OR_RETURN(auto file, fs.Open(path));
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_(ROPEWALK_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_(tmp, lhs, expr)        \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
