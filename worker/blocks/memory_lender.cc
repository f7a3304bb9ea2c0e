// Lends memory to tasks out of the store's budget: see MemoryBorrower.
#include <glog/logging.h>

#include <algorithm>
#include <chrono>

#include "worker/blocks/block_state.h"

namespace ropewalk::blocks {
namespace {

constexpr std::size_t kAsksOfBorrowerMax = 1024;
constexpr auto kAnswerTime = std::chrono::milliseconds(500);  // for a borrower to let go of what rests with it
constexpr auto kDiskPause = std::chrono::milliseconds(500);   // after a spill that failed

}  // namespace

struct StoreState::Borrower {
  BorrowerHandlers handlers;
  std::mutex calling;   // held while a handler runs; taken before StoreState::mutex
  bool closed = false;  // under `calling`
  // Under StoreState::mutex.
  std::uint64_t in_use_bytes = 0, resting_bytes = 0;
  std::size_t asks = 0;
  bool asked_back = false;
};

namespace {

class BorrowerImpl final : public MemoryBorrower {
 public:
  BorrowerImpl(std::shared_ptr<StoreState> state, std::shared_ptr<StoreState::Borrower> borrower)
      : state_(std::move(state)), borrower_(std::move(borrower)) {}

  ~BorrowerImpl() override {
    {
      std::lock_guard calling(borrower_->calling);
      borrower_->closed = true;
    }
    std::lock_guard lock(state_->mutex);
    std::erase_if(state_->asks, [this](const StoreState::Ask& ask) { return ask.by == borrower_; });
    std::uint64_t bytes = borrower_->in_use_bytes + borrower_->resting_bytes;
    state_->in_use_bytes -= borrower_->in_use_bytes;
    state_->stats.lent_bytes -= bytes;
    state_->stats.memory_bytes -= bytes;
    borrower_->in_use_bytes = borrower_->resting_bytes = 0;
    state_->borrowers.erase(borrower_);
    state_->Freed();
  }

  Status Ask(std::uint64_t id, std::uint64_t bytes) override {
    std::lock_guard lock(state_->mutex);
    if (borrower_->asks >= kAsksOfBorrowerMax)
      return Status(Code::kResourceExhausted, "BLK36", "too many tasks of one executor wait for memory",
                    "each ask is kept until it is answered", "run fewer tasks at a time (--slots)");
    ++borrower_->asks;
    state_->asks.push_back({borrower_, id, bytes});
    state_->freed.notify_all();
    return {};
  }

  void Withdraw(std::uint64_t id) override {
    std::lock_guard lock(state_->mutex);
    borrower_->asks -= std::erase_if(state_->asks, [&](const StoreState::Ask& ask) { return ask.by == borrower_ && ask.id == id; });
    state_->freed.notify_all();  // it may have been the first in line
  }

  void Rest(std::uint64_t bytes) override {
    std::lock_guard lock(state_->mutex);
    bytes = std::min(bytes, borrower_->in_use_bytes);  // said by a process that is not trusted
    borrower_->in_use_bytes -= bytes;
    borrower_->resting_bytes += bytes;
    state_->in_use_bytes -= bytes;
    state_->Freed();
  }

  void LetGo(std::uint64_t bytes) override {
    std::lock_guard lock(state_->mutex);
    bytes = std::min(bytes, borrower_->resting_bytes);
    borrower_->asked_back = false;
    borrower_->resting_bytes -= bytes;
    state_->stats.lent_bytes -= bytes;
    state_->stats.memory_bytes -= bytes;
    state_->Freed();
  }

 private:
  const std::shared_ptr<StoreState> state_;
  const std::shared_ptr<StoreState::Borrower> borrower_;
};

}  // namespace

std::unique_ptr<MemoryBorrower> StoreState::NewBorrower(BorrowerHandlers handlers) {
  auto borrower = std::make_shared<Borrower>();
  borrower->handlers = std::move(handlers);
  std::lock_guard lock(mutex);
  borrowers.insert(borrower);
  if (!lender.joinable()) lender = std::thread([this] { Lend(); });  // the store joins it before it lets go of us
  return std::make_unique<BorrowerImpl>(shared_from_this(), std::move(borrower));
}

void StoreState::Lend() {
  std::unique_lock lock(mutex);
  while (true) {
    freed.wait(lock, [this] { return lending_ends || !asks.empty(); });
    if (lending_ends) return;
    Ask head = asks.front();
    if (!TryGrant(head, false) && (MakeRoom(lock, head) || asks.empty() || asks.front().by != head.by || asks.front().id != head.id ||
                                   in_use_bytes > 0 || !TryGrant(head, true)))
      continue;
    asks.pop_front();
    --head.by->asks;
    lock.unlock();
    {
      std::lock_guard calling(head.by->calling);
      if (!head.by->closed) head.by->handlers.granted(head.id, head.bytes);
    }
    head = Ask();
    lock.lock();
  }
}

bool StoreState::TryGrant(const Ask& ask, bool beyond_budget) {
  std::uint64_t warm = std::min(ask.by->resting_bytes, ask.bytes);
  std::uint64_t fresh = ask.bytes - warm;
  bool fits = fresh == 0 || stats.memory_bytes + fresh <= options.memory_bytes_max;
  if (!fits && !beyond_budget) return false;
  if (!fits) {
    ++stats.lent_beyond_total;
    LOG_EVERY_N(WARNING, 100) << "a task that needs " << ask.bytes << " bytes runs alone, beyond the budget of "
                              << options.memory_bytes_max;
  }
  ask.by->resting_bytes -= warm;
  ask.by->in_use_bytes += ask.bytes;
  in_use_bytes += ask.bytes;
  stats.lent_bytes += fresh;
  stats.memory_bytes += fresh;
  stats.memory_bytes_peak = std::max(stats.memory_bytes_peak, stats.memory_bytes);
  return true;
}

// One step towards room for the head of the line, or a wait for somebody else's. False: nothing more can be done, and no task runs.
bool StoreState::MakeRoom(std::unique_lock<std::mutex>& lock, const Ask& head) {
  if (!lru.empty()) {
    Status status = SpillOne(lock, segments.at(lru.front()->info.segment));
    if (status.ok()) return true;
    LOG_EVERY_N(WARNING, 20) << "cannot spill to lend memory to a task: " << status.ToString();
    if (in_use_bytes == 0) return false;
    freed.wait_for(lock, kDiskPause);
    return true;
  }
  std::vector<std::shared_ptr<Borrower>> resting;
  bool answers_missing = false;
  for (const std::shared_ptr<Borrower>& borrower : borrowers) {
    if (borrower == head.by || borrower->resting_bytes == 0) continue;
    answers_missing |= borrower->asked_back;
    if (!std::exchange(borrower->asked_back, true)) resting.push_back(borrower);
  }
  if (!resting.empty()) {
    lock.unlock();
    for (const std::shared_ptr<Borrower>& borrower : resting) {
      std::lock_guard calling(borrower->calling);
      if (!borrower->closed) borrower->handlers.ask_back();
    }
    resting.clear();
    lock.lock();
    return true;
  }
  if (spills_running > 0) {
    spilled.wait(lock);  // another thread is about to give memory back
    return true;
  }
  if (in_use_bytes > 0) {
    freed.wait(lock);
    return true;
  }
  // Who does not answer must not stop the others.
  return answers_missing && freed.wait_for(lock, kAnswerTime) == std::cv_status::no_timeout;
}

}  // namespace ropewalk::blocks
