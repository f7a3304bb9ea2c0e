// What groups of a communicator's ranks have in common with it: who is in which, and the news of lost ranks that come from outside.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::collective {

// What a rank says of where it goes; a negative colour: nowhere.
struct Going {
  std::int64_t color = -1, key = 0;
};

// The ranks that go where `rank` goes, itself too, as the group counts them: by key, then by rank. Empty if it goes nowhere. Pure.
std::vector<std::int32_t> GroupOf(std::span<const Going> going, std::int32_t rank);

// " (of the group of the gang's ranks 1, 3)": what a group's statuses say of its ranks' numbers.
std::string OfGroup(std::span<const std::int32_t> members);

// Who watches the gang (its master) tells of a loss once, and to one function; all communicators of the gang hear of it here.
//
// Owner: they together. Thread rule: any thread.
class Losses {
 public:
  using Told = std::function<void(const Status&)>;

  // `on_lost` as in Rendezvous; it may be empty, and is taken back at the end.
  explicit Losses(std::function<void(Told)> on_lost);
  ~Losses();
  Losses(const Losses&) = delete;
  Losses& operator=(const Losses&) = delete;

  // `told` is called from any thread, at once if a rank is lost already. When Remove() has returned it is not called any more.
  void Add(const void* who, Told told);
  void Remove(const void* who);

 private:
  const std::function<void(Told)> on_lost_;
  std::mutex mutex_;
  Status why_;
  std::map<const void*, Told> told_;
};

}  // namespace ropewalk::collective
