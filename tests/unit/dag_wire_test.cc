#include "dag/wire/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/common.pb.h"
#include "proto/executor.pb.h"

namespace ropewalk::dag {
namespace {

template <class Message>
Message OverTheWire(const Message& message) {
  Message out;
  EXPECT_TRUE(out.ParseFromString(message.SerializeAsString()));
  return out;
}

ActionPlan SomePlan() {
  ActionPlan plan;
  plan.sequence = 7;
  plan.name = "WriteText (word_count.cc:9)";
  plan.fingerprint = ~0ull;
  plan.retired = {StageId{3}, StageId{5}};
  Stage map{.id = StageId{11}, .name = "map", .tasks = 3, .input_bytes = {1, 1ull << 40, 0}, .fingerprint = 99, .parts = 7};
  Stage reduce{.id = StageId{12}, .name = "reduce", .tasks = 0, .output = StageOutput::kFiles};
  reduce.inputs = {{StageId{11}, InputPattern::kAllToAll, 0}, {StageId{4}, InputPattern::kOneToOne, 17, 3}};
  Stage commit{.id = StageId{13}, .tasks = 1, .output = StageOutput::kCommit, .inputs = {{StageId{12}, InputPattern::kGather}}};
  Stage gang{.id = StageId{14}, .name = "gang", .tasks = 4, .output = StageOutput::kResult};
  gang.gang =
      GangStage{.placement_ms = 1ull << 40, .spread = true, .attempts_max = 2, .restarts_max = 9, .ranks_min = 3, .shrink_ms = 1ull << 41};
  plan.stages = {map, reduce, commit, gang};
  return plan;
}

TEST(Wire, PlanComesBackEqual) {
  wire::ActionPlan message;
  ToWire(SomePlan(), &message);
  auto plan = FromWire(OverTheWire(message));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(*plan, SomePlan());
}

TEST(Wire, StatusKeepsAllPartsAndBytesThatAreNotUtf8) {
  Status status(Code::kDataLoss, "IO03", "a\xff\xfe.gz", std::string("nul\0in it", 9), "fetch it again");
  wire::Failure message;
  ToWire(status, &message);
  Status back = FromWire(OverTheWire(message));
  EXPECT_EQ(back.code(), Code::kDataLoss);
  EXPECT_EQ(back.ToString(), status.ToString());
  ToWire(Status(), &message);
  EXPECT_EQ(message.ByteSizeLong(), 0u);
  EXPECT_TRUE(FromWire(message).ok());
  message.set_code(4711);
  EXPECT_EQ(FromWire(message).code(), Code::kInternal);
}

TEST(Wire, ImpossibleEnumsAndLengthsAreRefused) {
  wire::ActionPlan plan;
  ToWire(SomePlan(), &plan);
  wire::ActionPlan bad = plan;
  bad.mutable_stages(0)->set_output(4);
  EXPECT_EQ(FromWire(bad).status().tag(), "WIRE01");
  bad = plan;
  bad.mutable_stages(1)->mutable_inputs(0)->set_pattern(3);
  EXPECT_EQ(FromWire(bad).status().tag(), "WIRE01");
  bad = plan;
  bad.mutable_stages(0)->add_input_bytes(1);
  EXPECT_EQ(FromWire(bad).status().tag(), "WIRE01");
  wire::TaskInput input;
  input.set_pattern(9);
  EXPECT_EQ(FromWire(input).status().tag(), "WIRE01");
}

TEST(Wire, TaskInputAndSettingsComeBackEqual) {
  TaskInput input{.stage = StageId{4}, .pattern = InputPattern::kGather, .first_task = 2};
  input.segments = {{{StageId{1}, 2, 3}, SegmentId{9}, "127.0.0.1:99", 1ull << 33}};
  input.values = {"", std::string("\0\xff", 2)};
  input.winners = {{StageId{1}, 0, 1}, {StageId{1}, 1, 4}};
  wire::TaskInput message;
  ToWire(input, &message);
  auto back = FromWire(OverTheWire(message));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->stage, input.stage);
  EXPECT_EQ(back->pattern, input.pattern);
  EXPECT_EQ(back->first_task, input.first_task);
  EXPECT_EQ(back->segments, input.segments);
  EXPECT_EQ(back->values, input.values);
  EXPECT_EQ(back->winners, input.winners);

  Settings settings{.job = JobId{5}, .name = "n\xff", .seed = ~0ull, .now_us = -5, .slots = 3, .partitions = 7, .operator_bytes = 1};
  settings.verify = false;
  settings.work_dir = "/a b";
  wire::Settings w;
  ToWire(settings, &w);
  Settings s = FromWire(OverTheWire(w));
  EXPECT_EQ(s.job, settings.job);
  EXPECT_EQ(s.name, settings.name);
  EXPECT_EQ(s.seed, settings.seed);
  EXPECT_EQ(s.now_us, settings.now_us);
  EXPECT_EQ(s.slots, 3u);
  EXPECT_EQ(s.partitions, 7u);
  EXPECT_EQ(s.operator_bytes, 1u);
  EXPECT_EQ(s.split_bytes_max, settings.split_bytes_max);
  EXPECT_EQ(s.collect_bytes_max, settings.collect_bytes_max);
  EXPECT_EQ(s.user_attempts_max, settings.user_attempts_max);
  EXPECT_FALSE(s.verify);
  EXPECT_EQ(s.work_dir, settings.work_dir);
}

}  // namespace
}  // namespace ropewalk::dag
