// The scheduler core: a pure state machine over jobs, executors, tasks and blocks.
//
//   Step(now, event) -> actions        no I/O, clock, thread, random device or pointer-ordered iteration inside
//
// The daemon, the embedded backend and the simulator link the same object file. The shell around it turns sockets and timers into
// events, makes JournalRecord actions durable *before* it carries out the actions that follow them in the list (also those of later
// Steps: actions keep their order), and then acts. A journal write that fails is fatal to the shell: the core has already moved on.
// Restart: feed the journal's records to Replay() in order, call Recovered(), then WorkerRegistered events rebuild what lies where.
//
// Every message about a task carries its attempt; one that is not the registered attempt is dropped ("the attempt that the master has
// registered wins"). Events that name an unknown job, worker or executor are dropped too. Recovery walks the lineage and re-runs the
// least set of tasks, upstream first, stopping at what still exists.
//
// What the shell has to know (the life of one job; master/scheduler/README.md tells the rules behind it):
//   JobSubmitted -> JournalRecord, AcceptJob, StartExecutor for each chosen worker
//   ExecutorReady -> NameDriver (one executor), which may happen again for another executor when the driver dies
//   ExecutorAtOnce -> PublishOnce when the value is known; else ComputeOnce to the driver -> OnceComputed -> JournalRecord, PublishOnce
//   ExecutorAtAction -> RunTask... -> TaskFinished... -> JournalRecord, PublishAction to every executor that stands at it; a replica that
//     comes later is answered at once. An executor may stand at several actions (CollectAsync) and goes on to serve tasks of all of them
//     that are not published, also after MainReturned, until StopExecutor.
//   MainReturned of the driver -> JournalRecord, FinishJob, StopExecutor..., FreeSegments...
//   A job that fails: JournalRecord, PublishAction/PublishOnce with the failure to whoever waits, FinishJob, StopExecutor...
//
// Thread rule: single-threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/settings.h"
#include "dag/stage_graph.h"
#include "dag/task.h"
#include "master/scheduler/checkpoint.h"
#include "master/scheduler/job_view.h"

namespace ropewalk::scheduler {

struct JobSpec {
  dag::Settings settings;  // job 0: the core gives the next id; seed, now_us and slots are the shell's to fill in
  std::string submit_key;  // one key, one job: a repeated submit gets the same id (empty: every submit is a new job)
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "NAME=value", the declared ones only
  std::vector<std::string> artifacts;    // SHA-256 names; [0] is the executable
  std::string user;
  std::uint32_t executors_max = 0;  // 0: one on each worker
  std::uint32_t glibc_min = 0;      // 2036 is 2.36; a worker with less is not used; 0: any
  std::uint32_t cpu_level_min = 0;  // x86-64-vN; 0: any
  TimeMs time_limit_ms = 0;         // from acceptance (or the master's restart) to kDeadlineExceeded; 0: none
};

struct SegmentAt {  // what a worker says it holds: sealed segments only
  JobId job;
  dag::SegmentRef ref;
  std::uint64_t content_hash = 0;  // 0: not known
  std::uint64_t records = 0;
};

// Where a task of a dead executor had got to, read from the shared cursor file (dag::RecordCursor).
struct TaskCursor {
  TaskAttempt id;
  std::uint64_t split = 0;
  std::uint64_t offset = 0;
  std::uint32_t signal = 0;  // not 0: it was this task's thread that crashed; 0 in all cursors: nobody knows
  std::string source;        // the file that was being read; empty: not a file
};

// The values of an action's last stage in task order. Shared, because each replica gets the same (never null in an action).
using Values = std::shared_ptr<const std::vector<std::string>>;

// ---- events: what happened ------------------------------------------------------------------------------------------------------
// A worker that registers has no executors (it ends those of an earlier registration first). A live worker of the same name is lost by it.
struct WorkerRegistered {
  WorkerId worker;
  std::string name;
  std::string data_address;  // becomes SegmentRef.location; empty: this process
  std::uint32_t slots = 0;
  std::vector<SegmentAt> segments;
  std::uint32_t glibc = 0;  // 2036 is 2.36; 0: not known, fits every job
  std::uint32_t cpu_level = 0;
};
struct WorkerLost {
  WorkerId worker;
  std::string reason;
};
// It takes no new tasks and gets no new executors; running tasks finish, what it holds is served on. An executor there that nobody needs
// any more is stopped, so that the worker may leave. Ends with the registration: a worker that registers anew says it anew.
struct WorkerDrained {
  WorkerId worker;
};
struct JobSubmitted {
  JobSpec spec;
};
struct JobCancelled {
  JobId job;
  std::string reason;
};
struct ExecutorReady {
  ExecutorId executor;
};  // it said hello
// The process is gone (or never came). `reason` tells whose fault: kUserError: it exited or crashed by itself (exit_code or signal says
// how); kResourceExhausted: killed for memory, or perhaps for that (dag::kPerhapsOutOfMemoryTag: the worker cannot tell it from somebody's
// kill); kUnavailable: it could not be started, or the worker ended it (SIGKILL and SIGTERM count as that whatever the code, since user
// code does not do it to itself); kInvalid, kNotFound, kVersionSkew: it can never start (a missing library, a damaged artifact).
struct ExecutorExited {
  ExecutorId executor;
  Status reason;
  std::int32_t exit_code = 0;
  std::int32_t signal = 0;
  std::vector<TaskCursor> cursors;  // of the tasks that it was running, as far as known
};
// A replica reached action `plan.sequence` of its main and serves tasks of it from now on.
struct ExecutorAtAction {
  ExecutorId executor;
  dag::ActionPlan plan;
};
struct ExecutorAtOnce {
  ExecutorId executor;
  std::string name;
};  // waits for the value
struct OnceComputed {
  ExecutorId executor;
  std::string name;
  std::string value;
  Status status;
};
struct MainReturned {
  ExecutorId executor;
  std::int32_t exit_code = 0;
};
struct TaskFinished {
  ExecutorId executor;
  JobId job;
  TaskAttempt id;
  dag::TaskResult result;
  TaskCounters counters;
};
struct TaskFailed {
  ExecutorId executor;
  JobId job;
  TaskAttempt id;
  // kUserError: the user's code or data; kUnavailable, kResourceExhausted, kDataLoss, kCancelled: the machine's fault; else final.
  Status status;
  std::uint64_t cursor_split = 0;
  std::uint64_t cursor_offset = 0;
  std::string source;
};
// How far running tasks are, now and then: for views, and what a rank has reached for its gang. Replaced attempts are passed over.
struct TasksProgressed {
  struct One {
    TaskAttempt id;
    TaskCounters counters;
    std::string line = {};      // what a rank says of itself
    std::uint64_t reached = 0;  // and what its gang has got to (dag::GangContext::Reached)
  };
  ExecutorId executor;
  std::vector<One> tasks;
};
// The task gave its slot back because an input could not be read: the producer's fault, not the reader's. kDataLoss: the segment is gone or
// damaged; kUnavailable: its owner did not answer. Readers fail fast (never wait for a re-run), so that reducers cannot hold all slots.
struct FetchFailed {
  ExecutorId executor;
  JobId job;
  TaskAttempt id;
  dag::SegmentRef lost;
  Status status;
};
// What a rank of a gang gives to the others (dag::GangContext::Exchange). `round` counts from 1 within the forming.
struct GangExchanged {
  ExecutorId executor;
  JobId job;
  TaskAttempt id;
  std::uint32_t epoch = 0;
  std::uint64_t round = 0;
  std::string bytes;
};
struct SegmentsLost {
  WorkerId worker;
  JobId job;
  std::vector<SegmentId> segments;
};
struct TimerFired {
  std::uint64_t timer = 0;
};

using Event = std::variant<WorkerRegistered, WorkerLost, WorkerDrained, JobSubmitted, JobCancelled, ExecutorReady, ExecutorExited,
                           ExecutorAtAction, ExecutorAtOnce, OnceComputed, MainReturned, TaskFinished, TaskFailed, FetchFailed,
                           SegmentsLost, TimerFired, TasksProgressed, GangExchanged>;

// ---- actions: what to do, in this order --------------------------------------------------------------------------------------------
// Append to the journal. `sync`: durable before anything that follows is done. Not `sync`: written in order, durable at the latest with the
// next synced record; nothing waits for it (what a task made: losing the suffix of these means only that some work is done again).
// A record above 64 KiB (large results, broadcast values) may be put in a file of its own that is synced first, with a reference in the
// journal: the bytes are opaque, so this indirection is the shell's; Replay() gets the bytes as they were.
struct JournalRecord {
  std::string bytes;
  bool sync = true;
};
struct AcceptJob {
  JobId job;
  std::string submit_key;
};  // now the client may be told
struct RefuseJob {
  std::string submit_key;
  Status status;
};  // kUnplaceable: no worker fits; kResourceExhausted: too many jobs wait
struct StartExecutor {
  WorkerId worker;
  JobId job;
  ExecutorId executor;
};
struct StopExecutor {
  WorkerId worker;
  ExecutorId executor;
  std::string reason;
};
struct NameDriver {
  ExecutorId executor;
  JobId job;
};  // its plan leads, it computes Once values and its stdout is the job's
struct RunTask {
  ExecutorId executor;
  JobId job;
  std::uint64_t sequence = 0;
  TaskAttempt id;
  std::vector<dag::TaskInput> inputs;
  bool retry = false;
  bool verify = false;
  std::uint32_t copy_parts = 0;  // not 0: no program is run; the one input segment, of so many parts, is copied to the worker's disk
  std::optional<dag::GangPlace> gang = {};  // of a rank
};
struct CancelTask {
  ExecutorId executor;
  JobId job;
  TaskAttempt id;
};  // its slot counts as free at once
// The rank's gang is lost for the reason that `status` says: what waits for other ranks is freed. Its slot is taken until it has reported;
// one that does not is stopped with its executor.
struct EndRank {
  ExecutorId executor;
  JobId job;
  TaskAttempt id;
  Status status;
};
// Every rank of the forming has given its bytes for the round: they go to each rank that runs on the executor.
struct GangGathered {
  ExecutorId executor;
  JobId job;
  StageId stage;
  std::uint32_t epoch = 0;
  std::uint64_t round = 0;
  Values values;  // by rank
};
struct PublishAction {
  ExecutorId executor;
  std::uint64_t sequence = 0;
  Status status;
  Values values;
  std::vector<StageId> cut;  // checkpointed stages: main lets go of what they were made from. The same for every replica
};
struct ComputeOnce {
  ExecutorId executor;
  std::string name;
};  // to the driver that waits in Once(name): compute, answer OnceComputed
struct PublishOnce {
  ExecutorId executor;
  std::string name;
  Status status;
  std::string value;
};
struct FreeSegments {
  WorkerId worker;
  JobId job;
  std::vector<SegmentId> segments;
  bool whole_job = false;
  std::vector<dag::OutputPlace> discard;  // with whole_job: of a job that failed; when its last executor there is gone
};  // whole_job: all of the job's
struct FinishJob {
  JobId job;
  Status status;
  std::int32_t main_exit = 0;
};  // after it, everything of the job is released
struct SetTimer {
  std::uint64_t timer = 0;
  TimeMs at = 0;
};
// A line of the job's event log: {"event":"task_lost",...}; tests assert recovery from these.
struct LogEvent {
  JobId job;
  std::string kind;
  std::string json;
};

using SchedulerAction =
    std::variant<JournalRecord, AcceptJob, RefuseJob, StartExecutor, StopExecutor, NameDriver, RunTask, CancelTask, PublishAction,
                 ComputeOnce, PublishOnce, FreeSegments, FinishJob, SetTimer, LogEvent, EndRank, GangGathered>;

// Bugs that tests plant to prove that the simulator would find them. All false outside tests.
struct PlantedBugs {
  bool reuse_attempts_after_restart = false;  // forget the journalled high-water mark
  bool act_before_sync = false;               // acknowledge, publish and commit before the journal record
  bool keep_stale_consumers = false;          // keep what was made from content that a re-run has changed
  bool ignore_submit_key = false;
  bool reuse_gang_epochs = false;         // a gang that is formed anew after a restart has the number of an earlier forming
  bool keep_ranks_of_lost_gangs = false;  // the others are not told when a rank is lost
};

struct Options {
  std::uint32_t jobs_running_max = 16;         // further jobs wait in the order of submission
  std::uint32_t jobs_waiting_max = 10'000;     // beyond it a submit is refused
  std::uint32_t jobs_finished_kept = 1'000;    // finished jobs that views still show
  std::uint32_t memory_attempts_max = 4;       // times that one task may run out of memory, with its executor or alone
  std::uint32_t machine_attempts_max = 16;     // machine faults of one task before the job fails with the last of them
  std::uint32_t fetch_retries_max = 32;        // of one task; each one re-runs a producer, so this bounds livelock only
  std::uint32_t worker_task_failures_max = 4;  // machine faults in a row on one worker before it is avoided for a while
  TimeMs worker_avoided_ms = 30'000;
  std::uint32_t executor_failures_max = 10;  // executors in a row that die before they do anything
  TimeMs executor_restart_delay_ms = 200;    // doubled for each crash in a row, bounded by:
  TimeMs executor_restart_delay_max_ms = 10'000;
  TimeMs executor_start_max_ms = 60'000;  // from StartExecutor to ExecutorReady
  TimeMs task_retry_delay_ms = 100;       // after a machine fault; doubled, bounded by 5 s
  TimeMs recovery_grace_ms = 5'000;       // after a restart of the master: how long outputs known to exist may take to be reported
  TimeMs verify_wait_ms = 2'000;          // how long a finished action waits for the slot of a second executor to verify in
  std::int64_t epoch_us = 0;              // microseconds since 1970 at TimeMs 0, for the times that people read
  TimeMs orphan_grace_ms = 10'000;        // how long a block whose copies are all gone may take to come back with its worker
  std::uint32_t copy_failures_max = 3;    // of one copy, before the checkpoint is given up
  CheckpointRule checkpoint;
  // A gang that lost a rank: how long the others may take to end before their executors are stopped.
  TimeMs gang_end_ms = 5'000;
  TimeMs gang_spread_wait_ms = 2'000;  // how long a gang that is to be spread waits for executors that are still starting
  std::uint32_t gang_slots_min = 0;    // ranks that a worker takes though it has fewer slots: they share its processors
  bool outputs_durable = false;  // one process: what is computed is lost only with the job, so all lineage is cut when an action is done
  PlantedBugs planted;
};

class Scheduler {
 public:
  explicit Scheduler(Options options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  std::vector<SchedulerAction> Step(TimeMs now, const Event& event);

  // Rebuilds the state from one durable record; records come in the order of their writing. kDataLoss (JRN01) when it cannot be read,
  // kVersionSkew (JRN02) when a newer version wrote it.
  Status Replay(const JournalRecord& record);
  // After the last Replay(): what a freshly started master has to do (timers, jobs that wait for workers).
  std::vector<SchedulerAction> Recovered(TimeMs now);

  // The whole state as records: a journal that holds just these replays to the same state. The shell may write them to a fresh journal,
  // sync it and drop the old one (between two Steps, with all earlier records written).
  std::vector<JournalRecord> Snapshot() const;

  std::vector<JobView> Jobs() const;  // in the order of submission; finished ones as long as they are kept
  std::optional<JobView> Job(JobId job, bool with_plans = true) const;
  std::uint64_t JobVersion(JobId job) const;  // grows with each change of the job's view; 0: no such job. O(log n): for polling
  std::vector<WorkerView> Workers() const;
  const JobSpec* Spec(JobId job) const;  // what its executors are started with; nullptr: not known or finished. Until the next call

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ropewalk::scheduler
