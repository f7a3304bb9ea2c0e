// Gangs in the core: placed all or none, lost and formed anew together, told why.
#include <gtest/gtest.h>

#include <functional>

#include "dag/failure_tags.h"
#include "master/scheduler/records.h"
#include "tests/unit/scheduler_gang_fixture.h"

namespace ropewalk::scheduler {
namespace {

constexpr std::size_t kLargeBytes = 65 << 10;  // more than the journal keeps of a value that is not published

constexpr TimeMs kLong = 3 * 3'600'000;

class Gang : public GangFixture {
 protected:
  using GangFixture::GangFixture;

  // How often a gang of two is formed until the job is over when each forming ends as `end` makes it, some time after it has said that it
  // reached `reached[forming]`; `over` is then the job's status.
  using End = std::function<void(const std::vector<RunTask>& ranks)>;
  int FormingsUntilItIsOver(dag::GangStage gang, TimeMs held_ms, const End& end, const std::vector<std::uint64_t>& reached = {}) {
    p.AddWorker(1, 1);
    p.AddWorker(2, 1);
    JobId job = Start(2, gang);
    int formings = 0;
    while (formings < 30 && p.scheduler->Job(job)->phase == JobPhase::kRunning) {
      const std::vector<RunTask> ranks = Ranks();
      EXPECT_EQ(ranks.size(), 2u);
      if (ranks.size() != 2) break;
      p.Advance(held_ms);
      if (static_cast<std::size_t>(formings) < reached.size())
        p.Do(TasksProgressed{ranks[0].executor, {{ranks[0].id, {}, "", reached[static_cast<std::size_t>(formings)]}}});
      ++formings;
      const std::size_t before = p.started.size();
      end(ranks);
      p.tasks.clear();
      p.Advance(20'000);  // the longest delay of an executor that starts anew, and of a gang
      if (p.scheduler->Job(job)->phase == JobPhase::kRunning) JoinNew(before);
    }
    over = p.scheduler->Job(job)->status;
    return formings;
  }
  int FormingsThatKillsEnd(const Status& reason, const std::vector<std::uint64_t>& reached = {}) {
    const End kill = [&](const std::vector<RunTask>& ranks) {
      Kill(ranks[1].executor, 9, reason);
      ReportLoss();
    };
    return FormingsUntilItIsOver({.placement_ms = 0, .attempts_max = 1, .restarts_max = 3}, kLong, kill, reached);
  }
  // A gang of two whose rank t reads task t of stage 1. All its ranks end well, rank 0 with `value`, while the second run by which stage 1
  // is verified goes on: its action is complete, and not published before that has ended.
  JobId EndBeforeTheVerdict(const std::string& value) {
    p.AddWorker(1, 3);
    dag::Stage gang = GangStage(9, 2);
    gang.inputs = {{StageId{1}, dag::InputPattern::kOneToOne, 0}};
    plan = MakePlan(1, {MakeStage(1, 2, dag::StageOutput::kSegment), gang});
    JobId job = p.Submit("k", true);
    Join(p.started[0].executor);
    p.FinishTasks();
    const std::vector<RunTask> ranks = Ranks();
    EXPECT_EQ(ranks.size(), 2u);
    for (const RunTask& rank : ranks) {
      std::erase_if(p.tasks, [&](const RunTask& task) { return task.id == rank.id; });
      TaskFinished finished{rank.executor, rank.job, rank.id, {}, {}};
      if (rank.gang->rank == 0) finished.result.value = value;
      p.Do(finished);
    }
    EXPECT_EQ(p.Count("gang_finished"), 1u);
    EXPECT_EQ(p.tasks.size(), 1u);
    EXPECT_TRUE(!p.tasks.empty() && p.tasks[0].verify);
    EXPECT_EQ(p.Count("action_published"), 0u);
    return job;
  }

  Status over;
};

TEST_F(Gang, AllRanksStartInOneStepOnSlotsOfTheirOwn) {
  p.AddWorker(1);
  p.AddWorker(2);
  JobId job = Start(4);
  ASSERT_EQ(p.tasks.size(), 4u);
  std::map<ExecutorId, int> on;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const RunTask& task = p.tasks[rank];
    ASSERT_TRUE(task.gang.has_value());
    EXPECT_EQ(task.gang->rank, rank);
    EXPECT_EQ(task.gang->ranks, 4u);
    EXPECT_EQ(task.gang->epoch, 0u);
    EXPECT_EQ(task.id.task, rank);
    ++on[task.executor];
  }
  EXPECT_EQ(on.size(), 2u);
  for (const auto& [executor, ranks] : on) EXPECT_EQ(ranks, 2);
  EXPECT_EQ(p.tasks[0].gang->machine, p.tasks[1].gang->machine) << "neighbours share a machine";
  EXPECT_EQ(p.tasks[0].gang->address, p.tasks[0].gang->machine) << "the host of the data address, which is w1:1 here";
  EXPECT_EQ(p.scheduler->Job(job)->stages.at(0).running, 4u);

  // The number of the forming is journalled, synced, before any rank is ordered.
  std::size_t record = 0, order = 0;
  for (std::size_t i = 0; i < p.all.size(); ++i) {
    if (const auto* r = std::get_if<JournalRecord>(&p.all[i]); r != nullptr && std::holds_alternative<GangRecord>(*Decode(r->bytes))) {
      record = i;
      EXPECT_TRUE(r->sync);
    }
    if (order == 0 && std::holds_alternative<RunTask>(p.all[i])) order = i;
  }
  EXPECT_GT(record, 0u);
  EXPECT_LT(record, order);

  p.FinishTasks();
  ASSERT_NE(p.Last<PublishAction>(), nullptr);
  EXPECT_EQ(p.Last<PublishAction>()->values->at(0), "v9.0");
  EXPECT_EQ(p.Last<PublishAction>()->values->at(1), "") << "only rank 0's value is kept";
  EXPECT_TRUE(p.tasks.empty()) << "no rank is run a second time to be compared";
  for (const RunTask& task : p.All<RunTask>()) EXPECT_FALSE(task.verify);
}

TEST_F(Gang, NothingStartsUntilThereIsRoomForAll) {
  p.AddWorker(1, 2);
  p.AddWorker(2, 1);
  Start(4);
  EXPECT_TRUE(p.tasks.empty());
  std::size_t before = p.started.size();
  p.AddWorker(3, 1);
  EXPECT_TRUE(p.tasks.empty()) << "its executor does not stand at the action yet";
  JoinNew(before);
  EXPECT_EQ(Ranks().size(), 4u);
}

TEST_F(Gang, PacksOntoFewMachinesOrSpreads) {
  p.AddWorker(1, 1);
  p.AddWorker(2, 4);
  p.AddWorker(3, 2);
  Start(4, {.placement_ms = 60'000});
  ASSERT_EQ(Ranks().size(), 4u);
  for (const RunTask& rank : Ranks()) EXPECT_EQ(rank.gang->machine, "w2");
  p.FinishTasks();
  Start(4, {.placement_ms = 60'000, .spread = true}, "k2");
  ASSERT_EQ(Ranks().size(), 4u);
  std::map<std::string, int> on;
  for (const RunTask& rank : Ranks()) ++on[rank.gang->machine];
  EXPECT_EQ(on, (std::map<std::string, int>{{"w1", 1}, {"w2", 2}, {"w3", 1}}));
}

// Of machines that would do as well it takes those where its data lies, but never more machines for it.
TEST_F(Gang, PicksOfAsFewMachinesThoseThatHoldItsInput) {
  struct Case {
    std::vector<std::uint32_t> slots;  // of worker 1, 2...
    std::size_t holder;                // the worker that runs all that the gang reads
    std::uint32_t ranks;
    bool spread;
    std::map<std::string, int> on;
  };
  const std::vector<Case> cases = {{{2, 2, 2}, 3, 2, false, {{"w3", 2}}},
                                   {{2, 2, 2}, 2, 2, false, {{"w2", 2}}},
                                   {{4, 2, 2}, 3, 6, false, {{"w1", 4}, {"w3", 2}}},
                                   {{4, 2, 2}, 2, 4, false, {{"w1", 4}}},
                                   {{4, 3, 2}, 3, 7, false, {{"w1", 4}, {"w2", 3}}},
                                   {{4, 3, 2}, 3, 6, false, {{"w1", 4}, {"w3", 2}}},
                                   {{2, 2, 2}, 3, 1, true, {{"w3", 1}}},
                                   {{4, 2, 2}, 2, 2, true, {{"w1", 1}, {"w2", 1}}}};
  int number = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(++number);
    Puppet puppet{Options{}};
    p = std::move(puppet);
    for (std::size_t w = 0; w < c.slots.size(); ++w) p.AddWorker(w + 1, c.slots[w]);
    dag::Stage gang = GangStage(9, c.ranks, {.placement_ms = 60'000, .spread = c.spread});
    gang.inputs = {{StageId{1}, dag::InputPattern::kAllToAll, 0}};
    plan = MakePlan(1, {MakeStage(1, 1, dag::StageOutput::kSegment), gang});
    p.Submit();
    ASSERT_EQ(p.started.size(), c.slots.size());
    Join(p.started[c.holder - 1].executor);
    ASSERT_EQ(p.tasks.size(), 1u);
    for (std::size_t w = 0; w < c.slots.size(); ++w)
      if (w != c.holder - 1) Join(p.started[w].executor);
    p.FinishTasks();
    while (!p.tasks.empty() && !p.tasks[0].gang) p.FinishTasks();  // a second run that verifies
    std::map<std::string, int> on;
    for (const RunTask& rank : Ranks()) ++on[rank.gang->machine];
    EXPECT_EQ(on, c.on);
  }
}

TEST_F(Gang, ASpreadGangWaitsAMomentForExecutorsThatStart) {
  p.AddWorker(1, 4);
  p.AddWorker(2, 4);
  plan = MakePlan(1, {GangStage(9, 2, {.spread = true})});
  p.Submit();
  Join(p.started[0].executor);
  EXPECT_TRUE(p.tasks.empty());
  p.Advance(1000);
  Join(p.started[1].executor);
  ASSERT_EQ(Ranks().size(), 2u);
  EXPECT_NE(Ranks()[0].executor, Ranks()[1].executor);
}

TEST_F(Gang, ASpreadGangDoesNotWaitLongForOneThatNeverComes) {
  p.AddWorker(1, 4);
  p.AddWorker(2, 4);
  plan = MakePlan(1, {GangStage(9, 2, {.spread = true})});
  p.Submit();
  Join(p.started[0].executor);
  p.Advance(Options().gang_spread_wait_ms + 10);
  EXPECT_EQ(Ranks().size(), 2u);
}

// Another job with an endless supply of small tasks takes every slot that becomes free, but for those that the gang holds.
TEST_F(Gang, AStreamOfSmallTasksDoesNotStarveIt) {
  p.segment_stages.ids.clear();
  p.AddWorker(1, 2);
  p.AddWorker(2, 2);
  p.Submit("small");
  for (const StartExecutor& start : std::vector(p.started)) {
    p.Do(ExecutorReady{start.executor});
    p.Do(ExecutorAtAction{start.executor, MakePlan(1, {MakeStage(1, 1000, dag::StageOutput::kResult)})});
  }
  ASSERT_EQ(p.tasks.size(), 4u);
  Start(3, {.placement_ms = 0}, "gang");
  EXPECT_TRUE(Ranks().empty());
  EXPECT_EQ(p.Count("gang_holds"), 1u);
  // Small tasks end one by one, and as often as one does the other job has another. No more than one end of each that ran is needed.
  int ended = 0;
  while (Ranks().empty() && ended < 100) {
    p.Finish(p.tasks.front());
    ++ended;
    EXPECT_LE(Ranks().size() + p.tasks.size(), 8u);
  }
  EXPECT_LE(ended, 4);
  ASSERT_EQ(Ranks().size(), 3u);
  EXPECT_EQ(p.tasks.size(), 4u) << "the fourth slot goes on with small tasks";
  for (const RunTask& rank : Ranks()) p.Finish(rank);
  EXPECT_EQ(p.tasks.size(), 4u) << "and the others do when the gang is done";
}

TEST_F(Gang, OneThatCannotFitHoldsNothing) {
  p.segment_stages.ids.clear();
  p.AddWorker(1, 2);
  Start(3, {.placement_ms = 0}, "gang");
  const std::size_t before = p.started.size();
  p.Submit("small");
  p.Do(ExecutorReady{p.started[before].executor});
  p.Do(ExecutorAtAction{p.started[before].executor, MakePlan(1, {MakeStage(1, 50, dag::StageOutput::kResult)})});
  for (int i = 0; i < 25; ++i) {
    ASSERT_EQ(p.tasks.size(), 2u);
    p.FinishTasks();
  }
  EXPECT_EQ(p.Count("action_published"), 1u);
  EXPECT_EQ(p.Count("gang_holds"), 0u);
}

// Ranks may run for days: what a second gang would need of their slots is not drained for, and others go on beside the first one.
TEST_F(Gang, OneThatWaitsForAnotherGangHoldsNothing) {
  p.segment_stages.ids.clear();
  p.AddWorker(1, 4);
  Start(3, {.placement_ms = 0}, "first");
  ASSERT_EQ(Ranks().size(), 3u);
  Start(3, {.placement_ms = 0}, "second");
  ASSERT_EQ(Ranks().size(), 3u);
  const std::size_t before = p.started.size();
  p.Submit("small");
  p.Do(ExecutorReady{p.started[before].executor});
  p.Do(ExecutorAtAction{p.started[before].executor, MakePlan(1, {MakeStage(1, 5, dag::StageOutput::kResult)})});
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(p.tasks.size(), 4u);
    p.Finish(p.tasks.back());
  }
  EXPECT_EQ(p.Count("action_published"), 1u);
  for (const RunTask& rank : Ranks()) p.Finish(rank);
  EXPECT_EQ(p.Count("gang_formed"), 2u) << "now the second";
}

// Trainings of two ranks that overlap always leave two of four slots free: a gang of four would wait for ever, or until its time is over.
TEST_F(Gang, AStreamOfSmallGangsDoesNotStarveABigOne) {
  p.AddWorker(1, 4);
  Start(2, {.placement_ms = 0}, "first");
  Start(2, {.placement_ms = 0}, "second");
  std::vector<RunTask> small = Ranks();
  ASSERT_EQ(small.size(), 4u);
  const JobId big = Start(4, {.placement_ms = 0}, "big");
  // One that comes later, and the first job's next one.
  const JobId late = Start(2, {.placement_ms = 1'000}, "late");
  for (int rank = 0; rank < 2; ++rank) p.Finish(small[rank]);
  plan = MakePlan(2, {GangStage(17, 2, {.placement_ms = 0})});
  p.Do(ExecutorAtAction{small[0].executor, plan});
  EXPECT_EQ(Ranks().size(), 2u) << "two slots are free, and kept";
  p.Advance(2'000);
  const Status status = p.scheduler->Job(late)->status;
  EXPECT_EQ(status.tag(), "GANG01");
  EXPECT_NE(status.why().find("(w1 has 4, 2 used by job j-002, the rest kept for job j-003 that asked before)"), std::string::npos)
      << status.ToString();
  for (int rank = 2; rank < 4; ++rank) p.Finish(small[rank]);
  std::vector<RunTask> ranks = Ranks();
  ASSERT_EQ(ranks.size(), 4u);
  for (const RunTask& rank : ranks) EXPECT_EQ(rank.job, big);
  for (const RunTask& rank : ranks) p.Finish(rank);
  ranks = Ranks();
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].job, small[0].job) << "now the first job's next one";
}

TEST_F(Gang, SmallGangsAreNotHeldUpWhereTheyDoNotHinderABigOne) {
  p.segment_stages.ids.clear();
  p.AddWorker(1, 4);
  Start(2, {.placement_ms = 0}, "first");
  const JobId never = Start(5, {.placement_ms = 0}, "never");  // there are not as many slots
  Start(2, {.placement_ms = 0}, "second");
  std::vector<RunTask> small = Ranks();
  ASSERT_EQ(small.size(), 4u);
  p.Do(JobCancelled{never, "enough"});
  Start(4, {.placement_ms = 0}, "big");
  // Its executor on the new worker has not reached the gang: what is there is of no use to it.
  const std::size_t before = p.started.size();
  p.AddWorker(2, 2);
  const std::size_t after = p.started.size();
  Start(2, {.placement_ms = 0}, "beside");
  EXPECT_EQ(Ranks().size(), 6u);
  ASSERT_GT(after, before);
  // Tasks of other jobs take what is kept from gangs.
  for (int rank = 0; rank < 2; ++rank) p.Finish(small[rank]);
  const std::size_t batch = p.started.size();
  p.Submit("batch");
  for (std::size_t i = batch; i < p.started.size(); ++i) {
    p.Do(ExecutorReady{p.started[i].executor});
    p.Do(ExecutorAtAction{p.started[i].executor, MakePlan(1, {MakeStage(1, 8, dag::StageOutput::kResult)})});
  }
  EXPECT_EQ(p.tasks.size() - Ranks().size(), 2u);
}

// One that lost a rank after days of work does not stand behind those that came meanwhile.
TEST_F(Gang, OneThatIsFormedAnewKeepsItsPlace) {
  p.AddWorker(1, 2);
  const JobId first = Start(2, {.placement_ms = 0, .restarts_max = 5}, "first");
  p.Advance(1'000);
  Start(2, {.placement_ms = 0}, "second");
  Fail(Ranks()[0], Status(Code::kUserError, "USER01", "bad"));
  ReportLoss();
  p.Advance(1'000);
  const std::vector<RunTask> ranks = Ranks();
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].job, first);
}

TEST_F(Gang, TheTimeOutSaysWhatThereIsAndWhoHasIt) {
  p.AddWorker(1, 3);
  p.AddWorker(2, 1);
  JobId first = Start(2, {.placement_ms = 0}, "first");
  ASSERT_EQ(Ranks().size(), 2u);
  JobId job = Start(3, {.placement_ms = 2'500}, "second");
  p.Advance(2'000);
  EXPECT_FALSE(p.scheduler->Job(job)->pending_reasons.empty());
  p.Advance(1'000);
  Status status = p.scheduler->Job(job)->status;
  EXPECT_EQ(status.code(), Code::kUnplaceable);
  EXPECT_EQ(status.tag(), "GANG01");
  EXPECT_EQ(status.what(), "the gang stage s9 (RunGang \"g\" (g.cc:1)) of 3 ranks could not be placed within 2.5 s");
  EXPECT_EQ(status.why(), "it needs 3 slots at once; there are 4, 2 of them free (w1 has 3, 2 used by job j-001; w2 has 1)");
  EXPECT_NE(status.fix(), "");
  EXPECT_EQ(p.scheduler->Job(first)->phase, JobPhase::kRunning);
}

TEST_F(Gang, ALostMachineFreesTheOthersAndTheGangIsFormedAnew) {
  p.AddWorker(1, 2);
  p.AddWorker(2, 1);
  Start(3);
  std::vector<RunTask> first = Ranks();
  ASSERT_EQ(first.size(), 3u);
  ASSERT_EQ(first[2].gang->machine, "w2");
  p.Do(WorkerLost{WorkerId{2}, "its connection ended"});
  std::erase_if(p.tasks, [&](const RunTask& t) { return t.id == first[2].id; });
  std::vector<EndRank> told = p.All<EndRank>();
  ASSERT_EQ(told.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(told[i].id, first[i].id);
    EXPECT_EQ(told[i].status.code(), Code::kUnavailable);
    EXPECT_EQ(told[i].status.what(), "rank 2 on machine w2 was lost");
  }
  // A rank that ends well all the same has not done the gang's work.
  p.Finish(first[0]);
  EXPECT_TRUE(p.All<PublishAction>().empty());
  std::size_t before = p.started.size();
  p.AddWorker(4, 1);
  JoinNew(before);
  p.Advance(1'000);
  EXPECT_TRUE(p.All<RunTask>().size() == 3) << "one rank has not reported: its slot is not free, and it may still be writing";
  Fail(first[1], Status(Code::kUnavailable, "GANG02", "a peer is gone"));
  p.Advance(1'000);
  std::vector<RunTask> second = Ranks();
  ASSERT_EQ(second.size(), 3u);
  for (const RunTask& rank : second) EXPECT_EQ(rank.gang->epoch, 1u);
  // Nothing of the first forming counts any more.
  p.Do(TaskFinished{first[1].executor, first[1].job, first[1].id, {}, {}});
  p.Do(TaskFailed{first[0].executor, first[0].job, first[0].id, Status(Code::kUserError, "X", "late")});
  EXPECT_EQ(Ranks().size(), 3u);
  p.FinishTasks();
  ASSERT_NE(p.Last<PublishAction>(), nullptr);
  EXPECT_TRUE(p.Last<PublishAction>()->status.ok());
  EXPECT_EQ(p.Count("gang_formed"), 2u);
}

TEST_F(Gang, RanksThatRunAgainCountOnce) {
  p.AddWorker(1, 2);
  p.AddWorker(2, 1);
  JobId job = Start(3);
  const TaskCounters each{10, 1000, 5, 500, 0};
  std::vector<RunTask> first = Ranks();
  ASSERT_EQ(first.size(), 3u);
  p.Finish(first[0], 0, each);
  EXPECT_EQ(p.scheduler->Job(job)->stages.at(0).counters.records_in, 10u);
  p.Do(WorkerLost{WorkerId{2}, "its connection ended"});
  std::erase_if(p.tasks, [&](const RunTask& t) { return t.id == first[2].id; });
  Fail(first[1], Status(Code::kUnavailable, "GANG02", "a peer is gone"));
  std::size_t before = p.started.size();
  p.AddWorker(4, 1);
  JoinNew(before);
  p.Advance(1'000);
  std::vector<RunTask> second = Ranks();
  ASSERT_EQ(second.size(), 3u);
  for (const RunTask& rank : second) p.Finish(rank, 0, each);
  EXPECT_EQ(p.scheduler->Job(job)->past.at(0).stages.at(0).counters.records_in, 30u);
}

TEST_F(Gang, AKilledExecutorIsALostMachineToItsRanks) {
  p.AddWorker(1, 2);
  p.AddWorker(2, 2);
  Start(4);
  std::vector<RunTask> first = Ranks();
  Kill(first[0].executor);
  ASSERT_EQ(p.All<EndRank>().size(), 2u) << "the two ranks that live";
  EXPECT_EQ(p.All<EndRank>()[0].status.what(), "rank 0 on machine " + first[0].gang->machine + " was lost");
  ReportLoss();
  std::size_t before = p.started.size();
  p.Advance(300);
  JoinNew(before);
  ASSERT_EQ(Ranks().size(), 4u);
  EXPECT_EQ(Ranks()[0].gang->epoch, 1u);
}

TEST_F(Gang, AnErrorOfTheProgramFailsTheJobAtTheThirdForming) {
  p.AddWorker(1, 2);
  JobId job = Start(2);
  for (std::uint32_t forming = 0; forming < 3; ++forming) {
    std::vector<RunTask> ranks = Ranks();
    ASSERT_EQ(ranks.size(), 2u) << forming;
    EXPECT_EQ(ranks[0].gang->epoch, forming);
    Fail(ranks[1], Status(Code::kUserError, "USER01", "loss is not a number", "step 12", "lower the rate"));
    if (forming < 2) {
      ReportLoss();
      p.Advance(1'000);
    }
  }
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning) << "the other rank may yet say that its machine is gone";
  ReportLoss();
  Status status = p.scheduler->Job(job)->status;
  EXPECT_EQ(status.code(), Code::kUserError);
  EXPECT_EQ(status.tag(), "USER01");
  EXPECT_EQ(status.what(), "rank 1 of stage s9 (RunGang \"g\" (g.cc:1)) on w1 failed: loss is not a number");
  EXPECT_EQ(status.why(), "step 12; the gang was formed 3 times and a rank failed each time");
  EXPECT_EQ(status.fix(), "lower the rate");
}

// The peer's complaint often comes first: the reason is what all reports together say.
TEST_F(Gang, TheReasonIsTheFailedRankAndNotTheOneThatNoticed) {
  p.AddWorker(1, 2);
  JobId job = Start(2, {.placement_ms = 0, .attempts_max = 1});
  std::vector<RunTask> ranks = Ranks();
  Fail(ranks[0], Status(Code::kUnavailable, "NET01", "connection reset by rank 1"));
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
  Fail(ranks[1], Status(Code::kUserError, "USER01", "out of range"));
  EXPECT_EQ(p.scheduler->Job(job)->status.what(), "rank 1 of stage s9 (RunGang \"g\" (g.cc:1)) on w1 failed: out of range");
  EXPECT_EQ(p.scheduler->Job(job)->status.why(), "");  // it was tried once: there is nothing to say about that
}

// A rank that answers the loss of a machine with an error of its own is not to blame.
TEST_F(Gang, AnErrorBesideALostMachineDoesNotCount) {
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  JobId job = Start(2, {.placement_ms = 0, .attempts_max = 1, .restarts_max = 5});
  std::vector<RunTask> ranks = Ranks();
  Fail(ranks[0], Status(Code::kUserError, "USER01", "threw std::runtime_error: peer closed"));
  Kill(ranks[1].executor);
  std::size_t before = p.started.size();
  p.Advance(500);
  JoinNew(before);
  EXPECT_EQ(Ranks().size(), 2u);
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
}

// Twice, where an error would be final at once.
TEST_F(Gang, ACrashIsTheProgramsAndALostPeerIsNot) {
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  JobId job = Start(2, {.placement_ms = 0, .attempts_max = 1, .restarts_max = 5});
  for (int forming = 0; forming < 2; ++forming) {
    std::vector<RunTask> ranks = Ranks();
    ASSERT_EQ(ranks.size(), 2u);
    std::size_t before = p.started.size();
    Kill(ranks[1].executor, 11, Status(Code::kUserError, "WORKER31", "an executor ended by signal 11"));
    ReportLoss();
    p.Advance(1'000);
    if (forming == 0) JoinNew(before);
  }
  EXPECT_EQ(p.scheduler->Job(job)->status.code(), Code::kUserError);
  EXPECT_NE(p.scheduler->Job(job)->status.what().find("rank 1 crashed (signal 11)"), std::string::npos)
      << p.scheduler->Job(job)->status.what();
  EXPECT_TRUE(p.scheduler->Job(job)->status.why().starts_with("its code ended the process;")) << "the worker gave no reason";
}

// Without its neighbours, or with a disk that has been tidied, there may be enough the next time.
TEST_F(Gang, ALackOfMemoryIsTriedTwiceAsACrashIs) {
  p.AddWorker(1, 2);
  JobId job = Start(2, {.placement_ms = 0, .attempts_max = 1, .restarts_max = 5});
  for (int forming = 0; forming < 2; ++forming) {
    std::vector<RunTask> ranks = Ranks();
    ASSERT_EQ(ranks.size(), 2u);
    EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
    std::size_t before = p.started.size();
    Fail(ranks[0], Status(Code::kUnavailable, "NET01", "connection reset by rank 1"));
    Fail(ranks[1], Status(Code::kResourceExhausted, "MEM01", "no memory"));
    p.Advance(1'000);
    if (forming == 0) JoinNew(before);
  }
  EXPECT_EQ(p.scheduler->Job(job)->status.code(), Code::kResourceExhausted) << p.scheduler->Job(job)->status.ToString();
}

// What was perhaps a lack of memory and perhaps somebody's kill counts as a machine that was lost: a healthy gang outlives two of them.
TEST_F(Gang, WhatWasPerhapsMemoryCountsAsALostMachine) {
  EXPECT_EQ(FormingsThatKillsEnd(Status(Code::kResourceExhausted, dag::kPerhapsOutOfMemoryTag, "killed", "perhaps the machine")), 4);
  EXPECT_EQ(over.tag(), "GANG04") << over.ToString();
  EXPECT_NE(over.why().find("perhaps the machine"), std::string::npos) << over.ToString();
}

TEST_F(Gang, AKillThatWasForMemoryCountsAsACrash) {
  EXPECT_EQ(FormingsThatKillsEnd(Status(Code::kResourceExhausted, "WORKER35", "killed", "the job used more than it has")), 2);
  EXPECT_EQ(over.tag(), "WORKER35") << over.ToString();
}

// With several ranks in one executor the one whose thread crashed is named.
TEST_F(Gang, TheCrashedRankIsNamedAmongThoseOfItsExecutor) {
  p.AddWorker(1, 3);
  JobId job = Start(3, {.placement_ms = 0, .attempts_max = 1});
  for (int forming = 0; forming < 2; ++forming) {
    std::vector<RunTask> ranks = Ranks();
    ASSERT_EQ(ranks.size(), 3u);
    EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
    const std::size_t before = p.started.size();
    ExecutorExited exited;
    exited.executor = ranks[0].executor;
    exited.reason = Status(Code::kUserError, "WORKER31", "an executor ended by signal 11", "it jumped off", "mend it");
    exited.signal = 11;
    exited.cursors = {{ranks[0].id, 0, 0, 0, ""}, {ranks[1].id, 1, 0, 11, ""}, {ranks[2].id, 2, 0, 0, ""}};
    p.Do(exited);
    p.tasks.clear();
    p.Advance(1'000);
    if (forming == 0) JoinNew(before);
  }
  EXPECT_EQ(p.scheduler->Job(job)->status.what(), "rank 1 of stage s9 (RunGang \"g\" (g.cc:1)) on w1 failed: rank 1 crashed (signal 11)");
  EXPECT_TRUE(p.scheduler->Job(job)->status.why().starts_with("it jumped off;")) << "as its worker said";
}

// However long a forming holds: what is sure to come may take its time. Only a gang that gets farther than ever is given its tries anew.
TEST_F(Gang, LossesInARowAreBoundedAndGettingFartherForgivesThem) {
  const Status killed(Code::kUnavailable, "WORKER30", "an executor ended by signal 9");
  EXPECT_EQ(FormingsThatKillsEnd(killed), 4);
  EXPECT_EQ(over.tag(), "GANG04") << over.ToString();
  EXPECT_EQ(over.code(), Code::kUnavailable);
  EXPECT_NE(over.what().find("was lost 4 times in a row and did not get farther meanwhile"), std::string::npos) << over.ToString();
  EXPECT_NE(over.why().find("rank 1 of stage s9"), std::string::npos) << over.ToString();

  // The first four get farther each time, the next ones as far or less far.
  p = Puppet();
  EXPECT_EQ(FormingsThatKillsEnd(killed, {1, 2, 30, 31, 31, 30, 2, 40}), 7);
  EXPECT_EQ(over.tag(), "GANG04") << over.ToString();
}

// A disk or a network that is not there, among ranks that all live: the rank's own words are the reason, though it says kUnavailable as one
// does that lost a peer, and though the others may speak first.
TEST_F(Gang, WhatIsNotAvailableToARankIsItsOwnFailure) {
  const Status no_disk(Code::kUnavailable, "CKPT01", "cannot write \"/nfs/step-8\"", "Stale file handle", "look at the mount");
  for (bool peer_first : {false, true}) {
    p = Puppet();
    const End fail = [&](const std::vector<RunTask>& ranks) {
      if (peer_first) Fail(ranks[1], Status(Code::kUnavailable, "COLL20", "rank 0 is lost"));
      Fail(ranks[0], no_disk);
      ReportLoss();
    };
    EXPECT_EQ(FormingsUntilItIsOver({.placement_ms = 0, .attempts_max = 1, .restarts_max = 20}, kLong, fail), 5);
    EXPECT_EQ(over.tag(), "CKPT01") << over.ToString();
    EXPECT_EQ(over.code(), Code::kUnavailable);
    EXPECT_EQ(over.what(), "rank 0 of stage s9 (RunGang \"g\" (g.cc:1)) on w1 failed: cannot write \"/nfs/step-8\"");
    EXPECT_EQ(over.why(), "Stale file handle; the gang was formed 5 times and a rank failed each time");
    EXPECT_EQ(over.fix(), "look at the mount");
    ASSERT_FALSE(p.All<EndRank>().empty());
    EXPECT_EQ(p.All<EndRank>()[0].status.what(),
              peer_first ? "rank 1 on machine w2 could not go on" : "rank 0 on machine w1 could not go on");
  }
  // Between disturbances it saves, and they are forgotten.
  p = Puppet();
  const End fail = [&](const std::vector<RunTask>& ranks) {
    Fail(ranks[0], no_disk);
    ReportLoss();
  };
  EXPECT_EQ(FormingsUntilItIsOver({.placement_ms = 0, .attempts_max = 1, .restarts_max = 20}, kLong, fail, {0, 0, 0, 8, 8}), 8);
}

// One that says nothing when its gang is lost may be on a machine that hangs: that is no failure of who noticed.
TEST_F(Gang, ARankThatFallsSilentIsALoss) {
  const End silent = [&](const std::vector<RunTask>& ranks) {
    Fail(ranks[0], Status(Code::kUnavailable, "COLL20", "rank 1 is lost"));
    p.Advance(Options().gang_end_ms + 10);
  };
  EXPECT_EQ(FormingsUntilItIsOver({.placement_ms = 0, .attempts_max = 1, .restarts_max = 7}, kLong, silent), 8);
  EXPECT_EQ(over.tag(), "GANG04") << over.ToString();
}

// Something else that ran in the rank's executor has ended it.
TEST_F(Gang, ARankThatIsLostWithItsExecutorHasNotFailed) {
  const End crash = [&](const std::vector<RunTask>& ranks) {
    ExecutorExited exited;
    exited.executor = ranks[1].executor;
    exited.reason = Status(Code::kUserError, "WORKER31", "an executor ended by signal 11");
    exited.signal = 11;
    exited.cursors = {{TaskAttempt{StageId{3}, 0, 999}, 0, 0, 11, ""}};
    std::erase_if(p.tasks, [&](const RunTask& task) { return task.id == ranks[1].id; });
    p.Do(exited);
    ReportLoss();
  };
  EXPECT_EQ(FormingsUntilItIsOver({.placement_ms = 0, .attempts_max = 1, .restarts_max = 7}, kLong, crash), 8);
  EXPECT_EQ(over.tag(), "GANG04") << over.ToString();
}

TEST_F(Gang, ExchangeGivesEveryRankTheBytesOfAllByRank) {
  p.AddWorker(1, 2);
  p.AddWorker(2, 1);
  Start(3);
  std::vector<RunTask> ranks = Ranks();
  Say(ranks[2], 1, "c");
  Say(ranks[0], 1, "a");
  Say(ranks[0], 1, "a");  // a duplicate
  Say(ranks[1], 2, "?");  // of no round that is open
  EXPECT_TRUE(p.All<GangGathered>().empty());
  Say(ranks[1], 1, "b");
  std::vector<GangGathered> answers = p.All<GangGathered>();
  ASSERT_EQ(answers.size(), 2u) << "one for each executor";
  for (const GangGathered& answer : answers) {
    EXPECT_EQ(*answer.values, (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(answer.round, 1u);
    EXPECT_EQ(answer.epoch, 0u);
    EXPECT_EQ(answer.stage, StageId{9});
  }
  Say(ranks[1], 1, "late");  // that round is over
  for (std::size_t i = 0; i < 3; ++i) Say(ranks[i], 2, std::to_string(i));
  EXPECT_EQ(*p.Last<GangGathered>()->values, (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(p.All<GangGathered>().size(), 4u);

  // What a rank said before the gang was lost is nothing to the next forming.
  Say(ranks[0], 3, "old");
  p.Do(WorkerLost{WorkerId{2}, "gone"});
  std::erase_if(p.tasks, [&](const RunTask& t) { return t.id == ranks[2].id; });
  std::size_t before = p.started.size();
  p.AddWorker(3, 1);
  JoinNew(before);
  Say(ranks[1], 3, "old");
  ReportLoss();
  p.Advance(1'000);
  std::vector<RunTask> again = Ranks();
  ASSERT_EQ(again.size(), 3u);
  Say(ranks[0], 1, "stale");
  p.Do(GangExchanged{again[0].executor, again[0].job, again[0].id, 0, 1, "of another epoch"});
  for (std::size_t i = 0; i < 3; ++i) Say(again[i], 1, "n" + std::to_string(i));
  EXPECT_EQ(*p.Last<GangGathered>()->values, (std::vector<std::string>{"n0", "n1", "n2"}));
  EXPECT_EQ(p.Last<GangGathered>()->epoch, 1u);
}

TEST_F(Gang, AnExchangeThatCanNeverEndIsAnErrorOfTheProgram) {
  for (bool exchange_first : {true, false}) {
    Puppet fresh;
    p = std::move(fresh);
    p.AddWorker(1, 2);
    JobId job = Start(2, {.placement_ms = 0, .attempts_max = 1});
    std::vector<RunTask> ranks = Ranks();
    if (exchange_first) Say(ranks[0], 1, "x");
    p.Finish(ranks[1]);
    if (!exchange_first) Say(ranks[0], 1, "x");
    ASSERT_EQ(p.All<EndRank>().size(), 1u);
    EXPECT_EQ(p.All<EndRank>()[0].id, ranks[0].id);
    ReportLoss();
    EXPECT_EQ(p.scheduler->Job(job)->status.tag(), "GANG05") << p.scheduler->Job(job)->status.ToString();
  }
}

TEST_F(Gang, ARankThatDoesNotEndIsStoppedWithItsExecutor) {
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  JobId job = Start(2);
  std::vector<RunTask> ranks = Ranks();
  Kill(ranks[1].executor);
  std::size_t before = p.started.size();
  p.Advance(Options().gang_end_ms - 100);
  EXPECT_TRUE(p.All<StopExecutor>().empty());
  p.tasks.clear();
  p.Advance(1'000);
  ASSERT_EQ(p.All<StopExecutor>().size(), 1u);
  EXPECT_EQ(p.All<StopExecutor>()[0].executor, ranks[0].executor);
  JoinNew(before);
  p.Advance(1'000);
  ASSERT_EQ(Ranks().size(), 2u);
  EXPECT_EQ(Ranks()[0].gang->epoch, 1u);
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
}

// All of them at once, and of more machines than executors may die in a row without having done anything: these have done something.
TEST_F(Gang, ManyRanksThatDoNotEndAreStoppedAndTheGangIsFormedAnew) {
  const std::uint32_t ranks = Options().executor_failures_max + 2;
  for (std::uint32_t worker = 1; worker <= ranks; ++worker) p.AddWorker(worker, 1);
  const JobId job = Start(ranks);
  ASSERT_EQ(Ranks().size(), ranks);
  for (std::uint32_t forming = 1; forming <= 2; ++forming) {
    Kill(Ranks()[0].executor);
    const std::size_t before = p.started.size(), stopped = p.All<StopExecutor>().size();
    p.tasks.clear();
    p.Advance(Options().gang_end_ms + 20'000);
    EXPECT_EQ(p.All<StopExecutor>().size() - stopped, ranks - 1);
    ASSERT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning) << p.scheduler->Job(job)->status.ToString();
    JoinNew(before);
    p.Advance(20'000);
    ASSERT_EQ(Ranks().size(), ranks);
    EXPECT_EQ(Ranks()[0].gang->epoch, forming);
  }
}

// What a rank reads is lost at every forming, and the gang gets farther each time: over weeks that is no trouble, however often it happens.
TEST_F(Gang, InputsThatAreLostAreForgivenWhenItGetsFarther) {
  for (const bool farther : {true, false}) {
    p = Puppet();
    p.AddWorker(1, 2);
    dag::Stage gang = GangStage(9, 2, {.placement_ms = 0, .attempts_max = 1, .restarts_max = 1'000});
    gang.inputs = {{StageId{1}, dag::InputPattern::kAllToAll, 0}};
    plan = MakePlan(1, {MakeStage(1, 1, dag::StageOutput::kSegment), gang});
    const JobId job = p.Submit("k", true);
    Join(p.started[0].executor);
    const std::uint32_t formings = Options().fetch_retries_max + 5;
    for (std::uint32_t forming = 0; forming < formings && p.scheduler->Job(job)->phase == JobPhase::kRunning; ++forming) {
      for (int round = 0; round < 3 && Ranks().empty(); ++round) {
        p.FinishTasks();
        p.Advance(20'000);
      }
      const std::vector<RunTask> ranks = Ranks();
      ASSERT_EQ(ranks.size(), 2u) << forming;
      p.Do(TasksProgressed{ranks[0].executor, {{ranks[0].id, {}, "", farther ? forming + 1 : 1}}});
      p.Forget(ranks[1].job, ranks[1].id);
      p.Do(FetchFailed{ranks[1].executor, ranks[1].job, ranks[1].id, ranks[1].inputs.at(0).segments.at(0),
                       Status(Code::kDataLoss, "SEG02", "a segment is gone")});
      ReportLoss();
    }
    const Status status = p.scheduler->Job(job)->status;
    EXPECT_EQ(p.scheduler->Job(job)->phase == JobPhase::kRunning, farther) << status.ToString();
    EXPECT_EQ(status.tag(), farther ? "" : "SEG02");
  }
}

TEST_F(Gang, CancellingTheJobTellsTheRanks) {
  p.AddWorker(1, 2);
  JobId job = Start(2);
  p.Do(JobCancelled{job, "enough"});
  ASSERT_EQ(p.All<EndRank>().size(), 2u);
  EXPECT_EQ(p.All<EndRank>()[0].status.code(), Code::kCancelled);
}

// A restarted master forms the gang anew, under a number that was never used, and remembers how often it failed; also from a snapshot.
TEST_F(Gang, ARestartOfTheMasterUsesNoNumberTwice) {
  for (bool snapshot : {false, true}) {
    Puppet fresh;
    p = std::move(fresh);
    p.AddWorker(1, 2);
    JobId job = Start(2);
    for (std::uint32_t forming = 0; forming < 2; ++forming) {
      Fail(Ranks()[0], Status(Code::kUserError, "USER01", "bad"));
      ReportLoss();
      p.Advance(1'000);
    }
    ASSERT_EQ(Ranks().size(), 2u);
    EXPECT_EQ(Ranks()[0].gang->epoch, 2u);
    if (snapshot) p.journal = p.scheduler->Snapshot();
    p.Restart();
    p.AddWorker(11, 2);
    JoinNew(0);
    std::vector<RunTask> ranks = Ranks();
    ASSERT_EQ(ranks.size(), 2u);
    EXPECT_EQ(ranks[0].gang->epoch, 3u);
    Fail(ranks[1], Status(Code::kUserError, "USER01", "bad"));
    ReportLoss();
    EXPECT_EQ(p.scheduler->Job(job)->status.tag(), "USER01") << "the third in the life of the job, snapshot " << snapshot;
  }
}

// A value that is too large for the journal is made again, and then by all ranks: those that have no value must not count as done.
TEST_F(Gang, ASnapshotBetweenItsEndAndThePublicationKeepsAllRanksOrNone) {
  for (const std::size_t bytes : {std::size_t{10}, kLargeBytes}) {
    Puppet fresh;
    p = std::move(fresh);
    JobId job = EndBeforeTheVerdict(std::string(bytes, 'v'));
    p.journal = p.scheduler->Snapshot();
    p.Restart();
    p.AddWorker(11, 3);
    JoinNew(0);
    if (bytes == kLargeBytes) {
      EXPECT_EQ(p.Count("action_published"), 0u);
      p.Advance(Options().recovery_grace_ms + 10);  // for the blocks that it reads, which come no more
      p.FinishTasks();
      ASSERT_EQ(Ranks().size(), 2u);
      EXPECT_EQ(Ranks()[0].gang->epoch, 1u);
      for (int round = 0; round < 3; ++round) p.FinishTasks();
    } else {
      EXPECT_TRUE(Ranks().empty()) << "it has done its work";
    }
    EXPECT_EQ(p.Count("action_published"), 1u) << bytes;
    EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning) << p.scheduler->Job(job)->status.ToString();
  }
}

// A journal of which a part of the ranks can be read: none of them counts.
TEST_F(Gang, APartOfItsRanksInTheJournalIsNone) {
  JobId job = EndBeforeTheVerdict("value");
  p.journal = p.scheduler->Snapshot();
  bool was_there = false;
  std::erase_if(p.journal, [&](const JournalRecord& each) {
    Record record = *Decode(each.bytes);
    const auto* done = std::get_if<TaskDoneRecord>(&record);
    const bool is_rank_0 = done != nullptr && done->id.stage == StageId{9} && done->id.task == 0;
    was_there |= is_rank_0;
    return is_rank_0;
  });
  ASSERT_TRUE(was_there);
  p.Restart();
  p.AddWorker(11, 3);
  JoinNew(0);
  p.Advance(Options().recovery_grace_ms + 10);
  p.FinishTasks();
  EXPECT_EQ(Ranks().size(), 2u);
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
}

// Its work is done and not published yet when one rank's input turns out to have other content: all of them begin anew.
TEST_F(Gang, OtherContentAfterItsEndIsReadByAllRanks) {
  JobId job = EndBeforeTheVerdict("value");
  dag::Stage earlier = MakeStage(1, 2, dag::StageOutput::kSegment);
  earlier.earlier = true;
  p.Do(ExecutorAtAction{p.started[0].executor, MakePlan(2, {earlier, MakeStage(10, 1, dag::StageOutput::kResult,
                                                                               {{StageId{1}, dag::InputPattern::kAllToAll, 0}})})});
  auto reader = std::find_if(p.tasks.begin(), p.tasks.end(), [](const RunTask& task) { return task.id.stage == StageId{10}; });
  ASSERT_NE(reader, p.tasks.end());
  const RunTask lost = *reader;
  p.tasks.erase(reader);
  p.Do(FetchFailed{lost.executor, lost.job, lost.id, lost.inputs.at(0).segments.at(0), Status(Code::kDataLoss, "SEG02", "it is gone")});
  auto again =
      std::find_if(p.tasks.begin(), p.tasks.end(), [](const RunTask& task) { return task.id.stage == StageId{1} && !task.verify; });
  ASSERT_NE(again, p.tasks.end());
  EXPECT_EQ(p.Count("action_published"), 0u);
  p.Finish(*again, 7);
  EXPECT_EQ(p.Count("content_changed"), 1u);
  ASSERT_EQ(Ranks().size(), 2u) << "a second forming";
  EXPECT_EQ(Ranks()[0].gang->epoch, 1u);
  for (int round = 0; round < 4; ++round)
    for (const RunTask& task : std::vector(p.tasks)) p.Finish(task, task.id.stage == StageId{1} && task.id.task == 0 ? 7 : 0);
  EXPECT_EQ(p.Count("action_published"), 2u);
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning) << p.scheduler->Job(job)->status.ToString();
}

TEST_F(Gang, TheSecondGangOfAJobGoesOnCounting) {
  p.AddWorker(1, 2);
  Start(2);
  p.FinishTasks();
  plan = MakePlan(2, {GangStage(17, 2)});
  p.Do(ExecutorAtAction{p.started[0].executor, plan});
  ASSERT_EQ(Ranks().size(), 2u);
  EXPECT_EQ(Ranks()[0].gang->epoch, 1u);
}

// A gang that reads what other stages made: they run first, and a lost part is made again before the gang is formed anew.
TEST_F(Gang, ItsInputsAreThereBeforeItIsFormed) {
  p.AddWorker(1, 2);
  dag::Stage gang = GangStage(9, 2);
  gang.inputs = {{StageId{1}, dag::InputPattern::kAllToAll, 0}};
  plan = MakePlan(1, {MakeStage(1, 3, dag::StageOutput::kSegment), gang});
  p.Submit();
  Join(p.started[0].executor);
  ASSERT_EQ(p.tasks.size(), 2u);
  EXPECT_TRUE(Ranks().empty());
  p.FinishTasks();
  p.FinishTasks();
  std::vector<RunTask> ranks = Ranks();
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(ranks[1].inputs.at(0).segments.size(), 3u);
  std::erase_if(p.tasks, [&](const RunTask& t) { return t.id == ranks[1].id; });
  p.Do(FetchFailed{ranks[1].executor, ranks[1].job, ranks[1].id, ranks[1].inputs.at(0).segments[2],
                   Status(Code::kDataLoss, "SEG02", "a segment is gone")});
  ReportLoss();
  ASSERT_EQ(p.tasks.size(), 1u) << "the lost part";
  EXPECT_EQ(p.tasks[0].id.stage, StageId{1});
  p.FinishTasks();
  p.Advance(1'000);
  ASSERT_EQ(Ranks().size(), 2u);
  EXPECT_EQ(Ranks()[0].gang->epoch, 1u);
  p.FinishTasks();
  EXPECT_EQ(p.Count("action_published"), 1u);
}

TEST_F(Gang, WhatRankZeroSaysIsShown) {
  p.AddWorker(1, 2);
  JobId job = Start(2);
  std::vector<RunTask> ranks = Ranks();
  p.Do(TasksProgressed{ranks[0].executor, {{ranks[0].id, {}, "step 3, loss 1.5"}, {ranks[1].id, {}, "step 4"}}});
  EXPECT_EQ(p.scheduler->Job(job)->note, "step 3, loss 1.5");
}

// In one process no machine can join: what does not fit now never will, and a rank that does not end cannot be stopped.
TEST(GangInOneProcess, RanksShareTheProcessorsUpToABound) {
  Options options;
  options.outputs_durable = true;
  options.gang_slots_min = 8;
  for (std::uint32_t ranks : {8u, 9u}) {
    Puppet p(options);
    p.AddWorker(1, 2);
    JobId job = p.Submit();
    p.Do(ExecutorReady{p.started[0].executor});
    p.Do(ExecutorAtAction{p.started[0].executor, MakePlan(1, {GangStage(9, ranks)})});
    if (ranks == 8) {
      EXPECT_EQ(p.tasks.size(), 8u);
      std::vector<RunTask> running = p.tasks;
      p.Do(TaskFailed{running[0].executor, running[0].job, running[0].id, Status(Code::kUserError, "U", "bad")});
      p.Advance(options.gang_end_ms + 10);
      EXPECT_EQ(p.scheduler->Job(job)->status.tag(), "GANG06");
    } else {
      EXPECT_EQ(p.scheduler->Job(job)->status.tag(), "GANG01") << "at once";
      EXPECT_EQ(p.scheduler->Job(job)->status.code(), Code::kUnplaceable);
    }
  }
}

}  // namespace
}  // namespace ropewalk::scheduler
