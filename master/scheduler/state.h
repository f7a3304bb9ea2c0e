// The scheduler's whole state: plain values and ordered containers. Rules are spread over the .cc files beside it, one theme each:
//   step.cc        dispatch of events, and Settle(): what follows from any event
//   jobs.cc        submit, admission, cancel, finish
//   workers.cc     registration, loss, segments that workers still hold
//   executors.cc   start, crash, restart, the driver
//   actions.cc     plans, Once, publishing, commit, retirement
//   tasks.cc       what tasks report
//   verify.cc      the sampled second run
//   lineage.cc     what is missing, what a change of content invalidates
//   checkpoint.cc  the rule when to checkpoint; copies.cc: copies, cuts, starting over
//   assignment.cc  which task runs where
//   gangs.cc       stages whose tasks start together or not at all
//   records.cc     the journal's records; replay.cc: state <-> records
//   views.cc       pictures for people
//
// Pointers into the maps are never stored and never compared; every iteration is in key order, so the same events give the same actions.
//
// Owner: Scheduler. Thread rule: single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "master/scheduler/event_line.h"
#include "master/scheduler/records.h"
#include "master/scheduler/scheduler.h"

namespace ropewalk::scheduler {

inline constexpr std::uint32_t kAttemptBlock = 4096;  // attempts that one journal record reserves
inline constexpr std::uint64_t kExecutorBlock = 1024;
inline constexpr std::size_t kInlineValueBytes = 64 << 10;  // larger values of unfinished actions are made again after a restart
inline constexpr std::size_t kActionsShown = 8;             // of a job that `explain` still shows: the last ones
inline constexpr std::size_t kStagesShown = 64;             // of each of them
inline constexpr std::size_t kLossesShown = 8;              // lost workers, the last ones
inline constexpr std::size_t kListShownBytes = 4 << 10;     // of a job's arguments, and of its output folders
inline constexpr std::size_t kActionsShownBytes = 8 << 10;  // and no more text of them than this: it is journalled with the job's end
inline constexpr std::size_t kPlansKept = 64;  // published plans kept to name the operator that a late replica's plan differs in

struct Worker {
  WorkerId id;
  std::string name;
  std::string data_address;
  std::uint32_t slots = 0;
  std::uint32_t busy = 0;
  std::uint32_t glibc = 0, cpu_level = 0;
  bool drained = false;
  std::uint32_t failures_in_row = 0;  // machine faults
  TimeMs avoided_until = 0;
  std::uint32_t ranks = 0;  // of the busy slots: by ranks of gangs
  std::uint32_t held = 0;   // of the free slots: kept for gangs that wait (AssignGangs)
  bool claimed = false;     // a gang that waits needs what gangs give back here: those that came after it form elsewhere
  JobId kept_for;           // the first job for whose gang slots are held or claimed
};

enum class ExecutorPhase : std::uint8_t { kStarting, kReady };

struct Executor {
  ExecutorId id;
  WorkerId worker;
  JobId job;
  ExecutorPhase phase = ExecutorPhase::kStarting;
  std::set<std::uint64_t> at;                      // unpublished actions that it announced with an equal plan: it can run their tasks
  std::map<std::uint64_t, dag::ActionPlan> early;  // announced before the driver did
  std::uint64_t last_action = 0;
  std::string once;  // waits for this value; empty: does not
  std::uint64_t onces_seen = 0;
  std::set<std::uint32_t> running;  // attempts
  bool main_returned = false;
  std::int32_t main_exit = 0;
};

// What a task did wrong so far. Rare, so kept beside the tasks.
struct Trouble {
  std::uint32_t user_failures = 0;
  std::uint32_t machine_failures = 0;
  std::uint32_t memory_failures = 0;
  std::uint32_t fetch_failures = 0;
  std::uint32_t crashes = 0;
  std::uint32_t same_cursor = 0;  // crashes in a row at `split`, `offset`
  std::uint64_t split = 0, offset = 0;
  bool alone = false;  // nobody knows which task crashed its executor: it runs with no other beside it
  TimeMs not_before = 0;
  WorkerId avoid;  // where it failed last; another one is better
};

struct TaskRun {
  bool done = false;          // its output exists
  bool wanted = false;        // an unpublished action needs it to run
  std::uint32_t attempt = 0;  // registered and running; 0: none
  std::uint32_t winner = 0;   // the attempt whose content counts, also when the output is lost; 0: none yet
  std::uint64_t hash = 0;     // of the winner's content
  WorkerId worker;            // kSegment: where the output lies
  SegmentId segment;
  std::uint64_t bytes = 0;
  TaskCounters counted;  // of the attempt that ended well last: its share of StageRun::counters
};

enum class Verdict : std::uint8_t { kNone, kReady, kRunning, kAgreed, kSkipped };

// Whether a segment stage has, or shall have, a second copy of each segment; kCut: has, and nothing that it was made from is run for it
// again.
enum class Checkpoint : std::uint8_t { kNone, kWanted, kCut };

// The second copy of one segment, on a disk.
struct CopyRun {
  std::uint32_t running = 0;  // the attempt that makes it; 0: none
  std::uint32_t failures = 0;
  TimeMs not_before = 0;
  bool done = false;
  std::uint32_t attempt = 0;  // that made it
  WorkerId worker;
  SegmentId segment;
  std::uint64_t bytes = 0;
};

// The stages of a job are shared by its actions when they make segments, else they belong to one action (sequence).
struct StageKey {
  std::uint64_t sequence = 0;  // 0: segments
  StageId stage;
  friend auto operator<=>(const StageKey&, const StageKey&) = default;
};

// A task that may be run a second time.
struct Sample {
  std::uint32_t task = 0;
  ExecutorId made_by;  // of the output that counts, if this master saw it; the second run prefers another
};

struct StageRun {
  StageKey key;
  dag::Stage stage;
  std::vector<TaskRun> tasks;
  std::vector<std::string> values;  // unless it makes segments
  std::uint64_t value_bytes = 0;
  std::uint32_t done = 0;
  std::uint32_t running = 0;
  std::uint32_t failed = 0;
  std::set<std::uint32_t> ready;  // wanted, not running, all inputs there
  std::map<std::uint32_t, Trouble> trouble;
  std::map<std::uint32_t, std::string> lost_cause;
  std::map<std::uint32_t, TimeMs> unreachable;  // since when a segment's owner does not answer: nobody has read it after that
  bool pinned = false;                          // a published result or journalled winner came from its content: it may not change any more
  bool winners_journalled = false;              // kFiles
  TaskCounters counters;                        // of each task that ended well, once
  TimeMs first_start = 0, last_end = 0;
  Verdict verdict = Verdict::kNone;
  std::vector<Sample> samples;  // one of these is run twice, where two slots are free for it; the first is preferred
  std::uint32_t sample = 0;     // the one that was taken, once the verdict is beyond kReady
  std::uint32_t verify_attempt = 0;
  TimeMs verify_since = 0;  // when the action was complete but for verdicts
  // Bytes of an all-to-all input, by its index, on each worker; filled when first needed.
  std::map<std::size_t, std::map<WorkerId, std::uint64_t>> input_at;
  std::uint64_t announced = 0;   // the first action that lists it: executors that stand at it or later have its program
  std::uint64_t for_action = 0;  // the oldest action that needs it to run (Replan)
  std::uint32_t depth = 1;       // stages down to the nearest checkpoint or source
  std::uint64_t task_ms = 0;     // what its tasks took
  bool feeds_segments = false;   // another segment stage reads it
  Checkpoint checkpoint = Checkpoint::kNone;
  TimeMs checkpoint_since = 0;
  std::map<std::uint32_t, CopyRun> copies;

  bool complete() const { return done == tasks.size(); }
  bool segments() const { return stage.output == dag::StageOutput::kSegment; }
};

enum class GangPhase : std::uint8_t { kWaiting, kRunning, kEnding };
// Why a forming ended; what stands later outweighs what stands earlier. A rank that says that it lost a peer may say so before the one that
// failed, or whose machine is gone, is known. kLost: with its executor, which something else that ran there has ended; kProgram: it
// returned an error or threw; kCrash: it ended its process, or memory was short.
enum class GangEnd : std::uint8_t { kPeer, kLost, kProgram, kCrash, kMachine };

struct GangRun {
  GangPhase phase = GangPhase::kWaiting;
  // Of formings in a row, none of which got farther than all before it:
  std::uint32_t failures = 0;              // ended by an error of the program
  std::uint32_t restarts = 0;              // were lost
  std::uint64_t farthest = 0;              // that any forming has reached, in this life of the master
  TimeMs waiting_since = 0;                // for slots; 0: it does not
  TimeMs asked_at = 0;                     // when it waited first, in this life of the master: its place among those that wait
  TimeMs not_before = 0;                   // after a loss
  bool spread_wait = false;                // its end is timed
  std::uint32_t enough = 0;                // ranks that it does not wait for more than; 0: all
  std::map<WorkerId, std::uint32_t> held;  // slots that are kept free for it

  // The present forming.
  std::uint32_t epoch = 0;
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(attempts.size()); }
  std::uint32_t grow_to = 0;  // it is ended for a forming with so many; 0: it is not
  TimeMs formed_at = 0;
  std::vector<std::uint32_t> attempts;  // by rank; 0: it is over
  std::vector<std::uint32_t> won;       // by rank; 0: it has not ended well
  std::vector<std::string> machines;    // by rank
  std::uint64_t reached = 0;            // what its ranks have said
  std::uint32_t finished = 0;
  std::string value;                          // rank 0's
  std::uint64_t round = 1;                    // of the exchange that goes on
  std::map<std::uint32_t, std::string> said;  // in it, by rank
  GangEnd end = GangEnd::kPeer;               // kEnding: why, and until when ranks may report
  Status reason;
  std::uint32_t blamed = 0;  // the rank that `reason` is about
  bool stopped = false;      // its executors are being stopped: that these end is no news
  TimeMs end_by = 0;
};

struct RunningTask {
  StageKey key;
  std::uint32_t task = 0;
  ExecutorId executor;
  bool verify = false;
  TimeMs since = 0;
  TaskCounters counters;  // as last told
  bool copy = false;
  bool rank = false;
  std::string line = {};  // a rank's, as last told
};

struct PublishedAction {
  std::string name;
  std::uint64_t fingerprint = 0;
  Values values;
};

// A segment that a worker holds of a stage whose plan this master has not seen yet.
struct HeldSegment {
  WorkerId worker;
  SegmentAt at;
};

struct RestartDelay {
  std::uint32_t crashes = 0;
  TimeMs not_before = 0;
  std::string reason;
};

struct JobRun {
  JobId id;
  JobSpec spec;
  bool admitted = false;
  JobPhase phase = JobPhase::kPending;
  std::uint64_t version = 1;
  TimeMs accepted_at = 0;
  std::int64_t started_us = 0, finished_us = 0;
  bool started_before = false;  // replayed: it had done something, so it started in an earlier life of the master
  Status status;
  std::int32_t main_exit = 0;

  std::uint64_t actions_done = 0;    // published
  std::vector<std::string> outputs;  // of these, for people: the last folders
  std::uint64_t workers_lost = 0;
  std::vector<LostWorker> lost_workers;  // the last ones

  std::uint32_t attempt_next = 1;
  std::uint32_t attempts_reserved = 0;  // journalled: numbers below it may be given out

  std::set<ExecutorId> executors;
  ExecutorId driver;
  std::map<std::string, std::string> once;
  std::map<std::uint64_t, dag::ActionPlan> actions;  // accepted from the driver, not published
  std::map<std::uint64_t, PublishedAction> published;
  std::map<std::uint64_t, dag::ActionPlan> plans_kept;
  std::map<std::uint64_t, std::vector<StageView>> counts_kept;  // of the last published actions of this life of the master
  std::vector<ActionView> past;                                 // of a finished job
  std::map<StageKey, StageRun> stages;
  std::map<StageKey, GangRun> gangs;             // of those stages that are gangs
  std::map<StageKey, GangRecord> gangs_before;   // replayed: of plans that were not seen yet
  std::uint32_t gang_epoch_next = 0;             // journalled before a number is given out
  std::map<std::uint32_t, RunningTask> running;  // by attempt
  std::set<StageId> retired;                     // named by plans, not freed yet
  std::set<StageId> pinned_before;               // replayed: pinned stages whose plan was not seen yet
  std::set<StageKey> verified_before;
  std::map<StageKey, std::map<std::uint32_t, TaskDoneRecord>> known;  // replayed: what finished tasks of unseen plans had made
  std::set<StageKey> winners_before;
  std::uint32_t last_done = 0;  // replayed: the attempt of the newest record of a finished task; 0: none (since the snapshot)
  std::map<StageId, std::map<std::uint32_t, std::vector<HeldSegment>>> held;
  std::uint64_t learned = 0;                            // stages of actions up to this one are in `stages`
  std::map<std::uint64_t, dag::ActionPlan> unlearned;   // published before a restart, and announced before an earlier one was
  std::vector<StageKey> planned;                        // what has tasks to run: older actions first, upstream first
  std::set<StageKey> unverified;                        // a verdict may be due
  std::map<std::string, std::uint32_t> verified_lines;  // stage names, that is operators and source lines -> verdicts that agreed
  std::set<StageKey> copying;                           // copies may be missing
  std::map<std::uint64_t, std::vector<StageId>> cuts;   // by the action whose publication told main
  std::set<StageId> cut_stages;                         // all of these
  std::uint64_t copied_bytes = 0, copied_ms = 0;
  TimeMs orphans_since = 0;  // a block is missing whose lineage is cut

  std::map<WorkerId, RestartDelay> restarts;
  std::uint32_t executor_failures = 0;                       // in a row, of the whole job
  std::map<std::string, std::set<ExecutorId>> main_crashes;  // the way of crashing -> where it happened
  std::set<WorkerId> workers_used;

  TimeMs grace_until = 0;      // after a restart: outputs that the journal knows are waited for, not made again
  bool dirty = false;          // Replan() is due
  bool settle = true;          // actions may be complete, executors may be missing
  std::optional<Status> doom;  // finish with this at the end of the step
  std::int32_t doom_exit = 0;

  bool over() const { return phase >= JobPhase::kSucceeded; }
};

enum class TimerKind : std::uint8_t { kWake, kExecutorStart, kJobLimit };
struct Timer {
  TimerKind kind = TimerKind::kWake;
  JobId job;
  ExecutorId executor;
};

struct Scheduler::State {
  Options options;
  TimeMs now = 0;
  std::vector<SchedulerAction> out;

  std::map<JobId, JobRun> jobs;  // ids grow: the order of submission
  std::map<std::string, JobId> submit_keys;
  std::set<JobId> live;        // not over
  std::deque<JobId> finished;  // oldest first
  std::map<WorkerId, Worker> workers;
  std::map<ExecutorId, Executor> executors;
  std::map<std::uint64_t, Timer> timers;
  std::uint64_t job_next = 1;
  std::uint64_t executor_next = 1;
  std::uint64_t executors_reserved = 1;  // journalled
  std::uint64_t timer_next = 1;
  bool assign = false;  // a slot or a task became free

  // step.cc
  std::vector<SchedulerAction> Step(TimeMs at, const Event& event);
  void Settle();
  void On(const TimerFired& event);
  template <class Action>
  void Out(Action action) {
    out.emplace_back(std::move(action));
  }
  void Journal(const Record& record, bool sync);
  void Log(const JobRun& job, const EventLine& line);
  void Wake(TimeMs at);  // a Step at that time
  JobRun* LiveJob(JobId id);
  Executor* FindExecutor(ExecutorId id);
  void Changed(JobRun& job) { ++job.version; }
  void Doom(JobRun& job, Status status, std::int32_t main_exit = 0);

  // jobs.cc
  void On(const JobSubmitted& event);
  void On(const JobCancelled& event);
  void Admit();
  void StartLimit(JobRun& job);
  void Finish(JobRun& job, Status status, std::int32_t main_exit);

  // workers.cc
  void On(const WorkerRegistered& event);
  void On(const WorkerLost& event);
  void On(const WorkerDrained& event);
  void On(const SegmentsLost& event);
  void LoseWorker(WorkerId worker, const std::string& reason);
  void NoteLoss(JobRun& job, const std::string& worker, std::size_t tasks);
  bool Fits(const Worker& worker, const JobSpec& spec) const;
  bool TryAdopt(JobRun& job, StageRun& run, std::uint32_t task, WorkerId worker, const SegmentAt& at);
  void WorkerFault(WorkerId worker);

  // executors.cc
  void On(const ExecutorReady& event);
  void On(const ExecutorExited& event);
  void On(const MainReturned& event);
  void EnsureExecutors(JobRun& job);
  void StartOn(JobRun& job, WorkerId worker);
  void DropExecutor(ExecutorId id);  // forgets it; its tasks must be released before
  void StopUnneeded(JobRun& job);    // executors on drained workers
  void ReleaseTasks(Executor& executor, const std::string& cause);
  RunningTask LoseTask(JobRun& job, std::uint32_t attempt, const std::string& cause);  // its executor is gone; what it was
  void MainCrashed(JobRun& job, const Executor& executor, const ExecutorExited& event);
  void EnsureDriver(JobRun& job);

  // actions.cc
  void On(const ExecutorAtAction& event);
  void On(const ExecutorAtOnce& event);
  void On(const OnceComputed& event);
  void AcceptPlan(JobRun& job, const dag::ActionPlan& plan);
  void Learn(JobRun& job, const dag::ActionPlan& plan, bool published);
  void LearnNext(JobRun& job);
  void AddStage(JobRun& job, std::uint64_t sequence, const dag::Stage& stage);
  void Join(JobRun& job, Executor& executor, const dag::ActionPlan& plan);
  void PublishReady(JobRun& job);
  void Publish(JobRun& job, std::uint64_t sequence);
  void JournalWinners(JobRun& job, StageRun& run);
  void Pin(JobRun& job, const dag::ActionPlan& plan, std::vector<StageId>* pinned);
  void NoteOutput(JobRun& job, const dag::ActionPlan& plan);
  void Retire(JobRun& job, const dag::ActionPlan& plan);
  void FreeRetired(JobRun& job);
  void DropStage(JobRun& job, StageKey key);

  // tasks.cc
  void On(const TaskFinished& event);
  void On(const TaskFailed& event);
  void On(const FetchFailed& event);
  void On(const TasksProgressed& event);
  RunningTask* Registered(JobRun& job, ExecutorId executor, const TaskAttempt& id);
  void Release(JobRun& job, std::uint32_t attempt);  // the attempt is over, whatever the way
  void Cancel(JobRun& job, std::uint32_t attempt);
  void Register(JobRun& job, StageRun& run, std::uint32_t task, std::uint32_t attempt, const Executor& executor,
                const dag::TaskResult& result);
  void UserFailure(JobRun& job, StageRun& run, std::uint32_t task, const TaskFailed& event);
  void MachineFailure(JobRun& job, StageRun& run, std::uint32_t task, WorkerId worker, const Status& status);
  void MemoryFailure(JobRun& job, StageRun& run, std::uint32_t task, WorkerId worker, const Status& status, bool alone);
  void Crash(JobRun& job, StageRun& run, std::uint32_t task, const ExecutorExited& event, const TaskCursor* cursor, bool alone);
  void FreeSegment(JobRun& job, WorkerId worker, SegmentId segment);
  StageRun* FindStage(JobRun& job, StageKey key);
  void InputsAnswered(JobRun& job, const StageRun& run, const RunningTask& task);

  // gangs.cc
  void On(const GangExchanged& event);
  void AssignGangs();
  void GangReady(JobRun& job, const StageRun& run);
  bool PlaceGang(JobRun& job, StageRun& run, GangRun& gang);
  bool HoldFor(JobRun& job, const StageRun& run, GangRun& gang);
  void ClaimFor(JobRun& job, const StageRun& run, const GangRun& gang);
  void FormGang(JobRun& job, StageRun& run, GangRun& gang, const std::vector<ExecutorId>& places);
  void GangReached(JobRun& job, const RunningTask& rank, std::uint64_t reached);
  void GrowGang(JobRun& job, StageRun& run, GangRun& gang);
  std::uint32_t FewestRanks(const StageRun& run, const GangRun& gang) const;
  void TendGangs(JobRun& job);
  void RankFinished(JobRun& job, StageRun& run, std::uint32_t rank, std::uint32_t attempt, std::string value);
  void RankOver(JobRun& job, StageRun& run, std::uint32_t rank, GangEnd end, Status reason);
  void EndGang(JobRun& job, StageRun& run, GangEnd end, Status reason, std::uint32_t blamed);
  void GangOver(JobRun& job, StageRun& run, GangRun& gang);
  std::uint32_t GangRoom(const Worker& worker) const;
  std::vector<Executor*> GangExecutors(JobRun& job, const StageRun& run);
  std::map<WorkerId, std::uint64_t> GangBytes(JobRun& job, StageRun& run);
  Status Unplaced(const JobRun& job, const StageRun& run) const;

  // verify.cc
  void OnVerified(JobRun& job, StageRun& run, std::uint32_t attempt, ExecutorId executor, const dag::TaskResult& result);
  bool VerdictsPending(JobRun& job, const dag::ActionPlan& plan, StageId except);
  bool AssignVerify(JobRun& job);
  bool WorthVerifying(const JobRun& job, const dag::Stage& stage) const;
  std::vector<Sample> DrawSamples(const JobRun& job, const dag::Stage& stage) const;

  // lineage.cc
  void Replan(JobRun& job);
  bool InputsThere(JobRun& job, const StageRun& run, std::uint32_t task);
  StageRun* Producer(JobRun& job, const StageRun& run, const dag::StageInput& input);
  bool Lose(JobRun& job, StageRun& run, std::uint32_t task, const std::string& cause);
  std::size_t LoseWhere(JobRun& job, StageRun& run, const std::function<bool(WorkerId, SegmentId)>& gone, const std::string& cause);
  void WakeOneToOne(JobRun& job, const StageRun& run, std::uint32_t task);
  void ContentChanged(JobRun& job, StageRun& run, std::uint32_t task);

  // copies.cc
  std::uint64_t RecomputeMs(JobRun& job, const StageRun& run);
  void ConsiderCheckpoint(JobRun& job, StageRun& run);
  bool CopiesPending(JobRun& job, const dag::ActionPlan& plan);
  bool Copied(const StageRun& run) const;
  void CutStage(JobRun& job, StageRun& run);
  void SetCuts(JobRun& job, std::uint64_t sequence, const std::vector<StageId>& stages);
  bool AssignCopy(JobRun& job);
  void LaunchCopy(JobRun& job, StageRun& run, std::uint32_t task, Executor& executor);
  void OnCopied(JobRun& job, StageRun& run, const RunningTask& task, std::uint32_t attempt, const Executor& executor,
                const dag::TaskResult& result);
  void CopyFailed(JobRun& job, StageRun& run, std::uint32_t task);
  void DropCopy(JobRun& job, StageRun& run, std::uint32_t task);
  void StartOver(JobRun& job);

  // assignment.cc
  void Assign();
  bool AssignOne(JobRun& job);
  bool MayRun(const Executor& executor, bool even_avoided);
  std::uint64_t ServesAt(const Executor& executor, const StageRun& run) const;
  bool Alone(JobRun& job, const Executor& executor) const;
  void Launch(JobRun& job, StageRun& run, std::uint32_t task, std::uint64_t sequence, Executor& executor, bool verify,
              std::optional<dag::GangPlace> gang = {});
  std::vector<const std::map<WorkerId, std::uint64_t>*> InputBytes(JobRun& job, StageRun& run, std::uint32_t task);
  std::vector<dag::TaskInput> Inputs(JobRun& job, const StageRun& run, std::uint32_t task);
  std::uint32_t NextAttempt(JobRun& job);

  // replay.cc
  Status Apply(const Record& record);
  std::vector<SchedulerAction> Recovered(TimeMs at);
  std::vector<JournalRecord> Snapshot() const;
  void SnapshotOf(const JobRun& job, std::vector<Record>* records) const;

  // views.cc
  JobView View(const JobRun& job, bool with_plan) const;
  std::vector<StageView> StagesOf(const JobRun& job, const dag::ActionPlan& plan) const;
  static std::vector<std::string> Shown(const std::vector<std::string>& list);
  std::vector<ActionView> PastOf(const JobRun& job, bool unfinished_too) const;
  std::int64_t WallUs(TimeMs at) const { return at * 1000 + options.epoch_us; }
  std::vector<std::string> PendingReasons(const JobRun& job) const;
};

// "stage s7 (ReadLines > FlatMap)"
std::string StageText(const dag::Stage& stage);
std::string Number(std::uint64_t value);

}  // namespace ropewalk::scheduler
