#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

void Scheduler::State::On(const JobSubmitted& event) {
  const std::string& key = event.spec.submit_key;
  if (!key.empty() && !options.planted.ignore_submit_key)
    if (auto it = submit_keys.find(key); it != submit_keys.end()) {
      Out(AcceptJob{it->second, key});  // the first answer was lost on its way
      return;
    }
  JobId id = event.spec.settings.job ? event.spec.settings.job : JobId{job_next};
  if (jobs.contains(id)) {
    Out(RefuseJob{key, Status(Code::kInvalid, "JOB01", "job id " + Number(id.value) + " is in use", "another job has it",
                              "leave the id to the master")});
    return;
  }
  if (live.size() >= options.jobs_waiting_max + options.jobs_running_max) {
    Out(RefuseJob{key, Status(Code::kResourceExhausted, "JOB02", "too many jobs wait", Number(live.size()) + " are not finished",
                              "submit again later")});
    return;
  }
  bool any_fits = workers.empty();
  for (const auto& [worker_id, worker] : workers) any_fits |= Fits(worker, event.spec);
  if (!any_fits) {
    Out(RefuseJob{key, Status(Code::kUnplaceable, "JOB04", "no worker can run this executable",
                              "it needs a newer glibc or a higher CPU level than any of the " + Number(workers.size()) + " workers has",
                              "build it for an older system or CPU, or add such a worker")});
    return;
  }
  JobRun& job = jobs[id];
  job.id = id;
  job.spec = event.spec;
  job.spec.settings.job = id;
  job.accepted_at = now;
  job.attempts_reserved = kAttemptBlock;  // part of the acceptance: the first tasks wait for no further sync
  job_next = std::max(job_next, id.value + 1);
  live.insert(id);
  if (!key.empty()) submit_keys[key] = id;
  Journal(JobAcceptedRecord{job.spec}, true);
  Log(job, EventLine("job_accepted", now).Num("job", id.value).Str("name", job.spec.settings.name).Str("user", job.spec.user));
  Out(AcceptJob{id, key});
  StartLimit(job);
}

void Scheduler::State::StartLimit(JobRun& job) {
  if (job.spec.time_limit_ms <= 0) return;
  std::uint64_t timer = timer_next++;
  timers[timer] = {TimerKind::kJobLimit, job.id, {}};
  Out(SetTimer{timer, now + job.spec.time_limit_ms});
}

void Scheduler::State::On(const JobCancelled& event) {
  if (JobRun* job = LiveJob(event.job)) Doom(*job, Status(Code::kCancelled, "JOB05", "the job was cancelled", event.reason));
}

// First come, first served, as many as may run side by side; those share the free slots evenly (assignment.cc).
void Scheduler::State::Admit() {
  std::uint32_t running = 0;
  for (JobId id : live) {
    JobRun& job = jobs.at(id);
    if (!job.admitted && running < options.jobs_running_max) {
      job.admitted = true;
      job.settle = true;
      Changed(job);
    }
    if (job.admitted) ++running;
  }
}

void Scheduler::State::Finish(JobRun& job, Status status, std::int32_t main_exit) {
  job.finished_us = WallUs(now);
  JobFinishedRecord record{job.id,
                           job.spec.submit_key,
                           job.spec.settings.name,
                           job.spec.user,
                           job.spec.settings.now_us,
                           static_cast<std::uint32_t>(status.code()),
                           status.tag(),
                           status.what(),
                           status.why(),
                           status.fix(),
                           main_exit,
                           job.actions_done,
                           job.started_us,
                           job.finished_us,
                           PastOf(job, true),
                           Shown(job.spec.argv),
                           Shown(job.outputs),
                           job.workers_lost,
                           job.lost_workers};
  Journal(record, true);

  for (ExecutorId id : job.executors) {
    const Executor& executor = executors.at(id);
    if (status.ok()) break;
    static const Values kNone = std::make_shared<const std::vector<std::string>>();
    for (std::uint64_t sequence : executor.at) Out(PublishAction{id, sequence, status, kNone});
    for (const auto& [sequence, plan] : executor.early) Out(PublishAction{id, sequence, status, kNone});
    if (!executor.once.empty()) Out(PublishOnce{id, executor.once, status, ""});
  }
  // Ranks may be waiting for each other.
  for (const auto& [attempt, task] : job.running)
    if (task.rank)
      Out(EndRank{task.executor,
                  job.id,
                  {task.key.stage, task.task, attempt},
                  status.code() == Code::kCancelled ? status : Status(Code::kCancelled, "JOB05", "the job is over", status.what())});
  job.phase = status.ok() ? JobPhase::kSucceeded : status.code() == Code::kCancelled ? JobPhase::kCancelled : JobPhase::kFailed;
  Log(job, EventLine("job_finished", now)
               .Num("job", job.id.value)
               .Str("phase", PhaseName(job.phase))
               .Str("code", CodeName(status.code()))
               .Str("tag", status.tag())
               .Str("what", status.what())
               .Num("main_exit", main_exit));
  Out(FinishJob{job.id, status, main_exit});

  while (!job.running.empty()) Release(job, job.running.begin()->first);
  std::vector<ExecutorId> ids(job.executors.begin(), job.executors.end());
  for (ExecutorId id : ids) {
    Out(StopExecutor{executors.at(id).worker, id, "the job is over"});
    DropExecutor(id);
  }
  // To every worker, since any executor may write until it is gone: what the first one missed the last one finds.
  std::vector<dag::OutputPlace> unpublished;
  for (const auto& [sequence, plan] : job.actions)
    if (plan.output) unpublished.push_back(*plan.output);
  for (WorkerId worker : job.workers_used)
    if (workers.contains(worker)) Out(FreeSegments{worker, job.id, {}, true, unpublished});

  // What remains is what views show and what a repeated submit asks for.
  JobRun rest;
  rest.id = job.id;
  rest.spec.settings = job.spec.settings;
  rest.spec.submit_key = job.spec.submit_key;
  rest.spec.user = job.spec.user;
  rest.admitted = true;
  rest.phase = job.phase;
  rest.version = job.version + 1;
  rest.accepted_at = job.accepted_at;
  rest.started_us = job.started_us;
  rest.finished_us = job.finished_us;
  rest.past = std::move(record.past);
  rest.spec.argv = std::move(record.argv);
  rest.outputs = std::move(record.outputs);
  rest.workers_lost = job.workers_lost;
  rest.lost_workers = std::move(record.lost_workers);
  rest.status = std::move(status);
  rest.main_exit = main_exit;
  rest.actions_done = job.actions_done;
  rest.settle = false;
  JobId id = job.id;
  live.erase(id);
  jobs[id] = std::move(rest);
  finished.push_back(id);
  while (finished.size() > options.jobs_finished_kept) {
    JobId oldest = finished.front();
    finished.pop_front();
    submit_keys.erase(jobs.at(oldest).spec.submit_key);
    jobs.erase(oldest);
  }
  assign = true;
}

}  // namespace ropewalk::scheduler
