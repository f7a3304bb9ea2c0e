// What all plan nodes of one job share: the backend, the counters that give equal ids in every replica, the list of stages that nobody can
// read any more, and what to do when an action fails.
//
// Thread rule: main's thread, which is the thread that made the context; building or acting elsewhere is the user's error and is reported.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/backend.h"

namespace ropewalk::dag {

// What a failed call does; it must not return. job/ prints the error and exits with its code, or throws PlanFailure; tests throw, too.
using FailHook = std::function<void(const Status&)>;

class PlanContext {
 public:
  PlanContext(Backend* backend, FailHook fail);

  Backend& backend() const { return *backend_; }
  const Settings& settings() const { return backend_->settings(); }

  std::uint64_t NextNodeId();
  std::uint64_t NextSequence() { return ++last_sequence_; }
  std::uint64_t last_sequence() const { return last_sequence_; }
  // Number of the next Broadcast, listing...: names Once values that the user did not name.
  std::uint64_t NextOnce() { return ++last_once_; }

  // Backend::Once; a failure ends the program.
  std::string Once(const std::string& name, const std::function<Result<std::string>()>& compute);

  // Files that datasets read: an output folder must not hold one of them.
  void AddInputPath(std::string path) { input_paths_.insert(std::move(path)); }
  std::vector<std::string> input_paths() const { return {input_paths_.begin(), input_paths_.end()}; }

  void Retire(StageId stage) { retired_.push_back(stage); }
  std::vector<StageId> TakeRetired();

  std::int64_t live_nodes() const { return live_nodes_; }
  void CountNode(int change) { live_nodes_ += change; }

  [[noreturn]] void Fail(const Status& status) const;
  bool OnMainThread() const;
  // Fails when the caller is not main's thread, or runs a function of Once, or the job has ended.
  void RequireMainThread(const char* doing) const;
  void Close() { closed_ = true; }

 private:
  Backend* backend_;
  FailHook fail_;
  std::uint64_t main_thread_;  // as gettid() gives it: a forked child has another
  std::uint64_t last_node_ = 0, last_sequence_ = 0, last_once_ = 0;
  std::int64_t live_nodes_ = 0;
  std::vector<StageId> retired_;
  std::set<std::string> input_paths_;
  bool closed_ = false;
};

// Reduce partitions when the user gave none: Settings::partitions, else a function of the slots that the plan is made for.
std::uint32_t DefaultPartitions(const Settings& settings);

}  // namespace ropewalk::dag
