// Encoded chunks and counts that are learned at run time: the codecs themselves, and the plans that use them over every transport.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/run/codecs.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::collective::testing {
namespace {

std::vector<float> Drawn(std::uint64_t seed, std::int64_t count) {
  Random random(seed);
  std::vector<float> x(count);
  for (float& one : x) one = static_cast<float>(random.Unit() * 2 - 1);
  return x;
}

std::vector<float> ThereAndBack(const Codec& codec, const std::vector<float>& x, float* residual = nullptr) {
  const auto count = static_cast<std::int64_t>(x.size());
  // A guard behind the last byte shows a code that is too long.
  std::vector<char> coded(EncodedBytes(codec, count) + 1, 0x5a);
  Encode(codec, x.data(), count, residual, coded.data());
  EXPECT_EQ(coded.back(), 0x5a);
  std::vector<float> back(count);
  Decode(codec, coded.data(), count, back.data());
  return back;
}

TEST(Codecs, MinMaxErrsByHalfAUnitAndKeepsWhatIsConstant) {
  for (std::int64_t bits = 1; bits <= 8; ++bits)
    for (std::int64_t count : {1, 7, 64, 1000})
      for (std::int64_t bucket : {0, 4, 64}) {
        const std::vector<float> x = Drawn(bits * 100 + count, count);
        const Codec codec = MinMaxCodec(bits, bucket);
        const std::vector<float> back = ThereAndBack(codec, x);
        const std::int64_t each = bucket == 0 ? count : bucket;
        for (std::int64_t i = 0; i < count; ++i) {
          auto begin = x.begin() + i / each * each, end = x.begin() + std::min(count, (i / each + 1) * each);
          const auto [low, high] = std::minmax_element(begin, end);
          const double unit = (static_cast<double>(*high) - *low) / ((1 << bits) - 1);
          ASSERT_LE(std::abs(static_cast<double>(back[i]) - x[i]), unit / 2 * 1.0001 + 1e-7) << bits << " bits, element " << i;
        }
        const std::vector<float> same(count, 0.3f);
        EXPECT_EQ(ThereAndBack(codec, same), same);
      }
  // The difference of the ends is no f32.
  const std::vector<float> ends = {-3e38f, 3e38f, 0};
  for (float one : ThereAndBack(MinMaxCodec(8, 0), ends)) EXPECT_TRUE(std::isfinite(one));
}

TEST(Codecs, ABrokenBucketDecodesToNothingElseAndLeavesNoResidual) {
  for (const Codec& codec : {MinMaxCodec(4, 4), SignCodec(4)})
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = Drawn(3, 12), residual(12, 0.1f);
      x[5] = bad;
      const std::vector<float> back = ThereAndBack(codec, x, residual.data());
      for (int i = 0; i < 12; ++i) {
        EXPECT_EQ(std::isnan(back[i]), i / 4 == 1) << codec.name << " " << i;
        EXPECT_TRUE(std::isfinite(residual[i])) << codec.name << " " << i;
      }
    }
}

// What was left out is made up for: the sum of what was sent follows the sum of what was to be sent. Without the residual it does not.
TEST(Codecs, ErrorFeedbackMakesUpForWhatIsLeftOut) {
  for (const Codec& codec : {SignCodec(16), MinMaxCodec(1, 16)}) {
    constexpr int kCount = 64, kRounds = 400;
    const std::vector<float> x = Drawn(9, kCount);
    std::vector<float> residual(kCount, 0);
    std::vector<double> with(kCount), without(kCount);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<float> kept = ThereAndBack(codec, x, residual.data()), plain = ThereAndBack(codec, x);
      for (int i = 0; i < kCount; ++i) with[i] += kept[i], without[i] += plain[i];
    }
    double worst_with = 0, worst_without = 0;
    for (int i = 0; i < kCount; ++i) {
      worst_with = std::max(worst_with, std::abs(with[i] / kRounds - static_cast<double>(x[i])));
      worst_without = std::max(worst_without, std::abs(without[i] / kRounds - static_cast<double>(x[i])));
    }
    EXPECT_LT(worst_with, 0.05) << codec.name;
    EXPECT_GT(worst_without, 0.3) << codec.name;
  }
}

TEST(Codecs, WhatIsNotKnownIsRefused) {
  EXPECT_TRUE(CheckCodec(MinMaxCodec(8, 512)).ok());
  EXPECT_EQ(CheckCodec({.name = "top_k", .bits = 4}).tag(), "COLL12");
  EXPECT_EQ(CheckCodec(MinMaxCodec(9, 512)).tag(), "COLL12");
}

class Coded : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Transports, Coded, ::testing::Values(Kind::kThreads, Kind::kPools, Kind::kSockets), [](const auto& info) {
  return std::string(info.param == Kind::kThreads ? "threads" : info.param == Kind::kPools ? "pools" : "sockets");
});

TEST_P(Coded, ScatterReduceAllgatherIsCloseTheSameEverywhereAndAsSimulated) {
  for (std::int32_t ranks : {1, 2, 3, 4})
    for (std::int64_t count : {1, 50, 3001})
      for (bool averages : {false, true}) {
        const Codec codec = MinMaxCodec(8, 64);
        auto plan = BuildPlan("sra", {.op = averages ? ReduceOp::kAvg : ReduceOp::kSum, .ranks = ranks, .codecs = {codec}});
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        Fabric fabric(GetParam(), ranks, plan->header.channel_count);
        std::vector<std::vector<float>> outs(ranks);
        Trace trace(ranks);
        std::vector<std::uint64_t> steps(ranks);
        OnAllRanks(ranks, [&](std::int32_t rank) {
          Transport& transport = fabric.endpoint(rank);
          auto instance = Instance::Make(&plan->header, &plan->programs[rank], {.count = count}, &transport);
          ASSERT_TRUE(instance.ok()) << instance.status().ToString();
          (*instance)->Record(&trace[rank]);
          std::vector<float> x = Drawn(rank, count);
          ASSERT_TRUE((*instance)->Bind(std::vector<void*>{x.data(), x.data()}).ok());
          Status status = (*instance)->Run();
          ASSERT_TRUE(status.ok()) << status.ToString();
          outs[rank] = x;
          steps[rank] = (*instance)->steps();
        });
        std::vector<std::vector<float>> inputs;
        for (std::int32_t rank = 0; rank < ranks; ++rank) inputs.push_back(Drawn(rank, count));
        for (std::int64_t i = 0; i < count; ++i) {
          double sum = 0;
          for (std::int32_t rank = 0; rank < ranks; ++rank) sum += inputs[rank][i] / (averages ? ranks : 1);
          // Each of two encodings errs by half a unit of at most 2 · ranks / 255.
          ASSERT_LE(std::abs(outs[0][i] - sum), (ranks + 1) * (averages ? 2.0 / 255 : ranks * 1.0 / 255) + 1e-6) << i;
        }
        for (const auto& out : outs) EXPECT_EQ(out, outs[0]);
        auto simulated = Simulate(*plan, {.sizes = {.count = count}, .trace = true});
        ASSERT_TRUE(simulated.ok());
        EXPECT_EQ(ByChannel(trace), simulated->trace);
        EXPECT_EQ(std::accumulate(steps.begin(), steps.end(), std::uint64_t{0}), simulated->steps);
      }
}

TEST_P(Coded, AllToAllVMovesWhatEachHasForEach) {
  for (std::int32_t ranks : {1, 2, 3, 5}) {
    auto plan = BuildPlan("all_to_all_v", {.collective = Collective::kAllToAllV, .dtype = Dtype::kI32, .ranks = ranks});
    ASSERT_TRUE(plan.ok());
    Fabric fabric(GetParam(), ranks, plan->header.channel_count);
    constexpr std::int64_t kRoom = 2000;
    constexpr int kRounds = 5;
    // tables[round]: entry (i, j) is what rank i has for rank j; some have nothing.
    std::vector<std::vector<std::int64_t>> tables(kRounds, std::vector<std::int64_t>(ranks * ranks));
    Random random(17);
    for (auto& table : tables)
      for (std::int64_t& entry : table) entry = random.OneIn(4) ? 0 : static_cast<std::int64_t>(random.Below(300));
    std::vector<Trace> traces(kRounds, Trace(ranks));
    OnAllRanks(ranks, [&](std::int32_t rank) {
      // The table is not known when the instance is made.
      auto made = Instance::Make(&plan->header, &plan->programs[rank],
                                 {.table = std::vector<std::int64_t>(static_cast<std::size_t>(ranks * ranks))}, &fabric.endpoint(rank));
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      Instance& instance = **made;
      for (int round = 0; round < kRounds; ++round) {
        const auto& table = tables[round];
        std::vector<std::int64_t> mine(table.begin() + rank * ranks, table.begin() + (rank + 1) * ranks);
        std::vector<std::int32_t> in, out(kRoom, -1), expected;
        for (std::int32_t to = 0; to < ranks; ++to)
          for (std::int64_t i = 0; i < mine[to]; ++i) in.push_back(static_cast<std::int32_t>(rank * 1'000'000 + to * 10'000 + i));
        for (std::int32_t from = 0; from < ranks; ++from)
          for (std::int64_t i = 0; i < table[from * ranks + rank]; ++i)
            expected.push_back(static_cast<std::int32_t>(from * 1'000'000 + rank * 10'000 + i));
        in.push_back(-7);
        ASSERT_TRUE(instance.SetCounts(mine, kRoom).ok());
        ASSERT_TRUE(instance.Bind(std::vector<void*>{in.data(), out.data(), mine.data(), nullptr}).ok());
        instance.Record(&traces[round][rank]);
        Status status = instance.Run();
        ASSERT_TRUE(status.ok()) << status.ToString();
        for (std::int32_t from = 0; from < ranks; ++from) EXPECT_EQ(instance.received(from), table[from * ranks + rank]);
        EXPECT_EQ(std::vector<std::int32_t>(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(expected.size())), expected);
        for (std::size_t i = expected.size(); i < out.size(); ++i) ASSERT_EQ(out[i], -1);
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      auto simulated = Simulate(*plan, {.sizes = {.table = tables[round]}, .trace = true});
      ASSERT_TRUE(simulated.ok()) << simulated.status().ToString();
      EXPECT_EQ(ByChannel(traces[round]), simulated->trace) << ranks;
    }
  }
}

// The counts are a peer's word.
TEST_P(Coded, MoreThanThereIsRoomForIsRefusedBeforeItIsWritten) {
  auto plan = BuildPlan("all_to_all_v", {.collective = Collective::kAllToAllV, .dtype = Dtype::kI32, .ranks = 2});
  ASSERT_TRUE(plan.ok());
  Fabric fabric(GetParam(), 2, plan->header.channel_count);
  struct Vectors {
    std::vector<std::int64_t> counts = {100, 100};
    std::vector<std::int32_t> in, out;
  };
  // Of both ranks until both have ended: who fails first may still be read by the other.
  std::vector<Vectors> vectors(2);
  OnAllRanks(2, [&](std::int32_t rank) {
    auto instance = Instance::Make(&plan->header, &plan->programs[rank], {.table = std::vector<std::int64_t>(4)}, &fabric.endpoint(rank));
    ASSERT_TRUE(instance.ok());
    auto& [mine, in, out] = vectors[rank];
    in.resize(200);
    out.assign(rank == 0 ? 150 : 200, -1);
    ASSERT_TRUE((*instance)->SetCounts(mine, static_cast<std::int64_t>(out.size())).ok());
    ASSERT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), out.data(), mine.data(), nullptr}).ok());
    Status status = (*instance)->Run();
    if (rank == 0) {
      EXPECT_EQ(status.tag(), "COLL26") << status.ToString();
      EXPECT_EQ(out[0], -1);
    } else {
      EXPECT_FALSE(status.ok());
    }
  });
  auto instance = Instance::Make(&plan->header, &plan->programs[0], {.table = std::vector<std::int64_t>(4)}, &fabric.endpoint(0));
  ASSERT_TRUE(instance.ok());
  EXPECT_EQ((*instance)->SetCounts(std::vector<std::int64_t>{1, -1}, 10).tag(), "COLL01");
  EXPECT_EQ((*instance)->SetCounts(std::vector<std::int64_t>{1}, 10).tag(), "COLL01");
}

}  // namespace
}  // namespace ropewalk::collective::testing
