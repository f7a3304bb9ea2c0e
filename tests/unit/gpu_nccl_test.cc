// Collectives are given to NCCL in the same order and the same groups on all ranks, however they arrive.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "mlrunner/collective/run/submit_order.h"
#include "mlrunner/gpu/nccl_sequence.h"
#include "tests/unit/fake_nccl.h"

namespace ropewalk::mlrunner {
namespace {

using gpu::FakeNccl;
using gpu::FakeNcclRank;

NcclCall Sum(std::uint64_t number, std::int64_t count, bool ends_group = true) {
  return {.number = number, .count = count, .ends_group = ends_group};
}

// A bucket of a step: its size tells which one it is.
std::int64_t CountOf(std::size_t bucket) { return static_cast<std::int64_t>(1000 + bucket); }

// What rank 0 decides: buckets are submitted one by one, the last (which the next forward needs first) is the most urgent, and as many run
// at once as lanes and credit allow. The k-th that begins has the number k.
std::vector<std::size_t> Decide(std::size_t buckets, Random* random) {
  collective::SubmitOrder order(2, 1 << 20);
  std::vector<std::size_t> begun;
  std::vector<std::int32_t> running;
  std::size_t submitted = 0;
  while (begun.size() < buckets) {
    if (submitted < buckets && random->Below(3) != 0) {
      order.Add(submitted, -static_cast<std::int64_t>(submitted), CountOf(submitted) * 4);
      ++submitted;
    } else if (!running.empty()) {
      order.Finish(running.front());
      running.erase(running.begin());
    }
    while (auto start = order.Next()) {
      begun.push_back(start->number);
      running.push_back(start->lane);
    }
  }
  return begun;
}

struct World {
  explicit World(std::uint64_t seed) : random(seed), order(Decide(kBuckets, &random)), ranks(kRanks) {
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      std::vector<std::size_t> mine(kBuckets);
      std::iota(mine.begin(), mine.end(), std::size_t{0});
      for (std::size_t i = kBuckets; i > 1; --i) std::swap(mine[i - 1], mine[random.Below(i)]);
      arrivals.push_back(std::move(mine));
    }
  }
  NcclCall Call(std::size_t number) const { return Sum(number, CountOf(order[number]), number % 3 == 2 || number + 1 == kBuckets); }
  static constexpr std::size_t kBuckets = 16, kRanks = 4;
  Random random;
  std::vector<std::size_t> order;  // number -> bucket
  std::vector<FakeNcclRank> ranks;
  std::vector<std::vector<std::size_t>> arrivals;  // [rank] numbers, as they become ready there
  FakeNccl nccl;
};

TEST(NcclSequence, RanksStartTheSameInTheSameGroupsHoweverCallsArrive) {
  int reordered = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    std::vector<NcclSequence> sequences;
    for (FakeNcclRank& rank : world.ranks) sequences.emplace_back(&FakeNccl::table(), &rank, nullptr);
    // The ranks take turns at random.
    std::vector<std::size_t> next(World::kRanks, 0);
    for (std::size_t left = World::kRanks * World::kBuckets; left > 0;) {
      const std::size_t rank = world.random.Below(World::kRanks);
      if (next[rank] == World::kBuckets) continue;
      ASSERT_TRUE(sequences[rank].Add(world.Call(world.arrivals[rank][next[rank]++])).ok());
      --left;
    }
    EXPECT_EQ(FakeNccl::Mismatch(world.ranks), "");
    std::size_t number = 0;
    for (const auto& group : world.ranks[0].groups) {
      EXPECT_EQ(group.size(), std::min<std::size_t>(3, World::kBuckets - number));
      for (const std::string& what : group)
        EXPECT_TRUE(what.starts_with("allreduce of " + std::to_string(CountOf(world.order[number++])) + ",")) << what;
    }
    EXPECT_EQ(number, World::kBuckets);
    for (const NcclSequence& sequence : sequences) EXPECT_EQ(sequence.waiting(), 0u);
    reordered += std::is_sorted(world.order.begin(), world.order.end()) ? 0 : 1;
  }
  EXPECT_GT(reordered, 150) << "priorities must have mattered";
}

// Negative controls: the fake finds what the sequence prevents.
TEST(NcclSequence, AnOrderByArrivalIsFound) {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seed);
    for (std::size_t rank = 0; rank < World::kRanks; ++rank) {
      for (std::size_t number : world.arrivals[rank])
        FakeNccl::table().all_reduce(nullptr, nullptr, static_cast<std::size_t>(CountOf(world.order[number])), gpu::Element::kF32,
                                     gpu::Sum::kSum, &world.ranks[rank], nullptr);
    }
    found += FakeNccl::Mismatch(world.ranks).empty() ? 0 : 1;
  }
  EXPECT_EQ(found, 50);
}
TEST(NcclSequence, GroupsByArrivalAreFound) {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seed);
    for (std::size_t rank = 0; rank < World::kRanks; ++rank) {
      // In order, but a group is what happens to be there.
      for (std::size_t number = 0; number < World::kBuckets;) {
        FakeNccl::table().group_begin();
        for (std::size_t left = 1 + world.random.Below(3); left > 0 && number < World::kBuckets; --left, ++number)
          FakeNccl::table().all_reduce(nullptr, nullptr, static_cast<std::size_t>(CountOf(world.order[number])), gpu::Element::kF32,
                                       gpu::Sum::kSum, &world.ranks[rank], nullptr);
        FakeNccl::table().group_end();
      }
    }
    found += FakeNccl::Mismatch(world.ranks).empty() ? 0 : 1;
  }
  EXPECT_EQ(found, 50);
}

class Sequence : public ::testing::Test {
 protected:
  FakeNccl nccl_;
  FakeNcclRank rank_;
  NcclSequence sequence_{&FakeNccl::table(), &rank_, nullptr};
};

TEST_F(Sequence, AGroupWaitsForItsEnd) {
  ASSERT_TRUE(sequence_.Add(Sum(1, 11, false)).ok());
  ASSERT_TRUE(sequence_.Add(Sum(2, 12)).ok());
  EXPECT_EQ(rank_.groups.size(), 0u) << "number 0 is missing";
  ASSERT_TRUE(sequence_.Add(Sum(0, 10)).ok());
  ASSERT_EQ(rank_.groups.size(), 2u);
  EXPECT_EQ(rank_.groups[1].size(), 2u);
  ASSERT_TRUE(sequence_.Add(Sum(3, 13, false)).ok());
  EXPECT_EQ(sequence_.started(), 3u);
  EXPECT_EQ(sequence_.waiting(), 1u);
  EXPECT_EQ(nccl_.depth, 0);
}

TEST_F(Sequence, GroupsAreBounded) {
  for (std::uint64_t number = 0; number < 2 * NcclSequence::kGroupMax; ++number) ASSERT_TRUE(sequence_.Add(Sum(number, 1, false)).ok());
  ASSERT_EQ(rank_.groups.size(), 2u);
  EXPECT_EQ(rank_.groups[0].size(), NcclSequence::kGroupMax);
}

TEST_F(Sequence, WhatIsSaidToNccl) {
  ASSERT_TRUE(sequence_.Add({.number = 0, .count = 5, .dtype = Dtype::kBF16, .op = collective::ReduceOp::kMax}).ok());
  ASSERT_TRUE(sequence_.Add({.kind = NcclCall::Kind::kBroadcast, .number = 1, .count = 6, .dtype = Dtype::kI64, .root = 3}).ok());
  EXPECT_EQ(rank_.groups[0][0], "allreduce of 5, type 3, sum 2");
  EXPECT_EQ(rank_.groups[1][0], "broadcast of 6, type 5, root 3");
}

TEST_F(Sequence, MistakesAreRefused) {
  EXPECT_EQ(sequence_.Add({.number = 0, .count = 1, .dtype = Dtype::kBool}).code(), Code::kInvalid);
  EXPECT_EQ(sequence_.Add(Sum(0, -1)).code(), Code::kInvalid);
  ASSERT_TRUE(sequence_.Add(Sum(0, 1)).ok());
  EXPECT_EQ(sequence_.Add(Sum(0, 1)).code(), Code::kInvalid) << "it was started already";
  ASSERT_TRUE(sequence_.Add(Sum(2, 1)).ok());
  EXPECT_EQ(sequence_.Add(Sum(2, 1)).code(), Code::kInvalid) << "it waits already";
  for (std::uint64_t number = 3; sequence_.waiting() < NcclSequence::kWaitingMax; ++number) ASSERT_TRUE(sequence_.Add(Sum(number, 1)).ok());
  Status full = sequence_.Add(Sum(1'000'000, 1));
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_NE(full.why().find("number 1 "), std::string::npos) << full.ToString();
  // A refusal is no failure: the one that is missing may still come.
  EXPECT_TRUE(sequence_.Check().ok());
}

// The missing one makes room for itself.
TEST_F(Sequence, TheMissingCallIsTakenWhenTheRestIsFull) {
  for (std::uint64_t number = 1; number <= NcclSequence::kWaitingMax; ++number) ASSERT_TRUE(sequence_.Add(Sum(number, 1)).ok());
  EXPECT_TRUE(sequence_.Add(Sum(0, 1)).ok());
  EXPECT_EQ(sequence_.started(), NcclSequence::kWaitingMax + 1);
}

TEST_F(Sequence, AFailureEndsItsGroupAndIsToldFromThenOn) {
  nccl_.fail_after = 1;
  ASSERT_TRUE(sequence_.Add(Sum(0, 10, false)).ok());
  ASSERT_TRUE(sequence_.Add(Sum(1, 11, false)).ok());
  Status status = sequence_.Add(Sum(2, 12));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.tag(), "GPU06");
  EXPECT_NE(status.ToString().find("allreduce 1 of 11 f32"), std::string::npos) << status.ToString();
  EXPECT_NE(status.why().find("a fake failure"), std::string::npos) << status.ToString();
  EXPECT_EQ(nccl_.depth, 0) << "the group is still open";
  nccl_.fail_after = -1;
  EXPECT_EQ(sequence_.Add(Sum(3, 13)).tag(), "GPU06");
  EXPECT_EQ(sequence_.Check().tag(), "GPU06");
  ASSERT_EQ(rank_.groups.size(), 1u) << "nothing is started after a failure";
}

TEST_F(Sequence, AFailureOfTheGroupOrLaterIsTold) {
  nccl_.end_fails = true;
  EXPECT_NE(sequence_.Add(Sum(0, 10)).what().find("collectives 0 to 0"), std::string::npos);
  NcclSequence other(&FakeNccl::table(), &rank_, nullptr);
  nccl_.end_fails = false;
  ASSERT_TRUE(other.Add(Sum(0, 10)).ok());
  EXPECT_TRUE(other.Check().ok());
  rank_.error = FakeNccl::kFailure;
  EXPECT_EQ(other.Check().code(), Code::kUnavailable);
  EXPECT_EQ(other.Add(Sum(1, 10)).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace ropewalk::mlrunner
