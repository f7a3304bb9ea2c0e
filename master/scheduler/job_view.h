// Read-only pictures of jobs and workers, for `job list|show`, explain, progress bars and the page. Plain values, copied out of the core.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace ropewalk::scheduler {

using TimeMs = std::int64_t;  // monotonic; its zero means nothing

enum class JobPhase : std::uint8_t { kPending = 0, kRunning = 1, kSucceeded = 2, kFailed = 3, kCancelled = 4 };
std::string_view PhaseName(JobPhase phase);  // "pending", "running", "succeeded", "failed", "cancelled"

struct StageView {
  StageId id;
  std::string name;
  std::uint32_t tasks = 0;
  std::uint32_t done = 0;  // output exists now
  std::uint32_t running = 0;
  std::uint32_t lost = 0;    // had an output that is gone
  std::uint32_t failed = 0;  // attempts that failed so far
};

struct JobView {
  JobId job;
  std::string name;
  std::string user;
  std::string submit_key;
  JobPhase phase = JobPhase::kPending;
  std::uint64_t version = 0;  // grows with each change
  Status status;              // why it failed or was cancelled
  std::int32_t main_exit = 0;
  std::uint64_t action = 0;  // sequence of the first action that is not complete; 0: main is between actions
  std::string action_name;
  std::uint64_t actions_done = 0;
  std::vector<StageView> stages;  // of that action
  std::uint32_t executors = 0;    // ready ones
  ExecutorId driver;
  std::int64_t submitted_us = 0;             // Settings::now_us
  TimeMs accepted_at = 0, finished_at = 0;   // the shell's clock, of this master's life; 0: not yet, or before it
  std::vector<std::string> pending_reasons;  // all that keep it from going on faster; empty when every ready task runs
  std::string plan_text;                     // dag::Explain of the action in progress (Job() only)
};

struct WorkerView {
  WorkerId worker;
  std::string name;
  std::string data_address;
  std::uint32_t slots = 0;
  std::uint32_t busy = 0;
  bool drained = false;
  TimeMs avoided_until = 0;
};

}  // namespace ropewalk::scheduler
