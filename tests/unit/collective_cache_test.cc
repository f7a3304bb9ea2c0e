// Plans and instances that rest between calls: how many there are, which go first, and that nothing in use goes.
#include "mlrunner/collective/run/instance_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::collective::testing {
namespace {

constexpr std::size_t kPlansMax = InstanceCache::kPlansMax;

class CacheOfOne : public ::testing::Test {
 protected:
  // Calls of a kind of its own for each number.
  static Request MixingBy(std::size_t number) {
    const double weight = 1.0 / static_cast<double>(number + 2);
    return {.collective = Collective::kMix, .ranks = 2, .mixing = {{1 - weight, weight}, {0, 1}}};
  }
  Instance* Take(std::size_t number) {
    const Request request = MixingBy(number);
    auto taken = cache_.Take({.algorithm = "window_relaxed", .request = &request, .mixing = &request.mixing}, 10);
    EXPECT_TRUE(taken.ok()) << taken.status().ToString();
    return taken.ok() ? *taken : nullptr;
  }
  void Use(std::size_t number) { cache_.GiveBack(Take(number)); }
  std::uint64_t BuiltBy(std::size_t number) {
    const std::uint64_t before = cache_.counts().built;
    Use(number);
    return cache_.counts().built - before;
  }

  Fabric fabric_{Kind::kThreads, 2, 2};
  OneSided side_{0, 2, &fabric_.endpoint(0), 1};
  InstanceCache cache_{0, &fabric_.endpoint(0), Means{.one_sided = &side_}};
};

TEST_F(CacheOfOne, AMatrixForEachRoundLeavesNoMoreThanTheLimit) {
  for (std::size_t round = 0; round < 4 * kPlansMax; ++round) {
    Use(round);
    ASSERT_EQ(cache_.counts().plans, std::min(round + 1, kPlansMax));
    ASSERT_EQ(cache_.counts().instances, std::min(round + 1, kPlansMax));
  }
  EXPECT_EQ(cache_.counts().built, 4 * kPlansMax);
}

TEST_F(CacheOfOne, TheOneUsedLongestAgoGoesFirst) {
  for (std::size_t i = 0; i < kPlansMax; ++i) Use(i);
  EXPECT_EQ(BuiltBy(0), 0u);  // it is younger than 1 now
  EXPECT_EQ(BuiltBy(kPlansMax), 1u);
  EXPECT_EQ(BuiltBy(0), 0u);
  EXPECT_EQ(BuiltBy(2), 0u);
  EXPECT_EQ(BuiltBy(1), 1u);  // so it was 1 that went
}

// One that is called now and then is built once, whatever else is called.
TEST_F(CacheOfOne, WhatIsUsedAgainAndAgainStays) {
  Use(1'000'000);
  for (std::size_t round = 0; round < 4 * kPlansMax; ++round) {
    Use(round);
    if (round % 100 == 0) {
      ASSERT_EQ(BuiltBy(1'000'000), 0u) << round;
    }
  }
}

TEST_F(CacheOfOne, WhatIsInUseStaysAlsoBeyondTheLimit) {
  std::vector<Instance*> taken;
  for (std::size_t i = 0; i < kPlansMax + 50; ++i) taken.push_back(Take(i));
  EXPECT_EQ(cache_.counts().plans, kPlansMax + 50);
  for (std::size_t i = 0; i < taken.size(); ++i)
    EXPECT_EQ(taken[i]->header().request.mixing, MixingBy(i).mixing);  // a plan that went would be gone under it
  // All but the first come back: the next plan that is built takes their places, and not the first's.
  for (std::size_t i = 1; i < taken.size(); ++i) cache_.GiveBack(taken[i]);
  Use(5'000);
  EXPECT_EQ(cache_.counts().plans, kPlansMax);
  EXPECT_EQ(taken[0]->header().request.mixing, MixingBy(0).mixing);
  for (std::size_t round = 10'000; round < 10'000 + 2 * kPlansMax; ++round) Use(round);
  EXPECT_EQ(taken[0]->header().request.mixing, MixingBy(0).mixing);
  cache_.GiveBack(taken[0]);
  EXPECT_EQ(BuiltBy(0), 0u);
}

// What rests has memory of the pool, for another time: no call fails because of it, and nobody who asks the pool.
TEST(CacheOfMany, WhatRestsMakesWayWhereThePoolIsFull) {
  CommunicatorOptions options{.wire = Wire::kShared, .pool_bytes = std::size_t{4} << 20};
  WithRanks(2, options, [&](Communicator& all, Meeting& meeting) {
    // A vector of scratch each, and places for what does not lie in the pool: several pools in all.
    for (const char* algorithm : {"recursive_doubling", "direct"})
      for (std::int64_t count = 60'000; count < 90'000; count += 1'000) {
        std::vector<float> x(static_cast<std::size_t>(count), static_cast<float>(all.rank() + 1));
        const Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = count, .name = "x", .algorithm = algorithm});
        ASSERT_TRUE(status.ok()) << algorithm << " of " << count << ": " << status.ToString();
        EXPECT_EQ(std::count(x.begin(), x.end(), 3.0F), count);
      }
    meeting.Barrier(all.rank());
    auto memory = all.Allocate(std::size_t{3} << 20);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    all.Free(*memory);
    auto window = all.MakeWindow(std::size_t{3} << 20);
    EXPECT_TRUE(window.ok()) << window.status().ToString();
    // The control: what is more than the pool has finds no room.
    EXPECT_EQ(all.Allocate(std::size_t{3} << 20).status().tag(), "COLL13");
    meeting.Barrier(all.rank());
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
