// While main waits for an action its process runs tasks. What these write to standard output is no part of what main says: on a cluster it
// would come a second time from a replaced driver, and a user who pipes main's output would find it in between. So for as long as main
// waits, descriptor 1 is standard error: `ropewalk logs --stream stderr` (executor for all but the driver), or the terminal.
//
// Thread rule: main's thread. Threads that main started itself and that print while it waits are taken for tasks.
#pragma once

#include <memory>

#include "base/unique_fd.h"
#include "dag/stage_graph.h"

namespace ropewalk::job {

class TaskStdout {
 public:
  // What main printed so far goes out first. Where it cannot (another thread holds stdout for 100 ms), or no descriptor is free, nothing is
  // changed.
  TaskStdout();
  ~TaskStdout();  // what tasks printed goes out first, too, unless one of them holds stdout for so long
  TaskStdout(const TaskStdout&) = delete;
  TaskStdout& operator=(const TaskStdout&) = delete;

 private:
  UniqueFd main_;  // main's standard output while this lives
};

// For an action that is about to be started; nullptr for one that main does not wait for yet (CollectAsync), and goes on printing beside.
std::unique_ptr<TaskStdout> MakeTaskStdout(const dag::ActionPlan& plan);

}  // namespace ropewalk::job
