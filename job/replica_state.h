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

// An action from Submit to the end of its Wait.
struct ActionState {
  std::map<StageId, std::shared_ptr<const dag::StageProgram>> programs;
  std::map<StageId, std::string> names;
  std::map<StageId, std::uint64_t> memory_bytes;  // of one task
  bool answered = false;
  Status status;
  std::shared_ptr<const std::vector<std::string>> values;

  ActionState(dag::Action* action, const dag::Settings& settings) {
    for (auto& [stage, program] : action->programs) programs.emplace(stage, std::make_shared<const dag::StageProgram>(std::move(program)));
    for (const dag::Stage& stage : action->plan.stages) {
      names.emplace(stage.id, stage.name);
      memory_bytes.emplace(stage.id, dag::TaskMemoryBytes(stage, settings));
    }
  }

  // Completes an order by the program and name of its stage. False when the action has none such: our bug.
  bool Fill(task::TaskOrder* order) const {
    auto program = programs.find(order->id.stage);
    auto name = names.find(order->id.stage);
    if (program == programs.end() || name == names.end()) return false;
    order->program = program->second;
    order->stage_name = name->second;
    order->memory_bytes = memory_bytes.at(order->id.stage);
    return true;
  }

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
