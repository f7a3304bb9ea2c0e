// What runs actions. `dag` never starts anything: Init() in job/ hands it a backend, either the embedded one (scheduler
// core and task runner in this process) or an executor's link to the cluster.
//
// Thread rule: called from main's thread only; Wait() of different actions may be called from there in any order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/settings.h"
#include "dag/stage_graph.h"
#include "dag/task.h"

namespace ropewalk::dag {

struct Action {
  ActionPlan plan;
  std::unordered_map<StageId, StageProgram> programs;  // one for each stage of the plan; each attempt runs its own copy
};

class PendingAction {
 public:
  virtual ~PendingAction() = default;
  // The values of the last stage's tasks in task order. Blocks; in an executor it serves tasks meanwhile.
  virtual Result<std::vector<std::string>> Wait() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Settings& settings() const = 0;
  virtual std::unique_ptr<PendingAction> Submit(Action action) = 0;
  // The bytes that `compute` gave in the driver, once for the job and name; every replica gets the same. An error of
  // `compute` ends the job.
  virtual Result<std::string> Once(const std::string& name, const std::function<Result<std::string>()>& compute) = 0;
  // True where materialised output can no longer be lost (one process): lineage behind a computed cache may be dropped.
  virtual bool outputs_are_durable() const = 0;
};

}  // namespace ropewalk::dag
