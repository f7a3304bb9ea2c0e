#include "master/scheduler/checkpoint.h"

#include <algorithm>

namespace ropewalk::scheduler {

bool WorthCheckpoint(const CheckpointRule& rule, const CheckpointCase& c) {
  if (!rule.enabled || c.tasks == 0) return false;
  if (c.depth >= rule.depth_max) return true;
  // Too little was copied to tell its speed from the overhead of the tasks.
  constexpr std::uint64_t kMeasuredMs = 100;
  std::uint64_t bytes_per_ms = c.copied_ms >= kMeasuredMs ? c.copied_bytes / c.copied_ms : rule.write_bytes_per_ms;
  std::uint64_t write_ms = c.bytes / std::max<std::uint64_t>(bytes_per_ms, 1) + std::uint64_t{c.tasks} * rule.task_overhead_ms;
  return c.recompute_ms / 1000 * rule.loss_per_mille + c.recompute_ms % 1000 * rule.loss_per_mille / 1000 > write_ms;
}

}  // namespace ropewalk::scheduler
