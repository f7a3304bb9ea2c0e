// The ranks of gangs that run in this process: what GangContext promises, on top of what a backend hears from the master.
//
//   rank's thread   Exchange ─▶ say(bytes) ─▶ ... master ... ─▶ Gathered ─▶ Exchange returns
//   backend         Lose(rank, why) ─▶ Exchange returns `why`; its OnLost function is called by the teller's thread
//
// Functions given to OnLost are called from a thread of this object alone: a backend may hear of a loss in any thread, in the rank's own
// too, where user code may hold its locks.
//
// Thread rule: methods from any thread; `say` and `farther` are called without a lock held, from the rank's threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "dag/gang.h"
#include "dag/task.h"
#include "storage/metrics.h"

namespace ropewalk::job {

inline constexpr std::size_t kExchangeBytesMax = 64 << 10;
inline constexpr std::size_t kReportBytesMax = 200;

class GangRanks {
 public:
  using Say = std::function<void(const TaskAttempt& id, std::uint32_t epoch, std::uint64_t round, std::string bytes)>;

  // A rank has got farther than it had said before: what SaidBy() says now is worth telling at once. Ten times a second at most; what comes
  // sooner is told with the next word of the rank, or of its end.
  using Farther = std::function<void(const TaskAttempt& id)>;

  explicit GangRanks(Say say, Farther farther = {});
  // No function given to OnLost runs after it.
  ~GangRanks();
  GangRanks(const GangRanks&) = delete;
  GangRanks& operator=(const GangRanks&) = delete;

  // The context of an attempt that is about to run. It may outlive nobody but its task.
  std::shared_ptr<dag::GangContext> Add(const TaskAttempt& id, dag::GangPlace place);
  // The answer of a round, to all ranks of that forming here.
  void Gathered(StageId stage, std::uint32_t epoch, std::uint64_t round, std::shared_ptr<const std::vector<std::string>> values);
  void Lose(const TaskAttempt& id, const Status& status);
  void LoseAll(const Status& status);
  bool Has(const TaskAttempt& id) const;
  struct Said {
    std::string line;           // reported last; empty: nothing
    std::uint64_t reached = 0;  // the farthest
    friend bool operator==(const Said&, const Said&) = default;
  };
  // What the rank has said of itself; of an attempt that is no rank: nothing.
  Said SaidBy(const TaskAttempt& id) const;
  // What it has measured, and the notices that it gave, since the last call: a point of each series, not more than may be said at once.
  storage::Metrics TakeMetrics(const TaskAttempt& id);

 private:
  class Rank;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::job
