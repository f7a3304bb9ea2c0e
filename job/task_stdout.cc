#include "job/task_stdout.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

namespace ropewalk::job {
namespace {

constexpr int kLockTries = 100;
constexpr auto kLockEvery = std::chrono::milliseconds(1);

// Whether what was printed is out. Another thread that prints may hold the stream for as long as it likes (a pipe that nobody reads), so it
// is waited for but shortly.
bool Flush() {
  for (int tries = 1; ftrylockfile(stdout) != 0; ++tries) {
    if (tries == kLockTries) return false;
    std::this_thread::sleep_for(kLockEvery);
  }
  std::cout.flush();        // with the lock: it asks for the same one
  fflush_unlocked(stdout);  // a failure stays in the stream and is told at the end of main
  funlockfile(stdout);
  return true;
}

}  // namespace

TaskStdout::TaskStdout() : main_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
  if (!main_) return;
  // What main printed must not end in the wrong place; that tasks print beside it is the lesser evil.
  if (!Flush() || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) main_.Close();
}

TaskStdout::~TaskStdout() {
  if (!main_) return;
  Flush();                             // or it is the text of the task that still prints which goes astray: main has to go on
  ::dup2(main_.get(), STDOUT_FILENO);  // what could fail is a descriptor that user code closed: then there is nothing to go back to
}

std::unique_ptr<TaskStdout> MakeTaskStdout(const dag::ActionPlan& plan) {
  return plan.name.starts_with("CollectAsync") ? nullptr : std::make_unique<TaskStdout>();
}

}  // namespace ropewalk::job
