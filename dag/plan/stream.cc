#include "dag/plan/stream.h"

#include <string>

namespace ropewalk::dag {

namespace {
constexpr const char* kStopTag = "STOP";
}

Status StopEarly() { return Status(Code::kCancelled, kStopTag, "the reader has all it needs"); }
bool IsStopEarly(const Status& status) { return status.code() == Code::kCancelled && status.tag() == kStopTag; }

Result<const TaskInput*> FindInput(const TaskContext& context, StageId stage, std::uint32_t partition) {
  for (const TaskInput& input : context.inputs) {
    if (input.stage != stage) continue;
    // One stage may be read several times (a union of a dataset with itself): the offset tells which.
    if (input.first_task != context.id.task - partition) continue;
    return &input;
  }
  return Status(Code::kInternal, "PLAN03",
                "task " + std::to_string(context.id.task) + " of stage " + std::to_string(context.id.stage.value) +
                    " has no input of stage " + std::to_string(stage.value));
}

Status SealInto(TaskContext& context, SegmentWriter& segment, TaskResult* result) {
  ASSIGN_OR_RETURN(SegmentInfo info, segment.Seal());
  if (context.progress != nullptr) {
    context.progress->records_out.fetch_add(info.records, std::memory_order_relaxed);
    context.progress->bytes_out.fetch_add(info.bytes, std::memory_order_relaxed);
  }
  result->content_hash = info.content_hash;
  result->segment = info;
  return {};
}

}  // namespace ropewalk::dag
