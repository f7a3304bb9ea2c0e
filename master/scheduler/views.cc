#include <algorithm>

#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

std::string_view PhaseName(JobPhase phase) {
  switch (phase) {
    case JobPhase::kPending:
      return "pending";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kSucceeded:
      return "succeeded";
    case JobPhase::kFailed:
      return "failed";
    case JobPhase::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

std::vector<JobView> Scheduler::Jobs() const {
  std::vector<JobView> views;
  for (const auto& [id, job] : state_->jobs) views.push_back(state_->View(job, false));
  return views;
}

std::optional<JobView> Scheduler::Job(JobId id, bool with_plans) const {
  auto it = state_->jobs.find(id);
  if (it == state_->jobs.end()) return std::nullopt;
  return state_->View(it->second, with_plans);
}

std::uint64_t Scheduler::JobVersion(JobId id) const {
  auto it = state_->jobs.find(id);
  return it == state_->jobs.end() ? 0 : it->second.version;
}

std::vector<WorkerView> Scheduler::Workers() const {
  std::vector<WorkerView> views;
  for (const auto& [id, w] : state_->workers)
    views.push_back({id, w.name, w.data_address, w.slots, w.busy, w.drained, w.avoided_until > state_->now ? w.avoided_until : 0});
  return views;
}

JobView Scheduler::State::View(const JobRun& job, bool with_plan) const {
  JobView view;
  view.job = job.id;
  view.name = job.spec.settings.name;
  view.user = job.spec.user;
  view.submit_key = job.spec.submit_key;
  view.phase = job.phase;
  view.version = job.version;
  view.status = job.status;
  view.main_exit = job.main_exit;
  view.submitted_us = job.spec.settings.now_us;
  view.started_us = job.started_us;
  view.finished_us = job.finished_us;
  view.driver = job.driver;
  view.actions_done = job.actions_done;
  view.workers_lost = job.workers_lost;
  view.lost_workers = job.lost_workers;
  for (ExecutorId id : job.executors) view.executors += executors.at(id).phase == ExecutorPhase::kReady ? 1 : 0;
  if (with_plan) {
    view.argv = Shown(job.spec.argv);
    view.outputs = Shown(job.outputs);
    view.past = job.over() ? job.past : PastOf(job, false);
    std::uint64_t published = 0;
    for (const ActionView& action : view.past) published += action.published ? 1 : 0;
    view.past_forgotten = view.actions_done - std::min(view.actions_done, published);
  }
  if (job.over()) return view;
  if (!job.actions.empty()) {
    const auto& [sequence, plan] = *job.actions.begin();
    view.action = sequence;
    view.action_name = plan.name;
    if (with_plan) view.plan_text = dag::Explain(plan);
    view.stages = StagesOf(job, plan);
    if (const dag::Stage& last = plan.stages.back(); last.gang)
      for (const auto& [attempt, task] : job.running)
        if (task.rank && task.task == 0 && task.key == StageKey{sequence, last.id}) view.note = task.line;
  }
  view.pending_reasons = PendingReasons(job);
  return view;
}

std::vector<StageView> Scheduler::State::StagesOf(const JobRun& job, const dag::ActionPlan& plan) const {
  std::vector<StageView> views;
  for (const dag::Stage& stage : plan.stages) {
    auto it = job.stages.find({stage.output == dag::StageOutput::kSegment ? 0 : plan.sequence, stage.id});
    if (it == job.stages.end()) continue;
    const StageRun& run = it->second;
    StageView s{stage.id, stage.name, stage.tasks, run.done, run.running, static_cast<std::uint32_t>(run.lost_cause.size()), run.failed};
    s.counters = run.counters;
    if (run.first_start != 0)
      s.ms = static_cast<std::uint64_t>((run.running > 0 ? now : std::max(run.last_end, run.first_start)) - run.first_start);
    if (run.running > 0)
      for (const auto& [attempt, task] : job.running) {
        if (task.key != run.key || task.verify || task.copy) continue;
        // Of one that is run again, what it had read before stands until it has read more.
        const TaskCounters& counted = run.tasks[task.task].counted;
        for (std::uint64_t TaskCounters::* count : kTaskCounts)
          s.counters.*count += std::max(task.counters.*count, counted.*count) - counted.*count;
        if (task.task < stage.input_bytes.size() && stage.input_bytes[task.task] > 0) {
          std::uint64_t whole = stage.input_bytes[task.task];
          s.running_permille += static_cast<std::uint32_t>(std::min(task.counters.bytes_in, whole) * 1000 / whole);
        }
      }
    views.push_back(std::move(s));
  }
  return views;
}

// As much of a list as is shown and journalled; "..." stands for the rest.
std::vector<std::string> Scheduler::State::Shown(const std::vector<std::string>& list) {
  std::vector<std::string> shown;
  std::size_t bytes = 0;
  for (const std::string& item : list) {
    bytes += item.size() + 8;
    if (bytes > kListShownBytes) return shown.emplace_back("..."), shown;
    shown.push_back(item);
  }
  return shown;
}

// The last published actions, as far as their plans and counts are kept, and with `unfinished_too` those in which the job ends. Bounded in
// number and in text: the newest come first when something has to be left out.
std::vector<ActionView> Scheduler::State::PastOf(const JobRun& job, bool unfinished_too) const {
  std::vector<ActionView> newest_first;
  std::size_t bytes = 0;
  auto add = [&](const dag::ActionPlan& plan, std::vector<StageView> stages, bool published) {
    ActionView view{plan.sequence, plan.name, dag::Explain(plan), published, std::move(stages)};
    if (view.stages.size() > kStagesShown) view.stages.resize(kStagesShown);
    if (newest_first.empty() && view.plan_text.size() > kActionsShownBytes / 2) {
      view.plan_text.resize(kActionsShownBytes / 2);
      view.plan_text += "...\n(the plan is longer)\n";
    }
    std::size_t size = view.name.size() + view.plan_text.size();
    for (const StageView& stage : view.stages) size += stage.name.size() + 32;
    bool fits = newest_first.size() < kActionsShown && (newest_first.empty() || bytes + size <= kActionsShownBytes);
    if (!fits) return false;
    bytes += size;
    newest_first.push_back(std::move(view));
    return true;
  };
  bool room = true;
  if (unfinished_too)
    for (auto it = job.actions.rbegin(); it != job.actions.rend() && room; ++it) room = add(it->second, StagesOf(job, it->second), false);
  for (auto it = job.counts_kept.rbegin(); it != job.counts_kept.rend() && room; ++it)
    if (auto plan = job.plans_kept.find(it->first); plan != job.plans_kept.end()) room = add(plan->second, it->second, true);
  std::reverse(newest_first.begin(), newest_first.end());
  return newest_first;
}

// Every reason, not only the first: users mend what they are told.
std::vector<std::string> Scheduler::State::PendingReasons(const JobRun& job) const {
  std::vector<std::string> reasons;
  if (!job.admitted) {
    std::size_t before = 0;
    for (JobId id : live) before += id < job.id && !jobs.at(id).admitted ? 1 : 0;
    reasons.push_back(Number(options.jobs_running_max) + " jobs run side by side at most; " + Number(before) + " wait before this one");
    return reasons;
  }
  if (workers.empty()) reasons.push_back("no worker is registered");
  std::size_t fit = 0, drained = 0, avoided = 0, free_slots = 0;
  for (const auto& [id, worker] : workers) {
    if (!Fits(worker, job.spec)) continue;
    ++fit;
    if (worker.drained)
      ++drained;
    else if (worker.avoided_until > now)
      ++avoided;
    else
      free_slots += worker.slots - std::min(worker.slots, worker.busy);
  }
  if (!workers.empty() && fit == 0)
    reasons.push_back("none of the " + Number(workers.size()) + " workers has the glibc or CPU level that the executable needs");
  if (drained > 0) reasons.push_back(Number(drained) + " workers are being drained");
  if (avoided > 0) reasons.push_back(Number(avoided) + " workers are avoided for a while after faults in a row");
  for (ExecutorId id : job.executors) {
    const Executor& executor = executors.at(id);
    if (executor.phase == ExecutorPhase::kStarting)
      reasons.push_back("executor " + Number(id.value) + " is starting on " + workers.at(executor.worker).name);
  }
  for (const auto& [worker, delay] : job.restarts)
    if (delay.not_before > now && workers.contains(worker))
      reasons.push_back("the executor on " + workers.at(worker).name + " is started again in " +
                        Number(static_cast<std::uint64_t>(delay.not_before - now)) + " ms; it ended by " + delay.reason);
  if (job.driver && job.actions.empty()) {
    const Executor& driver = executors.at(job.driver);
    reasons.push_back(driver.once.empty() ? "main is between actions (executor " + Number(job.driver.value) + " drives it)"
                                          : "main computes Once(\"" + driver.once + "\")");
  }
  std::size_t ready = 0, waiting = 0;
  for (const auto& [key, gang] : job.gangs)
    if (gang.phase == GangPhase::kWaiting && gang.waiting_since != 0)
      reasons.push_back("the gang " + StageText(job.stages.at(key).stage) + " waits for " + Number(job.stages.at(key).stage.tasks) +
                        " slots at once" +
                        (job.stages.at(key).stage.gang->ranks_min == 0
                             ? ""
                             : ", for " + Number(job.stages.at(key).stage.gang->ranks_min) + " at least when it has waited long enough"));
    else if (gang.phase == GangPhase::kEnding)
      reasons.push_back("the ranks of " + StageText(job.stages.at(key).stage) + " are ending; it is formed anew then");
  for (const auto& [key, run] : job.stages) {
    if (run.stage.gang) continue;
    for (std::uint32_t task : run.ready) {
      auto trouble = run.trouble.find(task);
      if (trouble == run.trouble.end() || trouble->second.not_before <= now) {
        ++ready;
        continue;
      }
      ++waiting;
      if (waiting <= 3)
        reasons.push_back("task " + Number(task) + " of " + StageText(run.stage) + " is tried again in " +
                          Number(static_cast<std::uint64_t>(trouble->second.not_before - now)) + " ms after a fault");
    }
    if (run.verdict == Verdict::kReady)
      reasons.push_back("the second run of " + StageText(run.stage) + " waits for a slot on another executor");
  }
  if (waiting > 3) reasons.push_back(Number(waiting - 3) + " more tasks wait after faults");
  if (ready > 0 && free_slots == 0 && fit > 0)
    reasons.push_back(Number(ready) + " tasks wait for a free slot");
  else if (ready > 0)
    reasons.push_back(Number(ready) + " tasks wait for an executor that has reached their action");
  return reasons;
}

const JobSpec* Scheduler::Spec(JobId job) const {
  auto it = state_->jobs.find(job);
  return it == state_->jobs.end() || it->second.over() ? nullptr : &it->second.spec;
}

}  // namespace ropewalk::scheduler
