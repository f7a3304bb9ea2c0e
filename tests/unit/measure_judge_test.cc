// Whether results are right is found out: of every algorithm's run in which nothing is broken none is wrong, and each element that is
// broken is counted and named.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <utility>

#include "base/random.h"
#include "mlrunner/collective/run/kernels.h"
#include "mlrunner/measure/contenders.h"
#include "mlrunner/measure/judge.h"
#include "mlrunner/measure/shape.h"

namespace ropewalk::measure {
namespace {

using collective::Collective;
using collective::Dtype;
using collective::Plan;
using collective::ReduceOp;

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kAvg};

Plan PlanFor(const char* algorithm, collective::Request request) {
  auto plan = collective::BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// What an allreduce should leave, by the product's fold: it shares no line with the judge.
std::vector<char> Folded(const Pattern& pattern, ReduceOp op, std::int32_t ranks, std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(count) * SizeOf(pattern.dtype());
  std::vector<std::vector<char>> vectors(static_cast<std::size_t>(ranks), std::vector<char>(bytes));
  std::vector<collective::Row> rows;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    pattern.Fill(rank, vectors[static_cast<std::size_t>(rank)].data(), count);
    rows.push_back({.data = vectors[static_cast<std::size_t>(rank)].data(), .dtype = pattern.dtype()});
  }
  std::vector<char> out(bytes);
  const bool averages = op == ReduceOp::kAvg;
  collective::FoldRows(averages ? ReduceOp::kSum : op, collective::AccumulatorOf(pattern.dtype()), rows, averages ? 1.0 / ranks : 1,
                       pattern.dtype(), out.data(), count);
  return out;
}

TEST(Judge, FindsNothingInWhatIsRight) {
  for (const Dtype dtype : kDtypes)
    for (const ReduceOp op : kOps)
      for (const std::int32_t ranks : {1, 2, 3, 7, 40, 256}) {
        if (ranks == 256 && op != ReduceOp::kSum) continue;     // more than a byte can count
        if (op == ReduceOp::kAvg && !IsFloat(dtype)) continue;  // there is no such sum
        const std::int64_t count = 2'500;
        const Pattern pattern(dtype, op, ranks);
        const Plan plan = PlanFor("recursive_doubling", {.dtype = dtype, .op = op, .ranks = ranks});
        auto verdict = Look(plan, {.count = count}, pattern, ranks - 1, Folded(pattern, op, ranks, count).data());
        ASSERT_TRUE(verdict.ok()) << verdict.status().ToString();
        EXPECT_EQ(verdict->wrong, 0) << Name(dtype) << " " << Name(op) << " of " << ranks << ": " << verdict->first;
      }
}

TEST(Judge, EverySingleWrongElementIsFound) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (const Dtype dtype : kDtypes)
    for (const ReduceOp op : kOps) {
      if (op == ReduceOp::kAvg) continue;  // what is rounded is compared with some slack
      const std::int32_t ranks = 3;
      const std::int64_t count = 1'200;
      const Pattern pattern(dtype, op, ranks);
      const Plan plan = PlanFor("ring", {.dtype = dtype, .op = op, .ranks = ranks});
      const std::vector<char> right = Folded(pattern, op, ranks, count);
      for (int i = 0; i < 50; ++i) {
        std::vector<char> out = right;
        const auto at = static_cast<std::size_t>(random.Below(static_cast<std::uint64_t>(count)));
        // The lowest bit of the highest byte: of every type another number.
        out[(at + 1) * SizeOf(dtype) - 1] ^= 1;
        auto verdict = Look(plan, {.count = count}, pattern, 1, out.data());
        ASSERT_TRUE(verdict.ok());
        EXPECT_EQ(verdict->wrong, 1) << Name(dtype) << " " << Name(op);
        EXPECT_EQ(verdict->first.find("element " + std::to_string(at) + " is "), 0u) << verdict->first;
      }
    }
}

// What a plan that does not do its work would leave.
TEST(Judge, MistakesOfWholeVectorsAreFound) {
  const std::int32_t ranks = 4;
  const std::int64_t count = 10'000;
  for (const Dtype dtype : kDtypes)
    for (const ReduceOp op : kOps) {
      SCOPED_TRACE(std::string(Name(dtype)) + " " + std::string(Name(op)));
      if (op == ReduceOp::kAvg && !IsFloat(dtype)) continue;  // there is no such sum
      const Pattern pattern(dtype, op, ranks);
      const Plan plan = PlanFor("direct", {.dtype = dtype, .op = op, .ranks = ranks});
      const std::size_t element = SizeOf(dtype);
      const std::vector<char> right = Folded(pattern, op, ranks, count);
      auto wrong = [&](const std::vector<char>& out) {
        auto verdict = Look(plan, {.count = count}, pattern, 2, out.data());
        EXPECT_TRUE(verdict.ok());
        return verdict->wrong;
      };
      ASSERT_EQ(wrong(right), 0);
      std::vector<char> out(right.size());
      Spoil(out.data(), static_cast<std::int64_t>(out.size()));
      EXPECT_GT(wrong(out), count * 9 / 10) << "nothing was written";
      pattern.Fill(2, out.data(), count);
      // Halves in an average are compared with so much slack that some ranks' own numbers pass for it.
      EXPECT_GT(wrong(out), count / 20) << "its own vector only";
      // Another order of the parts, and a shift by an element.
      std::memcpy(out.data(), right.data() + right.size() / 4, right.size() * 3 / 4);
      std::memcpy(out.data() + right.size() * 3 / 4, right.data(), right.size() / 4);
      EXPECT_GT(wrong(out), count / 20);
      std::memcpy(out.data(), right.data() + element, right.size() - element);
      EXPECT_GT(wrong(out), count / 20);
    }
}

// A broadcast leaves the root's vector, a message is nobody's business but its receiver's, an all-to-all moves parts.
TEST(Judge, PromisesOfOtherCollectives) {
  const Pattern pattern(Dtype::kI32, ReduceOp::kSum, 3);
  std::vector<std::int32_t> out(3'000), mine(3'000);
  pattern.Fill(0, out.data(), 3'000);
  pattern.Fill(2, mine.data(), 3'000);
  auto wrong = [&](const Plan& plan, const collective::Sizes& sizes, std::int32_t rank, const void* held) {
    auto verdict = Look(plan, sizes, pattern, rank, held);
    EXPECT_TRUE(verdict.ok()) << verdict.status().ToString();
    return verdict.ok() ? verdict->wrong : -1;
  };
  const Plan broadcast = PlanFor("broadcast_tree", {.collective = Collective::kBroadcast, .dtype = Dtype::kI32, .ranks = 3});
  EXPECT_EQ(wrong(broadcast, {.count = 3'000}, 2, out.data()), 0);
  EXPECT_GT(wrong(broadcast, {.count = 3'000}, 2, mine.data()), 2'000);
  const Plan message = PlanFor("send_recv", {.collective = Collective::kSendRecv, .dtype = Dtype::kI32, .ranks = 3, .peer = 2});
  EXPECT_EQ(wrong(message, {.count = 3'000}, 2, out.data()), 0);
  EXPECT_GT(wrong(message, {.count = 3'000}, 2, mine.data()), 2'000);
  EXPECT_EQ(wrong(message, {.count = 3'000}, 1, mine.data()), 0);

  const Plan exchange = PlanFor("all_to_all_v", {.collective = Collective::kAllToAllV, .dtype = Dtype::kI32, .ranks = 3});
  auto shape = ShapeOf(exchange, 12'000);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->each, 1'000);
  for (std::int32_t from = 0; from < 3; ++from) {
    pattern.Fill(from, mine.data(), 3'000);
    std::memcpy(out.data() + from * 1'000, mine.data() + 1'000, 4'000);
  }
  EXPECT_EQ(wrong(exchange, shape->sizes, 1, out.data()), 0);
  EXPECT_GT(wrong(exchange, shape->sizes, 2, out.data()), 2'000);
}

// What the bench sets aside for a plan: a sum for each round of recursive doubling, which grows with the ranks; nothing for a ring.
TEST(Shape, SaysWhatPlansKeepBesideTheVectors) {
  for (const auto& [ranks, rounds] : {std::pair{2, 1}, {4, 2}, {7, 2}, {8, 3}, {16, 4}}) {
    auto doubling = ShapeOf(PlanFor("recursive_doubling", {.ranks = ranks}), 4'096),
         ring = ShapeOf(PlanFor("ring", {.ranks = ranks}), 4'096);
    ASSERT_TRUE(doubling.ok() && ring.ok());
    EXPECT_EQ(doubling->scratch_bytes, rounds * 4'096) << ranks;
    EXPECT_EQ(ring->scratch_bytes, 0) << ranks;
  }
}

TEST(Shape, IsOfTheSizeThatWasAskedFor) {
  const Plan sum = PlanFor("ring", {.dtype = Dtype::kF32, .ranks = 3});
  auto shape = ShapeOf(sum, 4'099);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->count, 1'024);
  EXPECT_EQ(shape->bytes, 4'096);
  EXPECT_EQ(ShapeOf(sum, 1)->count, 1) << "not less than an element";
  const Plan exchange = PlanFor("all_to_all_v", {.collective = Collective::kAllToAllV, .dtype = Dtype::kF32, .ranks = 3});
  EXPECT_EQ(ShapeOf(exchange, 4'096)->bytes, 4'092);
  EXPECT_EQ(ShapeOf(exchange, 1)->bytes, 12);
  const Plan barrier = PlanFor("barrier", {.collective = Collective::kBarrier, .ranks = 3});
  EXPECT_EQ(ShapeOf(barrier, 4'096)->bytes, 0);
}

}  // namespace
}  // namespace ropewalk::measure
