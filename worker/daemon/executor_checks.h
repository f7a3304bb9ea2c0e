// What an executor may say, given what was ordered of it. Executors run user code and are not trusted: a message that cannot be right ends
// the executor, one that merely came too late is dropped.
//
// Thread rule: a value of the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/status.h"
#include "worker/blocks/block_store.h"
#include "worker/task/task_runner.h"

namespace ropewalk::worker {

class ExecutorChecks {
 public:
  ExecutorChecks(JobId job, blocks::BlockStore* store) : job_(job), store_(store) {}

  enum class Verdict { kHello, kForward, kDrop };
  // Reads one serialised FromExecutor. kHello: the first message, to be answered with the welcome and passed on. kInvalid WORKER20: it
  // cannot be right; the executor must end. Progress is kept for TakeProgress(); where a rank has got farther by it, it is forwarded, too:
  // the next heartbeat may come after the rank's end, or not at all. Segments of attempts that ended without needing them are freed on the
  // way.
  Result<Verdict> OnMessage(const std::string& payload);

  // Notes what is ordered: one serialised ToExecutor on its way to the executor. kInvalid: it cannot be read (the master's fault).
  Status OnOrder(const std::string& payload);

  struct Progress {
    task::TaskCounters counters;
    std::string line;
    std::uint64_t reached = 0;
  };
  // What running tasks have said of themselves since the last call: for a heartbeat, until which ranks may say a little more of what they
  // measure.
  std::map<TaskAttempt, Progress> TakeProgress() {
    metrics_said_.clear();
    return std::exchange(progress_, {});
  }

  // The executor is gone: frees what its unfinished attempts left.
  void FreeLeftovers();

  bool welcomed() const { return welcomed_; }
  bool runs_ranks() const { return !ranks_.empty(); }
  bool knows(const TaskAttempt& id) const { return tasks_.count(id) > 0; }
  const std::map<TaskAttempt, bool>& tasks() const { return tasks_; }

 private:
  const JobId job_;
  blocks::BlockStore* const store_;
  bool welcomed_ = false, main_returned_ = false;
  std::uint64_t last_action_ = 0;
  std::map<TaskAttempt, bool> tasks_;                  // ordered, not ended -> is it a verifying run
  std::map<TaskAttempt, std::uint64_t> ranks_;         // those of them that are ranks of gangs -> what they have reached
  std::map<TaskAttempt, std::uint32_t> metrics_said_;  // by ranks, how often since the last heartbeat
  std::map<TaskAttempt, Progress> progress_;
};

}  // namespace ropewalk::worker
