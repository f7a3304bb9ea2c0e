// A job from submit to finish, and what repeats, latecomers and restarts get.
#include <gtest/gtest.h>

#include "tests/unit/scheduler_fixture.h"

namespace ropewalk::scheduler {
namespace {

TEST(SchedulerLife, WordCountFromSubmitToFinish) {
  Puppet p;
  p.AddWorker(1);
  JobId job = p.Submit();
  ASSERT_EQ(p.started.size(), 1u);
  ExecutorId e = p.started[0].executor;
  p.Do(ExecutorReady{e});
  ASSERT_NE(p.Last<NameDriver>(), nullptr);
  EXPECT_EQ(p.Last<NameDriver>()->executor, e);
  p.Do(ExecutorAtAction{e, WordCountPlan(3, 2)});
  ASSERT_EQ(p.tasks.size(), 2u);  // two slots
  p.Finish(p.tasks[0]);
  ASSERT_EQ(p.tasks.size(), 2u);
  p.FinishTasks();
  ASSERT_EQ(p.tasks.size(), 2u);
  EXPECT_EQ(p.tasks[0].inputs.at(0).segments.size(), 3u);
  EXPECT_EQ(p.tasks[0].inputs.at(0).segments[2].producer.task, 2u);
  EXPECT_EQ(p.tasks[0].inputs.at(0).segments[0].location, "w1:1");
  p.FinishTasks();
  const PublishAction* published = p.Last<PublishAction>();
  ASSERT_NE(published, nullptr);
  EXPECT_TRUE(published->status.ok());
  EXPECT_EQ(*published->values, (std::vector<std::string>{"v2.0", "v2.1"}));
  p.Do(MainReturned{e, 0});
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_TRUE(p.Last<FinishJob>()->status.ok());
  EXPECT_EQ(p.Last<StopExecutor>()->executor, e);
  EXPECT_TRUE(p.Last<FreeSegments>()->whole_job);
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kSucceeded);
}

TEST(SchedulerLife, EverythingThatIsToldWasJournalledBefore) {
  Puppet p;
  p.AddWorker(1);
  p.Submit();
  ExecutorId e = p.started[0].executor;
  p.Do(ExecutorReady{e});
  p.Do(ExecutorAtOnce{e, "inputs"});
  EXPECT_EQ(p.Last<ComputeOnce>()->name, "inputs");
  p.Do(OnceComputed{e, "inputs", "a b c", Status()});
  p.Do(ExecutorAtAction{e, WordCountPlan(1, 1)});
  while (p.FinishTasks() > 0) {
  }
  p.Do(MainReturned{e, 0});
  bool synced = false;
  int told = 0;
  for (const SchedulerAction& action : p.all) {
    if (auto* record = std::get_if<JournalRecord>(&action); record != nullptr && record->sync) synced = true;
    if (std::holds_alternative<AcceptJob>(action) || std::holds_alternative<PublishOnce>(action) ||
        std::holds_alternative<PublishAction>(action) || std::holds_alternative<FinishJob>(action)) {
      EXPECT_TRUE(synced) << "action " << action.index();
      synced = false;
      ++told;
    }
  }
  EXPECT_EQ(told, 4);
}

// What `job list` and `explain` show of a job that is over, before and after a restart of the master.
TEST(SchedulerLife, TimesAndPlansOfAFinishedJobSurviveTheMaster) {
  Options options;
  options.epoch_us = 1'700'000'000'000'000;
  Puppet p(options);
  p.AddWorker(1);
  JobId job = p.Submit();
  ExecutorId e = p.started[0].executor;
  p.Advance(500);
  p.Do(ExecutorReady{e});
  const std::int64_t started_us = options.epoch_us + p.now * 1000;
  p.Do(ExecutorAtAction{e, WordCountPlan(3, 2)});
  ASSERT_EQ(p.tasks.size(), 2u);
  p.Do(TasksProgressed{e, {{p.tasks[0].id, {10, 1000, 20, 2000, 0}}, {TaskAttempt{StageId{1}, 0, 999}, {5, 5, 5, 5, 5}}}});
  std::optional<JobView> view = p.scheduler->Job(job);
  ASSERT_EQ(view->stages.size(), 2u);
  EXPECT_EQ(view->stages[0].counters.records_in, 10u) << "of the running task, and not of an attempt that is nobody's";
  EXPECT_EQ(view->stages[0].counters.bytes_in, 1000u);
  EXPECT_TRUE(view->past.empty());
  while (p.FinishTasks() > 0) {
  }
  EXPECT_EQ(p.scheduler->Job(job)->past.size(), 1u) << "an action that is over, while its job goes on";
  p.Advance(1500);
  p.Do(MainReturned{e, 0});
  const std::int64_t finished_us = options.epoch_us + p.now * 1000;
  for (int life = 0; life < 3; ++life) {
    view = p.scheduler->Job(job);
    ASSERT_TRUE(view.has_value());
    EXPECT_EQ(view->started_us, started_us);
    EXPECT_EQ(view->finished_us, finished_us);
    ASSERT_EQ(view->past.size(), 1u);
    EXPECT_EQ(view->past[0].plan_text, dag::Explain(WordCountPlan(3, 2)));
    EXPECT_TRUE(view->past[0].published);
    ASSERT_EQ(view->past[0].stages.size(), 2u);
    EXPECT_EQ(view->past[0].stages[0].done, 3u);
    EXPECT_EQ(view->past[0].stages[0].tasks, 3u);
    EXPECT_TRUE(p.scheduler->Job(job, false)->past.empty()) << "those who only follow are not sent it";
    p.Advance(10'000);
    if (life == 0) p.Restart();
    if (life == 1) {  // and a snapshot instead of the journal
      p.journal = p.scheduler->Snapshot();
      p.Restart();
    }
  }
}

// What the job was called with, and where its output lies.
TEST(SchedulerLife, ArgumentsAndOutputFoldersSurviveTheMaster) {
  Puppet p;
  p.segment_stages.ids.clear();
  p.AddWorker(1);
  JobSpec spec;
  spec.submit_key = "k";
  spec.settings.verify = false;
  spec.argv = {"prog", "in", std::string(3000, 'x'), std::string(3000, 'y')};
  p.Do(JobSubmitted{spec});
  JobId job = p.Last<AcceptJob>()->job;
  ExecutorId e = p.started[0].executor;
  p.Do(ExecutorReady{e});
  for (std::uint64_t sequence : {1, 2, 3}) {
    dag::ActionPlan plan = MakePlan(
        sequence, {MakeStage(2 * sequence, 1, dag::StageOutput::kFiles),
                   MakeStage(2 * sequence + 1, 1, dag::StageOutput::kCommit, {{StageId{2 * sequence}, dag::InputPattern::kGather, 0}})});
    plan.output = dag::OutputPlace{sequence == 3 ? "/other" : "/out", dag::OutputKeyOf(job, 0) + "-" + std::to_string(sequence)};
    p.Do(ExecutorAtAction{e, plan});
    EXPECT_EQ(p.scheduler->Job(job)->outputs.size(), sequence == 1 ? 0u : 1u)
        << "what is not published is none, and each folder counts once";
    while (p.FinishTasks() > 0) {
    }
  }
  p.Do(MainReturned{e, 0});
  for (int life = 0; life < 2; ++life) {
    std::optional<JobView> view = p.scheduler->Job(job);
    ASSERT_TRUE(view.has_value());
    EXPECT_EQ(view->phase, JobPhase::kSucceeded) << view->status.ToString();
    EXPECT_EQ(view->argv, (std::vector<std::string>{"prog", "in", std::string(3000, 'x'), "..."})) << "4 KiB of them";
    EXPECT_EQ(view->outputs, (std::vector<std::string>{"/out", "/other"}));
    EXPECT_TRUE(p.scheduler->Job(job, false)->argv.empty()) << "those who only follow are not sent it";
    p.Restart();
  }
}

// A worker that is killed takes outputs and running tasks along. Afterwards nothing is missing any more; that it happened stays to be seen,
// also when the job is over and the master another one.
TEST(SchedulerLife, WhatAWorkerTookAlongIsStillSaidLater) {
  Puppet p;
  p.AddWorker(1);
  p.AddWorker(2);
  JobId job = p.Submit();
  ASSERT_EQ(p.started.size(), 2u);
  for (const StartExecutor& executor : std::vector<StartExecutor>(p.started)) p.Do(ExecutorReady{executor.executor});
  for (const StartExecutor& executor : std::vector<StartExecutor>(p.started))
    p.Do(ExecutorAtAction{executor.executor, WordCountPlan(6, 2)});
  ASSERT_EQ(p.tasks.size(), 4u) << "two slots on each worker";
  ExecutorId lost_one;
  for (const StartExecutor& executor : p.started)
    if (executor.worker == WorkerId{2}) lost_one = executor.executor;
  std::size_t finished = 0;
  for (const RunTask& task : std::vector<RunTask>(p.tasks))
    if (task.executor == lost_one && finished++ == 0) p.Finish(task);
  ASSERT_EQ(finished, 2u);
  EXPECT_EQ(p.scheduler->Job(job)->workers_lost, 0u);
  p.Do(WorkerLost{WorkerId{2}, "killed"});  // with one output and two tasks: a new one has begun
  for (int life = 0; life < 3; ++life) {
    std::optional<JobView> view = p.scheduler->Job(job, life % 2 == 0);
    ASSERT_TRUE(view.has_value());
    EXPECT_EQ(view->workers_lost, 1u);
    ASSERT_EQ(view->lost_workers.size(), 1u);
    EXPECT_EQ(view->lost_workers[0].name, "w2");
    EXPECT_EQ(view->lost_workers[0].tasks, 3u);
    if (life == 1) {
      p.Restart();
      continue;
    }
    std::erase_if(p.tasks, [&](const RunTask& task) { return task.executor == lost_one; });
    while (p.FinishTasks() > 0) {
    }
    for (const StartExecutor& executor : p.started)
      if (executor.executor != lost_one) p.Do(MainReturned{executor.executor, 0});
    EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kSucceeded);
  }
  // One that had done nothing for a job is none of its losses.
  p.AddWorker(3);
  JobId other = p.Submit("other");
  p.AddWorker(4);
  p.Do(WorkerLost{WorkerId{9}, "never seen"});
  EXPECT_EQ(p.scheduler->Job(other)->workers_lost, 0u);
}

// The part of a running task counts in proportion to what it has read, where the size of its input is known.
TEST(SchedulerLife, RunningTasksCountByWhatTheyHaveRead) {
  Puppet p;
  p.AddWorker(1);
  JobId job = p.Submit();
  ExecutorId e = p.started[0].executor;
  p.Do(ExecutorReady{e});
  dag::ActionPlan plan = WordCountPlan(2, 1);
  plan.stages[0].input_bytes = {1000, 4000};
  p.Do(ExecutorAtAction{e, plan});
  ASSERT_EQ(p.tasks.size(), 2u);
  std::uint64_t before = p.scheduler->JobVersion(job);
  p.Do(TasksProgressed{e, {{p.tasks[0].id, {1, 2000, 0, 0, 0}}, {p.tasks[1].id, {1, 1000, 0, 0, 0}}}});
  EXPECT_GT(p.scheduler->JobVersion(job), before) << "followers are told";
  EXPECT_EQ(p.scheduler->Job(job)->stages[0].running_permille, 1000u + 250u);
  p.FinishTasks();
  EXPECT_EQ(p.scheduler->Job(job)->stages[0].running_permille, 0u);
}

// What a stage reads is what the stages before it wrote, however often its tasks are run.
TEST(SchedulerLife, ATaskThatIsRunAgainCountsOnce) {
  Puppet p;
  p.AddWorker(1);
  p.AddWorker(2);
  JobId job = p.Submit();
  for (const StartExecutor& executor : std::vector<StartExecutor>(p.started)) {
    p.Do(ExecutorReady{executor.executor});
    p.Do(ExecutorAtAction{executor.executor, WordCountPlan(4, 8)});
  }
  ASSERT_EQ(p.tasks.size(), 4u) << "two slots on each worker";
  ASSERT_EQ(p.started[0].worker, WorkerId{1});
  const TaskCounters each{10, 1000, 5, 500, 50};
  for (const RunTask& task : std::vector<RunTask>(p.tasks)) p.Finish(task, 0, each);
  const auto counts = [&] { return p.scheduler->Job(job)->stages.at(0).counters; };
  EXPECT_EQ(counts().records_in, 40u);
  p.Do(WorkerLost{WorkerId{2}, "killed"});  // with the outputs of two maps
  std::vector<RunTask> again;
  for (int i = 0; i < 10 && again.size() < 2; ++i) {
    for (const RunTask& task : p.tasks)
      if (task.id.stage == StageId{1}) again.push_back(task);
    std::erase_if(p.tasks, [&](const RunTask& task) { return task.executor != p.started[0].executor; });
    if (again.empty()) p.FinishTasks();
  }
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(counts().records_in, 40u) << "while they run";
  p.Do(TasksProgressed{again[0].executor, {{again[0].id, {4, 400, 2, 200, 0}}}});
  EXPECT_EQ(counts().records_in, 40u) << "less than before is nothing new";
  p.Do(TasksProgressed{again[0].executor, {{again[0].id, {12, 400, 2, 200, 0}}}});
  EXPECT_EQ(counts().records_in, 42u);
  EXPECT_EQ(counts().bytes_in, 4000u);
  p.Finish(again[0], 0, each);
  p.Finish(again[1], 0, {11, 1100, 5, 500, 0});
  EXPECT_EQ(counts().records_in, 41u) << "the last time counts";
  EXPECT_EQ(counts().bytes_in, 4100u);
  EXPECT_EQ(counts().records_out, 20u);
  EXPECT_EQ(counts().bytes_out, 2000u);
  EXPECT_EQ(counts().bytes_spilled, 150u);
  while (p.FinishTasks() > 0) {
  }
  p.Do(MainReturned{p.started[0].executor, 0});
  EXPECT_EQ(p.scheduler->Job(job)->past.at(0).stages.at(0).counters.records_in, 41u) << "and is what `explain` goes on showing";
}

TEST(SchedulerLife, WhatIsKeptOfALongJobsPlansIsBounded) {
  Puppet p;
  p.segment_stages.ids.clear();
  p.AddWorker(1);
  JobId job = p.Submit();
  ExecutorId e = p.started[0].executor;
  p.Do(ExecutorReady{e});
  for (std::uint64_t round = 1; round <= 100; ++round) {
    dag::ActionPlan plan = MakePlan(round, {MakeStage(round, 1, dag::StageOutput::kResult)});
    if (round > 97) plan.stages[0].name = std::string(3000, 'x');
    p.Do(ExecutorAtAction{e, plan});
    p.FinishTasks();
  }
  dag::ActionPlan last = MakePlan(101, {MakeStage(101, 1, dag::StageOutput::kResult)});
  p.Do(ExecutorAtAction{e, last});
  p.Do(JobCancelled{job, "enough"});
  std::optional<JobView> view = p.scheduler->Job(job);
  ASSERT_GE(view->past.size(), 2u);
  EXPECT_EQ(view->past.back().sequence, 101u) << "the newest are kept, the one in which the job ended too";
  EXPECT_FALSE(view->past.back().published);
  EXPECT_EQ(view->past_forgotten, 100 - (view->past.size() - 1));
  EXPECT_LT(p.journal.back().bytes.size(), 20'000u);
}

TEST(SchedulerLife, OneSubmitKeyIsOneJobAlsoAfterARestart) {
  Puppet p;
  p.AddWorker(1);
  JobId first = p.Submit("same");
  EXPECT_EQ(p.Submit("same"), first);
  EXPECT_NE(p.Submit("other"), first);
  p.Restart();
  EXPECT_EQ(p.Submit("same"), first);
}

TEST(SchedulerLife, ALateReplicaIsAnsweredAtOnce) {
  Puppet p;
  p.AddWorker(1);
  p.AddWorker(2);
  p.Submit();
  ASSERT_EQ(p.started.size(), 2u);
  ExecutorId e1 = p.started[0].executor, e2 = p.started[1].executor;
  p.Do(ExecutorReady{e1});
  p.Do(ExecutorAtAction{e1, WordCountPlan(2, 1)});
  while (p.FinishTasks() > 0) {
  }
  p.Do(ExecutorReady{e2});
  p.Do(ExecutorAtAction{e2, WordCountPlan(2, 1)});
  const PublishAction* published = p.Last<PublishAction>();
  EXPECT_EQ(published->executor, e2);
  EXPECT_EQ(published->values->size(), 1u);
  EXPECT_TRUE(p.tasks.empty());
}

TEST(SchedulerLife, ADifferentPlanOfAReplicaStopsTheJob) {
  Puppet p;
  p.AddWorker(1);
  p.AddWorker(2);
  p.Submit();
  for (const StartExecutor& s : std::vector(p.started)) p.Do(ExecutorReady{s.executor});
  dag::ActionPlan other = WordCountPlan(2, 1);
  other.stages[0].name = "another";
  other.stages[0].fingerprint = 5;
  p.Do(ExecutorAtAction{p.started[1].executor, other});  // the replica comes first: it waits for the driver's plan
  EXPECT_EQ(p.Last<FinishJob>(), nullptr);
  p.Do(ExecutorAtAction{p.started[0].executor, WordCountPlan(2, 1)});
  ASSERT_NE(p.Last<FinishJob>(), nullptr);
  EXPECT_EQ(p.Last<FinishJob>()->status.code(), Code::kUserError);
  EXPECT_EQ(p.Last<FinishJob>()->status.tag(), "MAIN03");
  EXPECT_NE(p.Last<FinishJob>()->status.why().find("S1"), std::string::npos) << p.Last<FinishJob>()->status.ToString();
}

TEST(SchedulerLife, ARestartReplaysResultsAndUsesWhatWorkersStillHold) {
  Puppet p;
  p.AddWorker(1, 4);
  JobId job = p.Submit();
  ExecutorId e = p.started[0].executor;
  p.Do(ExecutorReady{e});
  p.Do(ExecutorAtAction{e, WordCountPlan(3, 2)});
  std::vector<RunTask> maps = p.tasks;
  p.FinishTasks();
  p.Restart();
  std::vector<SegmentAt> held;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    SegmentAt at;
    at.job = job;
    at.ref = {maps[i].id, SegmentId{i + 1}, "w1:1", 100};
    at.content_hash = 1000 + i;
    held.push_back(at);
  }
  p.AddWorker(9, 4, held);
  ASSERT_EQ(p.started.size(), 1u);
  EXPECT_GT(p.started[0].executor.value, e.value);
  e = p.started[0].executor;
  p.Do(ExecutorReady{e});
  p.Do(ExecutorAtAction{e, WordCountPlan(3, 2)});
  ASSERT_EQ(p.tasks.size(), 2u);  // no map runs again
  EXPECT_EQ(p.tasks[0].id.stage, StageId{2});
  for (const RunTask& map : maps) EXPECT_GT(p.tasks[0].id.attempt, map.id.attempt);
}

}  // namespace
}  // namespace ropewalk::scheduler
