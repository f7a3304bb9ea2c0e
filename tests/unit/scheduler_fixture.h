// A scheduler with a tiny shell around it for unit tests: it keeps the actions, the journal and what executors were told, and answers tasks
// when the test says so.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "master/scheduler/scheduler.h"

namespace ropewalk::scheduler {

inline dag::Stage MakeStage(std::uint64_t id, std::uint32_t tasks, dag::StageOutput output, std::vector<dag::StageInput> inputs = {}) {
  return {StageId{id}, "S" + std::to_string(id), tasks, output, std::move(inputs), {}, id * 31};
}

inline dag::ActionPlan MakePlan(std::uint64_t sequence, std::vector<dag::Stage> stages, std::vector<StageId> retired = {}) {
  dag::ActionPlan plan;
  plan.sequence = sequence;
  plan.name = "action " + std::to_string(sequence);
  plan.stages = std::move(stages);
  plan.retired = std::move(retired);
  plan.fingerprint = 1000 + sequence;
  return plan;
}

// maps -> reduces, one result.
inline dag::ActionPlan WordCountPlan(std::uint32_t maps, std::uint32_t reduces, std::uint64_t sequence = 1) {
  return MakePlan(sequence, {MakeStage(1, maps, dag::StageOutput::kSegment),
                             MakeStage(2, reduces, dag::StageOutput::kResult, {{StageId{1}, dag::InputPattern::kAllToAll, 0}})});
}

class Puppet {
 public:
  explicit Puppet(Options options = {}) : scheduler(std::make_unique<Scheduler>(options)), options_(options) {}

  void Do(Event event) {
    now += 1;
    Take(scheduler->Step(now, event));
  }
  void Take(std::vector<SchedulerAction> actions) {
    for (SchedulerAction& action : actions) {
      if (auto* record = std::get_if<JournalRecord>(&action)) journal.push_back(*record);
      if (auto* start = std::get_if<StartExecutor>(&action)) started.push_back(*start);
      if (auto* run = std::get_if<RunTask>(&action)) tasks.push_back(*run);
      if (auto* cancel = std::get_if<CancelTask>(&action)) Forget(cancel->job, cancel->id);
      if (auto* timer = std::get_if<SetTimer>(&action)) timers.push_back(*timer);
      all.push_back(std::move(action));
    }
  }
  // Time passes; timers fire in order.
  void Advance(TimeMs ms) {
    TimeMs end = now + ms;
    while (true) {
      auto next = std::min_element(timers.begin(), timers.end(), [](const SetTimer& a, const SetTimer& b) { return a.at < b.at; });
      if (next == timers.end() || next->at > end) break;
      SetTimer timer = *next;
      timers.erase(next);
      now = std::max(now, timer.at);
      Take(scheduler->Step(now, TimerFired{timer.timer}));
    }
    now = end;
  }
  // The master dies; a new one reads the journal. `kept`: how many records survive.
  void Restart(std::size_t kept = ~std::size_t{0}) {
    scheduler = std::make_unique<Scheduler>(options_);
    journal.resize(std::min(journal.size(), kept));
    tasks.clear();
    started.clear();
    timers.clear();
    for (const JournalRecord& record : journal) {
      Status status = scheduler->Replay(record);
      if (!status.ok()) std::abort();
    }
    Take(scheduler->Recovered(now));
  }
  JobId Submit(const std::string& key = "k", bool verify = false) {
    JobSpec spec;
    spec.submit_key = key;
    spec.settings.name = "job " + key;
    spec.settings.verify = verify;
    Do(JobSubmitted{spec});
    return Last<AcceptJob>()->job;
  }
  void AddWorker(std::uint64_t id, std::uint32_t slots = 2, std::vector<SegmentAt> segments = {}) {
    WorkerRegistered worker;
    worker.worker = WorkerId{id};
    worker.name = "w" + std::to_string(id);
    worker.data_address = "w" + std::to_string(id) + ":1";
    worker.slots = slots;
    worker.segments = std::move(segments);
    Do(worker);
  }
  // Every task that was ordered ends well; its content is a function of stage and task. Returns how many there were.
  std::size_t FinishTasks() {
    std::vector<RunTask> now_running;
    std::swap(now_running, tasks);
    for (const RunTask& task : now_running) Finish(task);
    return now_running.size();
  }
  void Finish(RunTask task, std::uint64_t salt = 0, TaskCounters counters = {}) {
    Forget(task.job, task.id);
    TaskFinished finished;
    finished.counters = counters;
    finished.executor = task.executor;
    finished.job = task.job;
    finished.id = task.id;
    finished.result.content_hash = task.id.stage.value * 1000 + task.id.task + salt;
    if (segment_stages.contains(task.id.stage.value)) {
      if (!task.verify) finished.result.segment = dag::SegmentInfo{SegmentId{next_segment++}, 100, 1, finished.result.content_hash};
    } else {
      finished.result.value = "v" + std::to_string(task.id.stage.value) + "." + std::to_string(task.id.task);
    }
    Do(finished);
  }
  // Attempts are numbered in each job.
  void Forget(JobId job, const TaskAttempt& id) {
    std::erase_if(tasks, [&](const RunTask& t) { return t.job == job && t.id == id; });
  }
  template <class T>
  const T* Last() const {
    for (auto it = all.rbegin(); it != all.rend(); ++it)
      if (const T* found = std::get_if<T>(&*it)) return found;
    return nullptr;
  }
  template <class T>
  std::vector<T> All() const {
    std::vector<T> list;
    for (const SchedulerAction& action : all)
      if (const T* found = std::get_if<T>(&action)) list.push_back(*found);
    return list;
  }
  std::size_t Count(const std::string& event) const {
    std::size_t n = 0;
    for (const LogEvent& line : All<LogEvent>()) n += line.kind == event ? 1 : 0;
    return n;
  }

  std::unique_ptr<Scheduler> scheduler;
  TimeMs now = 1000;
  std::vector<SchedulerAction> all;
  std::vector<JournalRecord> journal;
  std::vector<StartExecutor> started;
  std::vector<RunTask> tasks;  // ordered, not answered
  std::vector<SetTimer> timers;
  std::uint64_t next_segment = 1;
  struct Ids {
    std::vector<std::uint64_t> ids;
    bool contains(std::uint64_t id) const { return std::find(ids.begin(), ids.end(), id) != ids.end(); }
  } segment_stages{{1}};

 private:
  Options options_;
};

}  // namespace ropewalk::scheduler
