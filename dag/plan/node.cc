#include "dag/plan/node.h"

#include <string_view>
#include <utility>

#include "base/hash.h"
#include "dag/plan/context.h"

namespace ropewalk::dag {

std::string Site::ToString() const {
  std::string_view name(file);
  if (std::size_t slash = name.rfind('/'); slash != std::string_view::npos) name.remove_prefix(slash + 1);
  return std::string(name) + ":" + std::to_string(line);
}

PlanNode::PlanNode(std::shared_ptr<PlanContext> context, Options options)
    : context_(std::move(context)), options_(std::move(options)), id_(context_->NextNodeId()) {
  if (options_.label.empty()) options_.label = options_.op;
  fingerprint_ = HashCombine(Checksum64(options_.op), options_.fingerprint);
  fingerprint_ = HashCombine(fingerprint_, Checksum64(options_.site.ToString()));
  fingerprint_ = HashCombine(fingerprint_, options_.partitions);
  for (const PlanNodePtr& parent : options_.parents) fingerprint_ = HashCombine(fingerprint_, parent->fingerprint());
  context_->CountNode(+1);
}

void PlanNode::AddStage(StageSpec spec) {
  fingerprint_ = HashCombine(fingerprint_, HashCombine(spec.fingerprint, spec.from ? spec.from->fingerprint() : 0));
  stages_.push_back(std::move(spec));
}

namespace {
// Moves what `node` owns of other nodes to `out`.
void TakeOwned(std::vector<PlanNodePtr>& parents, std::vector<StageSpec>& stages, std::vector<PlanNodePtr>* out) {
  for (PlanNodePtr& parent : parents) out->push_back(std::move(parent));
  parents.clear();
  for (StageSpec& stage : stages)
    if (stage.from) out->push_back(std::move(stage.from));
}
}  // namespace

PlanNode::~PlanNode() {
  // A dataset that a lambda captured may die with a task's copy of it, at any time in any thread: then its stages stay to the end of the
  // job, since what is retired must be the same in every replica.
  if (context_->OnMainThread()) {
    if (planned_) {
      for (const StageSpec& stage : stages_) context_->Retire(stage_id(stage.side));
    }
    context_->CountNode(-1);
  }
  // A lineage may be 10,000 nodes deep: take it apart in a loop, not by a destructor that calls itself.
  std::vector<PlanNodePtr> owned;
  TakeOwned(options_.parents, stages_, &owned);
  while (!owned.empty()) {
    PlanNodePtr node = std::move(owned.back());
    owned.pop_back();
    if (node.use_count() == 1) TakeOwned(node->options_.parents, node->stages_, &owned);
  }
}

void PlanNode::DropLineage(StageId which) {
  for (StageSpec& stage : stages_) {
    if (stage.from == nullptr || stage_id(stage.side) != which) continue;
    stage.tasks = stage.from->partitions();
    PlanNodePtr let_go = std::exchange(stage.from, nullptr);
    stage.program = [op = options_.op](TaskContext& context, TaskResult*) {
      return Status(Code::kInternal, "PLAN02",
                    op + " task " + std::to_string(context.id.task) + ": its output was dropped although it was durable");
    };
  }
}

}  // namespace ropewalk::dag
