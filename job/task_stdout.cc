#include "job/task_stdout.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

namespace ropewalk::job {
namespace {

// Without the lock: a task that still prints may hold it for as long as it likes, and it is that task's text which then goes astray.
void Flush() {
  std::cout.flush();
  if (ftrylockfile(stdout) != 0) return;
  fflush_unlocked(stdout);  // a failure stays in the stream and is told at the end of main
  funlockfile(stdout);
}

}  // namespace

TaskStdout::TaskStdout() : main_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
  if (!main_) return;
  Flush();
  if (::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) main_.Close();
}

TaskStdout::~TaskStdout() {
  if (!main_) return;
  Flush();
  ::dup2(main_.get(), STDOUT_FILENO);  // what could fail is a descriptor that user code closed: then there is nothing to go back to
}

std::unique_ptr<TaskStdout> MakeTaskStdout(const dag::ActionPlan& plan) {
  return plan.name.starts_with("CollectAsync") ? nullptr : std::make_unique<TaskStdout>();
}

}  // namespace ropewalk::job
