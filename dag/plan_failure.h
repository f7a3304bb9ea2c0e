// What a failed call of a plan throws on a task's thread, where nothing may end the program: the task runner makes it the task's failure.
// No std::exception, so that user code which catches those lets it pass.
//
// Thread rule: a value.
#pragma once

#include "base/status.h"

namespace ropewalk::dag {

struct PlanFailure {
  Status status;
};

}  // namespace ropewalk::dag
