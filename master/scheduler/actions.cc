#include <algorithm>
#include <utility>

#include "master/scheduler/state.h"

namespace ropewalk::scheduler {
namespace {

Status Differs(const std::string& action, const std::string& how) {
  return Status(
      Code::kUserError, "MAIN03", "main built different plans in two executors: " + action, how,
      "capture by value, or Broadcast, what a function points at; main may branch only on arguments, declared environment, results "
      "of actions and Once(); see job.Seed() and job.Now()");
}

}  // namespace

void Scheduler::State::On(const ExecutorAtAction& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr) return;
  JobRun* job = LiveJob(executor->job);
  const dag::ActionPlan& plan = event.plan;
  if (job == nullptr || plan.sequence <= executor->last_action) return;  // announced before: a duplicate
  executor->last_action = plan.sequence;
  executor->once.clear();
  bool driver = executor->id == job->driver;
  job->settle = true;
  job->executor_failures = 0;
  Changed(*job);

  if (auto it = job->published.find(plan.sequence); it != job->published.end()) {
    if (it->second.fingerprint != plan.fingerprint) {
      auto kept = job->plans_kept.find(plan.sequence);
      std::string how = kept == job->plans_kept.end() ? "" : dag::FirstDifference(kept->second, plan);
      Doom(*job, Differs("action " + Number(plan.sequence) + " " + it->second.name, how.empty() ? "it is now " + plan.name : how));
      return;
    }
    // After a restart of the master it is news which stages the action made: later plans only name them.
    NoteOutput(*job, plan);
    Learn(*job, plan, true);
    LearnNext(*job);
    if (job->doom) return;
    auto cut = job->cuts.find(plan.sequence);
    Out(PublishAction{executor->id, plan.sequence, Status(), it->second.values,
                      cut == job->cuts.end() ? std::vector<StageId>() : cut->second});
    return;
  }
  if (!driver && !job->actions.contains(plan.sequence)) {
    executor->early[plan.sequence] = plan;  // the driver's plan leads; this one is compared when that has come
    return;
  }
  if (!job->actions.contains(plan.sequence)) AcceptPlan(*job, plan);
  if (!job->doom) Join(*job, *executor, plan);
}

// For people only. Each replica comes by an action that is published, and one folder may be written again and again.
void Scheduler::State::NoteOutput(JobRun& job, const dag::ActionPlan& plan) {
  if (!plan.output || std::find(job.outputs.begin(), job.outputs.end(), plan.output->folder) != job.outputs.end()) return;
  if (job.outputs.size() == kActionsShown) job.outputs.erase(job.outputs.begin());
  job.outputs.push_back(plan.output->folder);
}

// The driver's plan of a new action.
void Scheduler::State::AcceptPlan(JobRun& job, const dag::ActionPlan& plan) {
  Learn(job, plan, false);
  if (job.doom) return;
  if (plan.output && !plan.output->key.starts_with(dag::OutputKeyOf(job.id, job.spec.settings.now_us) + "-"))
    return Doom(job, Status(Code::kInternal, "MAIN05", "action " + Number(plan.sequence) + " names an output of another job"));
  job.actions[plan.sequence] = plan;
  LearnNext(job);
  if (job.doom) return;
  job.dirty = true;
  Log(job, EventLine("action_started", now)
               .Num("action", plan.sequence)
               .Str("name", plan.name)
               .Num("stages", plan.stages.size())
               .Num("retired", plan.retired.size()));
  for (ExecutorId id : job.executors) {
    Executor& executor = executors.at(id);
    if (executor.main_returned && executor.last_action < plan.sequence && id != job.driver)
      return Doom(job,
                  Differs(plan.name, "executor " + Number(id.value) + " returned from main after action " + Number(executor.last_action)));
    auto early = executor.early.find(plan.sequence);
    if (early == executor.early.end()) continue;
    dag::ActionPlan theirs = std::move(early->second);
    executor.early.erase(early);
    Join(job, executor, theirs);
  }
}

// The action's stages become known, those of a published one too (after a restart): plans name what earlier ones have listed, so they are
// learned in order. An executor announces all actions from the first on; only one that comes to lead later may leave a gap, which another
// has filled or fills.
void Scheduler::State::Learn(JobRun& job, const dag::ActionPlan& plan, bool published) {
  if (published && plan.sequence <= job.learned) return;
  if (published && plan.sequence > job.learned + 1) {
    job.unlearned.emplace(plan.sequence, plan);
    return;
  }
  if (Status legal = dag::Check(plan); !legal.ok()) return Doom(job, std::move(legal));
  Retire(job, plan);
  std::set<StageId> cut;
  if (auto it = job.cuts.find(plan.sequence); published && it != job.cuts.end()) cut.insert(it->second.begin(), it->second.end());
  for (const dag::Stage& stage : plan.stages) {
    if (published && stage.output != dag::StageOutput::kSegment) continue;
    AddStage(job, plan.sequence, stage);
    if (job.doom) return;
    if (cut.contains(stage.id)) CutStage(job, job.stages.at({0, stage.id}));
  }
  job.learned = std::max(job.learned, plan.sequence);
}

// The plans that came too early. Not before the accepted one is among the job's actions: they may retire what that one needs.
void Scheduler::State::LearnNext(JobRun& job) {
  while (!job.doom) {
    auto next = job.unlearned.extract(job.learned + 1);
    if (next.empty()) return;
    Learn(job, next.mapped(), true);
  }
}

// The executor serves this action's tasks from now on, if its plan is the driver's.
void Scheduler::State::Join(JobRun& job, Executor& executor, const dag::ActionPlan& plan) {
  const dag::ActionPlan& ours = job.actions.at(plan.sequence);
  std::string difference = dag::FirstDifference(ours, plan);
  if (!difference.empty() || ours.fingerprint != plan.fingerprint)
    return Doom(job, Differs(ours.name, difference.empty() ? "their fingerprints differ" : difference));
  executor.at.insert(plan.sequence);
  assign = true;
}

void Scheduler::State::AddStage(JobRun& job, std::uint64_t sequence, const dag::Stage& stage) {
  StageKey key{stage.output == dag::StageOutput::kSegment ? 0 : sequence, stage.id};
  if (stage.earlier && !job.stages.contains(key))
    return Doom(
        job, Status(Code::kInternal, "MAIN04", StageText(stage) + " of action " + Number(sequence) + " was listed by no earlier action"));
  auto [it, fresh] = job.stages.try_emplace(key);
  StageRun& run = it->second;
  if (!fresh) {
    if (run.tasks.size() != stage.tasks)
      Doom(job,
           Differs(StageText(stage), "it had " + Number(run.tasks.size()) + " tasks in an earlier action and has " + Number(stage.tasks)));
    return;
  }
  run.key = key;
  run.stage = stage;
  run.announced = sequence;
  if (run.segments()) {
    std::uint32_t below = 0;
    for (const dag::StageInput& input : stage.inputs) {
      StageRun* producer = FindStage(job, {0, input.stage});
      if (producer == nullptr) continue;
      producer->feeds_segments = true;
      ConsiderCheckpoint(job, *producer);
      if (producer->checkpoint == Checkpoint::kNone) below = std::max(below, producer->depth);
    }
    run.depth = below + 1;
  }
  run.tasks.resize(stage.tasks);
  if (stage.gang) {
    GangRun& gang = job.gangs[key];
    if (auto before = job.gangs_before.extract(key); !before.empty()) {
      gang.failures = before.mapped().failures;
      gang.restarts = before.mapped().restarts;
    }
  }
  if (!run.segments()) run.values.resize(stage.tasks);
  run.pinned = job.pinned_before.erase(stage.id) > 0;
  run.winners_journalled = job.winners_before.erase(key) > 0;
  if (job.verified_before.erase(key) > 0 || !WorthVerifying(job, stage))
    run.verdict = Verdict::kSkipped;
  else
    run.samples = DrawSamples(job, stage);

  // What the journal of an earlier master says about its tasks, and what workers hold of them.
  auto known = job.known.extract(key);
  // A gang's ranks are all done or none is: a part of them would be waited for in vain.
  const bool is_part = stage.gang && !known.empty() &&
                       (known.mapped().size() < run.tasks.size() ||
                        std::any_of(known.mapped().begin(), known.mapped().end(), [](const auto& each) { return !each.second.has_value; }));
  if (!known.empty() && !is_part)
    for (auto& [task, record] : known.mapped()) {
      if (task >= run.tasks.size()) continue;
      TaskRun& t = run.tasks[task];
      t.winner = record.id.attempt;
      t.hash = record.hash;
      if (run.segments() || !record.has_value) continue;
      run.value_bytes += record.value.size();
      run.values[task] = std::move(record.value);
      t.done = true;
      ++run.done;
    }
  if (run.segments())
    if (auto held = job.held.extract(stage.id); !held.empty())
      for (const auto& [task, list] : held.mapped())
        for (const HeldSegment& segment : list) TryAdopt(job, run, task, segment.worker, segment.at);
}

void Scheduler::State::On(const ExecutorAtOnce& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr) return;
  JobRun* job = LiveJob(executor->job);
  if (job == nullptr) return;
  if (auto it = job->once.find(event.name); it != job->once.end()) {
    ++executor->onces_seen;
    Out(PublishOnce{executor->id, event.name, Status(), it->second});
    return;
  }
  if (executor->once == event.name) return;  // it was asked already: a duplicate
  executor->once = event.name;
  if (executor->id == job->driver) Out(ComputeOnce{executor->id, event.name});
}

void Scheduler::State::On(const OnceComputed& event) {
  Executor* executor = FindExecutor(event.executor);
  if (executor == nullptr) return;
  JobRun* job = LiveJob(executor->job);
  if (job == nullptr || executor->id != job->driver || job->once.contains(event.name)) return;
  if (!event.status.ok()) return Doom(*job, event.status);
  job->once[event.name] = event.value;
  job->executor_failures = 0;
  Journal(OnceRecord{job->id, event.name, event.value}, true);
  Log(*job, EventLine("once", now).Str("name", event.name).Num("bytes", event.value.size()));
  for (ExecutorId id : job->executors) {
    Executor& waiting = executors.at(id);
    if (waiting.once != event.name) continue;
    waiting.once.clear();
    ++waiting.onces_seen;
    Out(PublishOnce{id, event.name, Status(), event.value});
  }
}

void Scheduler::State::PublishReady(JobRun& job) {
  std::vector<std::uint64_t> sequences;
  for (const auto& [sequence, plan] : job.actions) sequences.push_back(sequence);
  for (std::uint64_t sequence : sequences) {
    if (job.doom) return;
    const dag::ActionPlan& plan = job.actions.at(sequence);
    const dag::Stage& last = plan.stages.back();
    StageRun* run = FindStage(job, {last.output == dag::StageOutput::kSegment ? 0 : sequence, last.id});
    if (run != nullptr && run->complete() && !VerdictsPending(job, plan, StageId{}) && !CopiesPending(job, plan)) Publish(job, sequence);
  }
}

void Scheduler::State::Publish(JobRun& job, std::uint64_t sequence) {
  dag::ActionPlan plan = std::move(job.actions.at(sequence));
  job.actions.erase(sequence);
  const dag::Stage& last = plan.stages.back();
  ActionPublishedRecord record{job.id, sequence, plan.fingerprint, plan.name, {}, {}};
  if (last.output != dag::StageOutput::kSegment) record.values = std::move(job.stages.at({sequence, last.id}).values);
  Pin(job, plan, &record.pinned);
  std::vector<StageId> cut;
  for (const dag::Stage& stage : plan.stages) {
    if (stage.output != dag::StageOutput::kSegment) continue;
    StageRun& run = job.stages.at({0, stage.id});
    bool durable = options.outputs_durable ? run.complete() : run.checkpoint == Checkpoint::kWanted && Copied(run);
    if (!durable) continue;
    CutStage(job, run);
    cut.push_back(stage.id);
    if (!options.outputs_durable) Log(job, EventLine("checkpoint", now).Num("action", sequence).Num("stage", stage.id.value));
  }
  // A former master may have died between this record and the publication: then main was never told of that one's cuts.
  if (!options.outputs_durable && (!cut.empty() || job.cuts.contains(sequence))) {
    SetCuts(job, sequence, cut);
    Journal(CutRecord{job.id, sequence, cut}, false);
  }
  auto values = std::make_shared<const std::vector<std::string>>(record.values);
  Journal(record, true);
  record.values.clear();
  // A job that ends with its one process has no replica that could ask for the result later.
  if (!options.outputs_durable) job.published[sequence] = {plan.name, plan.fingerprint, values};
  ++job.actions_done;
  NoteOutput(job, plan);
  Log(job, EventLine("action_published", now).Num("action", sequence).Str("name", plan.name).Num("values", values->size()));
  for (ExecutorId id : job.executors) {
    Executor& executor = executors.at(id);
    if (executor.at.erase(sequence) > 0) Out(PublishAction{id, sequence, Status(), values, cut});
  }
  job.counts_kept[sequence] = StagesOf(job, plan);
  if (job.counts_kept.size() > kActionsShown) job.counts_kept.erase(job.counts_kept.begin());
  // The action's own stages go; shared ones stay until they are retired.
  for (const dag::Stage& stage : plan.stages)
    if (stage.output != dag::StageOutput::kSegment) DropStage(job, {sequence, stage.id});
  job.plans_kept[sequence] = std::move(plan);
  if (job.plans_kept.size() > kPlansKept) job.plans_kept.erase(job.plans_kept.begin());
  FreeRetired(job);
  job.dirty = true;
  job.settle = true;
  Changed(job);
}

// From here on these attempts' files are the output, whatever happens to anybody.
void Scheduler::State::JournalWinners(JobRun& job, StageRun& run) {
  if (run.winners_journalled) return;
  run.winners_journalled = true;
  WinnersRecord record{job.id, run.key.sequence, run.key.stage, {}, {}};
  for (std::uint32_t task = 0; task < run.tasks.size(); ++task) {
    const TaskRun& t = run.tasks[task];
    record.tasks.push_back({job.id, run.key.sequence, {run.key.stage, task, t.winner}, t.hash, true, run.values[task]});
  }
  Pin(job, job.actions.at(run.key.sequence), &record.pinned);
  Journal(record, true);
  Log(job, EventLine("commit", now).Num("stage", run.key.stage.value).Num("parts", run.tasks.size()));
}

// All that the action was made from, also what earlier actions have listed.
void Scheduler::State::Pin(JobRun& job, const dag::ActionPlan& plan, std::vector<StageId>* pinned) {
  std::vector<StageRun*> open;
  auto pin = [&](StageId stage) {
    StageRun* run = FindStage(job, {0, stage});
    if (run == nullptr || std::exchange(run->pinned, true)) return;
    pinned->push_back(stage);
    open.push_back(run);
  };
  for (const dag::Stage& stage : plan.stages)
    if (stage.output == dag::StageOutput::kSegment) pin(stage.id);
  while (!open.empty()) {
    StageRun* run = open.back();
    open.pop_back();
    for (const dag::StageInput& input : run->stage.inputs) pin(input.stage);
  }
  std::sort(pinned->begin(), pinned->end());
}

// Nothing but a pending action can need these any more.
void Scheduler::State::Retire(JobRun& job, const dag::ActionPlan& plan) {
  for (StageId stage : plan.retired) {
    job.pinned_before.erase(stage);
    job.known.erase({0, stage});
    job.verified_before.erase({0, stage});
    job.cut_stages.erase(stage);
    if (auto held = job.held.find(stage); held != job.held.end()) {
      for (const auto& [task, list] : held->second)
        for (const HeldSegment& segment : list) FreeSegment(job, segment.worker, segment.at.ref.segment);
      job.held.erase(held);
    }
    if (job.stages.contains({0, stage})) job.retired.insert(stage);
  }
  FreeRetired(job);
}

void Scheduler::State::FreeRetired(JobRun& job) {
  if (job.retired.empty()) return;
  // What pending actions are made from. Inputs have smaller ids: below the smallest that is asked for, nothing has to be looked at.
  std::set<StageId> needed;
  std::vector<StageId> open;
  auto need = [&](StageId stage) {
    if (stage >= *job.retired.begin() && needed.insert(stage).second) open.push_back(stage);
  };
  for (const auto& [sequence, plan] : job.actions)
    for (const dag::Stage& stage : plan.stages) need(stage.id);
  while (!open.empty()) {
    const StageRun* run = FindStage(job, {0, open.back()});
    open.pop_back();
    if (run == nullptr) continue;
    for (const dag::StageInput& input : run->stage.inputs) need(input.stage);
  }
  std::vector<StageId> gone;
  for (StageId stage : job.retired)
    if (!needed.contains(stage)) gone.push_back(stage);
  if (gone.empty()) return;
  for (StageId stage : gone) {
    job.retired.erase(stage);
    DropStage(job, {0, stage});
  }
  Journal(RetiredRecord{job.id, gone}, false);
}

void Scheduler::State::DropStage(JobRun& job, StageKey key) {
  auto it = job.stages.find(key);
  if (it == job.stages.end()) return;
  StageRun& run = it->second;
  std::vector<std::uint32_t> running;
  for (const auto& [attempt, task] : job.running)
    if (task.key == key) running.push_back(attempt);
  for (std::uint32_t attempt : running) Cancel(job, attempt);
  std::map<WorkerId, std::vector<SegmentId>> where;
  for (const TaskRun& t : run.tasks)
    if (t.done && run.segments()) where[t.worker].push_back(t.segment);
  for (const auto& [task, copy] : run.copies)
    if (copy.done) where[copy.worker].push_back(copy.segment);
  for (auto& [worker, segments] : where)
    if (workers.contains(worker)) Out(FreeSegments{worker, job.id, std::move(segments), false});
  job.gangs.erase(key);
  job.stages.erase(it);
}

}  // namespace ropewalk::scheduler
