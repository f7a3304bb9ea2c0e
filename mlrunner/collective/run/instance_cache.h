// Programs by what they are for, and instances that rest between two calls of the same kind and length: in the steady state of a training
// loop nothing is built.
//
// Of both there are no more than so many, but for what is in use: who mixes by another matrix in each round has a plan for each of the last
// kPlansMax matrices. The one whose last use is longest ago goes first. They also make way where the pool has no room for a call.
//
// Owner: a communicator. Thread rule: any thread; an instance belongs to whoever took it.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/link_order.h"
#include "mlrunner/collective/run/instance.h"

namespace ropewalk::collective {

// All that a plan depends on, where it lies: in a call's arguments or in the cache. So what rests is found without a copy of it.
struct Asked {
  std::string_view algorithm;
  const Request* request = nullptr;      // its vectors are not looked at
  const Codec* codec = nullptr;          // null: none
  const MixingMatrix* mixing = nullptr;  // null: none
  const Neighbors* neighbors = nullptr;  // null: none
};
std::partial_ordering operator<=>(const Asked& a, const Asked& b);

class InstanceCache {
 public:
  static constexpr std::size_t kPlansMax = 256;
  static constexpr std::size_t kRestingMax = 512;  // instances; each has its scratch in the pool

  // `algorithms`: those that can be asked for. `nodes`, `orders`: of all requests.
  InstanceCache(std::int32_t rank, Transport* transport, const Means& means, std::span<const Algorithm> algorithms = Algorithms(),
                Nodes nodes = {}, Orders orders = {})
      : rank_(rank), transport_(transport), means_(means), algorithms_(algorithms), nodes_(std::move(nodes)), orders_(std::move(orders)) {}

  // Of plans that are built from now on; the same calls must not have been made before, for they keep theirs.
  void Arrange(const Nodes& nodes, const Orders& orders);

  // Of what is asked for, at `count` elements. Does not allocate where one rests.
  Result<Instance*> Take(const Asked& asked, std::int64_t count);
  void GiveBack(Instance* instance);
  // Gives the pool what the instance has that has rested longest. False: there is none whose memory no peer reads any more.
  bool MakeRoom();

  struct Counts {
    std::size_t plans = 0, instances = 0;  // that there are
    std::uint64_t built = 0;               // plans, so far
  };
  Counts counts() const;

 private:
  struct Kind {
    std::string algorithm;
    Request request;
    Asked asked() const {
      return {.algorithm = algorithm,
              .request = &request,
              .codec = request.codecs.empty() ? nullptr : request.codecs.data(),
              .mixing = request.mixing.empty() ? nullptr : &request.mixing,
              .neighbors = request.neighbors.empty() ? nullptr : &request.neighbors};
    }
  };
  struct Before {
    using is_transparent = void;
    static Asked Look(const Asked& asked) { return asked; }
    static Asked Look(const Kind& kind) { return kind.asked(); }
    bool operator()(const auto& a, const auto& b) const { return (Look(a) <=> Look(b)) < 0; }
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
  using Plans = std::map<Kind, std::unique_ptr<Built>, Before>;
  Result<Plans::iterator> PlanOf(const Asked& asked);
  using Entries = std::multimap<Key, Entry>;
  // False: none rests, but those that peers still read.
  bool DropOldest();
  // With its instances. False: all are in use.
  bool DropOldestPlan();
  Entries::iterator Drop(Entries::iterator entry);

  const std::int32_t rank_;
  Transport* const transport_;
  const Means means_;
  const std::span<const Algorithm> algorithms_;
  mutable std::mutex mutex_;
  Nodes nodes_;
  Orders orders_;
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
