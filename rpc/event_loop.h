// The one thread of a control plane: sockets (rpc/server.h), timers, signals and work posted from other threads, in order, without locks.
//
// Thread rule: Post() and Stop() from any thread; all else from the thread that calls Run() (or before it).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace ropewalk::rpc {

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();  // what was posted and did not run is dropped
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Run();  // until Stop()
  void Stop();
  // `work` runs after everything that is ready now: what is posted while a burst of messages is handled sees the whole burst.
  void Post(std::function<void()> work);

  using TimerId = std::uint64_t;  // 0: none
  TimerId At(std::int64_t time_ms, std::function<void()> work);
  TimerId After(std::int64_t delay_ms, std::function<void()> work);
  void Cancel(TimerId timer);  // unknown or fired ones are ignored

  // From now on these signals call `handler` on the loop instead of their default.
  void OnSignals(const std::vector<int>& signals, std::function<void(int)> handler);

  static std::int64_t NowMs();  // monotonic, never 0

  struct Impl;  // rpc/asio_loop.h, for the .cc files of rpc/
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::rpc
