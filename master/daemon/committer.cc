#include "master/daemon/committer.h"

#include <utility>

namespace ropewalk::master {
namespace {
// Records that nobody waits for reach the disk soon all the same, so that a crash costs little work.
constexpr std::int64_t kLazyMs = 200;
constexpr std::size_t kLazyBytes = 1 << 20;
}  // namespace

Committer::Committer(rpc::EventLoop& loop, Callbacks callbacks, std::uint64_t snapshot_records)
    : loop_(&loop), callbacks_(std::move(callbacks)), snapshot_records_(snapshot_records), thread_([this] { Run(); }) {}

Committer::~Committer() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (lazy_timer_ != 0) loop_->Cancel(lazy_timer_);
}

void Committer::AddRecord(std::string bytes, bool sync) {
  ++added_;
  if (sync) sync_wanted_ = added_;
  pending_bytes_ += bytes.size();
  pending_.push_back(std::move(bytes));
}

void Committer::Before(std::function<Status()> act) { before_.push_back(std::move(act)); }

void Committer::Then(std::function<void()> act) { outbox_.push_back({sync_wanted_, std::move(act)}); }

void Committer::Pump() {
  if (pumping_ || failed_) return;
  pumping_ = true;
  while (!outbox_.empty() && outbox_.front().needs <= durable_) {
    std::function<void()> act = std::move(outbox_.front().act);
    outbox_.pop_front();
    act();
  }
  pumping_ = false;
  const bool wanted = sync_wanted_ > durable_ || pending_bytes_ >= kLazyBytes;
  if (wanted && !in_flight_ && !scheduled_) {
    // Posted, so that a burst of messages shares one sync.
    scheduled_ = true;
    loop_->Post([this] { StartCommit(); });
  } else if (!pending_.empty() && lazy_timer_ == 0) {
    lazy_timer_ = loop_->After(kLazyMs, [this] {
      lazy_timer_ = 0;
      StartCommit();
    });
  }
}

void Committer::StartCommit() {
  scheduled_ = false;
  if (in_flight_ || failed_ || pending_.empty()) return;
  if (lazy_timer_ != 0) loop_->Cancel(std::exchange(lazy_timer_, 0));
  CommitBatch batch;
  since_snapshot_ += pending_.size();
  batch.before = std::exchange(before_, {});
  batch.records = std::exchange(pending_, {});
  pending_bytes_ = 0;
  flight_upto_ = added_;
  if (since_snapshot_ >= snapshot_records_ && callbacks_.snapshot) {
    batch.snapshot = callbacks_.snapshot();
    since_snapshot_ = 0;
  }
  in_flight_ = true;
  {
    std::lock_guard lock(mutex_);
    flight_ = std::move(batch);
  }
  wake_.notify_one();
}

void Committer::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || flight_.has_value(); });
    if (stop_) return;
    CommitBatch batch = *std::exchange(flight_, std::nullopt);
    lock.unlock();
    Status status;
    for (const std::function<Status()>& act : batch.before)
      if (status.ok()) status = act();
    if (status.ok()) status = callbacks_.write(batch);
    loop_->Post([this, status] { Finished(status); });
    lock.lock();
  }
}

void Committer::Finished(const Status& status) {
  in_flight_ = false;
  ++commits_;
  if (!status.ok()) {
    failed_ = true;
    callbacks_.failed(status);
    return;
  }
  durable_ = flight_upto_;
  Pump();
}

}  // namespace ropewalk::master
