// From plan nodes to an Action: walks from the action's stages to the borders that no earlier action has listed, lists stages with inputs
// first, collects their programs, what may be retired, and fingerprints. Borders of earlier actions are leaves: named, not walked through,
// so that an action costs what is new in it.
//
// Thread rule: main's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dag/backend.h"
#include "dag/plan/context.h"
#include "dag/plan/node.h"

namespace ropewalk::dag {

// Cuts the plan of `action`, a node whose stages are the action's own (the last of them gives the result). Takes a sequence number and
// what was retired since the last action. The plan passes Check(), or Fail() ends the program.
struct Planned {
  Action action;
  std::vector<PlanNodePtr> borders;  // whose stages are in the plan
};
Planned Plan(const PlanNodePtr& action);

// An action in flight. Keeps its nodes alive until the result is there, so that no later action retires what this one reads.
class RunningAction {
 public:
  RunningAction() = default;
  // Plans and submits. `on_failure` tidies up before a failure ends the program.
  explicit RunningAction(PlanNodePtr action, std::function<void()> on_failure = nullptr);
  RunningAction(RunningAction&&) = default;
  RunningAction& operator=(RunningAction&& other);
  ~RunningAction() noexcept(false);  // waits: every replica must see the same order of actions

  // Values of the last stage's tasks in task order; a failed action ends the program (PlanContext::Fail). Once.
  std::vector<std::string> Wait();
  bool valid() const { return node_ != nullptr; }

 private:
  PlanNodePtr node_;
  std::vector<PlanNodePtr> borders_;
  std::unique_ptr<PendingAction> pending_;
  std::function<void()> on_failure_;
};

}  // namespace ropewalk::dag
