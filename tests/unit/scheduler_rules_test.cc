// The rules that the scripts do not tell: bounds, fairness, placement, verification, journal bytes, and what large jobs cost.
#include <gtest/gtest.h>

#include <ctime>

#include "base/random.h"
#include "dag/failure_tags.h"
#include "master/scheduler/records.h"
#include "tests/unit/scheduler_fixture.h"

namespace ropewalk::scheduler {
namespace {

ExecutorId Ready(Puppet& p) {
  ExecutorId id = p.started.back().executor;
  p.Do(ExecutorReady{id});
  return id;
}
ExecutorExited Crash(ExecutorId id, int signal = 11) { return {id, Status(Code::kUserError, "EXIT", "crashed"), 0, signal, {}}; }

TEST(SchedulerRules, MachineFaultsOfOneTaskAreBounded) {
  Puppet p({.machine_attempts_max = 3});
  p.AddWorker(1);
  p.Submit();
  ExecutorId e = Ready(p);
  p.Do(ExecutorAtAction{e, WordCountPlan(1, 1)});
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(p.tasks.size(), 1u) << i;
    RunTask task = p.tasks[0];
    p.tasks.clear();
    p.Do(TaskFailed{e, task.job, task.id, Status(Code::kResourceExhausted, "DISK", "the disk is full"), 0, 0, ""});
    p.Advance(10'000);
  }
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_EQ(p.Last<FinishJob>()->status.code(), Code::kResourceExhausted);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), "DISK");
}

// Two tasks share an executor that dies and nobody knows whose fault it was. Suspects run alone until the guilty one is known.
// std::bad_alloc is not a machine's fault that goes away: four tries, the later ones without neighbours.
TEST(SchedulerRules, ATaskThatAsksForTooMuchMemoryIsTriedFourTimes) {
  Puppet p;
  p.AddWorker(1, 2);
  p.Submit();
  ExecutorId e = Ready(p);
  p.Do(ExecutorAtAction{e, MakePlan(1, {MakeStage(1, 2, dag::StageOutput::kResult)})});
  int tries = 0;
  while (p.Last<FinishJob>() == nullptr && tries < 20) {
    std::vector<RunTask> running;
    std::swap(running, p.tasks);
    for (const RunTask& task : running) {
      if (task.id.task == 1) {
        EXPECT_TRUE(tries < 2 || running.size() == 1) << "try " << tries << " had a neighbour";
        ++tries;
        p.Do(TaskFailed{e, task.job, task.id, Status(Code::kResourceExhausted, dag::kOutOfMemoryTag, "no memory"), 0, 0, ""});
      } else {
        p.Finish(task);
      }
    }
    p.Advance(10'000);
  }
  EXPECT_EQ(tries, 4);
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), dag::kOutOfMemoryTag);
  EXPECT_NE(p.Last<FinishJob>()->status.what().find("ran out of memory 4 times"), std::string::npos)
      << p.Last<FinishJob>()->status.ToString();
}

// A worker without control groups cannot tell a lack of memory from somebody's kill: the task is tried as one that lacks memory, and told
// as what it is.
TEST(SchedulerRules, ATaskWhoseExecutorPerhapsRanOutOfMemoryIsTriedFourTimesAndNotCalledGuilty) {
  Puppet p({.executor_restart_delay_ms = 1});
  p.AddWorker(1, 2);
  p.Submit();
  int kills = 0;
  while (p.Last<FinishJob>() == nullptr && kills < 20) {
    ExecutorId e = Ready(p);
    p.Do(ExecutorAtAction{e, MakePlan(1, {MakeStage(1, 2, dag::StageOutput::kResult)})});
    EXPECT_EQ(p.tasks.size(), kills == 0 ? 2u : 1u) << "after kill " << kills;
    p.tasks.clear();
    ++kills;
    p.Do(ExecutorExited{e, Status(Code::kResourceExhausted, dag::kPerhapsOutOfMemoryTag, "an executor ended", "perhaps"), 0, 9, {}});
    p.Advance(20'000);
  }
  EXPECT_GE(kills, 4);
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  const Status status = p.Last<FinishJob>()->status;
  EXPECT_EQ(status.tag(), dag::kPerhapsOutOfMemoryTag);
  EXPECT_NE(status.what().find("was perhaps out of memory 4 times"), std::string::npos) << status.ToString();
}

TEST(SchedulerRules, SuspectsRunAloneSoThatTheInnocentIsNotBlamed) {
  Puppet p({.executor_restart_delay_ms = 1});
  p.AddWorker(1, 2);
  p.Submit();
  ExecutorId e = Ready(p);
  p.Do(ExecutorAtAction{e, WordCountPlan(2, 1)});
  ASSERT_EQ(p.tasks.size(), 2u);
  bool innocent_done = false;
  for (int round = 0; round < 10 && p.Last<FinishJob>() == nullptr; ++round) {
    std::vector<RunTask> running = p.tasks;
    if (round > 0) {
      ASSERT_LE(running.size(), 1u) << "a suspect does not run alone";
    }
    bool guilty = false;
    for (const RunTask& task : running) guilty |= task.id.task == 1;
    if (guilty) {
      p.tasks.clear();
      p.Do(Crash(e));
      p.Advance(20'000);
      if (p.Last<FinishJob>() != nullptr) break;
      e = Ready(p);
      p.Do(ExecutorAtAction{e, WordCountPlan(2, 1)});
    } else {
      innocent_done = true;
      p.FinishTasks();
    }
  }
  EXPECT_TRUE(innocent_done);
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), "TASK04");
  EXPECT_NE(p.Last<FinishJob>()->status.what().find("task 1"), std::string::npos) << p.Last<FinishJob>()->status.ToString();
}

TEST(SchedulerRules, AnExecutorThatCanNeverStartFailsTheJob) {
  Puppet p;
  p.AddWorker(1);
  p.Submit();
  for (int i = 0; i < 5 && p.Last<FinishJob>() == nullptr; ++i) {
    p.Do(ExecutorExited{p.started.back().executor, Status(Code::kNotFound, "ART01", "libfoo.so is missing"), 0, 0, {}});
    p.Advance(20'000);
  }
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), "ART01");
}

TEST(SchedulerRules, AResultAboveTheLimitNamesTheWayOut) {
  Puppet p;
  p.AddWorker(1);
  JobSpec spec;
  spec.settings.verify = false;
  spec.settings.collect_bytes_max = 10;
  p.Do(JobSubmitted{spec});
  ExecutorId e = Ready(p);
  p.Do(ExecutorAtAction{e, MakePlan(1, {MakeStage(7, 1, dag::StageOutput::kResult)})});
  TaskFinished finished{e, JobId{1}, p.tasks.at(0).id, {}, {}};
  finished.result.value = std::string(11, 'x');
  p.Do(finished);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), "ACT01");
  EXPECT_NE(p.Last<FinishJob>()->status.fix().find("WriteText"), std::string::npos);
  EXPECT_FALSE(p.Last<PublishAction>()->status.ok());
}

TEST(SchedulerRules, JobsWaitInOrderAndSayWhy) {
  Puppet p({.jobs_running_max = 1});
  p.AddWorker(1);
  p.Submit("a");
  JobId b = p.Submit("b");
  EXPECT_EQ(p.started.size(), 1u);
  ASSERT_EQ(p.scheduler->Job(b)->pending_reasons.size(), 1u);
  EXPECT_NE(p.scheduler->Job(b)->pending_reasons[0].find("side by side"), std::string::npos);
  p.Do(JobCancelled{JobId{1}, "test"});
  EXPECT_EQ(p.started.size(), 2u);
  EXPECT_EQ(p.started[1].job, b);
}

TEST(SchedulerRules, ADrainedWorkerGetsNoNewTasksAndItsExecutorIsReplacedElsewhere) {
  Puppet p;
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  JobSpec spec;
  spec.executors_max = 1;
  spec.settings.verify = false;
  p.Do(JobSubmitted{spec});
  ASSERT_EQ(p.started.size(), 1u);
  ExecutorId first = Ready(p);
  p.Do(ExecutorAtAction{first, WordCountPlan(2, 1)});
  p.Do(WorkerDrained{p.started[0].worker});
  ASSERT_EQ(p.started.size(), 2u);
  p.FinishTasks();
  EXPECT_TRUE(p.tasks.empty());
  ExecutorId second = Ready(p);
  p.Do(ExecutorAtAction{second, WordCountPlan(2, 1)});
  ASSERT_EQ(p.tasks.size(), 1u);
  EXPECT_EQ(p.tasks[0].executor, second);
}

// A drained worker can leave as soon as nobody needs it: its executors end when they run nothing, hold nothing and drive nothing.
TEST(SchedulerRules, ADrainedWorkersExecutorEndsWhenNobodyNeedsIt) {
  Puppet p;
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  p.Submit();
  ASSERT_EQ(p.started.size(), 2u);
  ExecutorId driver = p.started[0].executor, other = p.started[1].executor;
  p.Do(ExecutorReady{driver});
  p.Do(ExecutorReady{other});
  p.Do(ExecutorAtAction{driver, WordCountPlan(2, 1)});
  p.Do(ExecutorAtAction{other, WordCountPlan(2, 1)});
  ASSERT_EQ(p.tasks.size(), 2u);
  p.Do(WorkerDrained{WorkerId{2}});
  EXPECT_EQ(p.Last<StopExecutor>(), nullptr) << "its task runs";
  p.FinishTasks();
  EXPECT_EQ(p.Last<StopExecutor>(), nullptr) << "what it made is still to be read";
  p.FinishTasks();
  p.Do(ExecutorAtAction{driver, MakePlan(2, {MakeStage(3, 1, dag::StageOutput::kResult)}, {StageId{1}})});
  ASSERT_NE(p.Last<StopExecutor>(), nullptr);
  EXPECT_EQ(p.Last<StopExecutor>()->executor, other);
  p.Do(WorkerDrained{WorkerId{1}});
  p.FinishTasks();
  EXPECT_EQ(p.All<StopExecutor>().size(), 1u) << "the driver stays: there is no other";
  p.Do(MainReturned{driver, 0});
  EXPECT_TRUE(p.Last<FinishJob>()->status.ok());
}

TEST(SchedulerRules, AnExecutableThatFitsNoWorkerIsRefused) {
  Puppet p;
  WorkerRegistered worker{WorkerId{1}, "w", "", 1, {}, 2031, 2};
  p.Do(worker);
  JobSpec spec;
  spec.submit_key = "k";
  spec.glibc_min = 2036;
  p.Do(JobSubmitted{spec});
  ASSERT_NE(p.Last<RefuseJob>(), nullptr);
  EXPECT_EQ(p.Last<RefuseJob>()->status.code(), Code::kUnplaceable);
  EXPECT_TRUE(p.journal.empty());
}

TEST(SchedulerRules, ADisagreeingSecondRunStopsTheJobBeforeAnythingIsPublishedOrCommitted) {
  Puppet p;
  p.AddWorker(1, 4);
  p.Submit("k", true);
  ExecutorId e = Ready(p);
  p.Do(ExecutorAtAction{e, MakePlan(1, {MakeStage(1, 1, dag::StageOutput::kSegment),
                                        MakeStage(2, 1, dag::StageOutput::kFiles, {{StageId{1}, dag::InputPattern::kAllToAll, 0}}),
                                        MakeStage(3, 1, dag::StageOutput::kCommit, {{StageId{2}, dag::InputPattern::kGather, 0}})})});
  for (int i = 0; i < 10; ++i) {
    std::vector<RunTask> running = p.tasks;
    for (const RunTask& task : running) {
      ASSERT_NE(task.id.stage, StageId{3}) << "the commit ran before the verdict";
      p.Finish(task, task.verify && task.id.stage == StageId{2} ? 1 : 0);
      if (p.Last<FinishJob>() != nullptr) break;
    }
    if (p.Last<FinishJob>() != nullptr) break;
  }
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), "DET01");
  EXPECT_NE(p.Last<FinishJob>()->status.fix().find("Broadcast"), std::string::npos);
}

// 16 tasks and two second runs are nine rounds for two executors of one slot, whoever made which task: neither waits while the other
// verifies stage after stage.
TEST(SchedulerRules, VerdictsThatAreLeftToTheEndShareTheSlots) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Puppet p;
    p.AddWorker(1, 1);
    p.AddWorker(2, 1);
    JobSpec spec;
    spec.submit_key = "k";
    spec.settings.verify = true;
    spec.settings.seed = seed;
    p.Do(JobSubmitted{spec});
    dag::ActionPlan plan = MakePlan(1, {MakeStage(1, 8, dag::StageOutput::kSegment),
                                        MakeStage(2, 8, dag::StageOutput::kResult, {{StageId{1}, dag::InputPattern::kAllToAll, 0}})});
    for (const StartExecutor& started : std::vector(p.started)) {
      p.Do(ExecutorReady{started.executor});
      p.Do(ExecutorAtAction{started.executor, plan});
    }
    int rounds = 0;
    while (p.Last<PublishAction>() == nullptr && p.FinishTasks() > 0) ++rounds;
    EXPECT_EQ(rounds, 9) << "seed " << seed;
    EXPECT_EQ(p.Count("verify_ok"), 2u) << "seed " << seed;
    EXPECT_NE(p.Last<PublishAction>(), nullptr) << "seed " << seed;
  }
}

TEST(SchedulerRules, TheSecondRunWaitsForASecondExecutorButNotForEver) {
  Puppet p;
  p.AddWorker(1, 2);
  p.AddWorker(2, 2);
  p.Submit("k", true);
  ExecutorId e = p.started[0].executor;  // the other one never says hello
  p.Do(ExecutorReady{e});
  p.Do(ExecutorAtAction{e, MakePlan(1, {MakeStage(7, 1, dag::StageOutput::kResult)})});
  p.FinishTasks();
  EXPECT_TRUE(p.tasks.empty());
  p.Advance(2'500);
  ASSERT_EQ(p.tasks.size(), 1u);
  EXPECT_TRUE(p.tasks[0].verify);
  EXPECT_EQ(p.tasks[0].executor, e);
  p.FinishTasks();
  EXPECT_NE(p.Last<PublishAction>(), nullptr);
}

// The other executor's only slot is another job's for long: the action is verified where a slot is.
TEST(SchedulerRules, TheSecondRunDoesNotWaitForAnotherJobsLongTask) {
  Puppet p;
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  p.Submit("long");
  ExecutorId busy = p.started[0].executor;
  p.Do(ExecutorReady{busy});
  p.Do(ExecutorAtAction{busy, MakePlan(1, {MakeStage(7, 1, dag::StageOutput::kResult)})});
  ASSERT_EQ(p.tasks.size(), 1u);
  const RunTask held = p.tasks[0];
  p.tasks.clear();
  const std::size_t before = p.started.size();
  p.Submit("short", true);
  for (std::size_t i = before; i < p.started.size(); ++i) {
    p.Do(ExecutorReady{p.started[i].executor});
    p.Do(ExecutorAtAction{p.started[i].executor, MakePlan(1, {MakeStage(8, 1, dag::StageOutput::kResult)})});
  }
  ASSERT_EQ(p.started.size(), before + 2);
  EXPECT_EQ(p.FinishTasks(), 1u);
  EXPECT_TRUE(p.tasks.empty()) << "it waits for a while";
  p.Advance(2'500);
  ASSERT_EQ(p.tasks.size(), 1u);
  EXPECT_TRUE(p.tasks[0].verify);
  p.FinishTasks();
  ASSERT_NE(p.Last<PublishAction>(), nullptr);
  EXPECT_NE(p.Last<PublishAction>()->executor, held.executor);
}

TEST(SchedulerRules, ADrivenReplicaThatReturnsEarlyIsNamed) {
  Puppet p;
  p.AddWorker(1);
  p.AddWorker(2);
  p.Submit();
  ExecutorId e1 = p.started[0].executor, e2 = p.started[1].executor;
  p.Do(ExecutorReady{e1});
  p.Do(ExecutorReady{e2});
  p.Do(MainReturned{e2, 0});
  EXPECT_EQ(p.Last<FinishJob>(), nullptr);
  p.Do(ExecutorAtAction{e1, WordCountPlan(1, 1)});
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), "MAIN03");
}

TEST(SchedulerRules, ANonZeroExitOfMainIsAFailedJobThatKeepsTheCode) {
  Puppet p;
  p.AddWorker(1);
  p.Submit();
  ExecutorId e = Ready(p);
  p.Do(MainReturned{e, 3});
  EXPECT_EQ(p.Last<FinishJob>()->main_exit, 3);
  EXPECT_EQ(ExitCode(p.Last<FinishJob>()->status.code()), 1);
}

// 3,000 rounds of a loop that caches a dataset and drops the one before: every freed stage's segments go, and the state stays small.
TEST(SchedulerRules, ALongLoopKeepsNothingButItsResults) {
  Options options;
  options.checkpoint.enabled = false;  // copies are freed too: scheduler_checkpoint_test counts them
  Puppet p(options);
  p.segment_stages.ids.clear();
  p.AddWorker(1, 2);
  p.Submit();
  ExecutorId e = Ready(p);
  const std::uint64_t kRounds = 3000;
  std::size_t seen = 0, freed = 0;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    std::uint64_t stage = 2 * round, before = stage - 2;
    p.segment_stages.ids = {before, stage};
    std::vector<dag::Stage> stages;
    if (round > 1) stages.push_back(MakeStage(before, 2, dag::StageOutput::kSegment));
    stages.push_back(MakeStage(stage, 2, dag::StageOutput::kSegment, {}));
    if (round > 1) stages.back().inputs = {{StageId{before}, dag::InputPattern::kOneToOne, 0}};
    stages.push_back(MakeStage(stage + 1, 1, dag::StageOutput::kResult, {{StageId{stage}, dag::InputPattern::kAllToAll, 0}}));
    std::vector<StageId> retired;
    if (round > 2) retired.push_back(StageId{before - 2});
    p.Do(ExecutorAtAction{e, MakePlan(round, stages, retired)});
    while (p.FinishTasks() > 0) {
    }
    for (; seen < p.all.size(); ++seen)
      if (auto* free = std::get_if<FreeSegments>(&p.all[seen])) freed += free->segments.size();
    if (p.all.size() > 100'000) {
      p.all.clear();
      seen = 0;
    }
  }
  EXPECT_EQ(p.scheduler->Job(JobId{1})->actions_done, kRounds);
  EXPECT_EQ(freed, 2 * (kRounds - 2));
  std::size_t bytes = 0;
  for (const JournalRecord& record : p.scheduler->Snapshot()) bytes += record.bytes.size();
  EXPECT_LT(bytes, kRounds * 64);  // a name, a hash and a small value for each result; no task, no plan of old rounds
}

// Processor seconds that a job of so many map tasks takes the scheduler.
double SecondsOf(std::uint32_t maps) {
  Puppet p;
  p.AddWorker(1, 16);
  p.Submit();
  ExecutorId e = Ready(p);
  auto now = [] {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  };
  const double begin = now();
  p.Do(ExecutorAtAction{e, WordCountPlan(maps, 4)});
  std::size_t done = 0;
  while (true) {
    std::size_t n = p.FinishTasks();
    if (n == 0) break;
    done += n;
    p.all.clear();
    p.journal.clear();
  }
  EXPECT_EQ(done, maps + 4u);
  return now() - begin;
}

// No time is promised, only that a task of a large job costs about as much as one of a small job: work that grows with the square would
// cost ten times as much.
TEST(SchedulerRules, FiftyThousandTasksCostLittleEach) {
  const double few = SecondsOf(5'000), many = SecondsOf(50'000);
  std::printf("  %.1f us a task of 5,000, %.1f of 50,000\n", few / 5'000 * 1e6, many / 50'000 * 1e6);
  EXPECT_LT(many, 10 * few * 4);
}

TEST(SchedulerRecords, EveryKindSurvivesTheRoundTrip) {
  JobSpec spec;
  spec.settings.job = JobId{7};
  spec.settings.name = std::string("a\0b", 3);
  spec.settings.seed = ~0ull;
  spec.settings.now_us = -5;
  spec.settings.verify = false;
  spec.settings.work_dir = "/tmp";
  spec.submit_key = "k";
  spec.argv = {"x", ""};
  spec.environment = {"A=1"};
  spec.artifacts = {std::string(32, '\xff')};
  spec.user = "u";
  spec.executors_max = 3;
  spec.glibc_min = 2036;
  spec.cpu_level_min = 3;
  spec.time_limit_ms = 99;
  TaskDoneRecord done{JobId{7}, 2, {StageId{3}, 4, 5}, 6, true, "value"};
  std::vector<Record> records = {CountersRecord{3, 4},
                                 JobAcceptedRecord{spec},
                                 AttemptsRecord{JobId{7}, 8192},
                                 OnceRecord{JobId{7}, "n", "v"},
                                 done,
                                 TasksForgottenRecord{JobId{7}, 0, StageId{3}, {1, 2, 70000}},
                                 VerifiedRecord{JobId{7}, 1, StageId{3}},
                                 WinnersRecord{JobId{7}, 1, StageId{3}, {done, done}, {StageId{1}}},
                                 ActionPublishedRecord{JobId{7}, 1, ~0ull, "a", {"x", ""}, {StageId{1}, StageId{2}}},
                                 RetiredRecord{JobId{7}, {StageId{1}}},
                                 JobFinishedRecord{JobId{7},
                                                   "k",
                                                   "n",
                                                   "u",
                                                   5,
                                                   10,
                                                   "T",
                                                   "what",
                                                   "why",
                                                   "fix",
                                                   -1,
                                                   3,
                                                   11,
                                                   12,
                                                   {{1, "a", "plan", true, {{StageId{1}, "S1", 3, 3, 0, 0, 1, 0, 77, {1, 2, 3, 4, 5}}}}},
                                                   {"prog", "in"},
                                                   {"/out"},
                                                   9,
                                                   {{"rack1", 2}}},
                                 CutRecord{JobId{7}, 2, {StageId{1}, StageId{4}}},
                                 CutsUndoneRecord{JobId{7}},
                                 GangRecord{JobId{7}, 2, StageId{9}, 4, 1, 70000}};
  std::set<std::size_t> kinds;
  for (const Record& record : records) kinds.insert(record.index());
  EXPECT_EQ(kinds.size(), std::variant_size_v<Record>) << "a kind of record is not tried";
  for (const Record& record : records) {
    std::string bytes = Encode(record);
    Result<Record> decoded = Decode(bytes);
    ASSERT_TRUE(decoded.ok()) << record.index() << ": " << decoded.status().ToString();
    EXPECT_EQ(decoded->index(), record.index());
    EXPECT_EQ(Encode(*decoded), bytes) << record.index();
    for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(Decode(bytes.substr(0, n)).ok()) << record.index() << " cut at " << n;
    EXPECT_FALSE(Decode(bytes + "x").ok());
  }
  Result<Record> back = Decode(Encode(records[1]));
  const JobSpec& got = std::get<JobAcceptedRecord>(*back).spec;
  EXPECT_EQ(got.settings.name, spec.settings.name);
  EXPECT_EQ(got.settings.seed, spec.settings.seed);
  EXPECT_EQ(got.settings.now_us, spec.settings.now_us);
  EXPECT_EQ(got.artifacts, spec.artifacts);
  EXPECT_EQ(got.time_limit_ms, spec.time_limit_ms);
}

// A journal of version 1 knows neither the times of a job's end nor its plans.
TEST(SchedulerRecords, AnOlderRecordReplaysWithoutTheNewFields) {
  JobFinishedRecord record{JobId{7}, "k", "n", "u", 5, 0, "", "", "", "", 0, 3};
  std::string bytes = Encode(record);
  const std::size_t added = 8 + 8 + 1 + 4;  // two times and an empty list; version 3: three more and a count
  std::string old = bytes.substr(0, bytes.size() - added);
  old[0] = 1;
  Scheduler scheduler{Options{}};
  ASSERT_TRUE(scheduler.Replay({old, true}).ok());
  std::optional<JobView> view = scheduler.Job(JobId{7});
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->phase, JobPhase::kSucceeded);
  EXPECT_EQ(view->submitted_us, 5);
  EXPECT_EQ(view->finished_us, 0);
  EXPECT_EQ(view->actions_done, 3u);
  EXPECT_EQ(view->past_forgotten, 3u);
  bytes[0] = 1;
  EXPECT_FALSE(Decode(bytes).ok()) << "an old record with new fields is damaged";
  old[0] = 2;
  EXPECT_FALSE(Decode(old).ok()) << "a new record without them is damaged";
}

TEST(SchedulerRecords, DamagedAndNewerBytesAreRefusedNotTrusted) {
  const std::uint64_t seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  std::string whole = Encode(WinnersRecord{JobId{7}, 1, StageId{3}, {{JobId{7}, 1, {StageId{3}, 0, 1}, 9, true, "value"}}, {StageId{1}}});
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (std::uint64_t n = 1 + random.Below(3); n > 0; --n) bytes[random.Below(bytes.size())] = static_cast<char>(random());
    Scheduler scheduler{Options{}};
    (void)scheduler.Replay({bytes, true}).ok();  // whatever it says: no crash, no endless allocation
  }
  std::string newer = whole;
  newer[0] = 99;
  EXPECT_EQ(Decode(newer).status().code(), Code::kVersionSkew);
  EXPECT_EQ(Decode("").status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace ropewalk::scheduler
