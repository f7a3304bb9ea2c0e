// What was measured beside the link model's predictions: between lengths, for ways that were not measured, as bytes, and in what is chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/collective/run/link_costs.h"
#include "mlrunner/collective/run/measure_corrections.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

constexpr std::int64_t kKiB = 1 << 10;

const Choice kDirect{.algorithm = "direct", .segment_bytes = 256 * kKiB}, kRing{.algorithm = "ring", .segment_bytes = 256 * kKiB},
    kChain{.algorithm = "chain", .segment_bytes = 256 * kKiB};

Corrections Some() {
  Corrections some;
  for (const auto& [bytes, factor] : {std::pair(kKiB, 2.0), std::pair(4 * kKiB, 8.0), std::pair(64 * kKiB, .5)})
    some.Add(kDirect, bytes, factor);
  some.Add(kRing, 4 * kKiB, 3);
  some.Add({.algorithm = "ring", .segment_bytes = 256 * kKiB, .channels = 2}, 4 * kKiB, 5);
  return some;
}

TEST(Corrections, BetweenLengthsTheirLogarithmIsALine) {
  const Corrections some = Some();
  EXPECT_EQ(some.FactorOf(kDirect, kKiB), 2);
  EXPECT_DOUBLE_EQ(some.FactorOf(kDirect, 2 * kKiB), 4);
  EXPECT_DOUBLE_EQ(some.FactorOf(kDirect, 16 * kKiB), 2);
  // Before the first and beyond the last they stay.
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, kKiB - 1}) EXPECT_EQ(some.FactorOf(kDirect, bytes), 2);
  for (const std::int64_t bytes : {64 * kKiB, 65 * kKiB, std::int64_t{1} << 40}) EXPECT_EQ(some.FactorOf(kDirect, bytes), .5);
}

// Up and down as it comes: exact where it was measured, and between its neighbours elsewhere.
TEST(Corrections, NothingIsAssumedOfTheirCourse) {
  constexpr std::uint64_t kSeed = 41;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  for (int curve = 0; curve < 50; ++curve) {
    Corrections some;
    std::vector<Corrections::Point> points;
    for (std::int64_t bytes = 1 + static_cast<std::int64_t>(random.Below(1000)); points.size() < 6;
         bytes += 1 + static_cast<std::int64_t>(random.Below(static_cast<std::uint64_t>(3 * bytes)))) {
      points.push_back({bytes, std::exp(6 * random.Unit() - 3)});
      some.Add(kDirect, bytes, points.back().factor);
    }
    for (std::size_t i = 0; i < points.size(); ++i) {
      EXPECT_DOUBLE_EQ(some.FactorOf(kDirect, points[i].bytes), points[i].factor);
      if (i == 0) continue;
      const auto [low, high] = std::minmax(points[i - 1].factor, points[i].factor);
      for (int probe = 0; probe < 20; ++probe) {
        const auto gap = static_cast<std::uint64_t>(points[i].bytes - points[i - 1].bytes);
        const double factor = some.FactorOf(kDirect, points[i - 1].bytes + static_cast<std::int64_t>(random.Below(gap)));
        EXPECT_GE(factor, low * (1 - 1e-9));
        EXPECT_LE(factor, high * (1 + 1e-9));
      }
    }
  }
}

TEST(Corrections, OfWhatWasNotMeasuredAreThoseOfWhatIsNearest) {
  const Corrections some = Some();
  // Other segments of the same algorithm, on as many channels if that was measured.
  EXPECT_EQ(some.FactorOf({.algorithm = "ring", .segment_bytes = 7}, 4 * kKiB), 3);
  EXPECT_EQ(some.FactorOf({.algorithm = "ring", .segment_bytes = 7, .channels = 2}, 4 * kKiB), 5);
  EXPECT_EQ(some.FactorOf({.algorithm = "ring", .segment_bytes = 7, .channels = 3}, 4 * kKiB), 3);
  // Another algorithm: the median of 8, 3 and 5.
  EXPECT_EQ(some.FactorOf(kChain, 4 * kKiB), 5);
  EXPECT_EQ(Corrections().FactorOf(kDirect, 4 * kKiB), 1);
  // They are of allreduces.
  for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter, Collective::kBroadcast}) {
    Header header{.algorithm = "direct"};
    header.request = {.collective = collective, .dtype = Dtype::kF32, .ranks = 2, .segment_bytes = 256 * kKiB};
    EXPECT_EQ(some.FactorOf(header, kKiB), collective == Collective::kAllreduce ? 8 : 1);
    header.request.dtype = Dtype::kF64;
    EXPECT_DOUBLE_EQ(some.FactorOf(header, kKiB / 4), collective == Collective::kAllreduce ? 4 : 1) << "by bytes, whatever the type";
  }
}

TEST(Corrections, AreTheSameAsBytesAndNotBelievedWhenDamaged) {
  for (const Corrections& some : {Some(), Corrections()}) {
    auto heard = DecodeCorrections(Encode(some));
    ASSERT_TRUE(heard.ok()) << heard.status().ToString();
    EXPECT_EQ(*heard, some);
  }
  const std::string whole = Encode(Some());
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(DecodeCorrections(whole.substr(0, length)).status().tag(), "COLL35") << length;
  EXPECT_EQ(DecodeCorrections(whole + "x").status().tag(), "COLL35");
  // Whatever is flipped, it is read as something that can be used, or refused.
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      auto heard = DecodeCorrections(damaged);
      if (!heard.ok()) {
        EXPECT_EQ(heard.status().tag(), "COLL35");
        continue;
      }
      const double factor = heard->FactorOf(kDirect, 3 * kKiB);
      EXPECT_TRUE(std::isfinite(factor) && factor > 0) << at << " " << bit;
    }
}

std::string OfPoints(const std::vector<Corrections::Point>& points, std::string_view algorithm = "direct", std::int64_t segment_bytes = 8,
                     std::int32_t channels = 1) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Varint(1);
  writer.Sized(algorithm);
  writer.Fixed(segment_bytes);
  writer.Fixed(channels);
  writer.Varint(points.size());
  for (const Corrections::Point& point : points) {
    writer.Fixed(point.bytes);
    writer.Fixed(point.factor);
  }
  return bytes;
}

TEST(Corrections, ThatNoMeasurementGivesAreRefused) {
  EXPECT_TRUE(DecodeCorrections(OfPoints({{1, 2}, {2, 1}})).ok());
  for (const double factor : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(DecodeCorrections(OfPoints({{1, factor}})).status().tag(), "COLL35") << factor;
  for (const std::vector<Corrections::Point>& points :
       std::vector<std::vector<Corrections::Point>>{{}, {{0, 1}}, {{-5, 1}}, {{2, 1}, {1, 1}}, {{2, 1}, {2, 1}}})
    EXPECT_EQ(DecodeCorrections(OfPoints(points)).status().tag(), "COLL35");
  EXPECT_EQ(DecodeCorrections(OfPoints({{1, 2}}, "")).status().tag(), "COLL35");
  EXPECT_EQ(DecodeCorrections(OfPoints({{1, 2}}, "direct", -1)).status().tag(), "COLL35");
  EXPECT_EQ(DecodeCorrections(OfPoints({{1, 2}}, "direct", 8, 0)).status().tag(), "COLL35");
}

// ---- what is chosen by them -------------------------------------------------------------------------------------------------------------

LinkModel SomeModel() {
  LinkModel model;
  model.call_ns = 2'000;
  model.latency_ns = 9'000;
  model.overhead_ns = 1'500;
  model.ns_per_byte = .4;
  model.alone_ns_per_byte = .25;
  model.reduce_ns_per_byte = .06;
  model.copy_ns_per_byte = .04;
  return model;
}

// A world in which one algorithm takes three times what the model says, as recursive doubling does where a vector no longer fits into a
// cache: with what was measured it is left, without it it is taken.
TEST(Corrections, MakeRightWhatTheModelChoosesWrongly) {
  const Ground ground{.ranks = 4};
  constexpr std::int64_t kBytes = 20 * kKiB;
  const CollectiveCall call{.count = kBytes / 4};
  const Chooser by_model(ground, {.model = SomeModel(), .from = CostsFrom::kMeasured});
  const std::string wrong(by_model.For(call).algorithm);
  Corrections measured;
  for (const Candidate& candidate : CandidatesFor({}, ground))
    for (const std::int64_t bytes : {8 * kKiB, 64 * kKiB})
      measured.Add(candidate.choice, bytes, candidate.choice.algorithm == wrong ? 3 : 1.1);
  const Chooser corrected(ground, {.model = SomeModel(), .corrections = measured, .from = CostsFrom::kMeasured});
  auto truth_ns = [&](std::string_view algorithm) {
    double least = 0;
    for (const Candidate& candidate : CandidatesFor({}, ground)) {
      if (!algorithm.empty() && candidate.choice.algorithm != algorithm) continue;
      const double ns = *NsOf(SomeModel(), candidate, call.count) * (candidate.choice.algorithm == wrong ? 3 : 1.1);
      least = least == 0 ? ns : std::min(least, ns);
    }
    return least;
  };
  EXPECT_NE(corrected.For(call).algorithm, wrong);
  EXPECT_LE(truth_ns(corrected.For(call).algorithm), 1.05 * truth_ns(""));
  // The control: what is lost without them, and that one factor for all changes nothing.
  EXPECT_GT(truth_ns(wrong), 1.25 * truth_ns(""));
  Corrections equal;
  for (const Candidate& candidate : CandidatesFor({}, ground)) equal.Add(candidate.choice, kBytes, 7);
  EXPECT_EQ(Chooser(ground, {.model = SomeModel(), .corrections = equal, .from = CostsFrom::kMeasured}).For(call).algorithm, wrong);
  // Other collectives know nothing of them.
  const CollectiveCall scatter{.collective = Collective::kReduceScatter, .count = kBytes / 4};
  EXPECT_EQ(corrected.For(scatter).algorithm, by_model.For(scatter).algorithm);

  const Decision decision = corrected.Explain(call), plain = by_model.Explain(call);
  EXPECT_NEAR(decision.factor, 1.1, 1e-9);
  EXPECT_EQ(plain.factor, 0);
  const std::string text = Explain(decision);
  for (const char* part : {" us predicted by measured costs (", " us by the model, 1.10 times that as measured); next "})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(Explain(plain).find("by the model"), std::string::npos) << Explain(plain);
  EXPECT_EQ(corrected.Explain(scatter).factor, 0);
}

// Between the lengths that a table is made from, too, wherever factors go up and down.
TEST(Corrections, AreFollowedFromLengthToLength) {
  constexpr std::uint64_t kSeed = 5;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  for (const std::int32_t ranks : {2, 3}) {
    const Ground ground{.ranks = ranks, .shares_memory = true};
    const auto candidates = CandidatesFor({}, ground);
    Costs costs{.model = SomeModel(), .from = CostsFrom::kMeasured};
    for (const Candidate& candidate : candidates)
      for (std::int64_t bytes = 768; bytes <= 12 << 20; bytes *= 4)
        costs.corrections.Add(candidate.choice, bytes, std::exp(random.Unit() - .5));
    const Chooser chooser(ground, costs);
    const std::string said = Encode(costs);
    const Chooser other(ground, *DecodeCosts(said));
    for (int i = 0; i < 15; ++i) {
      const auto count = static_cast<std::int64_t>(std::exp2(5 + 17 * random.Unit()));
      const Chosen chosen = chooser.For({.count = count});
      double least = 0, taken = 0;
      for (const Candidate& candidate : candidates) {
        const auto ns = NsOf(costs, candidate, count);
        if (!ns.ok()) continue;
        if (least == 0 || *ns < least) least = *ns;
        if (candidate.choice == Choice{chosen.algorithm, chosen.request.segment_bytes, chosen.request.channels}) taken = *ns;
      }
      EXPECT_GT(taken, 0);
      EXPECT_LE(taken, 1.1 * least) << chosen.algorithm << " of " << count << " elements, " << ranks << " ranks";
    }
    EXPECT_EQ(Encode(other.costs()), said);
  }
}

// ---- measured ---------------------------------------------------------------------------------------------------------------------------

TEST(Corrections, MeasuredAreTheSameOnAllRanks) {
  for (const Wire wire : {Wire::kShared, Wire::kTcp}) {
    std::mutex mutex;
    std::set<std::string> all_measured;
    CommunicatorOptions options = Over(wire);
    options.pool_bytes = 4 << 20;  // so the longest ones do not fit where memory is shared
    WithRanks(3, options, [&](Communicator& all, Meeting&) {
      const Ground ground{.ranks = 3, .shares_memory = all.shares_memory(), .nodes = all.nodes()};
      auto measured = MeasureCorrections(&all, SomeModel(), ground);
      ASSERT_TRUE(measured.ok()) << measured.status().ToString();
      ASSERT_FALSE(measured->empty());
      std::set<std::string> algorithms;
      for (const Corrections::Curve& curve : measured->curves()) {
        algorithms.insert(curve.algorithm);
        EXPECT_EQ(curve.points.front().bytes, 768) << curve.algorithm;
        if (wire == Wire::kShared) {
          EXPECT_LT(curve.points.back().bytes, 1 << 20) << curve.algorithm;
        }
      }
      // What can be chosen was run, and it is still there for calls.
      for (const char* algorithm : {"direct", "ring", "recursive_doubling", "central_ps", "tree"})
        EXPECT_EQ(algorithms.count(algorithm), 1u) << algorithm;
      float one = 1;
      ASSERT_TRUE(all.AllReduce({.in = &one, .out = &one, .count = 1, .name = "x"}).ok());
      EXPECT_EQ(one, 3);
      std::lock_guard lock(mutex);
      all_measured.insert(Encode(*measured));
    });
    EXPECT_EQ(all_measured.size(), 1u) << "ranks that choose by them must choose the same";
  }
}

TEST(Corrections, AreNoneForOneRank) {
  WithRanks(1, Over(Wire::kShared), [&](Communicator& all, Meeting&) {
    auto measured = MeasureCorrections(&all, SomeModel(), {.ranks = 1, .shares_memory = true, .nodes = all.nodes()});
    ASSERT_TRUE(measured.ok()) << measured.status().ToString();
    EXPECT_TRUE(measured->empty());
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
