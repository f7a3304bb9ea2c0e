// What is left of code of the job that ends its whole process: a mark in the cursor of its task, for the daemon that reads it afterwards,
// or a report on stderr, where there is no daemon.
//
// Thread rule: Install...() once a process, before the first task, on main's thread; the rest from any thread.
#pragma once

namespace ropewalk::task {

// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT are noted in the cursor of the task whose thread crashed; then the process dies
// of the signal. For executors.
void InstallCrashMarks();
// The same, and stderr is told which task it was and where it stood: an error of three parts, as JSON with `as_json`. For a job without a
// cluster. A signal that has a handler already (a sanitizer's, the user's own) keeps it.
void InstallCrashReport(bool as_json);
// The mark of code that called exit() and is about to end the process in good order. Does nothing on a thread that runs no task.
void MarkExit();

}  // namespace ropewalk::task
