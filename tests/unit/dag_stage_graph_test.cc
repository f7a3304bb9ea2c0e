// Check() refuses each kind of illegal plan; Explain and FirstDifference say what a person needs.
#include <gtest/gtest.h>

#include <functional>

#include "dag/stage_graph.h"

namespace ropewalk::dag {
namespace {

Stage MakeStage(std::uint64_t id, std::uint32_t tasks, StageOutput output, std::vector<StageInput> inputs = {}) {
  Stage stage;
  stage.id = StageId{id};
  stage.name = "Op" + std::to_string(id) + " > Map (a.cc:" + std::to_string(id) + ")";
  stage.tasks = tasks;
  stage.output = output;
  stage.inputs = std::move(inputs);
  stage.fingerprint = 100 + id;
  return stage;
}

// read(1) -shuffle-> cached(2) -one to one-> files(3) -> commit(4)
ActionPlan Legal() {
  ActionPlan plan;
  plan.sequence = 3;
  plan.name = "WriteText (a.cc:4)";
  plan.stages = {MakeStage(1, 5, StageOutput::kSegment), MakeStage(2, 2, StageOutput::kSegment, {{StageId{1}}}),
                 MakeStage(3, 4, StageOutput::kFiles, {{StageId{2}, InputPattern::kOneToOne, 0}, {StageId{2}, InputPattern::kOneToOne, 2}}),
                 MakeStage(4, 1, StageOutput::kCommit, {{StageId{3}, InputPattern::kGather}})};
  plan.retired = {StageId{77}};
  plan.fingerprint = 9;
  return plan;
}

TEST(StageGraph, ALegalPlanPasses) {
  EXPECT_TRUE(Check(Legal()).ok()) << Check(Legal()).ToString();
  ActionPlan empty_input = Legal();
  for (int i : {0, 1, 2}) empty_input.stages[i].tasks = 0;
  empty_input.stages[2].inputs[1].first_task = 0;
  empty_input.stages[2].inputs.pop_back();
  EXPECT_TRUE(Check(empty_input).ok()) << Check(empty_input).ToString();
}

TEST(StageGraph, EachIllegalPlanIsRefusedAndTheStageIsNamed) {
  struct Case {
    const char* why;
    std::function<void(ActionPlan&)> spoil;
    const char* names;
  };
  const Case cases[] = {
      {"no stages", [](ActionPlan& p) { p.stages.clear(); }, "has no stage"},
      {"sequence 0", [](ActionPlan& p) { p.sequence = 0; }, "sequence 0"},
      {"id 0", [](ActionPlan& p) { p.stages[1].id = {}; }, "its id is 0"},
      {"id twice", [](ActionPlan& p) { p.stages[1].id = StageId{1}; }, "used twice"},
      {"input of a later stage", [](ActionPlan& p) { std::swap(p.stages[0], p.stages[1]); }, "not earlier"},
      {"input of itself", [](ActionPlan& p) { p.stages[1].inputs[0].stage = StageId{2}; }, "not earlier"},
      {"shuffle of files", [](ActionPlan& p) { p.stages[3].inputs[0].pattern = InputPattern::kAllToAll; }, "makes no segments"},
      {"one-to-one of files", [](ActionPlan& p) { p.stages[3].inputs[0].pattern = InputPattern::kOneToOne; }, "makes no segments"},
      {"gather of segments", [](ActionPlan& p) { p.stages[2].inputs[0] = {StageId{2}, InputPattern::kGather}; }, "which makes none"},
      {"unknown pattern", [](ActionPlan& p) { p.stages[1].inputs[0].pattern = static_cast<InputPattern>(9); }, "unknown input pattern"},
      {"unknown output", [](ActionPlan& p) { p.stages[1].output = static_cast<StageOutput>(9); }, "unknown kind"},
      {"one-to-one beyond the end", [](ActionPlan& p) { p.stages[2].inputs[1].first_task = 3; }, "have no reader"},
      {"a shuffle beyond the end", [](ActionPlan& p) { p.stages[1].inputs[0].tasks = p.stages[1].tasks + 1; }, "beyond its last one"},
      {"a shuffle that begins beyond the end", [](ActionPlan& p) { p.stages[1].inputs[0].first_task = p.stages[1].tasks + 1; },
       "beyond its last one"},
      {"a sum above 32 bits", [](ActionPlan& p) { p.stages[1].inputs[0] = {StageId{1}, InputPattern::kAllToAll, 1, 0xffffffffu}; },
       "beyond its last one"},
      {"a range of what is gathered", [](ActionPlan& p) { p.stages[3].inputs[0].tasks = 1; }, "read by all tasks"},
      {"commit with two tasks", [](ActionPlan& p) { p.stages[3].tasks = 2; }, "exactly one task"},
      {"commit with none", [](ActionPlan& p) { p.stages[3].tasks = 0; }, "exactly one task"},
      {"commit of nothing", [](ActionPlan& p) { p.stages[3].inputs.clear(); }, "gathers a stage of files"},
      {"files without commit", [](ActionPlan& p) { p.stages.pop_back(); }, "without a commit"},
      {"commit in the middle", [](ActionPlan& p) { p.stages.push_back(MakeStage(5, 1, StageOutput::kResult)); }, "the last stage"},
      {"result that nobody reads", [](ActionPlan& p) { p.stages.insert(p.stages.begin(), MakeStage(5, 1, StageOutput::kResult)); },
       "nobody reads"},
      {"hints", [](ActionPlan& p) { p.stages[0].input_bytes = {1, 2}; }, "size hints"},
      {"input twice", [](ActionPlan& p) { p.stages[1].inputs.push_back(p.stages[1].inputs[0]); }, "listed twice"},
      {"too many tasks", [](ActionPlan& p) { p.stages[0].tasks = 1u << 30; }, "the limit"},
      {"retired and used", [](ActionPlan& p) { p.retired = {StageId{2}}; }, "retired and used"},
      {"input of a larger id",
       [](ActionPlan& p) {
         p.stages[0].id = StageId{9};
         p.stages[1].inputs[0].stage = StageId{9};
       },
       "of a larger id"},
      {"an earlier one's inputs", [](ActionPlan& p) { p.stages[1].earlier = true; }, "inputs are not repeated"},
      {"an earlier one's result", [](ActionPlan& p) { p.stages[3].earlier = true; }, "makes segments and its inputs"},
      {"nothing new",
       [](ActionPlan& p) {
         p.stages.resize(1);
         p.stages[0].earlier = true;
       },
       "whose own stage"},
      {"retired twice", [](ActionPlan& p) { p.retired = {StageId{8}, StageId{8}}; }, "listed twice"},
  };
  for (const Case& c : cases) {
    ActionPlan plan = Legal();
    c.spoil(plan);
    Status status = Check(plan);
    EXPECT_EQ(status.code(), Code::kInternal) << c.why;
    EXPECT_NE(status.ToString().find(c.names), std::string::npos) << c.why << ": " << status.ToString();
  }
}

TEST(StageGraph, AGangIsTheLastStageGivesAResultAndIsBounded) {
  ActionPlan plan;
  plan.sequence = 1;
  plan.name = "RunGang \"g\" (a.cc:1)";
  plan.stages = {MakeStage(1, 2, StageOutput::kSegment), MakeStage(2, 4, StageOutput::kResult, {{StageId{1}}})};
  plan.stages[1].gang = GangStage{.placement_ms = 1000, .spread = true, .restarts_max = 3};
  EXPECT_TRUE(Check(plan).ok()) << Check(plan).ToString();
  EXPECT_NE(Explain(plan).find("as a gang, spread"), std::string::npos) << Explain(plan);
  auto refused = [](ActionPlan bad, const char* why) {
    Status status = Check(bad);
    EXPECT_EQ(status.tag(), "PLAN01") << why;
    EXPECT_NE((status.what() + status.why()).find(why), std::string::npos) << status.ToString();
  };
  ActionPlan bad = plan;
  bad.stages[1].tasks = 0;
  refused(bad, "a gang of 0 ranks");
  bad = plan;
  bad.stages[1].tasks = kGangRanksMax + 1;
  refused(bad, "a gang of 257 ranks");
  bad = plan;
  bad.stages[1].output = StageOutput::kSegment;
  refused(bad, "a gang gives a result");
  bad = plan;
  bad.stages[1].gang->attempts_max = 0;
  refused(bad, "may not even be tried once");
  bad = plan;
  bad.stages[1].gang->ranks_min = 5;
  refused(bad, "a gang of 4 ranks with 5 at least");
  bad = plan;
  bad.stages[1].gang->ranks_min = 2;
  EXPECT_TRUE(Check(bad).ok()) << Check(bad).ToString();
  EXPECT_NE(Explain(bad).find("as a gang, spread, of 2 ranks at least"), std::string::npos) << Explain(bad);
  bad.stages[1].inputs[0].pattern = InputPattern::kOneToOne;
  refused(bad, "each task reads its own input");
  bad = plan;
  bad.stages.push_back(MakeStage(3, 1, StageOutput::kResult, {{StageId{2}, InputPattern::kGather}}));
  refused(bad, "a gang is the last stage");
  for (auto spoil : std::initializer_list<void (*)(GangStage&)>{
           [](GangStage& g) { ++g.placement_ms; }, [](GangStage& g) { g.spread = false; }, [](GangStage& g) { ++g.attempts_max; },
           [](GangStage& g) { ++g.restarts_max; }, [](GangStage& g) { ++g.ranks_min; }, [](GangStage& g) { ++g.shrink_ms; }}) {
    ActionPlan other = plan;
    spoil(*other.stages[1].gang);
    EXPECT_NE(FirstDifference(plan, other).find("as a gang in another way"), std::string::npos);
  }
}

TEST(StageGraph, ExplainShowsEachStageOnceWithDepthTasksAndInputs) {
  EXPECT_EQ(Explain(Legal()),
            "action 3: WriteText (a.cc:4)\n"
            "  stage 1  Op1 > Map (a.cc:1)  5 tasks -> segments\n"
            "    stage 2  Op2 > Map (a.cc:2)  2 tasks -> segments  reads 1 all-to-all\n"
            "      stage 3  Op3 > Map (a.cc:3)  4 tasks -> files  reads 2 one-to-one, 2 one-to-one from task 2\n"
            "        stage 4  Op4 > Map (a.cc:4)  1 task -> commit  reads 3 gather\n"
            "  retires 77\n");
}

TEST(StageGraph, FirstDifferenceNamesTheOperator) {
  EXPECT_EQ(FirstDifference(Legal(), Legal()), "");
  struct Case {
    std::function<void(ActionPlan&)> change;
    const char* names;
  };
  const Case cases[] = {
      {[](ActionPlan& p) { p.sequence = 4; }, "the other at 4"},
      {[](ActionPlan& p) {
         p.stages[1].name = "Op2 > Filter (a.cc:2)";
         p.stages[1].fingerprint = 5;
       },
       "operator 2 is Map (a.cc:2) in one replica and Filter (a.cc:2)"},
      {[](ActionPlan& p) { p.stages[1].name = "Op2 > Map > Map (a.cc:2)"; },
       "operator 2 is Map (a.cc:2) in one replica and Map in the other"},
      {[](ActionPlan& p) { p.stages[1].fingerprint = 5; }, "stage 2 (Op2 > Map (a.cc:2)): same operators, but types"},
      {[](ActionPlan& p) { p.stages[1].tasks = 7; }, "2 tasks in one replica and 7"},
      {[](ActionPlan& p) { p.stages[2].id = StageId{11}; }, "more or fewer datasets"},
      {[](ActionPlan& p) { p.stages[2].inputs.pop_back(); }, "reads different stages"},
      {[](ActionPlan& p) { p.stages[0].input_bytes = {1, 2, 3, 4, 5}; }, "sizes of its input"},
      {[](ActionPlan& p) { p.stages[0].parts = 4; }, "its segments have 0 parts and 4"},
      {[](ActionPlan& p) { p.stages[0].earlier = true; }, "has listed it in one replica only"},
      {[](ActionPlan& p) { p.stages.pop_back(); }, "stage 4 (Op4 > Map (a.cc:4)) is in one replica only"},
      {[](ActionPlan& p) { p.retired.clear(); }, "let go of different"},
      {[](ActionPlan& p) { p.name = "Count (a.cc:9)"; }, "Count (a.cc:9)"},
      {[](ActionPlan& p) { p.fingerprint = 1; }, "fingerprints differ"},
  };
  for (const Case& c : cases) {
    ActionPlan other = Legal();
    c.change(other);
    EXPECT_NE(FirstDifference(Legal(), other).find(c.names), std::string::npos) << c.names << " / " << FirstDifference(Legal(), other);
  }
}

}  // namespace
}  // namespace ropewalk::dag
