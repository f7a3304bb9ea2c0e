#include <algorithm>

#include "master/scheduler/state.h"

namespace ropewalk::scheduler {
namespace {

constexpr std::size_t kLookAhead = 64;  // ready tasks looked at for one whose input lies where a slot is free

}  // namespace

// Free slots go one by one to the job that uses the fewest; among equals to the oldest.
void Scheduler::State::Assign() {
  AssignGangs();
  std::set<JobId> hungry;
  for (JobId id : live)
    if (const JobRun& job = jobs.at(id); job.admitted && !job.doom && !job.executors.empty()) hungry.insert(id);
  while (!hungry.empty()) {
    JobId least;
    for (JobId id : hungry)
      if (!least || jobs.at(id).running.size() < jobs.at(least).running.size()) least = id;
    if (!AssignOne(jobs.at(least))) hungry.erase(least);
  }
}

bool Scheduler::State::MayRun(const Executor& executor, bool even_avoided) {
  const Worker& worker = workers.at(executor.worker);
  return executor.phase == ExecutorPhase::kReady && !executor.at.empty() && !worker.drained && worker.busy + worker.held < worker.slots &&
         (even_avoided || worker.avoided_until <= now);
}

// The unpublished action under which the executor can run tasks of the stage: it has announced every action up to that one, so it has the
// programs of all their segment stages. 0: none.
std::uint64_t Scheduler::State::ServesAt(const Executor& executor, const StageRun& run) const {
  if (run.key.sequence != 0) return executor.at.contains(run.key.sequence) ? run.key.sequence : 0;
  auto at = executor.at.lower_bound(std::max(run.announced, run.for_action));
  if (at == executor.at.end()) at = executor.at.lower_bound(run.announced);
  return at == executor.at.end() ? 0 : *at;
}

// It runs a task that must have no other beside it.
bool Scheduler::State::Alone(JobRun& job, const Executor& executor) const {
  for (std::uint32_t attempt : executor.running) {
    const RunningTask& task = job.running.at(attempt);
    const StageRun& run = job.stages.at(task.key);
    if (auto trouble = run.trouble.find(task.task); trouble != run.trouble.end() && trouble->second.alone) return true;
  }
  return false;
}

// Starts one task of the job if any can start: upstream stages first, so that lost inputs come before what waits for them.
bool Scheduler::State::AssignOne(JobRun& job) {
  bool all_avoided = true;  // then being picky would only stop the job
  for (ExecutorId id : job.executors)
    if (MayRun(executors.at(id), false)) all_avoided = false;
  std::vector<Executor*> free;
  for (ExecutorId id : job.executors)
    if (Executor& executor = executors.at(id); MayRun(executor, all_avoided) && !Alone(job, executor)) free.push_back(&executor);
  if (free.empty()) return false;

  for (const StageKey& key : job.planned) {
    StageRun* run = FindStage(job, key);
    if (run == nullptr || run->ready.empty() || run->stage.gang) continue;
    const dag::Stage& stage = run->stage;
    std::vector<Executor*> here;
    for (Executor* executor : free)
      if (ServesAt(*executor, *run) != 0) here.push_back(executor);
    if (here.empty()) continue;
    Executor* best = nullptr;
    std::uint32_t best_task = 0;
    bool best_local = false;
    std::size_t looked = 0;
    for (std::uint32_t task : run->ready) {
      if (++looked > kLookAhead && best != nullptr) break;
      auto trouble = run->trouble.find(task);
      bool troubled = trouble != run->trouble.end();
      if (troubled && trouble->second.not_before > now) continue;
      WorkerId holder;  // of the one-to-one input
      for (const dag::StageInput& input : stage.inputs)
        if (input.pattern == dag::InputPattern::kOneToOne && input.ReadBy(task))
          if (StageRun* producer = Producer(job, *run, input); task - input.first_task < producer->tasks.size())
            holder = producer->tasks[task - input.first_task].worker;
      auto near = InputBytes(job, *run, task);
      auto score = [&](const Executor& executor) {
        const Worker& worker = workers.at(executor.worker);
        std::uint64_t bytes = 0;
        for (const auto* on : near)
          if (auto there = on->find(executor.worker); there != on->end()) bytes += there->second;
        return std::tuple(!troubled || executor.worker != trouble->second.avoid, executor.worker == holder, bytes,
                          worker.slots - worker.busy);
      };
      Executor* choice = nullptr;
      for (Executor* executor : here) {
        if (troubled && trouble->second.alone && !executor->running.empty()) continue;
        if (choice == nullptr || score(*executor) > score(*choice)) choice = executor;
      }
      if (choice == nullptr) continue;
      bool local = !holder || choice->worker == holder;
      if (best == nullptr || (local && !best_local)) {
        best = choice;
        best_task = task;
        best_local = local;
      }
      if (best_local) break;
    }
    if (best == nullptr) continue;
    Launch(job, *run, best_task, ServesAt(*best, *run), *best, false);
    return true;
  }
  return AssignCopy(job) || AssignVerify(job);
}

std::uint32_t Scheduler::State::NextAttempt(JobRun& job) {
  if (job.attempt_next >= job.attempts_reserved) {
    job.attempts_reserved = job.attempt_next + kAttemptBlock;
    Journal(AttemptsRecord{job.id, job.attempts_reserved}, true);
  }
  return job.attempt_next++;
}

void Scheduler::State::Launch(JobRun& job, StageRun& run, std::uint32_t task, std::uint64_t sequence, Executor& executor, bool verify,
                              std::optional<dag::GangPlace> gang) {
  TaskAttempt id{run.key.stage, task, NextAttempt(job)};
  TaskRun& t = run.tasks[task];
  bool retry = run.trouble.contains(task);
  if (verify) {
    run.verdict = Verdict::kRunning;
    run.verify_attempt = id.attempt;
  } else {
    t.attempt = id.attempt;
    t.wanted = false;
    if (run.first_start == 0) run.first_start = now;
    ++run.running;
    run.ready.erase(task);
    if (auto lost = run.lost_cause.find(task); lost != run.lost_cause.end())
      Log(job,
          EventLine("rerun", now).Num("stage", id.stage.value).Num("task", task).Num("attempt", id.attempt).Str("cause", lost->second));
  }
  executor.running.insert(id.attempt);
  ++workers.at(executor.worker).busy;
  job.running[id.attempt] = {run.key, task, executor.id, verify, now};
  if (gang) {
    job.running[id.attempt].rank = true;
    ++workers.at(executor.worker).ranks;
  }
  Log(job, EventLine("task_started", now)
               .Num("stage", id.stage.value)
               .Num("task", task)
               .Num("attempt", id.attempt)
               .Num("executor", executor.id.value)
               .Num("worker", executor.worker.value)
               .Flag("retry", retry)
               .Flag("verify", verify));
  Out(RunTask{executor.id, job.id, sequence, id, Inputs(job, run, task), retry, verify, 0, std::move(gang)});
  Changed(job);
}

// Where the bytes of the task's all-to-all inputs lie.
std::vector<const std::map<WorkerId, std::uint64_t>*> Scheduler::State::InputBytes(JobRun& job, StageRun& run, std::uint32_t task) {
  std::vector<const std::map<WorkerId, std::uint64_t>*> near;
  for (std::size_t i = 0; i < run.stage.inputs.size(); ++i) {
    const dag::StageInput& input = run.stage.inputs[i];
    if (input.pattern != dag::InputPattern::kAllToAll || !input.ReadBy(task)) continue;
    auto [at, fresh] = run.input_at.try_emplace(i);
    if (fresh)
      for (const TaskRun& t : Producer(job, run, input)->tasks)
        if (t.done) at->second[t.worker] += t.bytes;
    near.push_back(&at->second);
  }
  return near;
}

std::vector<dag::TaskInput> Scheduler::State::Inputs(JobRun& job, const StageRun& run, std::uint32_t task) {
  std::vector<dag::TaskInput> inputs;
  for (const dag::StageInput& input : run.stage.inputs) {
    if (!input.ReadBy(task)) continue;
    const StageRun& producer = *Producer(job, run, input);
    dag::TaskInput resolved{input.stage, input.pattern, input.first_task, {}, {}, {}};
    auto segment = [&](std::uint32_t index) {
      const TaskRun& t = producer.tasks[index];
      resolved.segments.push_back({{input.stage, index, t.winner}, t.segment, workers.at(t.worker).data_address, t.bytes});
    };
    switch (input.pattern) {
      case dag::InputPattern::kAllToAll:
        resolved.segments.reserve(producer.tasks.size());
        for (std::uint32_t index = 0; index < producer.tasks.size(); ++index) segment(index);
        break;
      case dag::InputPattern::kOneToOne:
        if (task - input.first_task >= producer.tasks.size()) continue;
        segment(task - input.first_task);
        break;
      case dag::InputPattern::kGather:
        resolved.values = producer.values;
        for (std::uint32_t index = 0; index < producer.tasks.size(); ++index)
          resolved.winners.push_back({input.stage, index, producer.tasks[index].winner});
        break;
    }
    inputs.push_back(std::move(resolved));
  }
  return inputs;
}

}  // namespace ropewalk::scheduler
