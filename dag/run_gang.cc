#include "dag/run_gang.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "dag/gang_on_data.h"
#include "dag/plan/actions.h"
#include "dag/session.h"

namespace ropewalk::dag {
namespace {

// The program's function must not be called when what it captured is gone, whichever way the program ends.
struct TakeBack {
  GangContext& gang;
  ~TakeBack() { gang.OnLost({}); }
};

StageProgram RankProgram(GangDataProgram program) {
  return [program = std::move(program)](TaskContext& context, TaskResult* result) -> Status {
    if (context.gang == nullptr) return Status(Code::kInternal, "GANG07", "a rank was started without its gang");
    TakeBack take_back{*context.gang};
    ASSIGN_OR_RETURN(result->value, program(*context.gang, context));
    if (context.gang->rank() != 0) result->value.clear();
    return {};
  };
}

StageSpec RanksSpec(GangDataProgram program, const GangOptions& options) {
  StageSpec spec;
  spec.output = StageOutput::kResult;
  spec.gang = GangStage{options.placement_timeout_ms, options.spread,    std::max(1u, options.attempts_max),
                        options.restarts_max,         options.ranks_min, options.ranks_min == 0 ? 0 : options.shrink_after_ms};
  spec.program = RankProgram(std::move(program));
  return spec;
}

}  // namespace

Result<std::string> RunGang(Session& job, const std::string& name, std::uint32_t ranks, GangProgram program, GangOptions options,
                            Site site) {
  if (ranks == 0 || ranks > kGangRanksMax)
    return Status(Code::kUserError, "GANG08", "the gang \"" + name + "\" (" + site.ToString() + ") of " + std::to_string(ranks) + " ranks",
                  "there are 1 to " + std::to_string(kGangRanksMax), "ask for another number of ranks");
  if (options.ranks_min > ranks)
    return Status(Code::kUserError, "GANG08",
                  "the gang \"" + name + "\" (" + site.ToString() + ") of " + std::to_string(ranks) + " ranks, " +
                      std::to_string(options.ranks_min) + " at least",
                  "ranks_min is the number that it may shrink to", "ask for at most as many as there are ranks, or 0 for all");
  PlanContext& context = job.context();
  StageSpec ranks_spec = RanksSpec([program = std::move(program)](GangContext& gang, TaskContext&) { return program(gang); }, options);
  ranks_spec.tasks = ranks;
  PlanNodePtr node = NewActionNode(job.shared_context(), "RunGang \"" + name + "\"", site, Checksum64(name));
  node->AddStage(std::move(ranks_spec));
  Planned planned = Plan(node);
  Result<std::vector<std::string>> values = context.backend().Submit(std::move(planned.action))->Wait();
  if (!values.ok()) return std::move(values).status();
  if (values->empty()) return Status(Code::kInternal, "GANG07", "the gang \"" + name + "\" gave no value");
  return std::move(values->front());
}

GangData::GangData(std::shared_ptr<PlanContext> context, std::string op, std::uint32_t ranks, Site site, std::uint64_t fingerprint)
    : op_(std::move(op)), fingerprint_(fingerprint) {
  context->RequireMainThread("build a dataset");
  PlanNode::Options options{.op = "ForRanks", .site = site, .partitions = ranks, .fingerprint = fingerprint};
  node_ = std::make_shared<PlanNode>(std::move(context), std::move(options));
}

StageId GangData::AddInput(StageSpec spec) {
  spec.side = static_cast<std::uint32_t>(node_->stages().size());
  spec.parts = 1;
  spec.read_as = InputPattern::kAllToAll;
  const StageId stage = node_->stage_id(spec.side);
  node_->AddStage(std::move(spec));
  return stage;
}

std::string GangData::Run(GangDataProgram program, GangOptions options) {
  StageSpec ranks_spec = RanksSpec(std::move(program), options);
  ranks_spec.from = node_;
  PlanNodePtr action = NewActionNode(node_->context(), op_, node_->site(), fingerprint_);
  node_.reset();
  action->AddStage(std::move(ranks_spec));
  RunningAction running(action);
  std::shared_ptr<PlanContext> plan = action->context();
  std::vector<std::string> values = running.Wait();
  if (values.empty()) plan->Fail(Status(Code::kInternal, "GANG07", "the gang \"" + op_ + "\" gave no value"));
  return std::move(values.front());
}

}  // namespace ropewalk::dag
