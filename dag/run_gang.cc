#include "dag/run_gang.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "dag/plan/actions.h"
#include "dag/session.h"

namespace ropewalk::dag {
namespace {

// The program's function must not be called when what it captured is gone, whichever way the program ends.
struct TakeBack {
  GangContext& gang;
  ~TakeBack() { gang.OnLost({}); }
};

StageProgram RankProgram(GangProgram program) {
  return [program = std::move(program)](TaskContext& context, TaskResult* result) -> Status {
    if (context.gang == nullptr) return Status(Code::kInternal, "GANG07", "a rank was started without its gang");
    TakeBack take_back{*context.gang};
    ASSIGN_OR_RETURN(result->value, program(*context.gang));
    if (context.gang->rank() != 0) result->value.clear();
    return {};
  };
}

}  // namespace

Result<std::string> RunGang(Session& job, const std::string& name, std::uint32_t ranks, GangProgram program, GangOptions options,
                            Site site) {
  if (ranks == 0 || ranks > kGangRanksMax)
    return Status(Code::kUserError, "GANG08", "the gang \"" + name + "\" (" + site.ToString() + ") of " + std::to_string(ranks) + " ranks",
                  "there are 1 to " + std::to_string(kGangRanksMax), "ask for another number of ranks");
  PlanContext& context = job.context();
  StageSpec ranks_spec;
  ranks_spec.output = StageOutput::kResult;
  ranks_spec.tasks = ranks;
  ranks_spec.gang = GangStage{options.placement_timeout_ms, options.spread, std::max(1u, options.attempts_max), options.restarts_max};
  ranks_spec.program = RankProgram(std::move(program));
  PlanNodePtr node = NewActionNode(job.shared_context(), "RunGang \"" + name + "\"", site, Checksum64(name));
  node->AddStage(std::move(ranks_spec));
  Planned planned = Plan(node);
  Result<std::vector<std::string>> values = context.backend().Submit(std::move(planned.action))->Wait();
  if (!values.ok()) return std::move(values).status();
  if (values->empty()) return Status(Code::kInternal, "GANG07", "the gang \"" + name + "\" gave no value");
  return std::move(values->front());
}

}  // namespace ropewalk::dag
