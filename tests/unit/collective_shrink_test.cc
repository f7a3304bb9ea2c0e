// Ranks that are left after a failure go on among themselves, without anybody else's help. Ranks that are killed meanwhile are in
// collective_kill_test.
#include <algorithm>
#include <array>

#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

class Shrinking : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Shrinking, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

using Ranks = std::vector<std::int32_t>;

Ranks MembersOf(const Communicator& all) { return {all.members().begin(), all.members().end()}; }

Status Sum(Communicator& all, std::int32_t me) {
  std::vector<float> x(3'000, static_cast<float>(me + 1));
  RETURN_IF_ERROR(all.AllReduce({.in = x.data(), .out = x.data(), .count = 3'000, .name = "x"}));
  float sum = 0;
  for (std::int32_t member : all.members()) sum += static_cast<float>(member + 1);
  EXPECT_EQ(x, std::vector<float>(3'000, sum));
  return {};
}

// One after the other leaves, until one is left, who is a communicator, too.
TEST_P(Shrinking, GoesOnUntilOneIsLeft) {
  const std::array<std::int32_t, 4> order = {2, 0, 3, 1};
  Meeting meeting(4);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      auto connected = Communicator::Connect(meeting.Of(rank), Over(GetParam()));
      ASSERT_TRUE(connected.ok()) << connected.status().ToString();
      std::unique_ptr<Communicator> all = *std::move(connected);
      Ranks left = {0, 1, 2, 3};
      for (std::int32_t leaver : order) {
        if (all != nullptr) {
          EXPECT_EQ(MembersOf(*all), left);
          EXPECT_EQ(all->members()[all->rank()], rank);
          EXPECT_TRUE(Sum(*all, rank).ok());
        }
        meeting.Barrier(rank);  // or one that finds out first ends the sum of one that has it not yet
        std::erase(left, leaver);
        if (leaver == rank) all.reset();
        if (all == nullptr) continue;
        const Status status = Sum(*all, rank);
        EXPECT_EQ(status.tag(), "COLL20") << status.ToString();
        auto smaller = all->Shrink();
        EXPECT_TRUE(smaller.ok()) << smaller.status().ToString();
        all = smaller.ok() ? *std::move(smaller) : nullptr;
        EXPECT_TRUE(all == nullptr || all->shares_memory() == (GetParam() == Wire::kShared));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// Nobody is gone: all are there again. Of a group the numbers are still the gang's.
TEST_P(Shrinking, AfterAnAbortHasAllRanksAgain) {
  WithRanks(4, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int32_t me = all.rank();
    auto made = all.Split({.color = me == 0 ? kNoGroup : 0, .key = -me});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    if (me != 0) {
      EXPECT_EQ((*made)->Shrink().status().tag(), "COLL30");  // it has not failed
      EXPECT_TRUE(Sum(**made, me).ok());
    }
    meeting.Barrier(me);
    if (me != 0) {
      Communicator& group = **made;
      if (me == 2) group.Abort(Status(Code::kCancelled, "TEST01", "enough"));
      EXPECT_EQ(group.Barrier().tag(), "TEST01");
      auto again = group.Shrink();
      ASSERT_TRUE(again.ok()) << again.status().ToString();
      EXPECT_EQ(MembersOf(**again), (Ranks{3, 2, 1}));
      ASSERT_TRUE(Sum(**again, me).ok());
      // What it came of may be shrunk more than once.
      auto third = group.Shrink();
      ASSERT_TRUE(third.ok()) << third.status().ToString();
      ASSERT_TRUE(Sum(**third, me).ok());
      ASSERT_TRUE(Sum(**again, me).ok());
    }
    EXPECT_TRUE(Sum(all, me).ok());
    meeting.Barrier(me);
  });
}

TEST_P(Shrinking, WaitsNoLongerThanItMayForARankThatDoesNotCome) {
  CommunicatorOptions options = Over(GetParam());
  options.timeout_ms = 1'500;
  WithRanks(3, options, [&](Communicator& all, Meeting& meeting) {
    meeting.Barrier(all.rank());
    if (all.rank() == 0) all.Abort(Status(Code::kCancelled, "TEST01", "enough"));
    EXPECT_EQ(all.Barrier().tag(), "TEST01");
    if (all.rank() != 1) {
      const Status status = all.Shrink().status();
      EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
      EXPECT_TRUE(status.what().starts_with("rank 1 did not come")) << status.ToString();
    }
    meeting.Barrier(all.rank());
  });
}

// Half of the ranks leave while the others call, at once.
TEST_P(Shrinking, ManyMayGoAtOnce) {
  for (int round = 0; round < 10; ++round)
    WithRanks(6, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      const std::int32_t me = all.rank();
      ASSERT_TRUE(Sum(all, me).ok());
      meeting.Barrier(me);
      if (me % 2 == 1) return;
      while (Sum(all, me).ok()) continue;
      // Whoever has not left yet when the others agree is gone when they have.
      std::unique_ptr<Communicator> left;
      for (Communicator* one = &all; left == nullptr || left->ranks() > 3; one = left.get()) {
        if (left != nullptr)
          while (Sum(*left, me).ok()) continue;
        auto made = one->Shrink();
        ASSERT_TRUE(made.ok()) << made.status().ToString();
        left = *std::move(made);
      }
      EXPECT_EQ(MembersOf(*left), (Ranks{0, 2, 4}));
      EXPECT_TRUE(Sum(*left, me).ok());
    });
}

}  // namespace
}  // namespace ropewalk::collective::testing
