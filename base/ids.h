// Strong identifiers. Two ids of different kinds never compare or convert, so a stage cannot be passed where a job is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace ropewalk {

template <class Tag>
struct Id {
  std::uint64_t value = 0;  // 0 means "none"
  explicit operator bool() const { return value != 0; }
  friend auto operator<=>(const Id&, const Id&) = default;
};

using JobId = Id<struct JobTag>;            // given by the master, never used twice
using WorkerId = Id<struct WorkerTag>;      // one for each registration of a worker daemon
using ExecutorId = Id<struct ExecutorTag>;  // one for each executor process
using StageId = Id<struct StageTag>;        // the plan node whose output the stage makes; the same in every executor of a job
using SegmentId = Id<struct SegmentTag>;    // unique within the worker daemon that owns the segment

// One attempt of one task. `attempt` counts up over the whole life of the job, so no number is used twice after a restart.
struct TaskAttempt {
  StageId stage;
  std::uint32_t task = 0;
  std::uint32_t attempt = 0;
  friend auto operator<=>(const TaskAttempt&, const TaskAttempt&) = default;
};

}  // namespace ropewalk

template <class Tag>
struct std::hash<ropewalk::Id<Tag>> {
  std::size_t operator()(const ropewalk::Id<Tag>& id) const noexcept { return id.value * 0x9e3779b97f4a7c15ull; }
};
