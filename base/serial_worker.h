// One thread that does blocking work in order, so that the control thread never waits for a disk. What is queued when it is destroyed is
// dropped, the work under way is waited for. Short work goes before long work that waits, and holds it up by a few turns only.
//
// Thread rule: Post() from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ropewalk {

class SerialWorker {
 public:
  explicit SerialWorker(std::size_t queue_max) : queue_max_(queue_max), thread_([this] { Run(); }) {}
  ~SerialWorker() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  SerialWorker(const SerialWorker&) = delete;
  SerialWorker& operator=(const SerialWorker&) = delete;

  enum class Length { kAny, kShort };
  // False when too much waits already.
  bool Post(std::function<void()> work, Length length = Length::kAny) {
    {
      std::lock_guard lock(mutex_);
      if (queue_.size() + short_.size() >= queue_max_) return false;
      (length == Length::kShort ? short_ : queue_).push_back(std::move(work));
    }
    wake_.notify_one();
    return true;
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || !queue_.empty() || !short_.empty(); });
      if (stop_) return;
      const bool take_short = !short_.empty() && (queue_.empty() || in_row_ < kShortInRow);
      in_row_ = take_short ? in_row_ + 1 : 0;
      std::deque<std::function<void()>>& from = take_short ? short_ : queue_;
      std::function<void()> work = std::move(from.front());
      from.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
  }
  static constexpr int kShortInRow = 8;  // then one that may be long has its turn
  std::size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_, short_;
  int in_row_ = 0;  // short ones since the last long one
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ropewalk
