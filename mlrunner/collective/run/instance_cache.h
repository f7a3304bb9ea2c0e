// Programs by what they are for, and instances that rest between two calls of the same kind and length: in the steady state of a training
// loop nothing is built.
//
// Of both there are no more than so many, but for what is in use: who mixes by another matrix in each round has a plan for each of the last
// kPlansMax matrices. The one whose last use is longest ago goes first.
//
// Owner: a communicator. Thread rule: any thread; an instance belongs to whoever took it.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/run/instance.h"

namespace ropewalk::collective {

class InstanceCache {
 public:
  static constexpr std::size_t kPlansMax = 256;
  static constexpr std::size_t kRestingMax = 512;  // instances; each has its scratch in the pool

  InstanceCache(std::int32_t rank, Transport* transport, const Means& means) : rank_(rank), transport_(transport), means_(means) {}

  // Of `algorithm` for `request`, at `count` elements.
  Result<Instance*> Take(std::string_view algorithm, const Request& request, std::int64_t count);
  void GiveBack(Instance* instance);

  struct Counts {
    std::size_t plans = 0, instances = 0;  // that there are
    std::uint64_t built = 0;               // plans, so far
  };
  Counts counts() const;

 private:
  // All of a request that a communicator's calls can set.
  struct Kind {
    std::string algorithm;
    Collective collective;
    Dtype dtype;
    ReduceOp op;
    std::int32_t root, peer, channels, slots;
    bool deterministic;
    std::int64_t segment_bytes;
    std::string codec;  // all of it
    std::vector<std::vector<double>> mixing;
    auto operator<=>(const Kind&) const = default;
    bool IsOf(std::string_view wanted, const Request& request) const;
  };
  struct Built {
    RankPlan plan;
    std::vector<std::int64_t> raises;  // of plans with counters
  };
  struct Key {
    const Built* plan = nullptr;
    std::int64_t count = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::unique_ptr<Instance> instance;
    const Kind* kind = nullptr;
    bool is_taken = false;
    std::uint64_t last_used = 0;
  };
  using Plans = std::map<Kind, std::unique_ptr<Built>>;
  Result<Plans::iterator> PlanOf(std::string_view algorithm, const Request& request);
  using Entries = std::multimap<Key, Entry>;
  void DropOldest();
  // With its instances. False: all are in use.
  bool DropOldestPlan();
  Entries::iterator Drop(Entries::iterator entry);

  const std::int32_t rank_;
  Transport* const transport_;
  const Means means_;
  mutable std::mutex mutex_;
  Plans plans_;
  Entries entries_;
  std::uint64_t built_ = 0;
  std::map<const Instance*, Entry*> by_instance_;
  // Those given back last, in turn: a loop has few kinds of calls, and most want one of these.
  std::array<Entry*, 8> recent_{};
  std::size_t next_recent_ = 0;
  std::size_t resting_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace ropewalk::collective
