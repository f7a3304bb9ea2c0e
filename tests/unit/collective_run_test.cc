// Real runs: the right numbers, the same bits on all ranks, the trace of virtual time, over every transport.
#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "base/random.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_numbers.h"
#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::collective::testing {
namespace {

const char* Name(Kind kind) { return kind == Kind::kThreads ? "threads" : kind == Kind::kPools ? "pools" : "sockets"; }

struct Ran {
  std::vector<std::vector<char>> in, out;  // by rank
  std::vector<Status> statuses;
  Trace trace;
  std::uint64_t steps = 0;
};

// The sizes of a run: `count`, and what each rank has for each where the plan asks for that.
Sizes SizesOf(const Plan& plan, std::int64_t count) {
  Sizes sizes{.count = count};
  const std::int32_t ranks = plan.header.request.ranks;
  for (std::int32_t i = 0; LearnsCounts(plan.header.request.collective) && i < ranks * ranks; ++i) sizes.table.push_back(i % 5 * 100);
  return sizes;
}

// The one of `in` and `out` that may lie in the other; kNone: neither.
std::int32_t InOther(const Plan& plan) {
  for (std::int32_t buffer : {0, 1})
    if (plan.header.buffers[buffer].may_alias == 1 - buffer) return buffer;
  return kNone;
}

Ran RunAll(Kind kind, const Plan& plan, std::int64_t count, bool in_place, std::uint64_t seed, int rounds = 1) {
  const std::int32_t ranks = plan.header.request.ranks;
  const Dtype dtype = plan.header.request.dtype;
  const Sizes sizes = SizesOf(plan, count);
  Fabric fabric(kind, ranks, plan.header.channel_count);
  Ran ran;
  ran.in.resize(ranks);
  ran.out.resize(ranks);
  ran.statuses.resize(ranks);
  ran.trace.resize(ranks);
  std::vector<std::uint64_t> steps(ranks);
  OnAllRanks(ranks, [&](std::int32_t rank) {
    Transport& transport = fabric.endpoint(rank);
    const Layout layout = *Layout::Make(plan.header, plan.programs[rank], sizes);
    const std::int64_t lengths[] = {std::max(count, layout.ElementsOf(0)), std::max(count, layout.ElementsOf(1))};
    const auto size = static_cast<std::int64_t>(SizeOf(dtype));
    const std::int64_t in_bytes = lengths[0] * size, out_bytes = lengths[1] * size;
    char* both[] = {transport.Allocate(static_cast<std::size_t>(in_bytes) + 64),
                    transport.Allocate(static_cast<std::size_t>(out_bytes) + 64)};
    if (in_place) both[InOther(plan)] = both[1 - InOther(plan)] + layout.AliasOffset(InOther(plan), rank) * size;
    auto [in, out] = both;
    Random random = Random::ForPurpose(seed, static_cast<std::uint64_t>(rank));
    for (std::int64_t i = 0; i < lengths[0]; ++i) {
      double value = IsFloat(dtype) ? random.Unit() * 2 - 1 : static_cast<double>(random.Below(9)) - 4;
      Set(dtype, in, i, value);
    }
    ran.in[rank].assign(in, in + in_bytes);
    Sizes known = sizes;
    std::fill(known.table.begin(), known.table.end(), 0);  // it is learned
    auto instance = Instance::Make(&plan.header, &plan.programs[rank], known, &transport);
    if (!instance.ok()) {
      ran.statuses[rank] = instance.status();
      return;
    }
    // In the order of the header: in, out, and what else the caller brings.
    std::vector<std::int64_t> counts;
    if (!sizes.table.empty()) counts.assign(sizes.table.begin() + rank * ranks, sizes.table.begin() + (rank + 1) * ranks);
    if (plan.header.request.collective == Collective::kAllgatherV) counts.resize(1);
    std::vector<std::vector<char>> states;
    std::vector<void*> buffers = {in, out};
    for (std::size_t b = 2; b < plan.header.buffers.size(); ++b) {
      const Buffer& buffer = plan.header.buffers[b];
      states.emplace_back(buffer.role == Role::kState ? static_cast<std::size_t>(count) * sizeof(double) : 0);
      buffers.push_back(buffer.role == Role::kState ? static_cast<void*>(states.back().data())
                        : buffer.role == Role::kIn  ? static_cast<void*>(counts.data())
                                                    : nullptr);
    }
    (*instance)->Record(&ran.trace[rank]);
    for (int round = 0; round < rounds && ran.statuses[rank].ok(); ++round) {
      std::copy_n(ran.in[rank].data(), in_bytes, in);
      if (!counts.empty()) ran.statuses[rank] = (*instance)->SetCounts(counts, count);
      if (ran.statuses[rank].ok()) ran.statuses[rank] = (*instance)->Bind(buffers);
      if (ran.statuses[rank].ok()) ran.statuses[rank] = (*instance)->Run();
    }
    ran.out[rank].assign(out, out + out_bytes);
    steps[rank] = (*instance)->steps();
  });
  for (std::uint64_t one : steps) ran.steps += one;
  ran.trace = ByChannel(std::move(ran.trace));
  return ran;
}

Plan Built(std::string_view algorithm, const Request& request) {
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// What the plan promises, in double; and how large the operands were, for the error.
void ExpectAllreduced(const Plan& plan, const Ran& ran, std::int64_t count, const std::string& what) {
  const Request& request = plan.header.request;
  const double epsilon = request.dtype == Dtype::kF64    ? 0x1p-53
                         : request.dtype == Dtype::kF16  ? 0x1p-11
                         : request.dtype == Dtype::kBF16 ? 0x1p-8
                         : request.dtype == Dtype::kF32  ? 0x1p-24
                                                         : 0;
  for (std::int32_t rank = 0; rank < request.ranks; ++rank) {
    ASSERT_TRUE(ran.statuses[rank].ok()) << what << " rank " << rank << ": " << ran.statuses[rank].ToString();
    ASSERT_EQ(ran.out[rank], ran.out[0]) << what << ": ranks 0 and " << rank << " hold different bits";
  }
  for (std::int64_t i = 0; i < count; ++i) {
    double expected = 0, size = 0;
    for (std::int32_t rank = 0; rank < request.ranks; ++rank) {
      double x = Get(request.dtype, ran.in[rank].data(), i);
      size += std::abs(x);
      if (rank == 0)
        expected = x;
      else if (request.op == ReduceOp::kMin)
        expected = std::min(expected, x);
      else if (request.op == ReduceOp::kMax)
        expected = std::max(expected, x);
      else if (request.op == ReduceOp::kProd)
        expected *= x;
      else
        expected += x;
    }
    if (request.op == ReduceOp::kAvg) expected /= request.ranks, size /= request.ranks;
    if (request.op == ReduceOp::kProd) size = std::abs(expected);
    double got = Get(request.dtype, ran.out[0].data(), i);
    // Below the smallest normal f16 the spacing is fixed.
    double bound = request.ranks * epsilon * size + (request.dtype == Dtype::kF16 ? request.ranks * 0x1p-25 : 0);
    ASSERT_LE(std::abs(got - expected), bound) << what << " element " << i;
  }
}

// The claims of a plan without a codec, in double: whatever it is for.
void ExpectPromised(const Plan& plan, const Ran& ran, std::int64_t count, const std::string& what) {
  const Postcondition& post = plan.post;
  auto layout = Layout::Make(plan.header, post, {}, SizesOf(plan, count));
  ASSERT_TRUE(layout.ok()) << what << ": " << layout.status().ToString();
  const std::int32_t ranks = plan.header.request.ranks;
  const Dtype dtype = plan.header.request.dtype;
  for (const Claim& claim : post.claims) {
    if (claim.kind != ClaimKind::kFold || post.encodings_max > 0) continue;
    ASSERT_EQ(post.chunks[claim.out].buffer, 1) << what;
    const Extent out = layout->OfChunk(claim.out, nullptr);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      if (claim.rank != kEveryRank && claim.rank != rank) continue;
      for (std::int64_t i = 0; i < out.count; ++i) {
        double expected = 0, size = 0;
        for (std::int32_t t = claim.first_term; t < claim.first_term + claim.term_count; ++t)
          for (std::int32_t of = 0; of < ranks; ++of) {
            const Term& term = post.terms[t];
            if (term.rank != kEveryRank && term.rank != of && (term.rank != kSameRank || of != rank)) continue;
            const double x = term.coefficient * Get(dtype, ran.in[of].data(), layout->OfChunk(term.chunk, nullptr).offset + i);
            expected += x;
            size += std::abs(x);
          }
        const double got = Get(dtype, ran.out[rank].data(), out.offset + i);
        ASSERT_LE(std::abs(got - expected), ranks * 0x1p-24 * size) << what << " rank " << rank << " element " << out.offset + i;
      }
    }
  }
}

class Runs : public ::testing::TestWithParam<Kind> {};

TEST_P(Runs, EveryAlgorithmOverEveryGroupAndLength) {
  for (int ranks : {1, 2, 3, 4, 5, 8})
    for (std::int64_t count : {0, 1, 7, 5003})
      for (bool in_place : {false, true})
        for (const std::string& algorithm : PlainAllreduces()) {
          Plan plan = Built(algorithm, {.ranks = ranks, .channels = 2, .segment_bytes = 1024, .nodes = NodesOf(ranks, NodeSize(ranks))});
          Ran ran = RunAll(GetParam(), plan, count, in_place, 7, 2);
          ExpectAllreduced(plan, ran, count,
                           algorithm + " P=" + std::to_string(ranks) + " N=" + std::to_string(count) + " " + Name(GetParam()));
        }
}

TEST_P(Runs, BroadcastBarrierAndPointToPoint) {
  const std::int64_t count = 3001;
  for (int ranks : {2, 3, 5}) {
    for (const char* algorithm : {"broadcast_tree", "broadcast_chain"}) {
      Plan plan = Built(algorithm, {.collective = Collective::kBroadcast, .ranks = ranks, .root = ranks - 1, .segment_bytes = 1000});
      Ran ran = RunAll(GetParam(), plan, count, false, 3);
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(ran.statuses[rank].ok()) << ran.statuses[rank].ToString();
        EXPECT_EQ(ran.out[rank], ran.in[ranks - 1]) << algorithm;
      }
    }
    Plan barrier = Built("barrier", {.collective = Collective::kBarrier, .ranks = ranks});
    for (const Status& status : RunAll(GetParam(), barrier, 1, false, 3, 20).statuses) EXPECT_TRUE(status.ok()) << status.ToString();
    Plan send = Built("send_recv", {.collective = Collective::kSendRecv, .ranks = ranks, .root = 1, .peer = 0, .segment_bytes = 512});
    Ran ran = RunAll(GetParam(), send, count, false, 3);
    ASSERT_TRUE(ran.statuses[0].ok()) << ran.statuses[0].ToString();
    EXPECT_EQ(ran.out[0], ran.in[1]);
  }
}

// Rule of the house: what is simulated is what ships. Of every algorithm, and its numbers are what it promises; what takes more than a
// transport has the same in tests of its own (collective_one_sided_test.cc, collective_native_test.cc).
TEST_P(Runs, HaveTheTraceOfVirtualTime) {
  constexpr std::int64_t kCount = 5003;
  std::set<std::string> ran_here, needy;
  for (int ranks : {1, 2, 3, 4, 7})
    for (const Case& one : AllCases(ranks, 2048)) {
      const std::string what = testing::Name(one) + " " + Name(GetParam());
      const Plan plan = Built(one.algorithm, one.request);
      if (NeedsOf(plan) != Needs::kNothing) {
        needy.insert(one.algorithm);
        continue;
      }
      ran_here.insert(one.algorithm);
      const Ran ran = RunAll(GetParam(), plan, kCount, InOther(plan) != kNone, 5);
      for (const Status& status : ran.statuses) ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
      ExpectPromised(plan, ran, kCount, what);
      auto simulated = Simulate(plan, {.sizes = SizesOf(plan, kCount), .trace = true});
      ASSERT_TRUE(simulated.ok()) << what << ": " << simulated.status().ToString();
      EXPECT_EQ(ran.trace, simulated->trace) << what;
      EXPECT_EQ(ran.steps, simulated->steps) << what;
      if (ranks > 1) {
        EXPECT_GT(ran.steps, 0u) << what;
      }
    }
  EXPECT_EQ(needy, (std::set<std::string>{"eager", "native", "native_allgather", "native_broadcast", "native_reduce",
                                          "native_reduce_scatter", "window", "window_relaxed"}));
  for (const Algorithm& algorithm : Algorithms())
    EXPECT_EQ(ran_here.count(std::string(algorithm.name)) + needy.count(std::string(algorithm.name)), 1u)
        << algorithm.name << " has no line in AllCases";
}

TEST_P(Runs, TypesAndOperations) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64})
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kAvg})
      for (const std::string& algorithm : PlainAllreduces()) {
        if (op == ReduceOp::kAvg && !IsFloat(dtype)) continue;  // refused
        Plan plan = Built(algorithm, {.dtype = dtype, .op = op, .ranks = 4, .channels = 1, .segment_bytes = 512, .nodes = NodesOf(4, 2)});
        Ran ran = RunAll(GetParam(), plan, 301, true, 11);
        ExpectAllreduced(plan, ran, 301, algorithm + " " + std::string(Name(dtype)) + " " + std::string(Name(op)));
      }
}

// The sum of these is infinite in f16; their mean is not.
TEST_P(Runs, MeansOfLargeHalvesAreFinite) {
  for (const std::string& algorithm : PlainAllreduces()) {
    Plan plan = Built(algorithm, {.dtype = Dtype::kF16, .op = ReduceOp::kAvg, .ranks = 4, .channels = 1, .nodes = NodesOf(4, 2)});
    Fabric fabric(GetParam(), 4, plan.header.channel_count);
    OnAllRanks(4, [&](std::int32_t rank) {
      auto* data = reinterpret_cast<std::uint16_t*>(fabric.endpoint(rank).Allocate(64));
      std::fill(data, data + 9, FloatToHalf(Dtype::kF16, 30000));
      auto instance = Instance::Make(&plan.header, &plan.programs[rank], {.count = 9}, &fabric.endpoint(rank));
      ASSERT_TRUE(instance.ok());
      ASSERT_TRUE((*instance)->Bind(std::vector<void*>{data, data}).ok());
      Status status = (*instance)->Run();
      ASSERT_TRUE(status.ok()) << status.ToString();
      for (int i = 0; i < 9; ++i) EXPECT_EQ(HalfToFloat(Dtype::kF16, data[i]), 30000) << algorithm;
    });
  }
}

// Fused, cut into segments, by another algorithm: the same bits.
TEST_P(Runs, DeterministicModeGivesTheSameBitsHoweverItIsDone) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      std::vector<char> first;
      for (const char* algorithm : {"direct", "chain", "central_ps"})
        for (std::int64_t segment_bytes : {0, 64, 1000}) {
          Plan plan = Built(algorithm, {.dtype = dtype, .op = op, .ranks = 5, .deterministic = true, .segment_bytes = segment_bytes});
          Ran ran = RunAll(GetParam(), plan, 997, true, 13);
          ASSERT_TRUE(ran.statuses[0].ok()) << ran.statuses[0].ToString();
          if (first.empty()) first = ran.out[0];
          EXPECT_EQ(ran.out[0], first) << algorithm << " " << segment_bytes;
        }
    }
}

// Every bit pattern of the half types there and back; rounding against the definition.
TEST(Kernels, HalvesConvertExactlyAndRoundToNearestEven) {
  for (Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      float value = HalfToFloat(dtype, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(HalfToFloat(dtype, FloatToHalf(dtype, value))));
        continue;
      }
      ASSERT_EQ(FloatToHalf(dtype, value), bits) << Name(dtype);
      // Half way to the next one of equal sign goes to the even one.
      float next = HalfToFloat(dtype, static_cast<std::uint16_t>(bits + 1));
      if ((bits & 0x7fff) == 0x7fff || std::isnan(next) || std::isinf(next) || std::isinf(value)) continue;
      float middle = static_cast<float>((static_cast<double>(value) + static_cast<double>(next)) / 2);
      ASSERT_EQ(FloatToHalf(dtype, middle), bits + (bits & 1)) << Name(dtype) << " " << bits;
    }
    EXPECT_TRUE(std::isinf(HalfToFloat(dtype, FloatToHalf(dtype, 3.4028235e38f))));
  }
}

TEST(Kernels, AveragesOfWholeNumbersAreTheirQuotients) {
  for (std::int64_t n = 1; n < 200; ++n) {
    const std::int64_t values[] = {n, -n, 3 * n - 1, (std::int64_t{1} << 60) / n * n};
    std::int64_t results[4];
    const Row row{values, Dtype::kI64, 1};
    FoldRows(ReduceOp::kSum, Dtype::kI64, {&row, 1}, 1.0 / static_cast<double>(n), Dtype::kI64, results, 4);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(results[i], values[i] / n) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Runs, ::testing::Values(Kind::kThreads, Kind::kPools, Kind::kSockets),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(Instance, RefusesWhatItHasNoMachineFor) {
  Fabric fabric(Kind::kThreads, 4, 3);
  for (const char* algorithm : {"eager", "native"}) {
    Plan plan = Built(algorithm, {.ranks = 4, .quorum = 4});
    auto instance = Instance::Make(&plan.header, &plan.programs[0], {.count = 4}, &fabric.endpoint(0));
    ASSERT_FALSE(instance.ok());
    EXPECT_EQ(instance.status().tag(), "COLL12");
  }
}

// What peers cannot read is copied to where they can.
TEST(Instance, PrivateMemoryIsStagedWherePeersReadPools) {
  for (std::int64_t count : {100, 20'000})
    for (const std::string& algorithm : PlainAllreduces()) {
      Plan plan = Built(algorithm, {.dtype = Dtype::kI64, .ranks = 3, .channels = 1, .segment_bytes = 4096});
      Fabric fabric(Kind::kPools, 3, plan.header.channel_count);
      OnAllRanks(3, [&](std::int32_t rank) {
        std::vector<std::int64_t> mine(count);
        auto instance = Instance::Make(&plan.header, &plan.programs[rank], {.count = count}, &fabric.endpoint(rank));
        ASSERT_TRUE(instance.ok()) << instance.status().ToString();
        for (int round = 0; round < 3; ++round) {
          std::fill(mine.begin(), mine.end(), rank + round);
          Status status = (*instance)->Bind(std::vector<void*>{mine.data(), mine.data()});
          ASSERT_TRUE(status.ok()) << status.ToString();
          status = (*instance)->Run();
          ASSERT_TRUE(status.ok()) << algorithm << ": " << status.ToString();
          EXPECT_EQ(mine, std::vector<std::int64_t>(count, 3 + 3 * round)) << algorithm;
        }
      });
    }
}

// Before anything moves.
// Both ranks are driven by hand, so that the slower one reads when it is told to.
TEST(Instance, ScratchThatPeersStillReadIsLeftUntilTheNextRun) {
  constexpr std::int64_t kCount = 100;
  for (bool leaves_scratch : {true, false}) {
    auto plan = BuildPlan("recursive_doubling", {.ranks = 2});
    ASSERT_TRUE(plan.ok());
    Fabric fabric(Kind::kPools, 2, 1);
    std::vector<std::unique_ptr<Instance>> instances;
    std::vector<float*> vectors;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      vectors.push_back(reinterpret_cast<float*>(fabric.endpoint(rank).Allocate(kCount * 4)));
      std::fill_n(vectors[rank], kCount, rank + 1.0F);
      auto made = Instance::Make(&plan->header, &plan->programs[rank], {.count = kCount}, &fabric.endpoint(rank),
                                 {.leaves_scratch = leaves_scratch});
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      instances.push_back(*std::move(made));
      void* buffers[] = {vectors[rank], vectors[rank]};
      ASSERT_TRUE(instances[rank]->Bind(buffers).ok());
    }
    Instance &slow = *instances[0], &fast = *instances[1];
    auto start = [](Instance& instance) { instance.Start(0, LabelOf(instance.header(), kCount, "", kUncounted)); };
    start(slow);
    ASSERT_EQ(slow.Advance(), Outcome::kBlocked);
    start(fast);
    ASSERT_EQ(fast.Advance(), leaves_scratch ? Outcome::kDone : Outcome::kBlocked);
    EXPECT_EQ(vectors[1][7], 3);
    if (leaves_scratch) {
      EXPECT_FALSE(fast.IsAtRest());
      // The caller has its vector again; the next run must not put it where the slow one reads.
      std::fill_n(vectors[1], kCount, 10.0F);
      start(fast);
      ASSERT_EQ(fast.Advance(), Outcome::kBlocked);
    }
    ASSERT_EQ(slow.Advance(), Outcome::kDone);
    EXPECT_EQ(vectors[0][7], 3);
    if (!leaves_scratch) continue;
    ASSERT_EQ(fast.Advance(), Outcome::kBlocked);
    start(slow);
    ASSERT_EQ(slow.Advance(), Outcome::kDone);
    ASSERT_EQ(fast.Advance(), Outcome::kDone);
    EXPECT_EQ(vectors[0][7], 13);
    EXPECT_EQ(vectors[1][7], 13);
    EXPECT_TRUE(fast.IsAtRest());
  }
}

TEST(Instance, WhatFitsIntoNoPoolIsRefused) {
  Fabric fabric(Kind::kPools, 2, 1, std::size_t{1} << 16);
  Plan doubling = Built("recursive_doubling", {.ranks = 2});
  EXPECT_EQ(Instance::Make(&doubling.header, &doubling.programs[0], {.count = 20'000}, &fabric.endpoint(0)).status().tag(), "COLL13");
  Plan direct = Built("direct", {.ranks = 2});
  std::vector<float> mine(20'000);
  auto instance = Instance::Make(&direct.header, &direct.programs[0], {.count = 20'000}, &fabric.endpoint(0));
  ASSERT_TRUE(instance.ok());
  EXPECT_EQ((*instance)->Bind(std::vector<void*>{mine.data(), mine.data()}).tag(), "COLL13");
}

TEST(Instance, DifferentCountsAreAnErrorAndNeverWrongNumbers) {
  for (Kind kind : {Kind::kThreads, Kind::kPools, Kind::kSockets}) {
    Plan plan = Built("ring", {.ranks = 3, .channels = 1});
    Fabric fabric(kind, 3, 1);
    std::vector<Status> statuses(3);
    OnAllRanks(3, [&](std::int32_t rank) {
      std::int64_t count = rank == 1 ? 400 : 100;
      auto* memory = reinterpret_cast<float*>(fabric.endpoint(rank).Allocate(1600));
      std::fill(memory, memory + count, 1.0f);
      auto instance = Instance::Make(&plan.header, &plan.programs[rank], {.count = count}, &fabric.endpoint(rank));
      ASSERT_TRUE(instance.ok());
      ASSERT_TRUE((*instance)->Bind(std::vector<void*>{memory, memory}).ok());
      statuses[rank] = (*instance)->Run();
    });
    bool named = false;
    for (const Status& status : statuses) {
      EXPECT_FALSE(status.ok()) << Name(kind);
      named = named || status.tag() == "COLL21";
    }
    EXPECT_TRUE(named) << Name(kind);
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
