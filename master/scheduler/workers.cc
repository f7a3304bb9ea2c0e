#include <algorithm>

#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

bool Scheduler::State::Fits(const Worker& worker, const JobSpec& spec) const {
  return (worker.glibc == 0 || worker.glibc >= spec.glibc_min) && (worker.cpu_level == 0 || worker.cpu_level >= spec.cpu_level_min);
}

void Scheduler::State::On(const WorkerRegistered& event) {
  if (workers.contains(event.worker)) return;  // a duplicate
  // A daemon that comes back before its old connection was seen to end.
  std::vector<WorkerId> replaced;
  for (const auto& [id, worker] : workers)
    if (worker.name == event.name) replaced.push_back(id);
  for (WorkerId id : replaced) LoseWorker(id, "it registered again");

  Worker& worker = workers[event.worker];
  worker = {event.worker, event.name, event.data_address, event.slots, 0, event.glibc, event.cpu_level};
  std::map<JobId, std::vector<SegmentId>> useless;
  for (const SegmentAt& at : event.segments) {
    JobRun* job = LiveJob(at.job);
    if (job == nullptr) {
      useless[at.job].push_back(at.ref.segment);
      continue;
    }
    job->workers_used.insert(event.worker);
    const TaskAttempt& id = at.ref.producer;
    if (StageRun* run = FindStage(*job, {0, id.stage}))
      TryAdopt(*job, *run, id.task, event.worker, at);
    else
      job->held[id.stage][id.task].push_back({event.worker, at});  // its plan may still come: main is being replayed
  }
  for (auto& [job, segments] : useless) Out(FreeSegments{event.worker, job, std::move(segments), false});
  for (JobId id : live) jobs.at(id).settle = true;
  assign = true;
}

// May a segment that a worker still holds be used? Only when it is provably what this job's other work was made from:
//  - its producer is the registered winner (recorded here, and journalled in order): everything recorded later was made from it; or
//  - its content hash equals the registered winner's: the same content; or
//  - nobody is registered and the stage reads no other stage: no recorded work can have read another attempt's content (its record would
//    come after the producer's), and there is no input that could have been another one.
// A segment of a stage with inputs, made by an attempt that is not registered, may come from inputs that were replaced meanwhile. It is
// freed.
bool Scheduler::State::TryAdopt(JobRun& job, StageRun& run, std::uint32_t task, WorkerId worker, const SegmentAt& at) {
  std::uint32_t attempt = at.ref.producer.attempt;
  // A second copy of what is here: of a checkpoint it is kept.
  if (bool checkpointed = run.checkpoint != Checkpoint::kNone || job.cut_stages.contains(run.key.stage);
      checkpointed && run.segments() && task < run.tasks.size() && run.tasks[task].done && at.content_hash != 0 &&
      at.content_hash == run.tasks[task].hash && (worker != run.tasks[task].worker || at.ref.segment != run.tasks[task].segment) &&
      attempt != 0 && attempt < job.attempts_reserved) {
    CopyRun& copy = run.copies[task];
    if (!copy.done && copy.running == 0) {
      copy.done = true;
      copy.attempt = attempt;
      copy.worker = worker;
      copy.segment = at.ref.segment;
      copy.bytes = at.ref.bytes;
      job.dirty = true;
      return true;
    }
  }
  bool usable = run.segments() && task < run.tasks.size() && attempt != 0 && attempt < job.attempts_reserved && !run.tasks[task].done;
  if (usable) {
    const TaskRun& t = run.tasks[task];
    if (t.winner != 0)
      usable = attempt == t.winner || (at.content_hash != 0 && at.content_hash == t.hash);
    else
      usable = run.stage.inputs.empty();
  }
  if (!usable) {
    FreeSegment(job, worker, at.ref.segment);
    return false;
  }
  TaskRun& t = run.tasks[task];
  if (t.attempt != 0) Cancel(job, t.attempt);
  if (t.winner != attempt) {
    if (t.winner == 0) t.hash = at.content_hash;
    t.winner = attempt;
    Journal(TaskDoneRecord{job.id, 0, {run.key.stage, task, attempt}, t.hash, false, ""}, false);
  }
  t.done = true;
  t.worker = worker;
  t.segment = at.ref.segment;
  t.bytes = at.ref.bytes;
  ++run.done;
  run.lost_cause.erase(task);
  job.dirty = true;
  Changed(job);
  Log(job, EventLine("segment_adopted", now)
               .Num("stage", run.key.stage.value)
               .Num("task", task)
               .Num("attempt", attempt)
               .Num("worker", worker.value));
  return true;
}

// For people only: nothing is decided by it.
void Scheduler::State::NoteLoss(JobRun& job, const std::string& worker, std::size_t tasks) {
  ++job.workers_lost;
  if (job.lost_workers.size() == kLossesShown) job.lost_workers.erase(job.lost_workers.begin());
  job.lost_workers.push_back({worker, static_cast<std::uint32_t>(tasks)});
}

void Scheduler::State::On(const WorkerLost& event) { LoseWorker(event.worker, event.reason); }

void Scheduler::State::LoseWorker(WorkerId id, const std::string& reason) {
  auto it = workers.find(id);
  if (it == workers.end()) return;
  std::string cause = "worker " + it->second.name + " lost";
  for (JobId job_id : live) {
    JobRun& job = jobs.at(job_id);
    if (!job.workers_used.contains(id)) continue;
    Log(job, EventLine("worker_lost", now).Num("worker", id.value).Str("name", it->second.name).Str("reason", reason));
    std::vector<ExecutorId> here;
    for (ExecutorId executor : job.executors)
      if (executors.at(executor).worker == id) here.push_back(executor);
    std::size_t gone = 0;
    for (ExecutorId executor : here) {
      gone += executors.at(executor).running.size();
      ReleaseTasks(executors.at(executor), cause);
      Log(job, EventLine("executor_exited", now).Num("executor", executor.value).Num("worker", id.value).Str("reason", cause));
      DropExecutor(executor);
    }
    for (auto& [key, run] : job.stages) {
      std::size_t lost = LoseWhere(job, run, [id](WorkerId worker, SegmentId) { return worker == id; }, cause);
      if (lost > 0) Log(job, EventLine("segments_lost", now).Num("stage", key.stage.value).Num("count", lost).Str("cause", cause));
      gone += lost;
    }
    for (auto& [stage, tasks] : job.held)
      for (auto& [task, list] : tasks) std::erase_if(list, [&](const HeldSegment& held) { return held.worker == id; });
    if (gone > 0 || !here.empty()) NoteLoss(job, it->second.name, gone);
    job.restarts.erase(id);
    job.workers_used.erase(id);
    job.settle = true;
    job.dirty = true;
    Changed(job);
  }
  workers.erase(id);
  assign = true;
}

void Scheduler::State::On(const WorkerDrained& event) {
  auto it = workers.find(event.worker);
  if (it == workers.end()) return;
  it->second.drained = true;
  for (JobId id : live) jobs.at(id).settle = true;  // another worker may take the executor's place
  assign = true;
}

void Scheduler::State::On(const SegmentsLost& event) {
  JobRun* job = LiveJob(event.job);
  if (job == nullptr || !workers.contains(event.worker)) return;
  std::set<SegmentId> gone(event.segments.begin(), event.segments.end());
  for (auto& [key, run] : job->stages) {
    std::size_t lost = LoseWhere(
        *job, run, [&](WorkerId worker, SegmentId segment) { return worker == event.worker && gone.contains(segment); }, "segment gone");
    if (lost > 0) Log(*job, EventLine("segments_lost", now).Num("stage", key.stage.value).Num("count", lost).Str("cause", "segment gone"));
  }
  for (auto& [stage, tasks] : job->held)
    for (auto& [task, list] : tasks)
      std::erase_if(list, [&](const HeldSegment& held) { return held.worker == event.worker && gone.contains(held.at.ref.segment); });
}

// Several machine faults in a row on one worker: others are better for a while.
void Scheduler::State::WorkerFault(WorkerId id) {
  auto it = workers.find(id);
  if (it == workers.end() || ++it->second.failures_in_row < options.worker_task_failures_max) return;
  it->second.failures_in_row = 0;
  it->second.avoided_until = now + options.worker_avoided_ms;
  Wake(it->second.avoided_until);
}

}  // namespace ropewalk::scheduler
