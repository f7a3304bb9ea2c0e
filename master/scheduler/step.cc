#include <algorithm>
#include <utility>

#include "base/job_name.h"
#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

Scheduler::Scheduler(Options options) : state_(std::make_unique<State>()) { state_->options = options; }
Scheduler::~Scheduler() = default;

std::vector<SchedulerAction> Scheduler::Step(TimeMs now, const Event& event) { return state_->Step(now, event); }

std::vector<SchedulerAction> Scheduler::State::Step(TimeMs at, const Event& event) {
  now = std::max(now, at);
  out.clear();
  std::visit([this](const auto& e) { On(e); }, event);
  Settle();
  if (options.planted.act_before_sync)
    std::stable_partition(out.begin(), out.end(), [](const SchedulerAction& a) { return !std::holds_alternative<JournalRecord>(a); });
  return std::exchange(out, {});
}

// What follows from any event: jobs end, start, get executors and a driver; lost work is planned; complete actions are published; free
// slots get tasks. Each part is cheap when nothing of its kind changed.
void Scheduler::State::Settle() {
  Admit();
  std::vector<JobId> ids(live.begin(), live.end());
  bool any_over = false;
  for (JobId id : ids) {
    JobRun& job = jobs.at(id);
    if (!job.admitted && !job.doom) continue;
    if (!job.gangs.empty()) TendGangs(job);
    if (job.settle && !job.doom) {
      job.settle = false;
      StopUnneeded(job);
      EnsureExecutors(job);
      EnsureDriver(job);
    }
    // Publishing an action may complete what a later one waits for (they share stages).
    for (int round = 0; job.dirty && !job.doom && round < 1000; ++round) {
      job.dirty = false;
      assign = true;
      Replan(job);
      PublishReady(job);
      if (job.orphans_since != 0 && !job.doom && now >= job.orphans_since + options.orphan_grace_ms) {
        StartOver(job);
        EnsureExecutors(job);
      }
    }
    if (!job.doom && job.driver && job.actions.empty()) {
      const Executor& driver = executors.at(job.driver);
      if (driver.main_returned && driver.early.empty()) {
        Status status;
        if (driver.main_exit != 0)
          status = Status(Code::kUserError, "MAIN02", "main returned " + std::to_string(driver.main_exit),
                          "the job's main ended with that code", "look at the job's output: `ropewalk logs " + JobName(job.id) + "`");
        Finish(job, std::move(status), driver.main_exit);
        any_over = true;
        continue;
      }
    }
    if (job.doom) {
      Status status = *std::move(job.doom);
      Finish(job, std::move(status), job.doom_exit);
      any_over = true;
    }
  }
  if (any_over) {
    Settle();  // its slots admit the next job; ends because each round ends a job
    return;
  }
  if (std::exchange(assign, false)) Assign();
}

void Scheduler::State::On(const TimerFired& event) {
  auto it = timers.find(event.timer);
  if (it == timers.end()) return;
  Timer timer = it->second;
  timers.erase(it);
  switch (timer.kind) {
    case TimerKind::kWake:
      for (JobId id : live) {
        JobRun& job = jobs.at(id);
        job.settle = true;
        job.dirty |= job.orphans_since != 0;
        if (job.grace_until != 0 && job.grace_until <= now) {
          job.grace_until = 0;
          job.dirty = true;
        }
      }
      assign = true;
      break;
    case TimerKind::kExecutorStart: {
      Executor* executor = FindExecutor(timer.executor);
      if (executor == nullptr || executor->phase == ExecutorPhase::kReady) break;
      Out(StopExecutor{executor->worker, executor->id, "it did not say hello in time"});
      ExecutorExited exited;
      exited.executor = executor->id;
      exited.reason =
          Status(Code::kUnavailable, "EXE01", "an executor did not start in time", "it said no hello", "look at the worker's log");
      On(exited);
      break;
    }
    case TimerKind::kJobLimit:
      if (JobRun* job = LiveJob(timer.job))
        Doom(*job, Status(Code::kDeadlineExceeded, "JOB03", "the job's time limit is over",
                          "it was not done " + Number(static_cast<std::uint64_t>(job->spec.time_limit_ms)) + " ms after it was accepted",
                          "give it more time or more workers"));
      break;
  }
}

void Scheduler::State::Journal(const Record& record, bool sync) { Out(JournalRecord{Encode(record), sync}); }

void Scheduler::State::Log(const JobRun& job, const EventLine& line) { Out(LogEvent{job.id, line.kind(), line.Finish()}); }

void Scheduler::State::Wake(TimeMs at) {
  std::uint64_t id = timer_next++;
  timers[id] = {};
  Out(SetTimer{id, at});
}

JobRun* Scheduler::State::LiveJob(JobId id) {
  auto it = jobs.find(id);
  return it == jobs.end() || it->second.over() || it->second.doom ? nullptr : &it->second;
}

Executor* Scheduler::State::FindExecutor(ExecutorId id) {
  auto it = executors.find(id);
  return it == executors.end() ? nullptr : &it->second;
}

// The first reason is the one that users get.
void Scheduler::State::Doom(JobRun& job, Status status, std::int32_t main_exit) {
  if (job.doom || job.over()) return;
  job.doom = std::move(status);
  job.doom_exit = main_exit;
}

std::string Number(std::uint64_t value) { return std::to_string(value); }

std::string StageText(const dag::Stage& stage) { return "stage s" + Number(stage.id.value) + " (" + stage.name + ")"; }

}  // namespace ropewalk::scheduler
