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

struct TaskCounters {
  std::uint64_t records_in = 0, bytes_in = 0, records_out = 0, bytes_out = 0, bytes_spilled = 0;
};
// All of them.
inline constexpr std::uint64_t TaskCounters::* kTaskCounts[] = {
    &TaskCounters::records_in, &TaskCounters::bytes_in, &TaskCounters::records_out, &TaskCounters::bytes_out, &TaskCounters::bytes_spilled};

struct StageView {
  StageId id;
  std::string name;
  std::uint32_t tasks = 0;
  std::uint32_t done = 0;  // output exists now
  std::uint32_t running = 0;
  std::uint32_t lost = 0;              // had an output that is gone
  std::uint32_t failed = 0;            // attempts that failed so far
  std::uint32_t running_permille = 0;  // how far the running tasks are, added up; only where the sizes of their inputs are known
  std::uint64_t ms = 0;                // from its first task's start to its last task's end, or to now
  TaskCounters counters;               // of each task once, however often it was run; of a running one so far
};

// An action that is over (or the job ended in it), as `explain` shows it.
struct ActionView {
  std::uint64_t sequence = 0;
  std::string name;
  std::string plan_text;  // dag::Explain; cut where it is too long
  bool published = false;
  std::vector<StageView> stages;
};

// A worker that a job lost, with how many tasks' work: outputs that lay there, and what was running.
struct LostWorker {
  std::string name;
  std::uint32_t tasks = 0;
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
  std::vector<StageView> stages;     // of that action
  std::vector<ActionView> past;      // the last actions before it, oldest first, as many as are kept (Job() only)
  std::uint64_t past_forgotten = 0;  // older ones that are not
  std::uint32_t executors = 0;       // ready ones
  ExecutorId driver;
  std::uint64_t workers_lost = 0;        // in this life of the master, or before its end as it was journalled
  std::vector<LostWorker> lost_workers;  // the last of them
  std::vector<std::string> argv;         // what main was called with; empty: a journal of an older version says no more
  std::vector<std::string> outputs;      // folders that were published, the last ones
  // Microseconds since 1970. `started`: its first executor was ready; 0: not yet, or before a restart of the master. `finished` 0: not yet,
  // or a journal of version 1 says so.
  std::int64_t submitted_us = 0, started_us = 0, finished_us = 0;
  std::vector<std::string> pending_reasons;  // all that keep it from going on faster; empty when every ready task runs
  std::string plan_text;                     // dag::Explain of the action in progress (Job() only)
  std::string note;                          // what rank 0 of its gang said last
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
