// When a stage's output is worth a second copy: a pure rule over measured numbers.
//
//   checkpoint  <=>  P(loss) x time to make it again with its ancestors  >  time to write it        or the lineage is too deep
//
// Thread rule: pure functions of values.
#pragma once

#include <cstdint>

namespace ropewalk::scheduler {

struct CheckpointRule {
  bool enabled = true;
  // Stages from a checkpoint (or a source) to this one: bounds what a loss may cost, what main and master keep, and the length of error
  // chains, whatever the costs are.
  std::uint32_t depth_max = 16;
  std::uint32_t loss_per_mille = 10;           // P: that a part of the output is lost while it is needed
  std::uint64_t write_bytes_per_ms = 100'000;  // until copies of the job were measured
  std::uint64_t task_overhead_ms = 20;         // of a copy, besides its bytes: order, sync, report
};

struct CheckpointCase {
  std::uint32_t depth = 0;
  std::uint32_t tasks = 0;
  std::uint64_t bytes = 0;         // of all segments; 0: not made yet
  std::uint64_t recompute_ms = 0;  // of all tasks down to the nearest checkpoints; 0: not known yet
  std::uint64_t copied_bytes = 0;  // measured: copies of the job so far
  std::uint64_t copied_ms = 0;
};

bool WorthCheckpoint(const CheckpointRule& rule, const CheckpointCase& c);

}  // namespace ropewalk::scheduler
