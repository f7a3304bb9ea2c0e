#include <algorithm>
#include <functional>
#include <utility>

#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

Status Scheduler::Replay(const JournalRecord& record) {
  ASSIGN_OR_RETURN(Record decoded, Decode(record.bytes));
  return state_->Apply(decoded);
}
std::vector<SchedulerAction> Scheduler::Recovered(TimeMs now) { return state_->Recovered(now); }
std::vector<JournalRecord> Scheduler::Snapshot() const { return state_->Snapshot(); }

namespace {

Status Unknown(JobId job) {
  return Status(Code::kDataLoss, "JRN01", "the journal speaks of job " + Number(job.value) + " before it was accepted",
                "a record is missing", "restore the master's folder from a backup");
}

}  // namespace

Status Scheduler::State::Apply(const Record& record) {
  struct Visitor {
    State& s;
    // A finished job's late unsynced records are no news; an unknown job's are a hole in the journal.
    Status On(JobId id, const std::function<void(JobRun&)>& act) {
      auto it = s.jobs.find(id);
      if (it == s.jobs.end()) return id.value < s.job_next ? Status() : Unknown(id);
      if (!it->second.over()) act(it->second);
      return Status();
    }
    Status operator()(const CountersRecord& r) {
      s.job_next = std::max(s.job_next, r.job_next);
      s.executors_reserved = std::max(s.executors_reserved, r.executors_reserved);
      return Status();
    }
    Status operator()(const JobAcceptedRecord& r) {
      JobId id = r.spec.settings.job;
      JobRun& job = s.jobs[id];
      job.id = id;
      job.spec = r.spec;
      job.attempts_reserved = kAttemptBlock;
      s.live.insert(id);
      s.job_next = std::max(s.job_next, id.value + 1);
      if (!r.spec.submit_key.empty()) s.submit_keys[r.spec.submit_key] = id;
      return Status();
    }
    Status operator()(const AttemptsRecord& r) {
      return On(r.job, [&](JobRun& job) { job.attempts_reserved = std::max(job.attempts_reserved, r.reserved); });
    }
    Status operator()(const OnceRecord& r) {
      return On(r.job, [&](JobRun& job) { job.once[r.name] = r.value; });
    }
    Status operator()(const TaskDoneRecord& r) {
      return On(r.job, [&](JobRun& job) {
        job.known[{r.sequence, r.id.stage}][r.id.task] = r;
        job.last_done = r.id.attempt;
      });
    }
    Status operator()(const TasksForgottenRecord& r) {
      return On(r.job, [&](JobRun& job) {
        StageKey key{r.sequence, r.stage};
        for (std::uint32_t task : r.tasks) job.known[key].erase(task);
        job.verified_before.erase(key);
      });
    }
    Status operator()(const VerifiedRecord& r) {
      return On(r.job, [&](JobRun& job) { job.verified_before.insert({r.sequence, r.stage}); });
    }
    Status operator()(const WinnersRecord& r) {
      return On(r.job, [&](JobRun& job) {
        if (r.stage) job.winners_before.insert({r.sequence, r.stage});
        for (const TaskDoneRecord& task : r.tasks) job.known[{r.sequence, r.stage}][task.id.task] = task;
        job.pinned_before.insert(r.pinned.begin(), r.pinned.end());
      });
    }
    Status operator()(const ActionPublishedRecord& r) {
      return On(r.job, [&](JobRun& job) {
        PublishedAction action{r.name, r.fingerprint, std::make_shared<const std::vector<std::string>>(r.values)};
        if (job.published.insert_or_assign(r.sequence, std::move(action)).second) ++job.actions_done;
        job.pinned_before.insert(r.pinned.begin(), r.pinned.end());
        std::erase_if(job.known, [&](const auto& entry) { return entry.first.sequence == r.sequence && r.sequence != 0; });
        std::erase_if(job.verified_before, [&](const StageKey& key) { return key.sequence == r.sequence && r.sequence != 0; });
        std::erase_if(job.winners_before, [&](const StageKey& key) { return key.sequence == r.sequence; });
        std::erase_if(job.gangs_before, [&](const auto& entry) { return entry.first.sequence == r.sequence; });
      });
    }
    Status operator()(const RetiredRecord& r) {
      return On(r.job, [&](JobRun& job) {
        for (StageId stage : r.stages) {
          job.cut_stages.erase(stage);
          job.known.erase({0, stage});
          job.verified_before.erase({0, stage});
          job.pinned_before.erase(stage);
        }
      });
    }
    Status operator()(const CutRecord& r) {
      return On(r.job, [&](JobRun& job) { s.SetCuts(job, r.sequence, r.stages); });
    }
    Status operator()(const CutsUndoneRecord& r) {
      return On(r.job, [&](JobRun& job) {
        job.cuts.clear();
        job.cut_stages.clear();
      });
    }
    Status operator()(const GangRecord& r) {
      return On(r.job, [&](JobRun& job) {
        job.gang_epoch_next = std::max(job.gang_epoch_next, r.epoch_next);
        if (r.stage) job.gangs_before[{r.sequence, r.stage}] = r;
      });
    }
    Status operator()(const JobFinishedRecord& r) {
      JobRun rest;
      rest.id = r.job;
      rest.spec.settings.job = r.job;
      rest.spec.settings.name = r.name;
      rest.spec.settings.now_us = r.submitted_us;
      rest.spec.submit_key = r.submit_key;
      rest.spec.user = r.user;
      if (r.code != 0) rest.status = Status(static_cast<Code>(r.code), r.tag, r.what, r.why, r.fix);
      rest.phase = r.code == 0 ? JobPhase::kSucceeded : rest.status.code() == Code::kCancelled ? JobPhase::kCancelled : JobPhase::kFailed;
      rest.main_exit = r.main_exit;
      rest.actions_done = r.actions_done;
      rest.started_us = r.started_us;
      rest.finished_us = r.finished_us;
      rest.past = r.past;
      rest.spec.argv = r.argv;
      rest.outputs = r.outputs;
      rest.workers_lost = r.workers_lost;
      rest.lost_workers = r.lost_workers;
      rest.admitted = true;
      rest.settle = false;
      s.jobs[r.job] = std::move(rest);
      s.live.erase(r.job);
      s.finished.push_back(r.job);
      s.job_next = std::max(s.job_next, r.job.value + 1);
      if (!r.submit_key.empty()) s.submit_keys[r.submit_key] = r.job;
      while (s.finished.size() > s.options.jobs_finished_kept) {
        JobId oldest = s.finished.front();
        s.finished.pop_front();
        s.submit_keys.erase(s.jobs.at(oldest).spec.submit_key);
        s.jobs.erase(oldest);
      }
      return Status();
    }
  };
  return std::visit(Visitor{*this}, record);
}

std::vector<SchedulerAction> Scheduler::State::Recovered(TimeMs at) {
  now = at;
  out.clear();
  executor_next = executors_reserved;  // none of the former master's numbers is given out again
  for (JobId id : live) {
    JobRun& job = jobs.at(id);
    job.accepted_at = now;
    job.started_before = !job.published.empty() || !job.once.empty() || !job.known.empty();
    job.settle = true;
    // Attempts below the mark may have run; the first new one is above it.
    job.attempt_next = options.planted.reuse_attempts_after_restart ? 1 : job.attempts_reserved;
    if (options.planted.reuse_gang_epochs && job.gang_epoch_next > 0) --job.gang_epoch_next;
    // Records of tasks are written in the order of their ends: what ended after `last_done` is not known any more.
    Log(job, EventLine("job_recovered", now)
                 .Num("job", id.value)
                 .Num("actions", job.actions_done)
                 .Num("onces", job.once.size())
                 .Num("last_done", job.last_done));
    StartLimit(job);
    if (!job.known.empty() && options.recovery_grace_ms > 0) {
      job.grace_until = now + options.recovery_grace_ms;
      Wake(job.grace_until);
    }
  }
  Settle();
  return std::exchange(out, {});
}

std::vector<JournalRecord> Scheduler::State::Snapshot() const {
  std::vector<JournalRecord> records;
  auto add = [&](const Record& record) { records.push_back({Encode(record), true}); };
  add(CountersRecord{job_next, executors_reserved});
  for (JobId id : finished) {
    const JobRun& job = jobs.at(id);
    const Status& status = job.status;
    add(JobFinishedRecord{id, job.spec.submit_key, job.spec.settings.name, job.spec.user, job.spec.settings.now_us,
                          static_cast<std::uint32_t>(status.code()), status.tag(), status.what(), status.why(), status.fix(), job.main_exit,
                          job.actions_done, job.started_us, job.finished_us, job.past, job.spec.argv, job.outputs, job.workers_lost,
                          job.lost_workers});
  }
  std::vector<Record> of_jobs;
  for (JobId id : live) SnapshotOf(jobs.at(id), &of_jobs);
  for (const Record& record : of_jobs) add(record);
  return records;
}

void Scheduler::State::SnapshotOf(const JobRun& job, std::vector<Record>* records) const {
  const JobId id = job.id;
  auto add = [&](Record record) { records->push_back(std::move(record)); };
  add(JobAcceptedRecord{job.spec});
  add(AttemptsRecord{id, job.attempts_reserved});
  for (const auto& [name, value] : job.once) add(OnceRecord{id, name, value});
  for (const auto& [sequence, stages] : job.cuts) add(CutRecord{id, sequence, stages});
  if (job.gang_epoch_next > 0) add(GangRecord{id, 0, StageId{}, job.gang_epoch_next, 0, 0});
  std::map<StageKey, GangRecord> gangs = job.gangs_before;
  for (const auto& [key, gang] : job.gangs) gangs[key] = {id, key.sequence, key.stage, job.gang_epoch_next, gang.failures, gang.restarts};
  for (const auto& [key, record] : gangs) add(record);
  std::vector<StageId> pinned(job.pinned_before.begin(), job.pinned_before.end());
  for (const auto& [key, run] : job.stages)
    if (run.pinned && run.segments()) pinned.push_back(key.stage);
  std::sort(pinned.begin(), pinned.end());
  for (const auto& [sequence, action] : job.published)
    add(ActionPublishedRecord{id, sequence, action.fingerprint, action.name, *action.values, {}});
  std::map<StageKey, std::map<std::uint32_t, TaskDoneRecord>> known = job.known;
  std::set<StageKey> verified = job.verified_before, winners = job.winners_before;
  for (const auto& [key, run] : job.stages) {
    // What some ranks of a gang have made is worth nothing without the others: it is written whole or not at all.
    auto is_large = [](const std::string& value) { return value.size() > kInlineValueBytes; };
    const bool kept = !run.stage.gang || (run.complete() && std::none_of(run.values.begin(), run.values.end(), is_large));
    for (std::uint32_t task = 0; kept && task < run.tasks.size(); ++task) {
      const TaskRun& t = run.tasks[task];
      if (t.winner == 0) continue;
      TaskDoneRecord record{id, key.sequence, {key.stage, task, t.winner}, t.hash, false, ""};
      if (!run.segments() && t.done && (run.winners_journalled || run.values[task].size() <= kInlineValueBytes)) {
        record.has_value = true;
        record.value = run.values[task];
      }
      known[key][task] = record;
    }
    if (run.verdict == Verdict::kAgreed) verified.insert(key);
    if (run.winners_journalled) winners.insert(key);
  }
  for (const auto& [key, tasks] : known)
    for (const auto& [task, record] : tasks) add(record);
  for (const StageKey& key : verified) add(VerifiedRecord{id, key.sequence, key.stage});
  for (const StageKey& key : winners) add(WinnersRecord{id, key.sequence, key.stage, {}, {}});
  // Pinned stages ride on a record that names no tasks of its own.
  if (!pinned.empty()) add(WinnersRecord{id, 0, StageId{}, {}, pinned});
}

}  // namespace ropewalk::scheduler
