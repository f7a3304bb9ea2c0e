// Virtual time: one queue of things that will happen, ordered by (time, order of arrival). Time moves only by taking the next thing from
// it, so a run is a function of its seed.
//
// A binary heap whose entries name slots. What is cancelled leaves its slot empty and its entry in the heap until its time comes, or until
// such entries are more than the others: then all of them go at once.
//
// Owner: a simulation. Thread rule: single-threaded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace ropewalk::sim {

using TimeUs = std::int64_t;  // virtual, from 0

class EventQueue {
 public:
  using Act = std::function<void()>;
  struct Handle {  // names one entry, for Cancel()
    std::uint32_t slot = 0;
    std::uint64_t sequence = ~std::uint64_t{0};
  };

  TimeUs now() const { return now_; }
  bool empty() const { return live_ == 0; }
  std::size_t size() const { return live_; }
  std::uint64_t steps() const { return steps_; }

  // Times in the past mean now.
  Handle At(TimeUs at, Act act) {
    if (at < now_) at = now_;
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot] = {std::move(act), next_};
    heap_.push_back({at, next_, slot});
    std::push_heap(heap_.begin(), heap_.end(), IsLater);
    ++live_;
    return {slot, next_++};
  }
  Handle After(TimeUs delay, Act act) { return At(now_ + delay, std::move(act)); }
  // False when it has happened or was cancelled before.
  bool Cancel(const Handle& handle) {
    if (handle.slot >= slots_.size() || slots_[handle.slot].sequence != handle.sequence) return false;
    slots_[handle.slot] = {};
    --live_;
    if (heap_.size() > 2 * live_ + 64) DropCancelled();
    return true;
  }

  // Takes the next entry; false when there is none at or before `end`.
  bool RunOne(TimeUs end) {
    while (!heap_.empty() && IsCancelled(heap_.front())) free_.push_back(Pop());
    if (heap_.empty() || heap_.front().at > end) return false;
    now_ = heap_.front().at;
    const std::uint32_t slot = Pop();
    Act act = std::move(slots_[slot].act);
    slots_[slot] = {};
    free_.push_back(slot);
    --live_;
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
  struct Entry {
    TimeUs at;
    std::uint64_t sequence;
    std::uint32_t slot;
  };
  struct Slot {
    Act act;
    std::uint64_t sequence = ~std::uint64_t{0};  // none
  };
  static bool IsLater(const Entry& a, const Entry& b) { return a.at != b.at ? a.at > b.at : a.sequence > b.sequence; }
  // A slot is given away again only when its entry is gone.
  bool IsCancelled(const Entry& entry) const { return slots_[entry.slot].sequence != entry.sequence; }
  std::uint32_t Pop() {
    const std::uint32_t slot = heap_.front().slot;
    std::pop_heap(heap_.begin(), heap_.end(), IsLater);
    heap_.pop_back();
    return slot;
  }
  void DropCancelled() {
    auto kept = std::partition(heap_.begin(), heap_.end(), [this](const Entry& entry) { return !IsCancelled(entry); });
    for (auto dead = kept; dead != heap_.end(); ++dead) free_.push_back(dead->slot);
    heap_.erase(kept, heap_.end());
    std::make_heap(heap_.begin(), heap_.end(), IsLater);  // what comes first is the same: no two entries are equal
  }

  std::vector<Entry> heap_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::size_t live_ = 0;
  TimeUs now_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace ropewalk::sim
