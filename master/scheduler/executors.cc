#include <algorithm>

#include "dag/failure_tags.h"
#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

// One executor for each (job, worker), on the least used workers first, up to executors_max.
void Scheduler::State::EnsureExecutors(JobRun& job) {
  std::set<WorkerId> taken;
  for (ExecutorId id : job.executors) {
    const Executor& executor = executors.at(id);
    taken.insert(executor.worker);
  }
  std::map<WorkerId, std::uint32_t> load;
  for (const auto& [id, executor] : executors) ++load[executor.worker];
  std::vector<std::pair<std::uint32_t, WorkerId>> choice;
  for (const auto& [id, worker] : workers) {
    if (taken.contains(id) || worker.drained || !Fits(worker, job.spec)) continue;
    if (auto it = job.restarts.find(id); it != job.restarts.end() && it->second.not_before > now) continue;
    choice.emplace_back(load[id], id);
  }
  std::sort(choice.begin(), choice.end());
  // An executor on a drained worker serves until its job ends, but takes no new tasks: it does not count.
  std::size_t counted = 0;
  for (WorkerId id : taken) counted += workers.at(id).drained ? 0 : 1;
  std::size_t limit = job.spec.executors_max == 0 ? workers.size() : job.spec.executors_max;
  for (const auto& [n, id] : choice) {
    if (counted >= limit) break;
    StartOn(job, id);
    ++counted;
  }
}

void Scheduler::State::StartOn(JobRun& job, WorkerId worker) {
  if (executor_next >= executors_reserved) {
    executors_reserved = executor_next + kExecutorBlock;
    Journal(CountersRecord{job_next, executors_reserved}, true);
  }
  ExecutorId id{executor_next++};
  Executor& executor = executors[id];
  executor.id = id;
  executor.worker = worker;
  executor.job = job.id;
  job.executors.insert(id);
  job.workers_used.insert(worker);
  Out(StartExecutor{worker, job.id, id});
  std::uint64_t timer = timer_next++;
  timers[timer] = {TimerKind::kExecutorStart, job.id, id};
  Out(SetTimer{timer, now + options.executor_start_max_ms});
}

void Scheduler::State::On(const ExecutorReady& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr || executor->phase == ExecutorPhase::kReady) return;
  executor->phase = ExecutorPhase::kReady;
  JobRun& job = jobs.at(executor->job);
  job.settle = true;
  if (job.phase == JobPhase::kPending) job.phase = JobPhase::kRunning;
  if (job.started_us == 0 && !job.started_before) job.started_us = WallUs(now);
  Changed(job);
  Log(job, EventLine("executor_started", now).Num("executor", executor->id.value).Num("worker", executor->worker.value));
}

// The one that got furthest leads: it has the least to catch up with.
void Scheduler::State::EnsureDriver(JobRun& job) {
  if (job.driver) return;
  const Executor* best = nullptr;
  for (ExecutorId id : job.executors) {
    const Executor& executor = executors.at(id);
    if (executor.phase == ExecutorPhase::kReady && (best == nullptr || executor.last_action > best->last_action)) best = &executor;
  }
  if (best == nullptr) return;
  Executor& driver = executors.at(best->id);
  job.driver = driver.id;
  Changed(job);
  Out(NameDriver{driver.id, job.id});
  Log(job, EventLine("driver_named", now).Num("executor", driver.id.value).Num("worker", driver.worker.value));
  // It may have asked while it was a replica.
  if (!driver.once.empty()) Out(ComputeOnce{driver.id, driver.once});
  while (!driver.early.empty() && !job.doom) {
    dag::ActionPlan plan = std::move(driver.early.begin()->second);
    driver.early.erase(driver.early.begin());
    if (!job.actions.contains(plan.sequence)) AcceptPlan(job, plan);
    if (!job.doom) Join(job, driver, plan);
  }
}

void Scheduler::State::On(const MainReturned& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr || executor->main_returned) return;
  executor->main_returned = true;
  executor->main_exit = event.exit_code;
  JobRun& job = jobs.at(executor->job);
  job.settle = true;
  if (executor->id == job.driver) Changed(job);
}

void Scheduler::State::On(const ExecutorExited& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr) return;
  JobRun& job = jobs.at(executor->job);
  WorkerId worker = executor->worker;
  Code code = event.reason.code();
  bool killed = event.signal == 9 || event.signal == 15;
  bool by_itself = (code == Code::kUserError || code == Code::kOk) && !killed;
  std::string way = event.signal != 0 ? "signal " + Number(static_cast<std::uint64_t>(event.signal))
                    : by_itself       ? "exit " + std::to_string(event.exit_code)
                                      : event.reason.what();
  Log(job, EventLine("executor_exited", now)
               .Num("executor", event.executor.value)
               .Num("worker", worker.value)
               .Str("reason", way)
               .Num("tasks", executor->running.size()));

  // Whose fault? The crash handler names the thread's task; if it could not, every running task is suspected.
  bool blamed = false;
  for (const TaskCursor& cursor : event.cursors) blamed |= cursor.signal != 0;
  std::vector<std::uint32_t> running(executor->running.begin(), executor->running.end());
  std::vector<std::pair<RunningTask, bool>> ranks;  // and whether it crashed: their gangs are told when all that ran here is over
  for (std::uint32_t attempt : running) {
    const TaskCursor* cursor = nullptr;
    for (const TaskCursor& c : event.cursors)
      if (c.id.attempt == attempt) cursor = &c;
    const RunningTask task = LoseTask(job, attempt, way);
    StageRun& run = *FindStage(job, task.key);
    if (task.rank) {
      ranks.emplace_back(task, !blamed || (cursor != nullptr && cursor->signal != 0));
    } else if (task.copy) {
      CopyFailed(job, run, task.task);  // the copying is ours: whatever ended the executor was something else
    } else if (by_itself) {
      if (!blamed || (cursor != nullptr && cursor->signal != 0)) Crash(job, run, task.task, event, cursor, !blamed && running.size() > 1);
    } else if (code == Code::kResourceExhausted) {
      ++run.failed;
      MemoryFailure(job, run, task.task, worker, event.reason, running.size() > 1);
    } else {
      MachineFailure(job, run, task.task, worker,
                     event.reason.ok() ? Status(Code::kUnavailable, "EXE02", "the executor was killed", way) : event.reason);
    }
  }
  // The one that crashed comes first: it is the reason.
  std::stable_sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second && !b.second; });
  for (const auto& [task, crashed] : ranks) {
    // Memory is the program's business too: nobody else can mend it, and it is tried again as often as an error is. Where it may as well
    // have been somebody's kill, that would end a healthy program after two of them: then it counts as the machine's, which is bounded too,
    // however long the memory lasts: only a gang that gets farther is formed anew without end (GangOver).
    const bool of_memory = code == Code::kResourceExhausted && event.reason.tag() != dag::kPerhapsOutOfMemoryTag;
    const bool of_program = (by_itself && crashed) || of_memory;
    Status status = event.reason;
    if (event.reason.ok() || by_itself) {
      const std::string why = !event.reason.why().empty() ? event.reason.why() : by_itself ? "its code ended the process" : way;
      status = Status(of_program ? Code::kUserError : Code::kUnavailable, "GANG03",
                      "rank " + Number(task.task) + (by_itself ? " crashed (" + way + ")" : " was lost with its executor"), why,
                      event.reason.tag() == dag::kSocketClosedTag ? event.reason.fix() : "`ropewalk logs` shows its output");
    }
    const GangEnd end = of_program ? GangEnd::kCrash : by_itself ? GangEnd::kLost : GangEnd::kMachine;
    if (end == GangEnd::kMachine) WorkerFault(worker);
    RankOver(job, *FindStage(job, task.key), task.task, end, std::move(status));
  }
  if (by_itself && running.empty() && !executor->main_returned) MainCrashed(job, *executor, event);

  // One that got somewhere is not counted: a lost gang may end the executors of all its ranks at once, which were at work until then.
  const bool did_nothing = executor->last_action == 0 && executor->onces_seen == 0;
  const bool never = code == Code::kInvalid || code == Code::kNotFound || code == Code::kVersionSkew;
  if (did_nothing) job.executor_failures += never ? 4 : 1;
  if (did_nothing && job.executor_failures >= options.executor_failures_max)
    Doom(job,
         event.reason.ok()
             ? Status(Code::kUnavailable, "EXE03", "executors die before they do anything", way, "`ropewalk logs` shows their output")
             : event.reason.WithContext("executors of the job die before they do anything"),
         event.exit_code);

  RestartDelay& delay = job.restarts[worker];
  TimeMs wait = options.executor_restart_delay_ms << std::min<std::uint32_t>(delay.crashes, 16);
  wait = std::min(wait, options.executor_restart_delay_max_ms);
  ++delay.crashes;
  delay.not_before = now + wait;
  delay.reason = way;
  Wake(delay.not_before);
  DropExecutor(event.executor);
  job.settle = true;
  job.dirty = true;
  Changed(job);
}

// Main crashed (no task was running). The same way at the same place in two executors: it is main's own fault.
void Scheduler::State::MainCrashed(JobRun& job, const Executor& executor, const ExecutorExited& event) {
  std::string way = event.signal != 0 ? "crashed by signal " + std::to_string(event.signal)
                                      : "exited with code " + std::to_string(event.exit_code) + " without returning";
  std::string where = executor.last_action == 0 ? "before its first action" : "after reaching action " + Number(executor.last_action);
  std::set<ExecutorId>& seen = job.main_crashes[way + " " + where + " once " + Number(executor.onces_seen)];
  seen.insert(executor.id);
  if (seen.size() < 2) return;
  const bool closed = event.reason.tag() == dag::kSocketClosedTag;
  const std::string why = closed ? event.reason.why() : event.reason.what();
  Doom(job,
       Status(Code::kUserError, "MAIN01", "main " + way + " " + where,
              "it did so in " + Number(seen.size()) + " executors" + (event.reason.ok() ? "" : "; " + why),
              closed ? event.reason.fix() : "run it without --master under a debugger; `ropewalk logs` shows its output"),
       event.exit_code);
}

// On a drained worker an executor that runs nothing only keeps the worker from leaving, unless the job's main is driven there or outputs of
// the job lie there. Somebody else must be able to take its place.
void Scheduler::State::StopUnneeded(JobRun& job) {
  bool any_drained = false, another = false;
  for (ExecutorId id : job.executors) {
    const Executor& executor = executors.at(id);
    bool drained = workers.at(executor.worker).drained;
    any_drained |= drained;
    another |= !drained && executor.phase == ExecutorPhase::kReady;
  }
  if (!any_drained || !another) return;
  std::set<WorkerId> holders;
  for (const auto& [key, run] : job.stages)
    if (run.segments())
      for (const TaskRun& t : run.tasks)
        if (t.done) holders.insert(t.worker);
  for (const auto& [stage, tasks] : job.held)
    for (const auto& [task, list] : tasks)
      for (const HeldSegment& held : list) holders.insert(held.worker);
  std::vector<ExecutorId> unneeded;
  for (ExecutorId id : job.executors) {
    const Executor& executor = executors.at(id);
    if (workers.at(executor.worker).drained && executor.running.empty() && id != job.driver && !holders.contains(executor.worker))
      unneeded.push_back(id);
  }
  for (ExecutorId id : unneeded) {
    WorkerId worker = executors.at(id).worker;
    Out(StopExecutor{worker, id, "its worker is being drained"});
    Log(job, EventLine("executor_stopped", now).Num("executor", id.value).Num("worker", worker.value).Str("reason", "drain"));
    DropExecutor(id);
  }
}

void Scheduler::State::ReleaseTasks(Executor& executor, const std::string& cause) {
  JobRun& job = jobs.at(executor.job);
  std::vector<std::uint32_t> running(executor.running.begin(), executor.running.end());
  std::vector<RunningTask> ranks;  // their gangs are told when all that ran here is over
  for (std::uint32_t attempt : running)
    if (RunningTask task = LoseTask(job, attempt, cause); task.rank) ranks.push_back(std::move(task));
  for (const RunningTask& rank : ranks)
    RankOver(job, *FindStage(job, rank.key), rank.task, GangEnd::kMachine,
             Status(Code::kUnavailable, dag::kRankLostTag, "rank " + Number(rank.task) + " was lost", cause));
}

RunningTask Scheduler::State::LoseTask(JobRun& job, std::uint32_t attempt, const std::string& cause) {
  RunningTask task = job.running.at(attempt);
  Release(job, attempt);
  Log(job, EventLine("task_lost", now)
               .Num("stage", task.key.stage.value)
               .Num("task", task.task)
               .Num("attempt", attempt)
               .Num("executor", task.executor.value)
               .Str("cause", cause)
               .Flag("verify", task.verify));
  return task;
}

void Scheduler::State::DropExecutor(ExecutorId id) {
  auto it = executors.find(id);
  JobRun& job = jobs.at(it->second.job);
  job.executors.erase(id);
  if (job.driver == id) job.driver = {};
  executors.erase(it);
  assign = true;
}

}  // namespace ropewalk::scheduler
