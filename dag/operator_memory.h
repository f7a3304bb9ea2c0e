// How much memory operators may take, as plan constants: chosen once from the workers that a job is planned for, journalled with the job,
// and never looked at again. A worker grants a task what its stage declares here before the task runs, so that pressure delays tasks and
// does not move the points at which operators flush: block bytes stay a function of records and plan.
//
// Thread rule: pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "dag/settings.h"
#include "dag/stage_graph.h"

namespace ropewalk::dag {

inline constexpr std::uint64_t kOperatorBytesMin = 1ull << 20, kOperatorBytesMax = 256ull << 20;
inline constexpr std::uint64_t kTaskBytesBase = 8ull << 20;  // read and write buffers, partition buffers

// Settings::operator_bytes for workers of `memory_bytes` and `slots`: tasks in all slots, each with an operator that reads a shuffle and
// one that writes one, take half of the memory; the other half is for segments. A power of two, as what operators allocate is.
inline std::uint64_t OperatorBytesFor(std::uint64_t memory_bytes, std::uint32_t slots) {
  return std::clamp(std::bit_floor(memory_bytes / (8 * std::uint64_t(std::max(slots, 1u)))), kOperatorBytesMin, kOperatorBytesMax);
}

// What one task of the stage needs at most, user code aside. A table or buffer grows by doubling: while it moves it holds twice what
// counts. A rank borrows nothing: it would wait for memory while the others wait for it.
inline std::uint64_t TaskMemoryBytes(const Stage& stage, const Settings& settings) {
  if (stage.gang) return 0;
  const bool reads_shuffle = std::any_of(stage.inputs.begin(), stage.inputs.end(),
                                         [](const StageInput& input) { return input.pattern == InputPattern::kAllToAll; });
  const bool writes_segment = stage.output == StageOutput::kSegment;
  return kTaskBytesBase + 2 * settings.operator_bytes * ((reads_shuffle ? 1u : 0u) + (writes_segment ? 1u : 0u));
}

// The largest that TaskMemoryBytes() gives.
inline std::uint64_t LargestTaskBytes(const Settings& settings) { return kTaskBytesBase + 4 * settings.operator_bytes; }

// For all streams of an executor that read from other workers ahead of its tasks.
inline std::uint64_t ReadAheadBytes(const Settings& settings, std::uint32_t slots) {
  return std::clamp<std::uint64_t>(settings.operator_bytes / 2 * slots, 4ull << 20, 256ull << 20);
}

}  // namespace ropewalk::dag
