// The scheduler core: a pure state machine over jobs, executors, tasks and blocks.
//
//   Step(now, event) -> actions        no I/O, clock, thread, random device or pointer-ordered iteration inside
//
// The daemon, the embedded backend and the simulator link the same object file. The shell around it turns sockets and timers into
// events, makes JournalRecord actions durable *before* it carries out the actions that follow them in the list, and then acts.
// Restart: feed the journal's records to Replay() in order, then WorkerRegistered events rebuild what lies where.
//
// Every message about a task carries its attempt; one that is not the registered attempt is dropped ("the attempt that the master has
// registered wins"). Recovery walks the lineage and re-runs the least set of tasks, upstream first, stopping at what still exists.
//
// Thread rule: single-threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/settings.h"
#include "dag/stage_graph.h"
#include "dag/task.h"

namespace ropewalk::scheduler {

using TimeMs = std::int64_t;  // monotonic; its zero means nothing

struct JobSpec {
  dag::Settings settings;                 // settings.job is the id
  std::string submit_key;                 // one key, one job: a repeated submit gets the same id
  std::vector<std::string> argv;
  std::vector<std::string> environment;   // "NAME=value", the declared ones only
  std::vector<std::string> artifacts;     // SHA-256 names; [0] is the executable
  std::string user;
  std::uint32_t executors_max = 0;        // 0: one on each worker
};

struct SegmentAt {                        // what a worker says it holds
  JobId job;
  dag::SegmentRef ref;
  std::uint64_t content_hash = 0;
  std::uint64_t records = 0;
};

// ---- events: what happened ------------------------------------------------------------------------------------------------------
struct WorkerRegistered { WorkerId worker; std::string name; std::string data_address; std::uint32_t slots = 0; std::vector<SegmentAt> segments; };
struct WorkerLost { WorkerId worker; std::string reason; };
struct WorkerDrained { WorkerId worker; };                       // no new tasks; running ones finish
struct JobSubmitted { JobSpec spec; };
struct JobCancelled { JobId job; std::string reason; };
struct ExecutorReady { ExecutorId executor; };                   // it said hello
struct ExecutorExited { ExecutorId executor; Status reason; std::string main_exit; };  // process gone, whatever the way
// A replica reached action `plan.sequence` of its main and serves tasks of it from now on.
struct ExecutorAtAction { ExecutorId executor; dag::ActionPlan plan; };
struct ExecutorAtOnce { ExecutorId executor; std::string name; };                       // waits for the value
struct OnceComputed { ExecutorId executor; std::string name; std::string value; Status status; };
struct MainReturned { ExecutorId executor; std::int32_t exit_code = 0; };
struct TaskFinished { ExecutorId executor; JobId job; TaskAttempt id; dag::TaskResult result; };
struct TaskFailed { ExecutorId executor; JobId job; TaskAttempt id; Status status; std::uint64_t cursor_split = 0; std::uint64_t cursor_offset = 0; };
struct FetchFailed { ExecutorId executor; JobId job; TaskAttempt id; dag::SegmentRef lost; Status status; };  // the producer's fault, not the reader's
struct SegmentsLost { WorkerId worker; JobId job; std::vector<SegmentId> segments; };
struct TimerFired { std::uint64_t timer = 0; };

using Event = std::variant<WorkerRegistered, WorkerLost, WorkerDrained, JobSubmitted, JobCancelled, ExecutorReady, ExecutorExited,
                           ExecutorAtAction, ExecutorAtOnce, OnceComputed, MainReturned, TaskFinished, TaskFailed, FetchFailed,
                           SegmentsLost, TimerFired>;

// ---- actions: what to do, in this order --------------------------------------------------------------------------------------------
struct JournalRecord { std::string bytes; };                     // make durable before anything that follows in the list
struct AcceptJob { JobId job; };                                 // now the client may be told
struct StartExecutor { WorkerId worker; JobId job; ExecutorId executor; };
struct StopExecutor { WorkerId worker; ExecutorId executor; std::string reason; };
struct NameDriver { ExecutorId executor; };                      // it computes Once values and its stdout is the job's
struct RunTask { ExecutorId executor; JobId job; std::uint64_t sequence = 0; TaskAttempt id; std::vector<dag::TaskInput> inputs; bool retry = false; bool verify = false; };
struct CancelTask { ExecutorId executor; JobId job; TaskAttempt id; };
struct PublishAction { ExecutorId executor; std::uint64_t sequence = 0; Status status; std::vector<std::string> values; };
struct PublishOnce { ExecutorId executor; std::string name; Status status; std::string value; };
struct FreeSegments { WorkerId worker; JobId job; std::vector<SegmentId> segments; };
struct FinishJob { JobId job; Status status; std::int32_t main_exit = 0; };  // after it, everything of the job is released
struct SetTimer { std::uint64_t timer = 0; TimeMs at = 0; };
// A line of the job's event log: {"event":"task_lost",...}; tests assert recovery from these.
struct LogEvent { JobId job; std::string kind; std::string json; };

using SchedulerAction = std::variant<JournalRecord, AcceptJob, StartExecutor, StopExecutor, NameDriver, RunTask, CancelTask, PublishAction,
                                     PublishOnce, FreeSegments, FinishJob, SetTimer, LogEvent>;

struct Options {
  std::uint32_t worker_task_failures_max = 4;   // machine faults on one worker before it is avoided for a while
  std::uint32_t fetch_retries_max = 8;
  TimeMs executor_restart_delay_ms = 200;       // doubled for each crash in a row, bounded
};

struct JobView;  // read-only picture for `job list|show`, explain and progress: see job_view.h

class Scheduler {
 public:
  explicit Scheduler(Options options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  std::vector<SchedulerAction> Step(TimeMs now, const Event& event);

  // Rebuilds the state from one durable record; records come in the order of their writing. kDataLoss when it cannot be read.
  Status Replay(const JournalRecord& record);
  // After the last Replay(): what a freshly started master has to do (timers, jobs that wait for workers).
  std::vector<SchedulerAction> Recovered(TimeMs now);

  std::vector<JobView> Jobs() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ropewalk::scheduler
