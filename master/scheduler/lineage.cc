#include <algorithm>

#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

StageRun* Scheduler::State::Producer(JobRun& job, const StageRun& run, const dag::StageInput& input) {
  if (StageRun* segments = FindStage(job, {0, input.stage})) return segments;
  return run.key.sequence == 0 ? nullptr : FindStage(job, {run.key.sequence, input.stage});
}

// Everything that the task reads exists now. (A commit also waits for the verdicts: see Replan.)
bool Scheduler::State::InputsThere(JobRun& job, const StageRun& run, std::uint32_t task) {
  for (const dag::StageInput& input : run.stage.inputs) {
    if (!input.ReadBy(task)) continue;
    StageRun* producer = Producer(job, run, input);
    if (producer == nullptr) return false;
    if (input.pattern == dag::InputPattern::kOneToOne) {
      if (task < input.first_task || task - input.first_task >= producer->tasks.size()) continue;
      if (!producer->tasks[task - input.first_task].done) return false;
    } else if (!producer->complete()) {
      return false;
    }
  }
  return true;
}

namespace {
// One past the last task of `run` that reads the input.
std::uint32_t LastReader(const StageRun& run, const StageRun& producer, const dag::StageInput& input) {
  std::uint64_t last = input.LastTask(run.stage.tasks);
  if (input.pattern == dag::InputPattern::kOneToOne) last = std::min<std::uint64_t>(last, input.first_task + producer.tasks.size());
  return static_cast<std::uint32_t>(last);
}

// Tasks of one stage that somebody needs.
struct Need {
  StageKey key;
  std::uint64_t for_action = 0;  // the oldest that needs them
  std::vector<char> tasks;
};

// Readers before what they read: inputs have smaller ids.
struct FromTheEnd {
  bool operator()(const StageKey& a, const StageKey& b) const { return a.stage != b.stage ? a.stage > b.stage : a.sequence > b.sequence; }
};

}  // namespace

// The least set of tasks to run: from what each unpublished action's last stage lacks, up the lineage, stopping at what exists or runs.
// A running task needs nothing more: if an input is gone before it has read it, it fails fast and this is asked again.
// Costs what is missing, not what the job has ever made.
void Scheduler::State::Replan(JobRun& job) {
  for (const StageKey& key : job.planned)
    if (StageRun* run = FindStage(job, key)) {
      for (TaskRun& t : run->tasks) t.wanted = false;
      run->ready.clear();
    }
  job.planned.clear();
  std::map<StageKey, Need, FromTheEnd> needs;
  auto need = [&](const StageRun& run, std::uint64_t for_action) -> std::vector<char>& {
    Need& entry = needs[run.key];
    if (entry.tasks.empty()) entry = {run.key, for_action, std::vector<char>(run.tasks.size(), 0)};
    entry.for_action = std::min(entry.for_action, for_action);
    return entry.tasks;
  };
  for (const auto& [sequence, plan] : job.actions) {
    const dag::Stage& last = plan.stages.back();
    StageRun* run = FindStage(job, {last.output == dag::StageOutput::kSegment ? 0 : sequence, last.id});
    if (run == nullptr) continue;
    std::vector<char>& tasks = need(*run, sequence);
    std::fill(tasks.begin(), tasks.end(), 1);
  }
  bool orphans = false;
  for (auto at = needs.begin(); at != needs.end(); ++at) {  // what it adds comes later in this order
    StageRun* run = FindStage(job, at->first);
    const std::uint64_t for_action = at->second.for_action;
    bool any_wanted = false;
    // The ranks of a gang run, end and are wanted together.
    if (run->stage.gang && (run->complete() || job.gangs.at(run->key).phase != GangPhase::kWaiting)) continue;
    for (std::uint32_t task = 0; task < run->tasks.size(); ++task) {
      TaskRun& t = run->tasks[task];
      if (!at->second.tasks[task] || t.done || t.attempt != 0) continue;
      // After a restart, an output that the journal knows is likely to lie on a worker that has not come back yet.
      if (job.grace_until > now && t.winner != 0 && run->segments() && !run->lost_cause.contains(task)) continue;
      if (run->checkpoint == Checkpoint::kCut) {
        orphans = true;  // what it was made from is gone
        continue;
      }
      t.wanted = any_wanted = true;
    }
    // By inputs, not by tasks: a union of many datasets has many of both, and each task reads one.
    for (const dag::StageInput& input : run->stage.inputs) {
      StageRun* producer = any_wanted ? Producer(job, *run, input) : nullptr;
      if (producer == nullptr) continue;
      const std::uint32_t last = LastReader(*run, *producer, input);
      for (std::uint32_t task = input.first_task; task < last; ++task) {
        if (!run->tasks[task].wanted) continue;
        std::vector<char>& asked = need(*producer, for_action);
        if (input.pattern == dag::InputPattern::kOneToOne) {
          asked[task - input.first_task] = 1;
        } else {
          std::fill(asked.begin(), asked.end(), 1);  // one task asks for all of it
          break;
        }
      }
    }
    if (any_wanted) {
      run->for_action = for_action;
      job.planned.push_back(run->key);
    }
  }
  if (!orphans) {
    job.orphans_since = 0;
  } else if (options.outputs_durable) {
    return Doom(job, Status(Code::kDataLoss, "SEG01", "a block that was computed before cannot be read any more",
                            "what it was made from was let go, since nothing is lost in one process but by a damaged disk",
                            "look at the disk of the spill folder and run the job again"));
  } else if (job.orphans_since == 0) {
    job.orphans_since = now;
    Wake(now + options.orphan_grace_ms);
  }
  std::sort(job.planned.begin(), job.planned.end(), [&](const StageKey& a, const StageKey& b) {
    std::uint64_t x = job.stages.at(a).for_action, y = job.stages.at(b).for_action;
    return x != y ? x < y : FromTheEnd()(b, a);
  });
  // What runs and is needed by nobody any more (its loss was undone, or its action is over) gives its slot back.
  std::vector<std::uint32_t> idle;
  for (const auto& [attempt, task] : job.running) {
    if (task.verify || task.copy) continue;
    auto it = needs.find(task.key);
    if (it == needs.end() || !it->second.tasks[task.task]) idle.push_back(attempt);
  }
  for (std::uint32_t attempt : idle) Cancel(job, attempt);

  for (const StageKey& key : job.planned) {
    StageRun& run = job.stages.at(key);
    if (run.stage.output == dag::StageOutput::kCommit) {
      // What is committed is seen by everybody: verdicts come first, and the winners are journalled first.
      const dag::ActionPlan& plan = job.actions.at(key.sequence);
      if (run.tasks[0].wanted && InputsThere(job, run, 0)) {
        if (VerdictsPending(job, plan, key.stage)) continue;
        for (const dag::StageInput& input : run.stage.inputs)
          if (StageRun* files = Producer(job, run, input); files->stage.output == dag::StageOutput::kFiles) JournalWinners(job, *files);
      }
    }
    if (std::none_of(run.tasks.begin(), run.tasks.end(), [](const TaskRun& t) { return t.wanted; })) continue;
    std::vector<char> there(run.tasks.size(), 1);
    for (const dag::StageInput& input : run.stage.inputs) {
      const StageRun* producer = Producer(job, run, input);
      if (producer != nullptr && producer->complete()) continue;
      std::uint32_t last = producer == nullptr ? input.LastTask(run.stage.tasks) : LastReader(run, *producer, input);
      for (std::uint32_t task = input.first_task; task < last; ++task)
        if (producer == nullptr || input.pattern != dag::InputPattern::kOneToOne || !producer->tasks[task - input.first_task].done)
          there[task] = 0;
    }
    for (std::uint32_t task = 0; task < run.tasks.size(); ++task)
      if (run.tasks[task].wanted && there[task]) run.ready.insert(run.ready.end(), task);
    run.input_at.clear();
    if (run.stage.gang) GangReady(job, run);
  }
}

// An output that existed is gone. Its content's hash stays known, so that a re-run is compared with it. False: its copy takes its place.
bool Scheduler::State::Lose(JobRun& job, StageRun& run, std::uint32_t task, const std::string& cause) {
  TaskRun& t = run.tasks[task];
  run.unreachable.erase(task);
  job.dirty = true;
  Changed(job);
  if (auto copy = run.copies.find(task); copy != run.copies.end() && copy->second.done) {
    t.winner = copy->second.attempt;
    t.worker = copy->second.worker;
    t.segment = copy->second.segment;
    t.bytes = copy->second.bytes;
    run.copies.erase(copy);
    if (run.checkpoint != Checkpoint::kNone) job.copying.insert(run.key);
    Journal(TaskDoneRecord{job.id, 0, {run.key.stage, task, t.winner}, t.hash, false, ""}, false);
    Log(job, EventLine("copy_used", now)
                 .Num("stage", run.key.stage.value)
                 .Num("task", task)
                 .Num("attempt", t.winner)
                 .Num("worker", t.worker.value)
                 .Str("cause", cause));
    return false;
  }
  t.done = false;
  --run.done;
  t.segment = {};
  run.lost_cause[task] = cause;
  return true;
}

// All segments and copies of the stage for which `gone` is true. How many outputs are lost by it.
std::size_t Scheduler::State::LoseWhere(JobRun& job, StageRun& run, const std::function<bool(WorkerId, SegmentId)>& gone,
                                        const std::string& cause) {
  if (!run.segments()) return 0;
  std::erase_if(run.copies, [&](const auto& entry) {
    bool lost = entry.second.done && gone(entry.second.worker, entry.second.segment);
    if (lost && run.checkpoint != Checkpoint::kNone) job.copying.insert(run.key);
    return lost;
  });
  std::size_t lost = 0;
  for (std::uint32_t task = 0; task < run.tasks.size(); ++task) {
    const TaskRun& t = run.tasks[task];
    if (t.done && gone(t.worker, t.segment) && Lose(job, run, task, cause)) ++lost;
  }
  return lost;
}

// A finished task may complete the inputs of its one-to-one readers before its whole stage is done.
void Scheduler::State::WakeOneToOne(JobRun& job, const StageRun& producer, std::uint32_t task) {
  for (const StageKey& key : job.planned) {
    StageRun* run = FindStage(job, key);
    if (run == nullptr) continue;
    for (const dag::StageInput& input : run->stage.inputs) {
      if (input.stage != producer.key.stage || input.pattern != dag::InputPattern::kOneToOne) continue;
      std::uint64_t reader = std::uint64_t(input.first_task) + task;
      if (reader >= run->tasks.size() || !run->tasks[reader].wanted) continue;
      auto index = static_cast<std::uint32_t>(reader);
      if (InputsThere(job, *run, index)) run->ready.insert(index);
    }
  }
}

// A re-run made other content than the task had before: the user's code is not deterministic. Whatever was made from the old content,
// directly or through others, finished or running, present or lost, is forgotten and made again; when a result that came from it was
// already given to main or named in the journal, nothing can mend it and the job stops. Never a silent mix.
//
// No versions need to be compared to find the readers of the old content: the output was missing until now, so every reader that ever
// started has read what was there before.
void Scheduler::State::ContentChanged(JobRun& job, StageRun& changed, std::uint32_t task) {
  Log(job,
      EventLine("content_changed", now).Num("stage", changed.key.stage.value).Num("task", task).Num("attempt", changed.tasks[task].winner));
  if (options.planted.keep_stale_consumers) return;
  auto stop = [&](const StageRun& run) {
    Doom(job, Status(Code::kUserError, "DET02",
                     StageText(changed.stage) + " is not deterministic: a re-run of its task " + Number(task) +
                         " made other content than before",
                     "results made from the first content are already used by main or named as output (" + StageText(run.stage) + ")",
                     "give tasks what main computes by Broadcast(x), take seeds from job.Seed() and times from job.Now()"));
  };
  if (changed.pinned) return stop(changed);

  std::map<StageKey, std::set<std::uint32_t>> forget;
  std::vector<std::pair<StageKey, std::uint32_t>> walk{{changed.key, task}};
  while (!walk.empty()) {
    auto [from, from_task] = walk.back();
    walk.pop_back();
    for (auto& [key, run] : job.stages)
      for (const dag::StageInput& input : run.stage.inputs) {
        StageRun* producer = Producer(job, run, input);
        if (producer == nullptr || producer->key != from) continue;
        std::uint32_t first = input.first_task, last = input.LastTask(run.stage.tasks);
        if (input.pattern == dag::InputPattern::kOneToOne) {
          std::uint64_t reader = std::uint64_t(input.first_task) + from_task;
          if (reader >= run.tasks.size()) continue;
          first = static_cast<std::uint32_t>(reader);
          last = first + 1;
        }
        if (run.stage.gang) first = 0, last = static_cast<std::uint32_t>(run.tasks.size());  // its ranks have talked to each other
        std::set<std::uint32_t>& seen = forget[key];
        for (std::uint32_t t = first; t < last; ++t) {
          bool read_it = run.tasks[t].winner != 0 || run.tasks[t].attempt != 0 || (run.verdict == Verdict::kRunning && run.sample == t);
          if (read_it && seen.insert(t).second) walk.emplace_back(key, t);
        }
      }
  }
  for (auto& [key, tasks] : forget) {
    StageRun& run = job.stages.at(key);
    bool used = run.pinned || run.winners_journalled || run.stage.output == dag::StageOutput::kCommit;
    TasksForgottenRecord record{job.id, key.sequence, key.stage, {}};
    for (std::uint32_t index : tasks) {
      TaskRun& t = run.tasks[index];
      if (used && t.winner != 0) return stop(run);
      if (t.attempt != 0) Cancel(job, t.attempt);
      if (run.verify_attempt != 0 && run.sample == index) Cancel(job, run.verify_attempt);
      if (run.sample == index && (run.verdict == Verdict::kRunning || run.verdict == Verdict::kAgreed)) run.verdict = Verdict::kNone;
      DropCopy(job, run, index);
      if (t.winner == 0) continue;
      if (t.done) {
        if (run.segments())
          FreeSegment(job, t.worker, t.segment);
        else
          run.value_bytes -= run.values[index].size(), run.values[index].clear();
        --run.done;
      }
      t = {};
      run.lost_cause[index] = "content changed";
      record.tasks.push_back(index);
    }
    if (record.tasks.empty()) continue;
    Log(job,
        EventLine("segments_lost", now).Num("stage", key.stage.value).Num("count", record.tasks.size()).Str("cause", "content changed"));
    Journal(record, false);
  }
  job.dirty = true;
}

}  // namespace ropewalk::scheduler
