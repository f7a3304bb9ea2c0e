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
  // One for each new stage of the plan; each attempt runs its own copy. Those of segment stages are kept until a later plan retires the
  // stage: a lost block may have to be made again for any action until then.
  std::unordered_map<StageId, StageProgram> programs;
};

class PendingAction {
 public:
  virtual ~PendingAction() = default;
  // The values of the last stage's tasks in task order. Blocks; in an executor it serves tasks meanwhile.
  virtual Result<std::vector<std::string>> Wait() = 0;
  // After Wait(): stages of the plan whose output can no longer be lost; the same in every replica. Main lets go of what they were made
  // from, and no later action needs their programs.
  virtual std::vector<StageId> cut() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Settings& settings() const = 0;
  virtual std::unique_ptr<PendingAction> Submit(Action action) = 0;
  // The bytes that `compute` gave in the driver, once for the job and name; every replica gets the same. An error of
  // `compute` ends the job.
  virtual Result<std::string> Once(const std::string& name, const std::function<Result<std::string>()>& compute) = 0;
  // True where the job is this process and ends with it; on a cluster it outlives each of its processes.
  virtual bool in_one_process() const = 0;
};

}  // namespace ropewalk::dag
