#include "worker/task/copy_segment.h"

namespace ropewalk::task {

dag::StageProgram CopySegment(std::uint32_t parts) {
  return [parts](dag::TaskContext& context, dag::TaskResult* result) -> Status {
    if (context.inputs.size() != 1 || context.inputs[0].segments.size() != 1)
      return Status(Code::kInternal, "COPY01", "a copy was ordered of " + std::to_string(context.inputs.size()) + " inputs",
                    "it takes one segment");
    ASSIGN_OR_RETURN(std::unique_ptr<dag::SegmentWriter> copy, context.segments->NewDurableSegment(context.id, parts));
    ASSIGN_OR_RETURN(std::unique_ptr<dag::ExtentStream> extents, context.blocks->Open(context.inputs[0].segments[0], 0, parts));
    for (;;) {
      if (context.Cancelled()) return Status(Code::kCancelled, "COPY02", "the copy was cancelled");
      ASSIGN_OR_RETURN(std::optional<dag::Extent> extent, extents->Next());
      if (!extent) break;
      RETURN_IF_ERROR(copy->Append(extent->part, extent->bytes, extent->records));
    }
    ASSIGN_OR_RETURN(dag::SegmentInfo info, copy->Seal());
    result->segment = info;
    result->content_hash = info.content_hash;
    return {};
  };
}

}  // namespace ropewalk::task
