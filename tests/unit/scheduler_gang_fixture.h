// A scheduler whose jobs run a gang and nothing else.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduler_fixture.h"

namespace ropewalk::scheduler {

inline dag::Stage GangStage(std::uint64_t id, std::uint32_t ranks, dag::GangStage gang = {.placement_ms = 60'000, .restarts_max = 5}) {
  dag::Stage stage = MakeStage(id, ranks, dag::StageOutput::kResult);
  stage.name = "RunGang \"g\" (g.cc:1)";
  stage.gang = gang;
  return stage;
}

class GangFixture : public testing::Test {
 protected:
  explicit GangFixture(Options options = {}) : p(options) {}

  // A job whose executors all stand at its gang.
  JobId Start(std::uint32_t ranks, dag::GangStage gang = {.placement_ms = 60'000, .restarts_max = 5}, const std::string& key = "k") {
    plan = MakePlan(1, {GangStage(9, ranks, gang)});
    const std::size_t before = p.started.size();
    JobId job = p.Submit(key, true);
    for (std::size_t i = before; i < p.started.size(); ++i) Join(p.started[i].executor);
    return job;
  }
  void Join(ExecutorId executor) {
    p.Do(ExecutorReady{executor});
    p.Do(ExecutorAtAction{executor, plan});
  }
  // Executors that were started since and do not stand anywhere yet.
  void JoinNew(std::size_t from) {
    for (std::size_t i = from; i < p.started.size(); ++i) Join(p.started[i].executor);
  }
  std::vector<RunTask> Ranks() const {
    std::vector<RunTask> ranks;
    for (const RunTask& task : p.tasks)
      if (task.gang) ranks.push_back(task);
    return ranks;
  }
  void Fail(const RunTask& task, Status status) {
    p.Forget(task.job, task.id);
    p.Do(TaskFailed{task.executor, task.job, task.id, std::move(status)});
  }
  void Kill(ExecutorId executor, int signal = 9, Status reason = Status(Code::kUnavailable, "WORKER30", "an executor ended by signal 9")) {
    std::erase_if(p.tasks, [&](const RunTask& t) { return t.executor == executor; });
    ExecutorExited exited;
    exited.executor = executor;
    exited.reason = std::move(reason);
    exited.signal = signal;
    p.Do(exited);
  }
  // What told ranks do: they report that a peer is gone.
  void ReportLoss() {
    for (const RunTask& rank : Ranks()) Fail(rank, Status(Code::kUnavailable, "GANG02", "a peer is gone"));
  }
  void Say(const RunTask& rank, std::uint64_t round, const std::string& bytes) {
    p.Do(GangExchanged{rank.executor, rank.job, rank.id, rank.gang->epoch, round, bytes});
  }

  Puppet p;
  dag::ActionPlan plan;
};

}  // namespace ropewalk::scheduler
