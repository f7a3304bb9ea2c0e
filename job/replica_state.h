// What main's side of either backend keeps of the actions and Once values that it stands at.
//
// Thread rule: guarded by the backend's mutex.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "dag/backend.h"
#include "dag/operator_memory.h"
#include "worker/task/task_runner.h"

namespace ropewalk::job {

// Programs of stages. Those of segment stages live from the action that lists them first to the plan that retires them, since any action
// in between may need a lost block again; the others live as long as their action.
class Programs {
 public:
  // Takes the programs of a new action, and frees those that its plan retires.
  void Add(dag::Action* action, const dag::Settings& settings) {
    for (StageId stage : action->plan.retired) Free(stage);
    for (const dag::Stage& stage : action->plan.stages) {
      auto program = action->programs.find(stage.id);
      if (program == action->programs.end()) continue;
      if (stage.output != dag::StageOutput::kSegment) of_action_[action->plan.sequence].push_back(stage.id);
      programs_[stage.id] = {std::make_shared<const dag::StageProgram>(std::move(program->second)), stage.name,
                             dag::TaskMemoryBytes(stage, settings)};
    }
  }
  void Free(StageId stage) { programs_.erase(stage); }
  void EndAction(std::uint64_t sequence) {
    if (auto own = of_action_.extract(sequence); !own.empty())
      for (StageId stage : own.mapped()) Free(stage);
  }
  // Completes an order by the program and name of its stage. False when there is none (any more).
  bool Fill(task::TaskOrder* order) const {
    auto found = programs_.find(order->id.stage);
    if (found == programs_.end()) return false;
    order->program = found->second.program;
    order->stage_name = found->second.name;
    order->memory_bytes = found->second.memory_bytes;
    return true;
  }
  std::size_t size() const { return programs_.size(); }

 private:
  struct Named {
    std::shared_ptr<const dag::StageProgram> program;
    std::string name;
    std::uint64_t memory_bytes = 0;  // of one task
  };
  std::map<StageId, Named> programs_;
  std::map<std::uint64_t, std::vector<StageId>> of_action_;
};

// An action from Submit to the end of its Wait.
struct ActionState {
  bool answered = false;
  Status status;
  std::shared_ptr<const std::vector<std::string>> values;
  std::vector<StageId> cut;

  Result<std::vector<std::string>> TakeAnswer() const {
    if (!status.ok()) return status;
    return values != nullptr ? *values : std::vector<std::string>();
  }
};

// A Once that main waits for.
struct OnceState {
  bool compute = false;  // asked of the driver
  bool answered = false;
  Status status;
  std::string value;
};

}  // namespace ropewalk::job
