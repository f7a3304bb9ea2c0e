// Parts of a gang that make communicators of their own: who is in them, what is under way in several at once, and whom a failure takes with
// it.
#include "mlrunner/collective/run/groups.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/random.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

TEST(GroupOf, IsAllOfOneColourByKeyThenByRank) {
  const std::vector<Going> going = {{.color = 1, .key = 5}, {.color = 0}, {.color = 1, .key = -2}, {},
                                    {.color = 1, .key = 5}, {.color = 0}};
  using Ranks = std::vector<std::int32_t>;
  for (std::int32_t rank : {0, 2, 4}) EXPECT_EQ(GroupOf(going, rank), (Ranks{2, 0, 4}));
  for (std::int32_t rank : {1, 5}) EXPECT_EQ(GroupOf(going, rank), (Ranks{1, 5}));
  EXPECT_EQ(GroupOf(going, 3), Ranks{});
}

class Groups : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Groups, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

using Group = std::unique_ptr<Communicator>;

Group Made(Communicator& all, const GroupOptions& options) {
  auto made = all.Split(options);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *std::move(made) : nullptr;
}

// The sum over a communicator's ranks of their numbers in the gang is what its members say.
void ExpectSums(Communicator& all, std::int32_t me, std::int64_t count = 3'000) {
  std::vector<float> x(static_cast<std::size_t>(count), static_cast<float>(me + 1));
  Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = count, .name = "x"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  float sum = 0;
  for (std::int32_t member : all.members()) sum += static_cast<float>(member + 1);
  EXPECT_EQ(x, std::vector<float>(x.size(), sum));
}

std::vector<std::int32_t> MembersOf(const Communicator& all) { return {all.members().begin(), all.members().end()}; }

TEST_P(Groups, SumAmongThemselvesAndCountTheirOwnRanks) {
  WithRanks(5, Over(GetParam()), [&](Communicator& all, Meeting&) {
    const std::int32_t me = all.rank();
    EXPECT_EQ(MembersOf(all), (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
    for (int round = 0; round < 3; ++round) {
      // Backwards, and rank 4 is in none.
      const Group mine = Made(all, {.color = me == 4 ? kNoGroup : me % 2, .key = -me});
      EXPECT_EQ(mine == nullptr, me == 4);
      if (mine != nullptr) {
        EXPECT_EQ(MembersOf(*mine), me % 2 == 0 ? (std::vector<std::int32_t>{2, 0}) : (std::vector<std::int32_t>{3, 1}));
        EXPECT_EQ(mine->ranks(), 2);
        EXPECT_EQ(mine->members()[mine->rank()], me);
        EXPECT_EQ(mine->shares_memory(), GetParam() == Wire::kShared);
        for (int call = 0; call < 5; ++call) ExpectSums(*mine, me);
        auto memory = mine->Allocate(100'000);
        EXPECT_TRUE(memory.ok()) << memory.status().ToString();
        ASSERT_TRUE(mine->MakeWindow(1'000).ok());
      }
      ExpectSums(all, me);
    }
    // None at all, and one of all.
    EXPECT_EQ(Made(all, {}), nullptr);
    const Group same = Made(all, {.color = 7});
    ASSERT_NE(same, nullptr);
    EXPECT_EQ(MembersOf(*same), MembersOf(all));
    ExpectSums(*same, me);
  });
}

TEST_P(Groups, OfGroupsAreGroups) {
  WithRanks(6, Over(GetParam()), [&](Communicator& all, Meeting&) {
    const std::int32_t me = all.rank();
    const Group half = Made(all, {.color = me / 3, .key = -me});  // 2 1 0 and 5 4 3
    ASSERT_NE(half, nullptr);
    const Group ends = Made(*half, {.color = half->rank() == 1 ? kNoGroup : 0});  // 2 0 and 5 3
    EXPECT_EQ(ends == nullptr, me % 3 == 1);
    if (ends != nullptr) {
      EXPECT_EQ(MembersOf(*ends), me < 3 ? (std::vector<std::int32_t>{2, 0}) : (std::vector<std::int32_t>{5, 3}));
      const Group alone = Made(*ends, {.color = ends->rank()});
      ASSERT_NE(alone, nullptr);
      EXPECT_EQ(MembersOf(*alone), std::vector<std::int32_t>{me});
      ExpectSums(*alone, me);
      ExpectSums(*ends, me);
    }
    ExpectSums(*half, me);
    ExpectSums(all, me);
  });
}

// A grid of two rows and two columns: each rank has calls under way in its row, its column and the gang at once, submitted and blocking, of
// two threads, and waits in an order of its own.
TEST_P(Groups, AreUsedAtOnceWithEachOtherAndWithTheGang) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(seed));
  CommunicatorOptions options = Over(GetParam());
  options.segment_bytes = 16 << 10;
  WithRanks(4, options, [&](Communicator& all, Meeting&) {
    const std::int32_t me = all.rank();
    const Group row = Made(all, {.color = me / 2}), column = Made(all, {.color = me % 2});
    ASSERT_TRUE(row != nullptr && column != nullptr);
    const std::array<Communicator*, 3> places = {row.get(), column.get(), &all};
    Random shared(seed), own = Random::ForPurpose(seed, static_cast<std::uint64_t>(me));
    for (int round = 0; round < 5; ++round) {
      struct Sum {
        Communicator* place;
        std::vector<float> x;
        Handle handle;
      };
      std::vector<Sum> sums(18);
      for (Sum& sum : sums) {
        sum.place = places[shared.Below(3)];
        sum.x.assign(1 + shared.Below(20'000), static_cast<float>(me + 1));
        auto handle =
            sum.place->Submit({.in = sum.x.data(), .out = sum.x.data(), .count = static_cast<std::int64_t>(sum.x.size()), .name = "later"},
                              {.priority = static_cast<std::int64_t>(shared.Below(3))});
        ASSERT_TRUE(handle.ok()) << handle.status().ToString();
        sum.handle = *handle;
      }
      std::thread other([&] {
        for (int call = 0; call < 10; ++call) ExpectSums(*column, me, 5'000);
      });
      for (int call = 0; call < 10; ++call) ExpectSums(*row, me, 5'000);
      ExpectSums(all, me);
      other.join();
      std::shuffle(sums.begin(), sums.end(), own);
      for (Sum& sum : sums) {
        Status status = sum.place->Wait(sum.handle);
        ASSERT_TRUE(status.ok()) << status.ToString();
        float expected = 0;
        for (std::int32_t member : sum.place->members()) expected += static_cast<float>(member + 1);
        ASSERT_EQ(sum.x, std::vector<float>(sum.x.size(), expected));
      }
    }
  });
}

TEST_P(Groups, AndTheGangEndInAnyOrder) {
  for (bool gang_first : {true, false}) {
    Meeting meeting(3);
    std::vector<std::thread> threads;
    for (std::int32_t rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        auto all = Communicator::Connect(meeting.Of(rank), Over(GetParam()));
        ASSERT_TRUE(all.ok()) << all.status().ToString();
        Group pair = Made(**all, {.color = rank == 1 ? kNoGroup : 0});
        if (gang_first)
          all->reset();
        else if (pair != nullptr)
          pair.reset();
        meeting.Barrier(rank);
        if (pair != nullptr) ExpectSums(*pair, rank);
        if (*all != nullptr) ExpectSums(**all, rank);
      });
    for (std::thread& thread : threads) thread.join();
  }
}

// ---- failures --------------------------------------------------------------------------------------------------------------------------

TEST_P(Groups, ThatAreAbortedTakeNoOtherWithThem) {
  WithRanks(4, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int32_t me = all.rank();
    const Group half = Made(all, {.color = me / 2});
    ASSERT_NE(half, nullptr);
    const Group of_half = Made(*half, {.color = 0});
    ASSERT_NE(of_half, nullptr);
    meeting.Barrier(me);  // an abort of what is split ends a split that is not over yet
    if (me == 1) half->Abort(Status(Code::kCancelled, "TEST01", "enough"));
    if (me < 2) {
      EXPECT_EQ(half->Barrier().tag(), "TEST01");
      EXPECT_EQ(half->Split({.color = 0}).status().tag(), "TEST01");
    } else {
      ExpectSums(*half, me);
    }
    ExpectSums(*of_half, me);
    ExpectSums(all, me);
    meeting.Barrier(me);
    if (me == 3) all.Abort(Status(Code::kCancelled, "TEST02", "enough"));
    EXPECT_EQ(all.Barrier().tag(), "TEST02");
    ExpectSums(*of_half, me);
    if (me >= 2) ExpectSums(*half, me);
    meeting.Barrier(me);
  });
}

TEST_P(Groups, NameWhoLeftByTheGroupsNumbersAndTheGangs) {
  WithRanks(4, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int32_t me = all.rank();
    Group odd = Made(all, {.color = me % 2});
    ASSERT_NE(odd, nullptr);
    ExpectSums(*odd, me);
    if (me == 3) odd.reset();
    meeting.Barrier(me);
    if (me == 1) {
      Status status = odd->Barrier();
      EXPECT_EQ(status.tag(), "COLL20");
      EXPECT_EQ(status.what(), "rank 1 is lost") << status.ToString();
      EXPECT_NE(status.why().find("rank 1 is on \"here\" (127.0.0.1) (of the group of the gang's ranks 1, 3)"), std::string::npos)
          << status.ToString();
    } else if (me != 3) {
      ExpectSums(*odd, me);
    }
    ExpectSums(all, me);
  });
}

// What the master says concerns all communicators of the gang, also when the first is gone.
TEST_P(Groups, HearOfALossAsTheGangDoes) {
  for (bool gang_is_there : {true, false}) {
    constexpr std::int32_t kRanks = 3;
    Meeting meeting(kRanks);
    std::vector<std::thread> threads;
    for (std::int32_t rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        std::function<void(const Status&)> lost;
        Rendezvous rendezvous = meeting.Of(rank);
        rendezvous.on_lost = [&](std::function<void(const Status&)> told) { lost = std::move(told); };
        auto all = Communicator::Connect(std::move(rendezvous), Over(GetParam()));
        ASSERT_TRUE(all.ok()) << all.status().ToString();
        Group pair = Made(**all, {.color = rank == 2 ? kNoGroup : 0});
        Group of_pair = pair == nullptr ? nullptr : Made(*pair, {.color = 0});
        if (!gang_is_there) {
          // Not before all have made theirs.
          meeting.Barrier(rank);
          all->reset();
        }
        meeting.Barrier(rank);
        if (rank == 0) lost(Status(Code::kUnavailable, "GANG01", "rank 2 is lost"));
        if (pair != nullptr) {
          EXPECT_EQ(pair->Barrier().tag(), "GANG01");
          EXPECT_EQ(of_pair->Barrier().tag(), "GANG01");
        }
        if (*all != nullptr) {
          EXPECT_EQ((*all)->Barrier().tag(), "GANG01");
        }
        meeting.Barrier(rank);
        all->reset();
        if (pair != nullptr) {
          EXPECT_TRUE(lost);  // somebody listens still
        }
        pair.reset();
        of_pair.reset();
        EXPECT_FALSE(lost);
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(Groups, ASplitBesideAnotherCallIsNamedOnAllRanks) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    Status status = all.rank() == 1 ? all.Barrier() : all.Split({.color = 0}).status();
    EXPECT_EQ(status.tag(), "COLL21") << status.ToString();
    EXPECT_NE(status.what().find("\"split\""), std::string::npos) << status.ToString();
    meeting.Barrier(all.rank());
  });
}

TEST_P(Groups, ASplitWithoutARankThatLeftNamesIt) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    ExpectSums(all, all.rank());
    meeting.Barrier(all.rank());
    if (all.rank() == 2) return;
    Status status = all.Split({.color = all.rank()}).status();
    EXPECT_EQ(status.tag(), "COLL20") << status.ToString();
    EXPECT_EQ(status.what(), "rank 2 is lost") << status.ToString();
  });
}

// Rank 1 asks for more memory than there can be. Its group is made on none of its ranks, the other one is, and the gang goes on.
TEST(GroupsOfSharedMemory, ThatARankCannotJoinAreMadeOnNone) {
  WithRanks(4, Over(Wire::kShared), [&](Communicator& all, Meeting&) {
    const std::int32_t me = all.rank();
    for (int round = 0; round < 2; ++round) {
      auto made = all.Split({.color = me / 2, .pool_bytes = me == 1 ? std::size_t{1} << 62 : std::size_t{8} << 20});
      if (me < 2) {
        EXPECT_FALSE(made.ok());
        EXPECT_TRUE(made.status().tag() == "COLL13" || made.status().tag() == "COLL31") << made.status().ToString();
        EXPECT_EQ(made.status().tag() == "COLL13", me == 1) << made.status().ToString();
      } else {
        ASSERT_TRUE(made.ok()) << made.status().ToString();
        ExpectSums(**made, me);
      }
      ExpectSums(all, me);
    }
    const Group again = Made(all, {.color = me / 2});
    ASSERT_NE(again, nullptr);
    ExpectSums(*again, me);
  });
}

// Two machines of two ranks each: the gang speaks TCP, and so does a group that has one rank of each; those of one machine share its
// memory.
TEST(GroupsOfMachines, ShareMemoryWhereTheirRanksDo) {
  constexpr std::int32_t kRanks = 4;
  Meeting meeting(kRanks);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      Rendezvous rendezvous = meeting.Of(rank);
      rendezvous.machine = rank < 2 ? "here" : "there";
      auto all = Communicator::Connect(std::move(rendezvous), {.pool_bytes = std::size_t{16} << 20});
      ASSERT_TRUE(all.ok()) << all.status().ToString();
      EXPECT_FALSE((*all)->shares_memory());
      const Group local = Made(**all, {.color = rank / 2}), across = Made(**all, {.color = rank % 2});
      ASSERT_TRUE(local != nullptr && across != nullptr);
      EXPECT_TRUE(local->shares_memory());
      EXPECT_FALSE(across->shares_memory());
      // The sum of all in two steps.
      std::vector<float> x(10'000, static_cast<float>(rank + 1));
      for (Communicator* step : {local.get(), across.get()}) {
        Status status = step->AllReduce({.in = x.data(), .out = x.data(), .count = 10'000, .name = "x"});
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      EXPECT_EQ(x, std::vector<float>(10'000, 10));
      ExpectSums(**all, rank);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ropewalk::collective::testing
