#include "worker/task/crash.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "worker/task/current_task.h"

namespace ropewalk::task {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr std::uint32_t kExitMark = 1u << 16;  // no signal's number
constexpr std::size_t kStackBytes = 64 << 10;

// A child that the job's code forked shares cursors and stderr, and its end is not the task's.
std::atomic<pid_t> home_process{0};
std::atomic<bool> crashed{false};
// Written before the handlers are there.
bool reports = false, as_json = false, on_terminal = false;
pthread_t main_thread;

struct SignalText {
  std::string_view name, means;
};
SignalText TextOf(int signal) {
  switch (signal) {
    case SIGSEGV:
      return {"SIGSEGV", "it used memory that is not its own"};
    case SIGBUS:
      return {"SIGBUS", "it used memory that cannot be reached, like a mapped file that became shorter"};
    case SIGFPE:
      return {"SIGFPE", "it divided by zero, or the result was too large"};
    case SIGILL:
      return {"SIGILL", "it came to what is no instruction of this processor"};
    default:
      return {"SIGABRT", "it called abort(), an assertion failed, or nobody caught its exception"};
  }
}

// A message that is put together in a handler of signals: no memory is asked for, and no lock. What does not fit is left out.
class Message {
 public:
  // Text of ours, or that is safe to show.
  Message& Say(std::string_view text) {
    for (char c : text) Put(c);
    return *this;
  }
  Message& Number(std::uint64_t number) {
    char digits[20];
    std::size_t n = sizeof digits;
    do digits[--n] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    return Say({digits + n, sizeof digits - n});
  }
  // What others chose.
  Message& Foreign(std::string_view bytes) {
    constexpr char kHex[] = "0123456789abcdef";
    for (char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x20 && byte < 0x7f && c != '\\') {
        Put(c);
      } else {
        Say("\\x").Put(kHex[byte >> 4]);
        Put(kHex[byte & 15]);
      }
    }
    return *this;
  }
  // Between the parts of an error.
  Message& Raw(std::string_view text) {
    const std::size_t n = std::min(text.size(), sizeof text_ - size_);
    std::memcpy(text_ + size_, text.data(), n);
    size_ += n;
    return *this;
  }
  void Write() const {
    for (std::size_t at = 0; at < size_;) {
      const ssize_t n = ::write(STDERR_FILENO, text_ + at, size_ - at);
      if (n <= 0) return;
      at += static_cast<std::size_t>(n);
    }
  }

 private:
  static constexpr std::size_t kEndBytes = 512;  // kept free for the end of the error, so that a long name leaves it whole
  void Put(char c) {
    if (size_ + 2 + kEndBytes > sizeof text_) return;
    if (as_json && (c == '"' || c == '\\')) text_[size_++] = '\\';
    text_[size_++] = c;
  }
  char text_[4096];
  std::size_t size_ = 0;
};

// As PlaceText() without the record's bytes.
void SayPlace(Message& message, const CurrentTask& task) {
  const dag::RecordCursor& cursor = *task.cursor;
  const std::string_view source(cursor.source, ::strnlen(cursor.source, sizeof cursor.source));
  const std::uint64_t offset = cursor.offset.load(std::memory_order_relaxed);
  message.Say("it stood at input split ").Number(cursor.split.load(std::memory_order_relaxed)).Say(", ");
  if (!source.empty() && source.find('/') == std::string_view::npos) {
    message.Say(task.precise ? "record " : "in the batch that starts at record ").Number(offset).Say(" of ").Foreign(source);
    return;
  }
  if (!source.empty()) message.Foreign(source).Say(" ");
  message.Say(task.precise ? "at offset " : "in the batch that starts at offset ").Number(offset);
  if (IsCompressed(source)) message.Say(" (decompressed)");
}

void Report(int signal) {
  const CurrentTask* task = ThisCurrentTask();
  const SignalText text = TextOf(signal);
  Message message;
  if (on_terminal) message.Raw("\n");  // a bar may stand there
  message.Raw(as_json ? R"({"error":{"code":"user_error","tag":"USER04","what":")" : "error[USER04] ");
  if (task != nullptr)
    message.Say(task->name);
  else
    message.Say(::pthread_equal(::pthread_self(), main_thread) != 0 ? "main" : "a thread that runs no task");
  message.Say(" crashed by signal ").Number(static_cast<std::uint64_t>(signal)).Say(" (").Say(text.name).Say("): ").Say(text.means);
  message.Raw(as_json ? R"(","why":")" : "\n  why: ");
  if (task != nullptr)
    SayPlace(message, *task);
  else
    message.Say("such a signal ends the process, and with it the job");
  message.Raw(as_json ? R"(","fix":")" : "   fix: ");
  message.Raw("mend that code; a debugger (gdb --args PROGRAM ARGUMENTS), or the program built with -fsanitize=address, shows the line");
  message.Raw(as_json ? "\"}}\n" : "\n");
  message.Write();
}

void OnCrash(int signal) {
  if (::getpid() == home_process.load(std::memory_order_relaxed)) {
    if (crashed.exchange(true))
      for (;;) ::pause();  // until the thread that crashed first has said so, and ends us
    if (const CurrentTask* task = ThisCurrentTask(); task != nullptr)
      task->cursor->signal.store(static_cast<std::uint32_t>(signal), std::memory_order_release);
    if (reports) Report(signal);
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // delivered when this handler returns
}

void Handle(int signal) {
  struct sigaction action = {};
  action.sa_handler = OnCrash;
  action.sa_flags = SA_ONSTACK;
  // A crash of this handler is final: the kernel kills where such a signal is blocked.
  sigemptyset(&action.sa_mask);
  for (int other : kSignals) sigaddset(&action.sa_mask, other);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallCrashMarks() {
  home_process.store(::getpid(), std::memory_order_relaxed);
  for (int signal : kSignals) Handle(signal);
}

void InstallCrashReport(bool json) {
  reports = true;
  as_json = json;
  on_terminal = ::isatty(STDERR_FILENO) == 1;
  main_thread = ::pthread_self();
  home_process.store(::getpid(), std::memory_order_relaxed);
  // Threads of tasks have a stack of their own for this; main's endless recursion would die without a word.
  static char stack[kStackBytes];
  stack_t there = {};
  if (sigaltstack(nullptr, &there) == 0 && (there.ss_flags & SS_DISABLE) != 0) {
    stack_t ours = {};
    ours.ss_sp = stack;
    ours.ss_size = sizeof stack;
    sigaltstack(&ours, nullptr);
  }
  for (int signal : kSignals) {
    struct sigaction now = {};
    if (sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) Handle(signal);
  }
}

void MarkExit() {
  if (const CurrentTask* task = ThisCurrentTask(); task != nullptr) task->cursor->signal.store(kExitMark, std::memory_order_release);
}

}  // namespace ropewalk::task
