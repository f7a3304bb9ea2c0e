// Windows of communicators: mixing with neighbours, ranks that stand still, leave, fail, or have no room.
#include <limits>

#include <gtest/gtest.h>

#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

class WindowCalls : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, WindowCalls, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

constexpr std::int64_t kCount = 20'000;

CollectiveCall Mixing(const std::vector<std::vector<double>>& weights, const Window& window, const std::vector<float>& in,
                      std::vector<float>* out) {
  return {.in = in.data(), .out = out->data(), .count = kCount, .name = "mix", .mixing = &weights, .window = &window};
}

// Called and submitted, two windows at once, between other collectives.
TEST_P(WindowCalls, MixWithNeighboursExactly) {
  for (std::int32_t ranks : {1, 2, 4})
    WithRanks(ranks, Over(GetParam()), [&](Communicator& all, Meeting&) {
      const auto weights = RingOfNeighbours(ranks);
      auto first = all.MakeWindow(2 * kCount * sizeof(float)), second = all.MakeWindow(2 * kCount * sizeof(float));
      ASSERT_TRUE(first.ok() && second.ok());
      std::vector<float> in(kCount), out(kCount), also_in(kCount), also_out(kCount);
      for (int round = 0; round < 20; ++round) {
        for (std::int64_t i = 0; i < kCount; ++i) in[i] = static_cast<float>((i + round) % 50 * (all.rank() + 1));
        for (std::int64_t i = 0; i < kCount; ++i) also_in[i] = in[i] + 1;
        CollectiveCall call = Mixing(weights, *second, also_in, &also_out);
        call.collective = Collective::kMix;
        auto submitted = all.Submit(call, {});
        ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
        Status status = all.Mix(Mixing(weights, *first, in, &out));
        ASSERT_TRUE(status.ok()) << status.ToString();
        ASSERT_TRUE(all.Barrier().ok());
        ASSERT_TRUE(all.Wait(*submitted).ok());
        for (std::int64_t i = 0; i < kCount; ++i) {
          double expected = 0, weight = 0;
          for (std::int32_t from = 0; from < ranks; ++from) {
            expected += weights[all.rank()][from] * static_cast<double>((i + round) % 50 * (from + 1));
            weight += weights[all.rank()][from];
          }
          ASSERT_EQ(out[i], static_cast<float>(expected)) << round << " " << i;
          ASSERT_EQ(also_out[i], static_cast<float>(expected + weight)) << round << " " << i;
        }
      }
    });
}

TEST_P(WindowCalls, AWindowOfNobodyAndWeightsThatAreNoNumbersAreRefused) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting&) {
    const auto weights = RingOfNeighbours(2);
    std::vector<float> in(kCount), out(kCount);
    EXPECT_EQ(all.Mix(Mixing(weights, Window(), in, &out)).tag(), "COLL10");
    auto window = all.MakeWindow(2 * kCount * sizeof(float));
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    Window elsewhere = *window;
    elsewhere.memory += 64;
    EXPECT_EQ(all.Mix(Mixing(weights, elsewhere, in, &out)).tag(), "COLL10");
    elsewhere = *window;
    elsewhere.number = 7;
    EXPECT_EQ(all.Mix(Mixing(weights, elsewhere, in, &out)).tag(), "COLL10");
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      auto spoilt = weights;
      spoilt[1][0] = bad;
      EXPECT_EQ(all.Mix(Mixing(spoilt, *window, in, &out)).tag(), "COLL10");
    }
    EXPECT_TRUE(all.Mix(Mixing(weights, *window, in, &out)).ok());
  });
}

// Rank 1 computes for all that time: its engine's own thread serves it.
TEST_P(WindowCalls, ARankThatStandsStillStopsNobodyWhereWindowsAreRelaxed) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const auto weights = RingOfNeighbours(3);
    auto window = all.MakeWindow(2 * kCount * sizeof(float));
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    std::vector<float> in(kCount, static_cast<float>(all.rank() + 1)), out(kCount);
    CollectiveCall call = Mixing(weights, *window, in, &out);
    call.algorithm = "window_relaxed";
    if (all.rank() != 1)
      for (int round = 0; round < 30; ++round) {
        Status status = all.Mix(call);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
    meeting.Barrier(all.rank());
    // It finds what the others have put meanwhile, and they find what it puts now.
    if (all.rank() == 1) {
      ASSERT_TRUE(all.Mix(call).ok());
    }
    meeting.Barrier(all.rank());
    if (all.rank() != 1) {
      ASSERT_TRUE(all.Mix(call).ok());
    }
    double expected = 0;
    for (int from = 0; from < 3; ++from) expected += weights[all.rank()][from] * (from + 1);
    EXPECT_EQ(out, std::vector<float>(kCount, static_cast<float>(expected)));
    meeting.Barrier(all.rank());
  });
}

TEST_P(WindowCalls, ARankThatLeavesIsNamedByWhoNeedsIt) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    auto window = all.MakeWindow(2 * kCount * sizeof(float));
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    const auto weights = RingOfNeighbours(3);
    std::vector<float> in(kCount), out(kCount);
    ASSERT_TRUE(all.Mix(Mixing(weights, *window, in, &out)).ok());
    meeting.Barrier(all.rank());
    if (all.rank() == 2) return;
    Status status = all.Mix(Mixing(weights, *window, in, &out));
    EXPECT_EQ(status.tag(), "COLL20");
    EXPECT_EQ(status.what(), "rank 2 is lost") << status.ToString();
  });
}

TEST_P(WindowCalls, AbortFreesWhoWaitsForAWindow) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    auto window = all.MakeWindow(2 * kCount * sizeof(float));
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    const auto weights = RingOfNeighbours(3);
    std::vector<float> in(kCount), out(kCount);
    meeting.Barrier(all.rank());  // all have their window
    if (all.rank() == 1)
      all.Abort(Status(Code::kCancelled, "TEST01", "enough"));
    else
      EXPECT_EQ(all.Mix(Mixing(weights, *window, in, &out)).tag(), "TEST01");
    meeting.Barrier(all.rank());
  });
}

TEST_P(WindowCalls, DifferentMatricesAreFound) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    auto window = all.MakeWindow(2 * kCount * sizeof(float));
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    auto weights = RingOfNeighbours(2);
    weights[0][1] += all.rank();
    std::vector<float> in(kCount), out(kCount);
    EXPECT_EQ(all.Mix(Mixing(weights, *window, in, &out)).tag(), "COLL21");
    meeting.Barrier(all.rank());
  });
}

TEST_P(WindowCalls, WhatDoesNotFitIsRefusedBeforeAnythingMoves) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting&) {
    const auto weights = RingOfNeighbours(2);
    std::vector<float> in(kCount), out(kCount);
    auto window = all.MakeWindow(100);
    ASSERT_TRUE(window.ok());
    Status status = all.Mix(Mixing(weights, *window, in, &out));
    EXPECT_EQ(status.tag(), "COLL27") << status.ToString();
    CollectiveCall call = Mixing(weights, *window, in, &out);
    call.window = nullptr;
    EXPECT_EQ(all.Mix(call).tag(), "COLL10");
    EXPECT_EQ(all.AllReduce({.in = in.data(), .out = out.data(), .count = 1, .name = "x", .window = &*window}).tag(), "COLL10");
    EXPECT_TRUE(all.Barrier().ok());
  });
}

// All ranks or none: who failed is named everywhere, and the windows after that have the same numbers on all ranks.
TEST_P(WindowCalls, AWindowThatOneRankHasNoRoomForIsMadeOnNone) {
  for (std::int32_t failing : {0, 1, 2})
    WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
      const auto weights = RingOfNeighbours(3);
      auto expect_none = [&](std::size_t bytes) {
        Status status = all.MakeWindow(bytes).status();
        EXPECT_EQ(status.tag(), "COLL13");
        EXPECT_NE(status.what().find("rank " + std::to_string(failing) + " has no room"), std::string::npos) << status.ToString();
      };
      for (std::size_t bytes : {std::size_t{1} << 50, ~std::size_t{0}}) expect_none(all.rank() == failing ? bytes : 100);
      // Not a byte is left on that rank, where its pool has an end.
      std::vector<char*> taken;
      if (all.rank() == failing && GetParam() == Wire::kShared)
        for (std::size_t bytes = std::size_t{64} << 20; bytes >= 64;) {
          auto more = all.Allocate(bytes);
          if (more.ok())
            taken.push_back(*more);
          else
            bytes /= 2;
        }
      if (GetParam() == Wire::kShared)
        for (int again = 0; again < 3; ++again) expect_none(100);
      for (char* memory : taken) all.Free(memory);
      for (std::int32_t number : {0, 1}) {
        auto window = all.MakeWindow(2 * kCount * sizeof(float));
        ASSERT_TRUE(window.ok()) << window.status().ToString();
        EXPECT_EQ(window->number, number);
        std::vector<float> in(kCount, 1), out(kCount);
        Status status = all.Mix(Mixing(weights, *window, in, &out));
        ASSERT_TRUE(status.ok()) << status.ToString();
        double sum = 0;
        for (double weight : weights[all.rank()]) sum += weight;
        EXPECT_EQ(out, std::vector<float>(kCount, static_cast<float>(sum)));
      }
    });
}

// Windows that were not made take nothing for good.
TEST_P(WindowCalls, WhatWasNotMadeTakesNoMemory) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting&) {
    for (int round = 0; round < 6; ++round)
      EXPECT_EQ(all.MakeWindow(all.rank() == 1 ? std::size_t{1} << 50 : std::size_t{12} << 20).status().tag(), "COLL13");
    EXPECT_TRUE(all.MakeWindow(std::size_t{24} << 20).ok());
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
