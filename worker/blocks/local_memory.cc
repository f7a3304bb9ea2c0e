#include "worker/blocks/local_memory.h"

namespace ropewalk::blocks {

LocalMemory::LocalMemory(BlockStore& store)
    : borrower_(
          store.NewBorrower({.granted = [this](std::uint64_t ask, std::uint64_t bytes) { Granted(ask, bytes); }, .ask_back = [] {}})) {
}  // nothing rests here: the process's pool is one for tasks and segments

LocalMemory::~LocalMemory() { borrower_.reset(); }

Status LocalMemory::Take(std::uint64_t bytes, const std::atomic<bool>& cancelled) {
  std::unique_lock lock(mutex_);
  const std::uint64_t ask = next_ask_++;
  bool& granted = waiting_[ask];
  lock.unlock();
  Status asked = borrower_->Ask(ask, bytes);
  lock.lock();
  if (asked.ok()) changed_.wait(lock, [&] { return granted || cancelled.load(std::memory_order_relaxed); });
  const bool got_it = granted;
  waiting_.erase(ask);
  lock.unlock();
  if (got_it || !asked.ok()) return asked;  // granted and cancelled: the task looks by itself
  borrower_->Withdraw(ask);
  return Status(Code::kCancelled, "TASK01", "the attempt was cancelled while it waited for memory");
}

void LocalMemory::Give(std::uint64_t bytes) {
  borrower_->Rest(bytes);
  borrower_->LetGo(bytes);
}

void LocalMemory::Wake() {
  // Under the mutex, or a thread between its look at the flag and its sleep would miss it.
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void LocalMemory::Granted(std::uint64_t ask, std::uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (auto at = waiting_.find(ask); at != waiting_.end()) {
      at->second = true;
      changed_.notify_all();
      return;
    }
  }
  Give(bytes);  // its task was cancelled just before
}

}  // namespace ropewalk::blocks
