// Removes what jobs leave behind, one piece after another on a thread of its own: a folder of many files, or a file system that hangs,
// must not keep the control thread from its heartbeats.
//
// Thread rule: Do() from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ropewalk::worker {

class Janitor {
 public:
  Janitor();
  ~Janitor();  // does what was asked for, then returns
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  void Do(std::function<void()> work);  // must not throw; the queue is bounded by the jobs that end

 private:
  void Run();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ropewalk::worker
