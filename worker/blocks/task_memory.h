// Where the runner gets a task's memory from before it runs the task. What a task needs is a plan constant (dag/operator_memory.h), so a
// grant that comes late or early changes when a task runs and never what it writes.
//
// Thread rule: any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace ropewalk::blocks {

class TaskMemory {
 public:
  virtual ~TaskMemory() = default;
  // Waits until `bytes` are granted. kCancelled TASK01 when `cancelled` is set meanwhile; kUnavailable when the lender is gone.
  virtual Status Take(std::uint64_t bytes, const std::atomic<bool>& cancelled) = 0;
  virtual void Give(std::uint64_t bytes) = 0;  // what Take got
  virtual void Wake() = 0;                     // some `cancelled` was set
};

}  // namespace ropewalk::blocks
