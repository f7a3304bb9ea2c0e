// Virtual time: one queue of things that will happen, ordered by (time, order of arrival). Time moves only by taking the next thing from
// it, so a run is a function of its seed.
//
// Owner: a simulation. Thread rule: single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace ropewalk::sim {

using TimeUs = std::int64_t;  // virtual, from 0

class EventQueue {
 public:
  using Act = std::function<void()>;
  struct Handle {  // names one entry, for Cancel()
    TimeUs at = -1;
    std::uint64_t sequence = 0;
  };

  TimeUs now() const { return now_; }
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  std::uint64_t steps() const { return steps_; }

  // Times in the past mean now.
  Handle At(TimeUs at, Act act) {
    if (at < now_) at = now_;
    Handle handle{at, next_++};
    entries_.emplace(std::pair(at, handle.sequence), std::move(act));
    return handle;
  }
  Handle After(TimeUs delay, Act act) { return At(now_ + delay, std::move(act)); }
  // False when it has happened or was cancelled before.
  bool Cancel(const Handle& handle) { return entries_.erase({handle.at, handle.sequence}) > 0; }

  // Takes the next entry; false when there is none at or before `end`.
  bool RunOne(TimeUs end) {
    auto first = entries_.begin();
    if (first == entries_.end() || first->first.first > end) return false;
    now_ = first->first.first;
    Act act = std::move(first->second);
    entries_.erase(first);
    ++steps_;
    act();
    return true;
  }
  // Until nothing is left at or before `end`, which is then the time. `steps_max` guards against a world that never comes to rest: false.
  bool RunUntil(TimeUs end, std::uint64_t steps_max = ~std::uint64_t{0}) {
    for (std::uint64_t n = 0; RunOne(end); ++n)
      if (n >= steps_max) return false;
    if (now_ < end) now_ = end;
    return true;
  }

 private:
  std::map<std::pair<TimeUs, std::uint64_t>, Act> entries_;
  TimeUs now_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace ropewalk::sim
