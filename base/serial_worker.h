// One thread that does blocking work in order, so that the control thread never waits for a disk. What is queued when it is destroyed is
// dropped, the work under way is waited for.
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

  // False when too much waits already.
  bool Post(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      if (queue_.size() >= queue_max_) return false;
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
    return true;
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
  }
  std::size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ropewalk
