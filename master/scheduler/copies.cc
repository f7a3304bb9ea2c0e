// Checkpoints: which stages are copied, who makes the copies, what is cut from the lineage, and what happens when all copies are gone.
#include <algorithm>
#include <set>
#include <utility>

#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

// Of all tasks that a loss of the stage might run again: down to the nearest checkpoints.
std::uint64_t Scheduler::State::RecomputeMs(JobRun& job, const StageRun& run) {
  std::uint64_t sum_ms = 0;
  std::set<StageKey> seen{run.key};
  std::vector<const StageRun*> open{&run};
  while (!open.empty()) {
    const StageRun* at = open.back();
    open.pop_back();
    sum_ms += at->task_ms;
    for (const dag::StageInput& input : at->stage.inputs) {
      StageRun* producer = Producer(job, *at, input);
      if (producer != nullptr && producer->checkpoint == Checkpoint::kNone && seen.insert(producer->key).second) open.push_back(producer);
    }
  }
  return sum_ms;
}

// Only what other segments are made from is looked at: it is what a later loss would have to make again, and main's loop goes on with it.
void Scheduler::State::ConsiderCheckpoint(JobRun& job, StageRun& run) {
  if (options.outputs_durable || run.checkpoint != Checkpoint::kNone || !run.feeds_segments || run.tasks.empty()) return;
  CheckpointCase c{run.depth, static_cast<std::uint32_t>(run.tasks.size()), 0, 0, job.copied_bytes, job.copied_ms};
  if (run.complete()) {
    for (const TaskRun& t : run.tasks) c.bytes += t.bytes;
    c.recompute_ms = RecomputeMs(job, run);
  }
  if (!WorthCheckpoint(options.checkpoint, c)) return;
  run.checkpoint = Checkpoint::kWanted;
  run.checkpoint_since = now;
  job.copying.insert(run.key);
  assign = true;
  Wake(now + options.verify_wait_ms);
  Log(job, EventLine("checkpoint_wanted", now)
               .Num("stage", run.key.stage.value)
               .Num("depth", run.depth)
               .Num("bytes", c.bytes)
               .Num("recompute_ms", c.recompute_ms));
}

// Copies that the action waits for. A stage that lost an output meanwhile is not waited for: it is no checkpoint this time.
bool Scheduler::State::CopiesPending(JobRun& job, const dag::ActionPlan& plan) {
  for (const dag::Stage& stage : plan.stages) {
    if (stage.output != dag::StageOutput::kSegment) continue;
    StageRun* run = FindStage(job, {0, stage.id});
    if (run != nullptr && run->checkpoint == Checkpoint::kWanted && run->complete() && !Copied(*run)) return true;
  }
  return false;
}

bool Scheduler::State::Copied(const StageRun& run) const {
  for (std::uint32_t task = 0; task < run.tasks.size(); ++task) {
    auto copy = run.copies.find(task);
    if (!run.tasks[task].done || copy == run.copies.end() || !copy->second.done) return false;
  }
  return true;
}

// From now on the stage stands by itself: nothing that it was made from is ever run for it.
void Scheduler::State::CutStage(JobRun& job, StageRun& run) {
  run.checkpoint = Checkpoint::kCut;
  run.stage.inputs.clear();
  run.depth = 0;
  if (!options.outputs_durable) job.copying.insert(run.key);
}

// What the publication of an action tells main.
void Scheduler::State::SetCuts(JobRun& job, std::uint64_t sequence, const std::vector<StageId>& stages) {
  if (stages.empty()) {
    job.cuts.erase(sequence);
  } else {
    job.cuts[sequence] = stages;
    job.cut_stages.insert(stages.begin(), stages.end());
  }
}

// The second copy of a finished task, on another worker where there is one, in slots that no task of the job can use. True: one was
// started.
bool Scheduler::State::AssignCopy(JobRun& job) {
  for (auto at = job.copying.begin(); at != job.copying.end();) {
    StageRun* run = FindStage(job, *at);
    bool open = false;
    for (std::uint32_t task = 0; run != nullptr && run->checkpoint != Checkpoint::kNone && task < run->tasks.size(); ++task) {
      const TaskRun& t = run->tasks[task];
      auto copy = run->copies.find(task);
      if (copy != run->copies.end() && copy->second.done) continue;
      open = true;
      if (!t.done || (copy != run->copies.end() && (copy->second.running != 0 || copy->second.not_before > now))) continue;
      Executor* best = nullptr;
      bool other_exists = false;
      for (ExecutorId id : job.executors) {
        Executor& executor = executors.at(id);
        bool other = executor.worker != t.worker;
        other_exists |= other && !workers.at(executor.worker).drained;
        if (!MayRun(executor, true) || Alone(job, executor)) continue;
        if (best == nullptr || (other && best->worker == t.worker)) best = &executor;
      }
      if (best == nullptr) continue;
      if (best->worker == t.worker) {
        // A copy beside the original survives only the worker's process. Where the lineage is cut already, it lies on a disk there.
        if (run->checkpoint == Checkpoint::kCut) continue;
        if (other_exists && now < run->checkpoint_since + options.verify_wait_ms) continue;
      }
      LaunchCopy(job, *run, task, *best);
      return true;
    }
    at = open ? std::next(at) : job.copying.erase(at);
  }
  return false;
}

void Scheduler::State::LaunchCopy(JobRun& job, StageRun& run, std::uint32_t task, Executor& executor) {
  TaskAttempt id{run.key.stage, task, NextAttempt(job)};
  const TaskRun& t = run.tasks[task];
  run.copies[task].running = id.attempt;
  executor.running.insert(id.attempt);
  ++workers.at(executor.worker).busy;
  job.running[id.attempt] = {run.key, task, executor.id, false, now, {}, true};
  Log(job, EventLine("copy_started", now)
               .Num("stage", id.stage.value)
               .Num("task", task)
               .Num("attempt", id.attempt)
               .Num("executor", executor.id.value)
               .Num("worker", executor.worker.value));
  dag::TaskInput input{run.key.stage, dag::InputPattern::kOneToOne, task, {}, {}, {}};
  input.segments.push_back({{run.key.stage, task, t.winner}, t.segment, workers.at(t.worker).data_address, t.bytes});
  Out(RunTask{executor.id, job.id, *executor.at.begin(), id, {std::move(input)}, false, false, std::max(1u, run.stage.parts)});
  Changed(job);
}

void Scheduler::State::OnCopied(JobRun& job, StageRun& run, const RunningTask& task, std::uint32_t attempt, const Executor& executor,
                                const dag::TaskResult& result) {
  const TaskRun& t = run.tasks[task.task];
  CopyRun& copy = run.copies[task.task];
  job.dirty = true;
  if (!result.segment) return CopyFailed(job, run, task.task);
  if (!t.done || copy.done || run.checkpoint == Checkpoint::kNone || result.segment->content_hash != t.hash) {
    // The original was made again meanwhile, or nobody wants the copy any more.
    FreeSegment(job, executor.worker, result.segment->segment);
    if (t.done && !copy.done) CopyFailed(job, run, task.task);
    return;
  }
  copy.done = true;
  copy.attempt = attempt;
  copy.worker = executor.worker;
  copy.segment = result.segment->segment;
  copy.bytes = result.segment->bytes;
  job.copied_bytes += copy.bytes;
  job.copied_ms += static_cast<std::uint64_t>(now - task.since);
  Log(job, EventLine("segment_copied", now)
               .Num("stage", run.key.stage.value)
               .Num("task", task.task)
               .Num("attempt", attempt)
               .Num("worker", executor.worker.value)
               .Num("bytes", copy.bytes));
}

void Scheduler::State::CopyFailed(JobRun& job, StageRun& run, std::uint32_t task) {
  CopyRun& copy = run.copies[task];
  job.dirty = true;
  copy.not_before = now + (options.task_retry_delay_ms << std::min<std::uint32_t>(copy.failures, 5));
  Wake(copy.not_before);
  // A checkpoint only makes recovery cheaper: a disk without room must not stop the job. Its lineage stays whole, a later action tries
  // again.
  if (++copy.failures < options.copy_failures_max || run.checkpoint != Checkpoint::kWanted) return;
  run.checkpoint = Checkpoint::kNone;
  for (auto& [index, each] : run.copies)
    if (each.done) FreeSegment(job, each.worker, each.segment);
  std::erase_if(run.copies, [](const auto& entry) { return entry.second.running == 0; });
  Log(job, EventLine("checkpoint_given_up", now).Num("stage", run.key.stage.value).Num("task", task));
}

void Scheduler::State::DropCopy(JobRun& job, StageRun& run, std::uint32_t task) {
  auto copy = run.copies.find(task);
  if (copy == run.copies.end()) return;
  if (copy->second.running != 0) Cancel(job, copy->second.running);
  copy = run.copies.find(task);
  if (copy->second.done) FreeSegment(job, copy->second.worker, copy->second.segment);
  run.copies.erase(copy);
}

// All copies of a block are gone whose lineage was cut: nothing that stands can make it again. Main is replayed from its start in fresh
// executors, with the results of all published actions and without the cuts, so that the whole lineage is there again; whatever workers
// still hold is used.
void Scheduler::State::StartOver(JobRun& job) {
  Log(job, EventLine("started_over", now).Num("job", job.id.value).Num("actions", job.actions_done).Num("cuts", job.cuts.size()));
  std::vector<ExecutorId> ids(job.executors.begin(), job.executors.end());
  for (ExecutorId id : ids) {
    Executor& executor = executors.at(id);
    ReleaseTasks(executor, "the job starts over");
    Out(StopExecutor{executor.worker, id, "the job starts over from the start of main"});
    DropExecutor(id);
  }
  job.cuts.clear();
  job.cut_stages.clear();
  Journal(CutsUndoneRecord{job.id}, false);
  std::vector<Record> records;
  SnapshotOf(job, &records);

  JobRun old = std::exchange(job, JobRun{});
  for (const Record& record : records) {
    Status status = Apply(record);
    if (!status.ok()) return Doom(job, std::move(status));
  }
  job.admitted = old.admitted;
  job.phase = old.phase;
  job.version = old.version + 1;
  job.accepted_at = old.accepted_at;
  job.started_us = old.started_us;
  job.started_before = old.started_before;
  job.counts_kept = std::move(old.counts_kept);
  job.plans_kept = std::move(old.plans_kept);
  job.attempt_next = old.attempt_next;
  job.restarts = std::move(old.restarts);
  job.main_crashes = std::move(old.main_crashes);
  job.workers_used = std::move(old.workers_used);
  job.copied_bytes = old.copied_bytes;
  job.copied_ms = old.copied_ms;
  job.held = std::move(old.held);
  for (const auto& [key, run] : old.stages) {
    if (!run.segments()) continue;
    auto hold = [&](std::uint32_t task, std::uint32_t attempt, WorkerId worker, SegmentId segment, std::uint64_t bytes) {
      if (!workers.contains(worker)) return;
      SegmentAt at{job.id, {{key.stage, task, attempt}, segment, workers.at(worker).data_address, bytes}, run.tasks[task].hash, 0};
      job.held[key.stage][task].push_back({worker, std::move(at)});
    };
    for (std::uint32_t task = 0; task < run.tasks.size(); ++task)
      if (const TaskRun& t = run.tasks[task]; t.done) hold(task, t.winner, t.worker, t.segment, t.bytes);
    for (const auto& [task, copy] : run.copies)
      if (copy.done) hold(task, copy.attempt, copy.worker, copy.segment, copy.bytes);
  }
  job.settle = true;
  job.dirty = true;
  Changed(job);
}

}  // namespace ropewalk::scheduler
