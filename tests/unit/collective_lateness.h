// Deadlines on a machine that others use, too: what is promised is asserted, and beside it only as much time as the machine itself was late
// meanwhile.
//
// Thread rule: starts a thread of its own, which does nothing but sleep; the rest from one thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace ropewalk::collective::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::int64_t kSlower = 4;
#else
inline constexpr std::int64_t kSlower = 1;
#endif

// Since it was made: how much later than it had asked for a thread that only sleeps has run again, in all.
class Lateness {
 public:
  Lateness()
      : thread_([this] {
          using Clock = std::chrono::steady_clock;
          constexpr auto kSleep = std::chrono::milliseconds(4);
          while (!stop_.load()) {
            const auto began = Clock::now();
            std::this_thread::sleep_for(kSleep);
            const auto late = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began - kSleep);
            late_us_ += std::max<std::int64_t>(late.count(), 0);
          }
        }) {}
  ~Lateness() {
    stop_ = true;
    thread_.join();
  }
  Lateness(const Lateness&) = delete;
  Lateness& operator=(const Lateness&) = delete;

  // What may be taken for a promise of `promised_ms`: each of the few threads that have to run for it may have been as late.
  std::int64_t Allowed(std::int64_t promised_ms) const { return promised_ms * kSlower + 4 * late_us_.load() / 1'000; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> late_us_{0};
  std::thread thread_;
};

}  // namespace ropewalk::collective::testing
