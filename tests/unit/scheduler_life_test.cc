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
