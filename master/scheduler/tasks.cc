#include <algorithm>

#include "base/escape.h"
#include "dag/failure_tags.h"
#include "master/scheduler/state.h"

namespace ropewalk::scheduler {
namespace {

std::string TaskText(const StageRun& run, std::uint32_t task) { return "task " + Number(task) + " of " + StageText(run.stage); }

std::string Place(std::uint64_t split, std::uint64_t offset, const std::string& source) {
  std::string text = "input split " + Number(split) + ", ";
  // No path: words that say what the offset counts, as the task itself says it (worker/task/task_runner.cc).
  if (!source.empty() && source.find('/') == std::string::npos) return text + "record " + Number(offset) + " of " + EscapeForLog(source);
  text += "offset " + Number(offset);
  if (!source.empty()) text += " of " + EscapeForLog(source);
  if (source.ends_with(".gz") || source.ends_with(".zst")) text += " (decompressed)";
  return text;
}

EventLine TaskLine(const char* event, TimeMs now, const TaskAttempt& id, ExecutorId executor) {
  EventLine line(event, now);
  line.Num("stage", id.stage.value).Num("task", id.task).Num("attempt", id.attempt).Num("executor", executor.value);
  return line;
}

// A task that is run again reads the same once more: what it read then stands for what it had read before.
void CountOnce(StageRun& run, std::uint32_t task, const TaskCounters& now) {
  TaskCounters& before = run.tasks[task].counted;
  for (std::uint64_t TaskCounters::* count : kTaskCounts) run.counters.*count += now.*count - before.*count;
  before = now;
}

}  // namespace

// The registered attempt behind a report; nullptr: a replaced one, whose report changes nothing.
RunningTask* Scheduler::State::Registered(JobRun& job, ExecutorId executor, const TaskAttempt& id) {
  auto it = job.running.find(id.attempt);
  if (it == job.running.end()) return nullptr;
  RunningTask& task = it->second;
  return task.executor == executor && task.key.stage == id.stage && task.task == id.task ? &task : nullptr;
}

StageRun* Scheduler::State::FindStage(JobRun& job, StageKey key) {
  auto it = job.stages.find(key);
  return it == job.stages.end() ? nullptr : &it->second;
}

void Scheduler::State::Release(JobRun& job, std::uint32_t attempt) {
  auto it = job.running.find(attempt);
  RunningTask task = it->second;
  job.running.erase(it);
  Executor& executor = executors.at(task.executor);
  executor.running.erase(attempt);
  if (auto worker = workers.find(executor.worker); worker != workers.end()) {
    --worker->second.busy;
    if (task.rank) --worker->second.ranks;
    if (worker->second.drained) job.settle = true;  // it may have been the last task there
  }
  if (StageRun* run = FindStage(job, task.key)) {
    if (task.verify) {
      run->verdict = Verdict::kReady;
      run->verify_attempt = 0;
      job.unverified.insert(task.key);
    } else if (task.copy) {
      run->copies[task.task].running = 0;
      job.copying.insert(task.key);
    } else {
      run->tasks[task.task].attempt = 0;
      --run->running;
    }
  }
  assign = true;
  Changed(job);
}

void Scheduler::State::Cancel(JobRun& job, std::uint32_t attempt) {
  const RunningTask task = job.running.at(attempt);
  if (task.rank)
    return EndGang(
        job, job.stages.at(task.key), GangEnd::kMachine,
        Status(Code::kUnavailable, dag::kRankLostTag, "rank " + Number(task.task) + " has to begin anew", "what it read has changed"),
        task.task);
  Out(CancelTask{task.executor, job.id, {task.key.stage, task.task, attempt}});
  Log(job, TaskLine("task_cancelled", now, {task.key.stage, task.task, attempt}, task.executor));
  Release(job, attempt);
  job.dirty = true;
}

void Scheduler::State::FreeSegment(JobRun& job, WorkerId worker, SegmentId segment) {
  if (segment && workers.contains(worker)) Out(FreeSegments{worker, job.id, {segment}, false});
}

void Scheduler::State::On(const TaskFinished& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr || executor->job != event.job) return;
  JobRun* job = LiveJob(event.job);
  if (job == nullptr) return;
  RunningTask* registered = Registered(*job, event.executor, event.id);
  if (registered == nullptr) {
    // A replaced attempt's output is nobody's. (Not when it is a repeated report of the one that won.)
    if (event.result.segment) {
      StageRun* run = FindStage(*job, {0, event.id.stage});
      bool ours = run != nullptr && event.id.task < run->tasks.size() && run->tasks[event.id.task].done &&
                  run->tasks[event.id.task].worker == executor->worker &&
                  run->tasks[event.id.task].segment == event.result.segment->segment;
      if (run != nullptr)
        if (auto copy = run->copies.find(event.id.task); copy != run->copies.end() && copy->second.done)
          ours |= copy->second.worker == executor->worker && copy->second.segment == event.result.segment->segment;
      if (!ours) FreeSegment(*job, executor->worker, event.result.segment->segment);
    }
    return;
  }
  RunningTask task = *registered;
  StageRun& run = *FindStage(*job, task.key);
  Release(*job, event.id.attempt);
  job->executor_failures = 0;
  job->restarts.erase(executor->worker);
  if (auto worker = workers.find(executor->worker); worker != workers.end()) worker->second.failures_in_row = 0;
  Log(*job, TaskLine("task_finished", now, event.id, event.executor)
                .Num("worker", executor->worker.value)
                .Flag("verify", task.verify || task.copy)
                .Num("ms", now - task.since)
                .Num("bytes", event.result.segment ? event.result.segment->bytes : event.result.value.size())
                .Num("records_in", event.counters.records_in)
                .Num("bytes_in", event.counters.bytes_in)
                .Num("records_out", event.counters.records_out)
                .Num("bytes_out", event.counters.bytes_out)
                .Num("bytes_spilled", event.counters.bytes_spilled));
  if (!task.copy) InputsAnswered(*job, run, task);
  if (task.rank) {
    CountOnce(run, task.task, event.counters);
    run.last_end = now;
    return RankFinished(*job, run, task.task, event.id.attempt, event.result.value);
  }
  if (task.verify) return OnVerified(*job, run, event.id.attempt, event.executor, event.result);
  if (task.copy) return OnCopied(*job, run, task, event.id.attempt, *executor, event.result);
  CountOnce(run, task.task, event.counters);
  run.last_end = now;
  run.task_ms += static_cast<std::uint64_t>(now - task.since);
  Register(*job, run, task.task, event.id.attempt, *executor, event.result);
}

// The task has read its inputs, so those that it began to read after a complaint can be reached: the complaint was a passing disturbance,
// and the next one is the first again.
void Scheduler::State::InputsAnswered(JobRun& job, const StageRun& run, const RunningTask& task) {
  for (const dag::StageInput& input : run.stage.inputs) {
    if (!input.ReadBy(task.task)) continue;
    StageRun* producer = Producer(job, run, input);
    if (producer == nullptr || producer->unreachable.empty()) continue;
    std::erase_if(producer->unreachable, [&](const auto& entry) {
      const auto& [index, since] = entry;
      bool reads = input.pattern != dag::InputPattern::kOneToOne || std::uint64_t{input.first_task} + index == task.task;
      return reads && task.since > since;
    });
  }
}

// The attempt's output becomes the task's output.
void Scheduler::State::Register(JobRun& job, StageRun& run, std::uint32_t task, std::uint32_t attempt, const Executor& executor,
                                const dag::TaskResult& result) {
  if (run.segments() && !result.segment)
    return Doom(job, Status(Code::kInternal, "TASK01", TaskText(run, task) + " made no segment", "its stage makes segments"));
  TaskRun& t = run.tasks[task];
  std::uint64_t hash = run.segments() ? result.segment->content_hash : result.content_hash;
  bool changed = t.winner != 0 && t.hash != hash;
  if (changed || run.copies.contains(task)) DropCopy(job, run, task);
  t.winner = attempt;
  t.hash = hash;
  t.done = true;
  t.wanted = false;
  ++run.done;
  run.ready.erase(task);
  run.trouble.erase(task);
  run.lost_cause.erase(task);
  run.unreachable.erase(task);
  TaskDoneRecord record{job.id, run.key.sequence, {run.key.stage, task, attempt}, hash, false, ""};
  if (run.segments()) {
    t.worker = executor.worker;
    t.segment = result.segment->segment;
    t.bytes = result.segment->bytes;
  } else {
    run.value_bytes += result.value.size();
    run.values[task] = result.value;
    if (result.value.size() <= kInlineValueBytes) {
      record.has_value = true;
      record.value = result.value;
    }
    if (run.stage.output == dag::StageOutput::kResult && run.value_bytes > job.spec.settings.collect_bytes_max)
      return Doom(
          job, Status(Code::kUserError, "ACT01",
                      "the result of " + StageText(run.stage) + " is larger than " + Number(job.spec.settings.collect_bytes_max) + " bytes",
                      "results are held in memory by main and the master", "write it to files (WriteText), or make it smaller first"));
  }
  // The old content is forgotten in the journal before the new one is named: a replay never sees consumers of the one with the other.
  if (changed) ContentChanged(job, run, task);
  Journal(record, false);
  for (Sample& sample : run.samples) {
    if (sample.task != task) continue;
    sample.made_by = executor.id;
    if (run.verdict != Verdict::kNone) continue;
    run.verdict = Verdict::kReady;
    job.unverified.insert(run.key);
  }
  if (run.checkpoint == Checkpoint::kWanted) job.copying.insert(run.key);
  if (run.complete()) {
    job.dirty = true;
    ConsiderCheckpoint(job, run);
  } else
    WakeOneToOne(job, run, task);
}

void Scheduler::State::On(const TaskFailed& event) {
  Executor* executor = FindExecutor(event.executor);
  JobRun* job = LiveJob(event.job);
  if (executor == nullptr || job == nullptr) return;
  RunningTask* registered = Registered(*job, event.executor, event.id);
  if (registered == nullptr) return;
  RunningTask task = *registered;
  StageRun& run = *FindStage(*job, task.key);
  WorkerId worker = executor->worker;
  Release(*job, event.id.attempt);
  job->dirty = true;
  ++run.failed;
  Log(*job, TaskLine("task_failed", now, event.id, event.executor)
                .Str("code", CodeName(event.status.code()))
                .Str("tag", event.status.tag())
                .Str("what", event.status.what())
                .Num("split", event.cursor_split)
                .Num("offset", event.cursor_offset)
                .Flag("verify", task.verify));
  if (task.copy) return CopyFailed(*job, run, task.task);
  if (task.rank) {
    const Code code = event.status.code();
    const bool of_a_peer = code == Code::kUnavailable || code == Code::kCancelled || code == Code::kStale;
    const GangEnd end = of_a_peer ? GangEnd::kPeer : code == Code::kResourceExhausted ? GangEnd::kCrash : GangEnd::kProgram;
    return RankOver(*job, run, task.task, end,
                    event.status.ok() ? Status(Code::kInternal, "TASK02", "it failed without a reason") : event.status);
  }
  switch (event.status.code()) {
    case Code::kUserError:
      return UserFailure(*job, run, task.task, event);
    case Code::kResourceExhausted:
      // Without other tasks beside it there may be enough.
      if (event.status.tag() == dag::kOutOfMemoryTag)
        return MemoryFailure(*job, run, task.task, worker, event.status, !executor->running.empty());
      return MachineFailure(*job, run, task.task, worker, event.status);
    case Code::kUnavailable:
    case Code::kDataLoss:
    case Code::kCancelled:
    case Code::kStale:
    case Code::kDeadlineExceeded:
      return MachineFailure(*job, run, task.task, worker, event.status);
    default:  // no retry can mend it
      return Doom(*job, event.status.ok() ? Status(Code::kInternal, "TASK02", TaskText(run, task.task) + " failed without a reason")
                                          : event.status.WithContext(TaskText(run, task.task)));
  }
}

void Scheduler::State::UserFailure(JobRun& job, StageRun& run, std::uint32_t task, const TaskFailed& event) {
  Trouble& trouble = run.trouble[task];
  if (++trouble.user_failures < std::max(1u, job.spec.settings.user_attempts_max)) return;
  const Status& last = event.status;
  std::string why = last.why();
  if (!why.empty()) why += "; ";
  why += "tried " + Number(trouble.user_failures) + " times; last at " + Place(event.cursor_split, event.cursor_offset, event.source);
  Doom(job, Status(Code::kUserError, last.tag().empty() ? "TASK03" : last.tag(), TaskText(run, task) + " failed: " + last.what(), why,
                   last.fix()));
}

// A machine's fault: another try, elsewhere if possible, after a growing delay.
void Scheduler::State::MachineFailure(JobRun& job, StageRun& run, std::uint32_t task, WorkerId worker, const Status& status) {
  Trouble& trouble = run.trouble[task];
  if (++trouble.machine_failures > options.machine_attempts_max)
    return Doom(job,
                status.WithContext(TaskText(run, task) + " failed " + Number(trouble.machine_failures) + " times by faults of machines"));
  TimeMs delay = options.task_retry_delay_ms << std::min<std::uint32_t>(trouble.machine_failures - 1, 10);
  trouble.not_before = now + std::min<TimeMs>(delay, 5'000);
  trouble.avoid = worker;
  Wake(trouble.not_before);
  WorkerFault(worker);
}

// The task's executor was ended for its memory. That is neither the worker's fault nor a failure that the user's tries are for: it has a
// count of its own, elsewhere if possible. With others beside it nobody knows which task took the memory, so it runs alone next time. An
// executor that was perhaps killed by somebody is treated so, too: to try a task that takes all of a machine's memory as often as one that
// was killed would harm the others on it, and a task that is not short of memory meets no such coincidence four times.
void Scheduler::State::MemoryFailure(JobRun& job, StageRun& run, std::uint32_t task, WorkerId worker, const Status& status, bool alone) {
  Trouble& trouble = run.trouble[task];
  trouble.alone |= alone;
  if (++trouble.memory_failures >= options.memory_attempts_max)
    return Doom(job,
                status.WithContext(TaskText(run, task) +
                                   (status.tag() == dag::kPerhapsOutOfMemoryTag ? " was perhaps out of memory " : " ran out of memory ") +
                                   Number(trouble.memory_failures) + " times"));
  trouble.not_before = now + (options.task_retry_delay_ms << std::min<std::uint32_t>(trouble.memory_failures - 1, 10));
  trouble.avoid = worker;
  Wake(trouble.not_before);
}

// The task's executor crashed. At the same record again and again: it is the user's code. The first crash knows only the batch, so that the
// place is compared from the second one on (retries keep a precise cursor).
void Scheduler::State::Crash(JobRun& job, StageRun& run, std::uint32_t task, const ExecutorExited& event, const TaskCursor* cursor,
                             bool alone) {
  Trouble& trouble = run.trouble[task];
  ++run.failed;
  ++trouble.crashes;
  std::uint64_t split = cursor == nullptr ? task : cursor->split;
  std::uint64_t offset = cursor == nullptr ? 0 : cursor->offset;
  trouble.same_cursor = trouble.crashes > 1 && split == trouble.split && offset == trouble.offset ? trouble.same_cursor + 1 : 1;
  trouble.split = split;
  trouble.offset = offset;
  trouble.alone |= alone;
  std::uint32_t limit = std::max(1u, job.spec.settings.user_attempts_max);
  bool same = trouble.crashes >= limit && trouble.same_cursor + 1 >= limit;
  if (!same && trouble.crashes < 2 * limit) return;
  std::string way = event.signal != 0 ? "signal " + std::to_string(event.signal) : "exit code " + std::to_string(event.exit_code);
  const bool closed = event.reason.tag() == dag::kSocketClosedTag;
  Doom(job,
       Status(Code::kUserError, "TASK04", TaskText(run, task) + " crashed its executor " + Number(trouble.crashes) + " times (" + way + ")",
              (closed ? event.reason.why() + "; " : "") + (same ? "every time at " : "last at ") +
                  Place(split, offset, cursor == nullptr ? "" : cursor->source),
              closed ? event.reason.fix() : "look at that record; run the job without --master under a debugger"),
       event.exit_code);
}

void Scheduler::State::On(const TasksProgressed& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr) return;
  JobRun* job = LiveJob(executor->job);
  if (job == nullptr) return;
  for (const TasksProgressed::One& one : event.tasks)
    if (RunningTask* task = Registered(*job, event.executor, one.id)) {
      task->counters = one.counters;
      if (!one.line.empty()) task->line = one.line;
      if (task->rank) GangReached(*job, *task, one.reached);
      Changed(*job);
    }
}

void Scheduler::State::On(const FetchFailed& event) {
  Executor* executor = FindExecutor(event.executor);
  JobRun* job = LiveJob(event.job);
  if (executor == nullptr || job == nullptr) return;
  RunningTask* registered = Registered(*job, event.executor, event.id);
  if (registered == nullptr) return;  // a replaced attempt's trouble is no news
  RunningTask task = *registered;
  StageRun& run = *FindStage(*job, task.key);
  Release(*job, event.id.attempt);
  job->dirty = true;
  ++run.failed;
  const TaskAttempt& producer = event.lost.producer;
  Log(*job, TaskLine("fetch_failed", now, event.id, event.executor)
                .Num("from_stage", producer.stage.value)
                .Num("from_task", producer.task)
                .Num("from_attempt", producer.attempt)
                .Str("code", CodeName(event.status.code())));
  if (task.copy) CopyFailed(*job, run, task.task);
  if (task.rank) RankOver(*job, run, task.task, GangEnd::kMachine, event.status);
  Trouble* trouble = task.copy ? nullptr : &run.trouble[task.task];
  if (trouble != nullptr && ++trouble->fetch_failures > options.fetch_retries_max)
    return Doom(*job, event.status.WithContext(TaskText(run, task.task) + " could not read its input " + Number(trouble->fetch_failures) +
                                               " times"));

  // Many readers report one lost segment: the first report acts, the others find the producer missing or replaced.
  StageRun* source = FindStage(*job, {0, producer.stage});
  if (source == nullptr || producer.task >= source->tasks.size()) return;
  TaskRun& t = source->tasks[producer.task];
  if (!t.done || t.winner != producer.attempt || t.segment != event.lost.segment) return;
  if (event.status.code() == Code::kUnavailable && task.since <= source->unreachable.try_emplace(producer.task, now).first->second) {
    // Perhaps only the way to it is disturbed, or its worker's loss is about to be noticed: no recompute storm yet. Other readers of the
    // same moment tell nothing new; one that began after the first complaint, and after the pause that follows it, does.
    if (trouble == nullptr) return;
    trouble->not_before = now + 2 * options.task_retry_delay_ms;
    Wake(trouble->not_before);
    return;
  }
  FreeSegment(*job, t.worker, t.segment);
  if (Lose(*job, *source, producer.task, "fetch failed"))
    Log(*job, EventLine("segments_lost", now).Num("stage", producer.stage.value).Num("count", 1).Str("cause", "fetch failed"));
}

}  // namespace ropewalk::scheduler
