// Group commit: records become durable in order, and what must not be done before is done after.
//
//   AddRecord(r1, sync) Then(a) AddRecord(r2, sync) Then(b) Then(c) │ one write and sync of r1, r2 │ a b c
//
// It syncs nothing but the journal and what Before() asks for, which has to be small: what jobs print, say, would hold up every decision.
//
// While one write is under way, what comes gathers for the next one; the control thread never waits. After a failed write nothing more is
// done: a failed sync is never retried, since nobody knows what reached the disk.
//
// Owner: the master. Thread rule: all methods on the loop's thread; `Write` runs on the committer's own thread, one at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "rpc/event_loop.h"

namespace ropewalk::master {

struct CommitBatch {
  std::vector<std::function<Status()>> before;  // in order, before the records
  std::vector<std::string> records;
  std::optional<std::vector<std::string>> snapshot;  // the whole state as it is after `records`
};

class Committer {
 public:
  struct Callbacks {
    std::function<Status(CommitBatch&)> write;           // on the committer's thread
    std::function<std::vector<std::string>()> snapshot;  // on the loop, between two Steps
    std::function<void(const Status&)> failed;           // on the loop, once
  };
  Committer(rpc::EventLoop& loop, Callbacks callbacks, std::uint64_t snapshot_records);
  ~Committer();  // waits for the write under way; what was not started is dropped, as by a crash

  void AddRecord(std::string bytes, bool sync);
  // On the committer's thread before the next record, and all after it, is written. If it fails, so has the write.
  void Before(std::function<Status()> act);
  void Then(std::function<void()> act);
  // Does what may be done now and starts a write when one is wanted. Called after each group of the above.
  void Pump();

  bool idle() const { return !in_flight_ && outbox_.empty() && pending_.empty(); }
  std::uint64_t commits() const { return commits_; }

 private:
  void StartCommit();
  void Finished(const Status& status);
  void Run();  // the thread

  rpc::EventLoop* loop_;
  Callbacks callbacks_;
  std::uint64_t snapshot_records_;

  struct Item {
    std::uint64_t needs = 0;  // number of the last synced record before it
    std::function<void()> act;
  };
  std::deque<Item> outbox_;
  std::vector<std::function<Status()>> before_;  // of pending_
  std::vector<std::string> pending_;
  std::size_t pending_bytes_ = 0;
  std::uint64_t added_ = 0;        // records so far
  std::uint64_t sync_wanted_ = 0;  // number of the last record that must be synced soon
  std::uint64_t durable_ = 0;
  std::uint64_t since_snapshot_ = 0;
  std::uint64_t commits_ = 0;
  bool scheduled_ = false;
  bool in_flight_ = false;
  bool pumping_ = false;
  bool failed_ = false;
  rpc::EventLoop::TimerId lazy_timer_ = 0;

  std::uint64_t flight_upto_ = 0;  // loop only
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<CommitBatch> flight_;  // under mutex_
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ropewalk::master
