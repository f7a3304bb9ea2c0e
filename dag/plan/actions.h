// What actions share: an accumulator runs at the end of a fused pipe in each task, its bytes go to main, main merges them in task order.
//
// Thread rule: programs as StageProgram; the rest main's thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "dag/pipe.h"
#include "dag/plan/context.h"
#include "dag/plan/node.h"
#include "dag/plan/planner.h"
#include "dag/written.h"
#include "storage/output_folder.h"

namespace ropewalk::dag {

// The node of an action; its stages are added by the caller, the last one gives the result.
PlanNodePtr NewActionNode(const std::shared_ptr<PlanContext>& context, std::string op, Site site, std::uint64_t fingerprint);

// A task of a result stage. An accumulator takes items, says after each batch whether to go on (status(), StopEarly()), and Finish() gives
// the task's value.
template <class Pipe, class Make>
StageProgram ResultProgram(StreamPtr<typename Pipe::Flow> source, Pipe pipe, Make make) {
  return [source = std::move(source), pipe = std::move(pipe), make = std::move(make)](TaskContext& context, TaskResult* result) -> Status {
    auto accumulator = make(context);
    RETURN_IF_ERROR(ForgiveStop(RunPipe(*source, pipe, context, context.id.task, accumulator, [&] { return accumulator.status(); })));
    ASSIGN_OR_RETURN(result->value, accumulator.Finish());
    result->content_hash = Checksum64(result->value);
    return {};
  };
}

// Values of Collect and its kin may not outgrow Settings::collect_bytes_max: in a task its own, in main the sum.
Status CollectTooLarge(const Settings& settings, const std::string& op);

// A damaged result value: our bug or a damaged journal.
Status DamagedResult(const std::string& op);

// Adds the two stages of an output folder to `action`: one part for each task of `write`, then the commit, whose value says what was
// written.
void AddOutputStages(PlanNode& action, StageSpec write, const storage::OutputSpec& spec);
// That value.
Result<Written> DecodeWritten(std::string_view bytes);

// The spec of an output folder that is written by `action`, checked (by the driver) before any work. Ends the program when refused.
storage::OutputSpec CheckedOutput(PlanNode& action, const std::string& folder, bool overwrite);

}  // namespace ropewalk::dag
