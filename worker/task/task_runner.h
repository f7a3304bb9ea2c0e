// The pool that runs tasks: the border between Ropewalk and the user's code.
//
// Each attempt runs its own copy of its stage's program with a TaskContext of its own. Whatever the program does is turned into exactly
// one report for each ordered attempt:
//   OnFinished     it returned OK
//   OnFetchFailed  an input segment was lost or unreachable: the producer's fault, `lost` says which
//   OnFailed       everything else: the user's exception (kUserError, with its type, its message, the task and the input record), a
//                  refused allocation (kResourceExhausted), a Status of the program, a call of the plan (dag/plan_failure.h), the end of
//                  the thread by pthread_exit() (kUserError TASK06), or kCancelled
// A child that user code forks and that comes back here is no attempt: it ends at the border.
//
// Owner: the embedded backend or an executor. Thread rule: Run() and Cancel() may be called from any thread, also from a listener's
// method. Listener methods are called from the pool's threads with no lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/settings.h"
#include "dag/task.h"
#include "worker/blocks/task_memory.h"

namespace ropewalk::task {

// One attempt to run.
struct TaskOrder {
  TaskAttempt id;
  std::string stage_name;                            // for messages
  std::shared_ptr<const dag::StageProgram> program;  // shared by the attempts of its stage; copied before it runs
  std::vector<dag::TaskInput> inputs;
  bool precise_cursor = false;                  // retries name the record
  std::uint64_t memory_bytes = 0;               // taken from RunnerOptions::memory before it runs
  std::shared_ptr<dag::GangContext> gang = {};  // of a rank; it starts at once, on a thread more where all are busy
};

// Plain values of dag::TaskProgress.
struct TaskCounters {
  std::uint64_t records_in = 0, bytes_in = 0, records_out = 0, bytes_out = 0, bytes_spilled = 0;
  friend bool operator==(const TaskCounters&, const TaskCounters&) = default;
};

// Where a task stood in its input: as dag::RecordCursor.
struct TaskPlace {
  std::uint64_t split = 0, offset = 0;
  std::string source = {};  // the file that it read; empty: none
};

class TaskListener {
 public:
  virtual ~TaskListener() = default;
  virtual void OnFinished(const TaskAttempt& id, dag::TaskResult result, const TaskCounters& counters) = 0;
  virtual void OnFailed(const TaskAttempt& id, Status status, TaskPlace place) = 0;
  virtual void OnFetchFailed(const TaskAttempt& id, dag::SegmentRef lost, Status status) = 0;
};

// What tasks work with; all of it outlives the runner.
struct RunnerOptions {
  std::uint32_t slots = 1;
  const dag::Settings* settings = nullptr;
  dag::BlockReader* blocks = nullptr;
  dag::BlockWriter* segments = nullptr;
  dag::SpillSpace* spill = nullptr;
  dag::RecordCursor* cursors = nullptr;  // `slots` of them; nullptr: the runner's own
  TaskListener* listener = nullptr;
  blocks::TaskMemory* memory = nullptr;  // nullptr: tasks do not wait for memory
};

class TaskRunner {
 public:
  explicit TaskRunner(RunnerOptions options);
  // Cancels what runs and waits for it; queued attempts are dropped without a report.
  ~TaskRunner();
  TaskRunner(const TaskRunner&) = delete;
  TaskRunner& operator=(const TaskRunner&) = delete;

  // Queues the attempt. The scheduler never orders more than `slots` at a time, so the queue is short.
  void Run(TaskOrder order);
  // Ends a queued or running attempt with kCancelled as soon as its program looks; nothing when it is not here.
  void Cancel(const TaskAttempt& id);
  // Cancels everything and returns when no program runs any more, or after `timeout_ms` (false then).
  bool CancelAllAndWait(int timeout_ms);
  // What runs just now, and how far it is.
  std::vector<std::pair<TaskAttempt, TaskCounters>> RunningTasks() const;
  // The sums of running and finished attempts, for a progress line.
  TaskCounters Totals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::task
