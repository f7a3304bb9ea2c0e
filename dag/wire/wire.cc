#include "dag/wire/wire.h"

#include <utility>

#include "proto/common.pb.h"

namespace ropewalk::dag {
namespace {

constexpr std::uint32_t kCodeMax = static_cast<std::uint32_t>(Code::kInternal);
constexpr std::uint32_t kPatternMax = static_cast<std::uint32_t>(InputPattern::kGather);
constexpr std::uint32_t kOutputMax = static_cast<std::uint32_t>(StageOutput::kCommit);

Status Bad(std::string field) {
  return {Code::kInvalid, "WIRE01", "message with an impossible " + std::move(field), "the peer is damaged or of an unknown version",
          "run the same version of ropewalk on both sides"};
}

Result<StageInput> FromWire(const wire::StageInput& in) {
  if (in.pattern() > kPatternMax) return Bad("StageInput.pattern " + std::to_string(in.pattern()));
  return StageInput{StageId{in.stage()}, static_cast<InputPattern>(in.pattern()), in.first_task(), in.tasks()};
}

}  // namespace

void ToWire(const Status& status, wire::Failure* out) {
  out->Clear();
  if (status.ok()) return;
  out->set_code(static_cast<std::uint32_t>(status.code()));
  out->set_tag(status.tag());
  out->set_what(status.what());
  out->set_why(status.why());
  out->set_fix(status.fix());
}

Status FromWire(const wire::Failure& failure) {
  if (failure.code() == 0) return {};
  Code code = failure.code() <= kCodeMax ? static_cast<Code>(failure.code()) : Code::kInternal;
  return {code, failure.tag(), failure.what(), failure.why(), failure.fix()};
}

void ToWire(const Settings& settings, wire::Settings* out) {
  out->Clear();
  out->set_job(settings.job.value);
  out->set_name(settings.name);
  out->set_seed(settings.seed);
  out->set_now_us(settings.now_us);
  out->set_slots(settings.slots);
  out->set_partitions(settings.partitions);
  out->set_operator_bytes(settings.operator_bytes);
  out->set_split_bytes_max(settings.split_bytes_max);
  out->set_collect_bytes_max(settings.collect_bytes_max);
  out->set_user_attempts_max(settings.user_attempts_max);
  out->set_verify(settings.verify);
  out->set_work_dir(settings.work_dir);
}

Settings FromWire(const wire::Settings& in) {
  Settings out;
  out.job = JobId{in.job()};
  out.name = in.name();
  out.seed = in.seed();
  out.now_us = in.now_us();
  out.slots = in.slots();
  out.partitions = in.partitions();
  // Zero is no size that anybody can mean: an unset field keeps the default.
  if (in.operator_bytes() != 0) out.operator_bytes = in.operator_bytes();
  if (in.split_bytes_max() != 0) out.split_bytes_max = in.split_bytes_max();
  if (in.collect_bytes_max() != 0) out.collect_bytes_max = in.collect_bytes_max();
  if (in.user_attempts_max() != 0) out.user_attempts_max = in.user_attempts_max();
  out.verify = in.verify();
  out.work_dir = in.work_dir();
  return out;
}

void ToWire(const TaskAttempt& id, wire::TaskAttempt* out) {
  out->set_stage(id.stage.value);
  out->set_task(id.task);
  out->set_attempt(id.attempt);
}

TaskAttempt FromWire(const wire::TaskAttempt& id) { return {StageId{id.stage()}, id.task(), id.attempt()}; }

void ToWire(const SegmentRef& ref, wire::SegmentRef* out) {
  ToWire(ref.producer, out->mutable_producer());
  out->set_segment(ref.segment.value);
  out->set_location(ref.location);
  out->set_bytes(ref.bytes);
}

SegmentRef FromWire(const wire::SegmentRef& ref) {
  return {FromWire(ref.producer()), SegmentId{ref.segment()}, ref.location(), ref.bytes()};
}

void ToWire(const SegmentInfo& info, wire::SegmentInfo* out) {
  out->set_segment(info.segment.value);
  out->set_bytes(info.bytes);
  out->set_records(info.records);
  out->set_content_hash(info.content_hash);
}

SegmentInfo FromWire(const wire::SegmentInfo& info) {
  return {SegmentId{info.segment()}, info.bytes(), info.records(), info.content_hash()};
}

void ToWire(const TaskProgress& progress, wire::TaskCounters* out) {
  out->set_records_in(progress.records_in.load(std::memory_order_relaxed));
  out->set_bytes_in(progress.bytes_in.load(std::memory_order_relaxed));
  out->set_records_out(progress.records_out.load(std::memory_order_relaxed));
  out->set_bytes_out(progress.bytes_out.load(std::memory_order_relaxed));
  out->set_bytes_spilled(progress.bytes_spilled.load(std::memory_order_relaxed));
}

void ToWire(const Stage& stage, wire::Stage* out) {
  out->Clear();
  out->set_id(stage.id.value);
  out->set_name(stage.name);
  out->set_tasks(stage.tasks);
  out->set_output(static_cast<std::uint32_t>(stage.output));
  for (const StageInput& input : stage.inputs) {
    wire::StageInput* w = out->add_inputs();
    w->set_stage(input.stage.value);
    w->set_pattern(static_cast<std::uint32_t>(input.pattern));
    w->set_first_task(input.first_task);
    w->set_tasks(input.tasks);
  }
  out->mutable_input_bytes()->Add(stage.input_bytes.begin(), stage.input_bytes.end());
  out->set_fingerprint(stage.fingerprint);
  out->set_parts(stage.parts);
  out->set_earlier(stage.earlier);
  if (stage.gang) {
    out->mutable_gang()->set_placement_ms(stage.gang->placement_ms);
    out->mutable_gang()->set_spread(stage.gang->spread);
    out->mutable_gang()->set_attempts_max(stage.gang->attempts_max);
    out->mutable_gang()->set_restarts_max(stage.gang->restarts_max);
    out->mutable_gang()->set_ranks_min(stage.gang->ranks_min);
    out->mutable_gang()->set_shrink_ms(stage.gang->shrink_ms);
  }
}

Result<Stage> FromWire(const wire::Stage& in) {
  if (in.output() > kOutputMax) return Bad("Stage.output " + std::to_string(in.output()));
  if (in.input_bytes_size() != 0 && static_cast<std::uint32_t>(in.input_bytes_size()) != in.tasks()) return Bad("Stage.input_bytes length");
  Stage out;
  out.id = StageId{in.id()};
  out.name = in.name();
  out.tasks = in.tasks();
  out.output = static_cast<StageOutput>(in.output());
  for (const wire::StageInput& w : in.inputs()) {
    ASSIGN_OR_RETURN(StageInput input, FromWire(w));
    out.inputs.push_back(input);
  }
  out.input_bytes.assign(in.input_bytes().begin(), in.input_bytes().end());
  out.fingerprint = in.fingerprint();
  out.parts = in.parts();
  out.earlier = in.earlier();
  if (in.has_gang())
    out.gang = GangStage{in.gang().placement_ms(), in.gang().spread(),    in.gang().attempts_max(),
                         in.gang().restarts_max(), in.gang().ranks_min(), in.gang().shrink_ms()};
  return out;
}

void ToWire(const ActionPlan& plan, wire::ActionPlan* out) {
  out->Clear();
  out->set_sequence(plan.sequence);
  out->set_name(plan.name);
  for (const Stage& stage : plan.stages) ToWire(stage, out->add_stages());
  for (StageId id : plan.retired) out->add_retired(id.value);
  out->set_fingerprint(plan.fingerprint);
  if (plan.output) {
    out->mutable_output()->set_folder(plan.output->folder);
    out->mutable_output()->set_key(plan.output->key);
  }
}

Result<ActionPlan> FromWire(const wire::ActionPlan& in) {
  ActionPlan out;
  out.sequence = in.sequence();
  out.name = in.name();
  out.stages.reserve(in.stages_size());
  for (const wire::Stage& w : in.stages()) {
    ASSIGN_OR_RETURN(Stage stage, FromWire(w));
    out.stages.push_back(std::move(stage));
  }
  for (std::uint64_t id : in.retired()) out.retired.push_back(StageId{id});
  out.fingerprint = in.fingerprint();
  if (in.has_output()) out.output = OutputPlace{in.output().folder(), in.output().key()};
  return out;
}

void ToWire(const TaskInput& input, wire::TaskInput* out) {
  out->Clear();
  out->set_stage(input.stage.value);
  out->set_pattern(static_cast<std::uint32_t>(input.pattern));
  out->set_first_task(input.first_task);
  for (const SegmentRef& ref : input.segments) ToWire(ref, out->add_segments());
  for (const std::string& value : input.values) out->add_values(value);
  for (const TaskAttempt& winner : input.winners) ToWire(winner, out->add_winners());
}

Result<TaskInput> FromWire(const wire::TaskInput& in) {
  if (in.pattern() > kPatternMax) return Bad("TaskInput.pattern " + std::to_string(in.pattern()));
  TaskInput out;
  out.stage = StageId{in.stage()};
  out.pattern = static_cast<InputPattern>(in.pattern());
  out.first_task = in.first_task();
  out.segments.reserve(in.segments_size());
  for (const wire::SegmentRef& ref : in.segments()) out.segments.push_back(FromWire(ref));
  out.values.assign(in.values().begin(), in.values().end());
  out.winners.reserve(in.winners_size());
  for (const wire::TaskAttempt& winner : in.winners()) out.winners.push_back(FromWire(winner));
  return out;
}

}  // namespace ropewalk::dag
