// What a task is told must not grow with what it does not read: a union of many datasets gives each task its own member only.
#include <gtest/gtest.h>

#include "dag/wire/wire.h"
#include "proto/executor.pb.h"
#include "tests/unit/scheduler_fixture.h"

namespace ropewalk::scheduler {
namespace {

using dag::InputPattern;

std::size_t MessageBytes(const RunTask& task) {
  wire::RunTask message;
  for (const dag::TaskInput& input : task.inputs) dag::ToWire(input, message.add_inputs());
  return message.ByteSizeLong();
}

struct Sizes {
  std::size_t message_bytes_max = 0;
  std::size_t tasks = 0;
};

// `members` stages of `maps` tasks each, all read by one stage: every member by `readers` tasks of it.
Sizes RunUnion(std::uint32_t members, std::uint32_t maps, std::uint32_t readers, InputPattern pattern) {
  Puppet p;
  p.AddWorker(1, 4);
  p.Submit();
  p.Do(ExecutorReady{p.started.at(0).executor});
  std::vector<dag::Stage> stages;
  std::vector<dag::StageInput> inputs;
  p.segment_stages.ids.clear();
  for (std::uint32_t m = 0; m < members; ++m) {
    stages.push_back(MakeStage(100 + m, maps, dag::StageOutput::kSegment));
    inputs.push_back({StageId{100 + m}, pattern, m * readers, readers});
    p.segment_stages.ids.push_back(100 + m);
  }
  stages.push_back(MakeStage(1000, members * readers, dag::StageOutput::kResult, inputs));
  p.Do(ExecutorAtAction{p.started.at(0).executor, MakePlan(1, stages)});
  Sizes sizes;
  while (!p.tasks.empty()) {
    for (const RunTask& task : p.tasks) {
      if (task.id.stage != StageId{1000}) continue;
      ++sizes.tasks;
      sizes.message_bytes_max = std::max(sizes.message_bytes_max, MessageBytes(task));
      EXPECT_EQ(task.inputs.size(), 1u);
      if (task.inputs.size() != 1) continue;
      EXPECT_EQ(task.inputs[0].stage, StageId{100 + task.id.task / readers});
      EXPECT_EQ(task.inputs[0].first_task, task.id.task / readers * readers);
      EXPECT_EQ(task.inputs[0].segments.size(), pattern == InputPattern::kAllToAll ? maps : 1);
    }
    p.FinishTasks();
  }
  EXPECT_EQ(p.scheduler->Job(JobId{1})->actions_done, 1u);
  return sizes;
}

TEST(SchedulerUnion, TheTaskMessageDoesNotGrowWithTheMembers) {
  for (InputPattern pattern : {InputPattern::kAllToAll, InputPattern::kOneToOne}) {
    Sizes few = RunUnion(2, 3, 3, pattern), many = RunUnion(300, 3, 3, pattern);
    EXPECT_EQ(few.tasks, 6u);
    EXPECT_EQ(many.tasks, 900u);
    // Ids become longer by a byte or two; 298 further members would be thousands.
    EXPECT_LE(many.message_bytes_max, few.message_bytes_max + 32) << static_cast<int>(pattern);
  }
}

// What a member's readers do not need is neither waited for nor made again.
TEST(SchedulerUnion, AMemberIsWaitedForByItsOwnReadersOnly) {
  Puppet p;
  p.AddWorker(1, 1);
  p.AddWorker(2, 1);
  p.Submit();
  for (const StartExecutor& start : std::vector<StartExecutor>(p.started)) p.Do(ExecutorReady{start.executor});
  p.segment_stages.ids = {1, 2};
  dag::ActionPlan plan =
      MakePlan(1, {MakeStage(1, 1, dag::StageOutput::kSegment), MakeStage(2, 1, dag::StageOutput::kSegment),
                   MakeStage(3, 2, dag::StageOutput::kResult,
                             {{StageId{1}, InputPattern::kAllToAll, 0, 1}, {StageId{2}, InputPattern::kAllToAll, 1, 1}})});
  for (const StartExecutor& start : std::vector<StartExecutor>(p.started)) p.Do(ExecutorAtAction{start.executor, plan});
  ASSERT_EQ(p.tasks.size(), 2u);
  RunTask first = p.tasks[0], second = p.tasks[1];
  ASSERT_EQ(second.id.stage, StageId{2});
  p.Finish(second);  // the other member is still being made
  ASSERT_EQ(p.tasks.size(), 2u);
  RunTask reader = p.tasks[1];
  EXPECT_EQ(reader.id.stage, StageId{3});
  EXPECT_EQ(reader.id.task, 1u);
  p.Finish(reader);
  std::size_t reruns = p.Count("rerun");
  WorkerId lost;
  for (const StartExecutor& start : p.started)
    if (start.executor == second.executor) lost = start.worker;
  p.Do(WorkerLost{lost, "gone"});
  p.Finish(first);
  while (p.FinishTasks() > 0) {
  }
  EXPECT_EQ(p.scheduler->Job(JobId{1})->actions_done, 1u);
  EXPECT_EQ(p.Count("rerun"), reruns) << "made again for nobody";
}

}  // namespace
}  // namespace ropewalk::scheduler
