// Elastic gangs: formed with fewer ranks when they have waited long enough, and anew with more when they get farther and there is room.
#include <gtest/gtest.h>

#include "dag/failure_tags.h"
#include "tests/unit/scheduler_gang_fixture.h"

namespace ropewalk::scheduler {
namespace {

constexpr dag::GangStage kElastic = {.placement_ms = 0, .attempts_max = 1, .restarts_max = 3, .ranks_min = 2, .shrink_ms = 5'000};

class Elastic : public GangFixture {
 protected:
  void Reach(const RunTask& rank, std::uint64_t milestone) { p.Do(TasksProgressed{rank.executor, {{rank.id, {}, "", milestone}}}); }
  // The ranks of the forming that goes on, which must be of these numbers; its epoch.
  std::uint32_t ExpectRanks(std::uint32_t ranks) {
    const std::vector<RunTask> running = Ranks();
    EXPECT_EQ(running.size(), ranks);
    std::uint32_t next = 0;
    for (const RunTask& rank : running) {
      EXPECT_EQ(rank.gang->rank, next++);
      EXPECT_EQ(rank.gang->ranks, ranks);
    }
    return running.empty() ? 0 : running[0].gang->epoch;
  }
  // A worker of one slot whose executor comes to the gang.
  void Come(std::uint64_t worker) {
    const std::size_t before = p.started.size();
    p.AddWorker(worker, 1);
    JoinNew(before);
  }
};

TEST_F(Elastic, WaitsForAllItsRanksBeforeItGoesWithFewer) {
  p.AddWorker(1, 2);
  p.AddWorker(2, 1);
  Start(4, kElastic);
  ExpectRanks(0);
  p.Advance(4'900);
  ExpectRanks(0);
  p.Advance(200);
  ExpectRanks(3);
  p.FinishTasks();
  ASSERT_NE(p.Last<PublishAction>(), nullptr);
  EXPECT_EQ(p.Last<PublishAction>()->values->at(0), "v9.0");
  EXPECT_EQ(p.Last<PublishAction>()->values->size(), 4u);
}

TEST_F(Elastic, WithAllItDoesNotWait) {
  p.AddWorker(1, 4);
  Start(4, kElastic);
  ExpectRanks(4);
}

TEST_F(Elastic, BelowItsLeastItIsNotFormed) {
  p.AddWorker(1, 1);
  JobId job = Start(4, kElastic);
  p.Advance(60'000);
  ExpectRanks(0);
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
  Come(2);
  ExpectRanks(2);
}

TEST_F(Elastic, OneThatIsNotElasticWaitsForAll) {
  p.AddWorker(1, 3);
  Start(4, {.placement_ms = 0, .restarts_max = 3});
  p.Advance(kElastic.shrink_ms * 10);
  ExpectRanks(0);
}

TEST_F(Elastic, GoesOnWithoutALostRankAndItsExchangesAreOfThoseThatAreThere) {
  for (std::uint64_t worker : {1, 2, 3}) p.AddWorker(worker, 1);
  Start(3, kElastic);
  ExpectRanks(3);
  p.Do(WorkerLost{WorkerId{3}, "its machine is gone"});
  std::erase_if(p.tasks, [&](const RunTask& task) { return task.gang->rank == 2; });
  ReportLoss();
  p.Advance(4'000);
  ExpectRanks(0);
  p.Advance(2'000);
  EXPECT_EQ(ExpectRanks(2), 1u);
  const std::vector<RunTask> ranks = Ranks();
  Say(ranks[0], 1, "a");
  Say(ranks[1], 1, "b");
  ASSERT_NE(p.Last<GangGathered>(), nullptr);
  EXPECT_EQ(*p.Last<GangGathered>()->values, (std::vector<std::string>{"a", "b"}));
  p.FinishTasks();
  EXPECT_NE(p.Last<PublishAction>(), nullptr);
}

TEST_F(Elastic, AReplacementInTimeKeepsItsSize) {
  for (std::uint64_t worker : {1, 2, 3}) p.AddWorker(worker, 1);
  Start(3, kElastic);
  const std::size_t before = p.started.size();
  Kill(Ranks()[2].executor);
  ReportLoss();
  p.Advance(2'000);
  JoinNew(before);
  EXPECT_EQ(ExpectRanks(3), 1u);
}

// What it loses by that are the steps since it got there: none, or nearly.
TEST_F(Elastic, GrowsWhenItGetsFartherAndCountsNoFailure) {
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  JobId job = Start(4, kElastic);
  p.Advance(6'000);
  ExpectRanks(2);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    Come(2 + step);
    ExpectRanks(1 + static_cast<std::uint32_t>(step));  // not before
    Reach(Ranks()[1], step);
    ASSERT_NE(p.Last<EndRank>(), nullptr);
    EXPECT_EQ(p.Last<EndRank>()->status.tag(), dag::kRankLostTag) << "as a loss, which ranks know what to do about";
    EXPECT_NE(p.Last<EndRank>()->status.what().find(std::to_string(2 + step) + " ranks"), std::string::npos);
    ReportLoss();
    p.Advance(10);
    EXPECT_EQ(ExpectRanks(2 + static_cast<std::uint32_t>(step)), step) << "at once: it knows how many there are";
  }
  EXPECT_EQ(p.Count("gang_grows"), 2u);
  EXPECT_EQ(p.Count("gang_lost"), 0u);
  Reach(Ranks()[0], 3);
  ExpectRanks(4);  // there is nothing more to grow to
  p.FinishTasks();
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kRunning);
  EXPECT_NE(p.Last<PublishAction>(), nullptr);
}

TEST_F(Elastic, WithoutRoomForMoreItIsLeftAlone) {
  p.AddWorker(1, 2);
  Start(4, kElastic);
  p.Advance(6'000);
  const std::uint32_t epoch = ExpectRanks(2);
  Reach(Ranks()[0], 1);
  p.Advance(60'000);
  EXPECT_EQ(ExpectRanks(2), epoch);
  EXPECT_EQ(p.Last<EndRank>(), nullptr);
}

TEST_F(Elastic, DoesNotGrowIntoSlotsThatAnotherGangWaitsFor) {
  p.AddWorker(1, 2);
  Start(3, kElastic, "elastic");
  p.Advance(6'000);
  ExpectRanks(2);
  // Another one, which asked later but has waited for this slot and more.
  Start(2, {.placement_ms = 0, .restarts_max = 3}, "other");
  const std::size_t before = p.started.size();
  p.AddWorker(2, 1);
  for (std::size_t i = before; i < p.started.size(); ++i)
    if (p.started[i].job != Ranks()[0].job) Join(p.started[i].executor);
  Reach(Ranks()[0], 1);
  ExpectRanks(2);
  EXPECT_EQ(p.Count("gang_grows"), 0u);
}

TEST_F(Elastic, WhatGoesWrongWhileItGrowsCounts) {
  p.AddWorker(1, 2);
  JobId job = Start(3, kElastic);
  p.Advance(6'000);
  Come(2);
  Reach(Ranks()[0], 1);
  const std::vector<RunTask> ranks = Ranks();
  Fail(ranks[0], Status(Code::kUserError, "TRAIN01", "step 7: the loss is nan"));
  Fail(ranks[1], Status(Code::kUnavailable, "GANG02", "a peer is gone"));
  EXPECT_EQ(p.scheduler->Job(job)->phase, JobPhase::kFailed);
  EXPECT_EQ(p.scheduler->Job(job)->status.tag(), "TRAIN01");
}

TEST_F(Elastic, TheErrorOfOneThatWasNeverPlacedSaysHowFewWouldDo) {
  p.AddWorker(1, 1);
  dag::GangStage gang = kElastic;
  gang.placement_ms = 20'000;
  JobId job = Start(4, gang);
  p.Advance(21'000);
  EXPECT_EQ(p.scheduler->Job(job)->status.tag(), "GANG01");
  EXPECT_NE(p.scheduler->Job(job)->status.what().find("of 4 ranks, 2 at least,"), std::string::npos)
      << p.scheduler->Job(job)->status.ToString();
}

}  // namespace
}  // namespace ropewalk::scheduler
