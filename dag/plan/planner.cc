#include "dag/plan/planner.h"

#include <algorithm>
#include <exception>
#include <unordered_set>
#include <utility>

#include "base/hash.h"

namespace ropewalk::dag {
namespace {

struct Border {
  PlanNode* node;
  std::uint32_t offset;  // partition 0 of `node` is this partition of the stage
};

// The borders that a stage reads when its tasks stream `from`, in order, and the size hint of each task.
void FindBorders(PlanNode* from, std::vector<Border>* borders, std::vector<std::uint64_t>* bytes) {
  std::vector<Border> open = {{from, 0}};
  bool hints = false;
  bytes->assign(from->partitions(), 0);
  while (!open.empty()) {
    Border at = open.back();
    open.pop_back();
    if (at.node->is_border()) {
      borders->push_back(at);
      continue;
    }
    const std::vector<std::uint64_t>& sizes = at.node->partition_bytes();
    hints |= !sizes.empty();
    std::copy(sizes.begin(), sizes.end(), bytes->begin() + at.offset);
    std::uint32_t end = at.offset + at.node->partitions();
    for (auto parent = at.node->parents().rbegin(); parent != at.node->parents().rend(); ++parent) {
      end -= (*parent)->partitions();
      open.push_back({parent->get(), end});
    }
  }
  if (!hints) bytes->clear();
}

class Planner {
 public:
  explicit Planner(ActionPlan* plan, std::unordered_map<StageId, StageProgram>* programs) : plan_(plan), programs_(programs) {}

  // Adds the stages of `root` and of all it needs, inputs first. An explicit stack: lineage may be deep.
  void Add(const PlanNodePtr& root) {
    struct Frame {
      PlanNode* node;
      bool expanded;
    };
    std::vector<Frame> open = {{root.get(), false}};
    while (!open.empty()) {
      Frame& frame = open.back();
      PlanNode* node = frame.node;
      if (done_.contains(node)) {
        open.pop_back();
        continue;
      }
      if (frame.expanded) {
        open.pop_back();
        done_.insert(node);
        order_.push_back(node->shared_from_this());
        node->MarkPlanned();
        for (const StageSpec& spec : node->stages()) AddStage(*node, spec);
        continue;
      }
      if (node->planned()) {
        open.pop_back();
        done_.insert(node);
        order_.push_back(node->shared_from_this());
        for (const StageSpec& spec : node->stages()) AddLeaf(*node, spec);
        continue;
      }
      frame.expanded = true;
      std::vector<PlanNode*> needed;
      for (const StageSpec& spec : node->stages()) {
        if (spec.from == nullptr) continue;
        std::vector<Border> borders;
        std::vector<std::uint64_t> bytes;
        FindBorders(spec.from.get(), &borders, &bytes);
        for (const Border& border : borders) needed.push_back(border.node);
      }
      for (auto border = needed.rbegin(); border != needed.rend(); ++border) open.push_back({*border, false});
    }
  }

  std::vector<PlanNodePtr> TakeOrder() { return std::move(order_); }

 private:
  // A stage that an earlier action has listed. Its name, which begins with what it was made from, is known there.
  void AddLeaf(const PlanNode& node, const StageSpec& spec) {
    Stage stage;
    stage.id = node.stage_id(spec.side);
    stage.output = spec.output;
    stage.tasks = spec.from != nullptr ? spec.from->partitions() : spec.tasks;
    stage.name = node.op() + " (" + node.site().ToString() + ")";
    stage.fingerprint = HashCombine(node.fingerprint(), spec.side);
    stage.parts = spec.parts;
    stage.earlier = true;
    plan_->stages.push_back(std::move(stage));
  }

  void AddStage(const PlanNode& node, const StageSpec& spec) {
    Stage stage;
    stage.id = node.stage_id(spec.side);
    stage.output = spec.output;
    stage.tasks = spec.tasks;
    stage.parts = spec.parts;
    stage.gang = spec.gang;
    std::string begin;
    if (spec.from != nullptr) {
      stage.tasks = spec.from->partitions();
      begin = spec.from->label();
      std::vector<Border> borders;
      FindBorders(spec.from.get(), &borders, &stage.input_bytes);
      for (const Border& border : borders) AddInputs(border, stage.tasks, &stage.inputs);
    }
    for (const StageInput& input : spec.gathers) stage.inputs.push_back(input);
    stage.name =
        begin + spec.operators + (begin.empty() && spec.operators.empty() ? "" : " > ") + node.op() + " (" + node.site().ToString() + ")";
    stage.fingerprint = HashCombine(node.fingerprint(), spec.side);
    programs_->emplace(stage.id, spec.program);
    plan_->stages.push_back(std::move(stage));
  }

  static void AddInputs(const Border& border, std::uint32_t tasks, std::vector<StageInput>* inputs) {
    if (border.node->partitions() == 0) return;  // nobody reads it
    for (const StageSpec& spec : border.node->stages()) {
      StageInput input{border.node->stage_id(spec.side), spec.read_as, border.offset, 0};
      // In a union each member is read by its own tasks: the others' messages do not grow with it.
      if (border.node->partitions() != tasks) input.tasks = border.node->partitions();
      if (std::find(inputs->begin(), inputs->end(), input) == inputs->end()) inputs->push_back(input);
    }
  }

  ActionPlan* plan_;
  std::unordered_map<StageId, StageProgram>* programs_;
  std::unordered_set<const PlanNode*> done_;
  std::vector<PlanNodePtr> order_;
};

std::uint64_t FingerprintOf(const ActionPlan& plan) {
  std::uint64_t hash = HashCombine(plan.sequence, Checksum64(plan.name));
  for (const Stage& stage : plan.stages) {
    hash = HashCombine(hash, stage.id.value);
    hash = HashCombine(hash, Checksum64(stage.name));
    hash = HashCombine(hash, std::uint64_t{stage.tasks} << 8 | static_cast<std::uint64_t>(stage.output));
    for (const StageInput& input : stage.inputs) {
      hash = HashCombine(hash, input.stage.value);
      hash = HashCombine(hash, std::uint64_t{input.first_task} << 8 | static_cast<std::uint64_t>(input.pattern));
      hash = HashCombine(hash, input.tasks);
    }
    for (std::uint64_t bytes : stage.input_bytes) hash = HashCombine(hash, bytes);
    hash = HashCombine(hash, stage.fingerprint);
    hash = HashCombine(hash, std::uint64_t{stage.parts} << 1 | std::uint64_t{stage.earlier});
    if (stage.gang) {
      hash = HashCombine(hash, stage.gang->placement_ms << 1 | std::uint64_t{stage.gang->spread});
      hash = HashCombine(hash, std::uint64_t{stage.gang->attempts_max} << 32 | stage.gang->restarts_max);
      hash = HashCombine(HashCombine(hash, stage.gang->ranks_min), stage.gang->shrink_ms);
    }
  }
  return hash;
}

}  // namespace

Planned Plan(const PlanNodePtr& action) {
  PlanContext& context = *action->context();
  context.RequireMainThread("run an action");
  Planned planned;
  ActionPlan& plan = planned.action.plan;
  plan.sequence = context.NextSequence();
  plan.name = action->op() + " (" + action->site().ToString() + ")";
  plan.output = action->output();
  plan.retired = context.TakeRetired();
  Planner planner(&plan, &planned.action.programs);
  planner.Add(action);
  planned.borders = planner.TakeOrder();
  plan.fingerprint = FingerprintOf(plan);
  if (Status status = Check(plan); !status.ok()) context.Fail(status);
  return planned;
}

RunningAction::RunningAction(PlanNodePtr action, std::function<void()> on_failure)
    : node_(std::move(action)), on_failure_(std::move(on_failure)) {
  Planned planned = Plan(node_);
  borders_ = std::move(planned.borders);
  pending_ = node_->context()->backend().Submit(std::move(planned.action));
}

RunningAction& RunningAction::operator=(RunningAction&& other) {
  if (this != &other) {
    if (valid()) Wait();
    node_ = std::move(other.node_);
    borders_ = std::move(other.borders_);
    pending_ = std::move(other.pending_);
    on_failure_ = std::move(other.on_failure_);
  }
  return *this;
}

RunningAction::~RunningAction() noexcept(false) {
  if (valid() && std::uncaught_exceptions() == 0) Wait();
}

std::vector<std::string> RunningAction::Wait() {
  PlanNodePtr node = std::exchange(node_, nullptr);
  std::vector<PlanNodePtr> borders = std::exchange(borders_, {});
  std::unique_ptr<PendingAction> pending = std::move(pending_);
  std::shared_ptr<PlanContext> context = node->context();
  context->RequireMainThread("wait for an action");
  Result<std::vector<std::string>> values = pending->Wait();
  if (!values.ok()) {
    if (on_failure_) on_failure_();
    context->Fail(values.status());
  }
  // What cannot be lost any more needs no ancestors: letting them go keeps loops of any length flat.
  const std::vector<StageId> cut = pending->cut();
  const std::unordered_set<StageId> durable(cut.begin(), cut.end());
  for (const PlanNodePtr& border : borders) {
    for (std::size_t i = 0; i < border->stages().size(); ++i) {
      StageId stage = border->stage_id(border->stages()[i].side);
      if (durable.contains(stage)) border->DropLineage(stage);
    }
  }
  return *std::move(values);
}

}  // namespace ropewalk::dag
