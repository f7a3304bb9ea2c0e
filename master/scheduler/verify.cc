#include <algorithm>

#include "base/hash.h"
#include "master/scheduler/state.h"

namespace ropewalk::scheduler {

// In a loop the same lines of code make a stage in each round, and where stages have one task, running each twice would double the job.
// Code that is not deterministic mostly shows it the first times; after kLineVerdicts that agreed, one stage in kLineRareness is still run
// twice. Nothing rests on it: a re-run after a loss is compared with what was there before in any case.
bool Scheduler::State::WorthVerifying(const JobRun& job, const dag::Stage& stage) const {
  constexpr std::uint32_t kLineVerdicts = 3;
  constexpr std::uint32_t kLineRareness = 8;
  if (!job.spec.settings.verify || stage.tasks == 0 || stage.output == dag::StageOutput::kCommit || stage.gang) return false;
  auto line = job.verified_lines.find(stage.name);
  if (line == job.verified_lines.end() || line->second < kLineVerdicts) return true;
  return PartitionOf(HashCombine(job.spec.settings.seed, stage.id.value), kLineRareness) == 0;
}

// Drawn by the job's seed, small ones first: any task shows that code is not deterministic, and a small one costs little. Several,
// so that one of them most likely was not made by the executor that has nothing else to do: at an action's end all slots but one wait.
std::vector<Sample> Scheduler::State::DrawSamples(const JobRun& job, const dag::Stage& stage) const {
  constexpr std::uint64_t kDraws = 8;
  std::vector<Sample> samples;
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
    std::uint64_t hash = HashCombine(HashCombine(job.spec.settings.seed, stage.id.value), draw);
    std::uint32_t task = PartitionOf(hash, stage.tasks);
    if (std::ranges::none_of(samples, [&](const Sample& s) { return s.task == task; })) samples.push_back({task, {}});
  }
  if (!stage.input_bytes.empty()) std::ranges::stable_sort(samples, {}, [&](const Sample& s) { return stage.input_bytes[s.task]; });
  return samples;
}

// Verdicts of the plan's stages that are still to come. `except` (a commit) and what comes after it is not asked.
bool Scheduler::State::VerdictsPending(JobRun& job, const dag::ActionPlan& plan, StageId except) {
  bool pending = false;
  for (const dag::Stage& stage : plan.stages) {
    if (stage.id == except) continue;
    StageRun* run = FindStage(job, {stage.output == dag::StageOutput::kSegment ? 0 : plan.sequence, stage.id});
    if (run == nullptr || (run->verdict != Verdict::kReady && run->verdict != Verdict::kRunning)) continue;
    pending = true;
    if (run->verify_since == 0) {
      run->verify_since = now;
      Wake(now + options.verify_wait_ms);
    }
  }
  return pending;
}

// The second run of one of the samples: on another executor than the first where the job has one (or will have one soon); it takes only
// slots that no other task of the job could use. True: one was started.
bool Scheduler::State::AssignVerify(JobRun& job) {
  for (auto at = job.unverified.begin(); at != job.unverified.end();) {
    StageRun* found = FindStage(job, *at);
    if (found == nullptr || found->verdict != Verdict::kReady) {
      at = job.unverified.erase(at);
      continue;
    }
    StageRun& run = *found;
    ++at;
    bool there = false, made_again = false;
    std::vector<const Sample*> now_ready;
    for (const Sample& sample : run.samples) {
      const TaskRun& task = run.tasks[sample.task];
      auto trouble = run.trouble.find(sample.task);
      bool usable = task.winner != 0 && InputsThere(job, run, sample.task);
      there |= usable;
      made_again |= !task.done && (task.wanted || task.attempt != 0);
      if (usable && (trouble == run.trouble.end() || trouble->second.not_before <= now)) now_ready.push_back(&sample);
    }
    if (!there) {
      // Verification causes no re-run by itself: when a sample runs again anyway, the verdict follows that; else it is let go (a later
      // re-run of anything is compared with what was there before).
      run.verdict = made_again ? Verdict::kNone : Verdict::kSkipped;
      job.dirty = true;
      if (!made_again) Log(job, EventLine("verify_skipped", now).Num("stage", run.key.stage.value).Num("task", run.samples.front().task));
      continue;
    }
    const Sample* chosen = nullptr;
    Executor* best = nullptr;
    bool best_other = false, other_exists = false, other_starts = false;
    for (const Sample* sample : now_ready)
      for (ExecutorId id : job.executors) {
        Executor& executor = executors.at(id);
        bool other = id != sample->made_by;
        other_starts |= other && executor.at.empty();
        if (ServesAt(executor, run) == 0) continue;
        other_exists |= other && !workers.at(executor.worker).drained;
        if (!MayRun(executor, true) || Alone(job, executor)) continue;
        if (best != nullptr && (best_other || !other)) continue;
        chosen = sample;
        best = &executor;
        best_other = other;
      }
    if (best == nullptr) continue;
    // Another one will have a free slot, or be there, soon; unless another job holds it for long: that may not hold up a finished action.
    bool patient = run.verify_since == 0 || now < run.verify_since + options.verify_wait_ms;
    if (!best_other && (other_exists || other_starts) && patient) continue;
    run.sample = chosen->task;
    Launch(job, run, run.sample, ServesAt(*best, run), *best, true);
    return true;
  }
  return false;
}

void Scheduler::State::OnVerified(JobRun& job, StageRun& run, std::uint32_t attempt, ExecutorId executor, const dag::TaskResult& result) {
  // Nothing of it is kept; an executor that sealed a segment all the same must not leak it.
  if (result.segment && result.segment->segment) FreeSegment(job, executors.at(executor).worker, result.segment->segment);
  std::uint64_t hash = run.segments() && result.segment ? result.segment->content_hash : result.content_hash;
  const TaskRun& t = run.tasks[run.sample];
  EventLine line(hash == t.hash ? "verify_ok" : "verify_failed", now);
  Log(job, line.Num("stage", run.key.stage.value)
               .Num("task", run.sample)
               .Num("attempt", t.winner)
               .Num("second", attempt)
               .Num("executor", executor.value)
               .Hex("hash", t.hash)
               .Hex("second_hash", hash));
  job.dirty = true;
  if (hash == t.hash) {
    run.verdict = Verdict::kAgreed;
    ++job.verified_lines[run.stage.name];
    Journal(VerifiedRecord{job.id, run.key.sequence, run.key.stage}, false);
    return;
  }
  Doom(job, Status(Code::kUserError, "DET01",
                   StageText(run.stage) + " is not deterministic: two runs of its task " + Number(run.sample) + " made different content",
                   "a lost part could not be made again without mixing two versions of the data",
                   "give tasks what main computes by Broadcast(x), take seeds from job.Seed() and times from job.Now(), capture by value; "
                   "--verify=off runs it all the same"));
}

}  // namespace ropewalk::scheduler
