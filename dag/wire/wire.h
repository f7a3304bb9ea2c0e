// Plain structs of dag/ as wire messages and back. Used by master, worker and job alike, so that a field has one translation.
//
// ToWire overwrites the whole message. FromWire never trusts: enums are checked for range and lists for their lengths; what cannot be
// right is kInvalid WIRE01 and names the field. It does not prove a plan legal (dag::Check does).
//
// Thread rule: pure functions.
#pragma once

#include "base/status.h"
#include "dag/settings.h"
#include "dag/stage_graph.h"
#include "dag/task.h"

namespace ropewalk::wire {  // generated classes: proto/common.pb.h, for .cc files only
class Failure;
class Settings;
class TaskAttempt;
class SegmentRef;
class SegmentInfo;
class TaskCounters;
class Stage;
class ActionPlan;
class TaskInput;
}  // namespace ropewalk::wire

namespace ropewalk::dag {

void ToWire(const Status& status, wire::Failure* out);  // OK: an empty message
Status FromWire(const wire::Failure& failure);          // unknown codes become kInternal and keep their text

void ToWire(const Settings& settings, wire::Settings* out);
Settings FromWire(const wire::Settings& settings);

void ToWire(const TaskAttempt& id, wire::TaskAttempt* out);
TaskAttempt FromWire(const wire::TaskAttempt& id);

void ToWire(const SegmentRef& ref, wire::SegmentRef* out);
SegmentRef FromWire(const wire::SegmentRef& ref);

void ToWire(const SegmentInfo& info, wire::SegmentInfo* out);
SegmentInfo FromWire(const wire::SegmentInfo& info);

void ToWire(const TaskProgress& progress, wire::TaskCounters* out);

void ToWire(const Stage& stage, wire::Stage* out);
Result<Stage> FromWire(const wire::Stage& stage);

void ToWire(const ActionPlan& plan, wire::ActionPlan* out);
Result<ActionPlan> FromWire(const wire::ActionPlan& plan);

void ToWire(const TaskInput& input, wire::TaskInput* out);
Result<TaskInput> FromWire(const wire::TaskInput& input);

}  // namespace ropewalk::dag
