// Native steps: what they give, in which order a library gets them, and what happens without one, with a broken one, or when a rank fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/random.h"
#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_library.h"
#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::collective::testing {
namespace {

// The sum over the ranks of one parity, and beside it that over all: two streams that become ready together.
Status DeclareTwo(Header* header) {
  header->buffers = {{.name = "in", .role = Role::kIn}, {.name = "out", .role = Role::kOut}, {.name = "all", .role = Role::kOut}};
  header->channel_count = 2;
  header->groups.resize(2);
  for (std::int32_t rank = 0; rank < header->request.ranks; ++rank) header->groups[rank % 2].push_back(rank);
  return {};
}
void WriteTwo(Writer& w) {
  w.OnChannel(0);
  w.Native(Collective::kAllreduce, w.At(0, w.Whole()), w.At(1, w.Whole()), w.rank() % 2);
  w.OnChannel(1);
  w.Native(Collective::kAllreduce, w.At(0, w.Whole()), w.At(2, w.Whole()));
}
void PromiseTwo(PostWriter& post) {
  for (std::int32_t rank = 0; rank < post.ranks(); ++rank) {
    std::vector<Term> same;
    for (std::int32_t other = rank % 2; other < post.ranks(); other += 2)
      same.push_back({.rank = other, .chunk = post.At(0, post.Whole())});
    post.Fold(rank, post.At(1, post.Whole()), same);
    post.Fold(rank, post.At(2, post.Whole()), {{.rank = kEveryRank, .chunk = post.At(0, post.Whole())}});
  }
}
const Algorithm kTwo{"two_groups", Collective::kAllreduce, false, DeclareTwo, WriteTwo, PromiseTwo};

constexpr std::int32_t kUntouched = -77777;

struct Ran {
  std::vector<std::vector<std::int32_t>> in, out, all;  // by rank
  std::vector<Status> statuses;
  std::vector<std::unique_ptr<CpuLibrary>> libraries;
  Trace trace;
  std::uint64_t steps = 0;
};

Ran RunAll(const Plan& plan, std::int64_t count, int rounds, std::uint64_t seed, LibraryMeeting* meeting) {
  const std::int32_t ranks = plan.header.request.ranks;
  Fabric fabric(Kind::kThreads, ranks, plan.header.channel_count);
  Ran ran;
  ran.in.resize(ranks), ran.out.resize(ranks), ran.all.resize(ranks), ran.statuses.resize(ranks), ran.trace.resize(ranks);
  for (std::int32_t rank = 0; rank < ranks; ++rank) ran.libraries.push_back(std::make_unique<CpuLibrary>(rank, meeting));
  std::vector<std::uint64_t> steps(ranks);
  OnAllRanks(ranks, [&](std::int32_t rank) {
    Random random = Random::ForPurpose(seed, static_cast<std::uint64_t>(rank));
    for (std::int64_t i = 0; i < count; ++i) ran.in[rank].push_back(static_cast<std::int32_t>(random.Below(2000)) - 1000);
    ran.out[rank].resize(count, kUntouched), ran.all[rank].resize(count);
    NativeDesk desk(ran.libraries[rank].get(), &fabric.endpoint(rank));
    auto instance = Instance::Make(&plan.header, &plan.programs[rank], {.count = count}, &fabric.endpoint(rank), {.native = &desk});
    Status& status = ran.statuses[rank];
    status = instance.status();
    if (!status.ok()) return;
    (*instance)->Record(&ran.trace[rank]);
    for (int round = 0; round < rounds && status.ok(); ++round) {
      status = (*instance)->Bind(std::vector<void*>{ran.in[rank].data(), ran.out[rank].data(), ran.all[rank].data()});
      if (status.ok()) status = (*instance)->Run();
    }
    steps[rank] = (*instance)->steps();
  });
  for (std::uint64_t one : steps) ran.steps += one;
  ran.trace = ByChannel(std::move(ran.trace));
  return ran;
}

Plan Built(Result<Plan> plan) {
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// Whether `out` of every rank is the sum over the ranks of its parity, or over all.
bool AreSums(const Ran& ran, const std::vector<std::vector<std::int32_t>>& out, bool by_parity) {
  for (std::size_t rank = 0; rank < out.size(); ++rank)
    for (std::size_t i = 0; i < out[rank].size(); ++i) {
      std::int32_t sum = 0;
      for (std::size_t other = 0; other < out.size(); ++other)
        if (!by_parity || other % 2 == rank % 2) sum += ran.in[other][i];
      if (out[rank][i] != sum) return false;
    }
  return true;
}

TEST(Native, SumsAreThoseOfThePlainModelWithTheTraceOfVirtualTime) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 12; ++round) {
    const auto ranks = static_cast<std::int32_t>(1 + random.Below(5));
    const auto count = static_cast<std::int64_t>(1 + random.Below(3000));
    const bool two = round % 2 == 1;
    Request request{.dtype = Dtype::kI32, .ranks = ranks};
    Plan plan = Built(two ? BuildPlan(kTwo, request) : BuildPlan("native", request));
    if (two) {
      EXPECT_TRUE(CheckAll(plan).ok()) << CheckAll(plan).ToString();
    }
    LibraryMeeting meeting;
    Ran ran = RunAll(plan, count, 1, random(), &meeting);
    for (const Status& status : ran.statuses) ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(AreSums(ran, ran.out, two));
    EXPECT_TRUE(!two || AreSums(ran, ran.all, false));
    auto simulated = Simulate(plan, {.sizes = {.count = count}, .trace = true});
    ASSERT_TRUE(simulated.ok());
    EXPECT_EQ(ran.trace, simulated->trace);
    EXPECT_EQ(ran.steps, simulated->steps);
    EXPECT_EQ(ran.steps, static_cast<std::uint64_t>(ranks) * (two ? 2 : 1));
  }
}

// The other collectives: what is at each rank's `out` afterwards, by a plain loop.
std::vector<std::int32_t> Expected(const Plan& plan, const Ran& ran, std::int64_t count, std::int32_t rank) {
  const Request& request = plan.header.request;
  const auto part = [&](std::int32_t of) { return PartOf(count, request.ranks, of); };
  std::vector<std::int32_t> expected(static_cast<std::size_t>(count), kUntouched);
  if (request.collective == Collective::kBroadcast) return ran.in[request.root];
  if (request.collective == Collective::kAllgather) {
    for (std::int32_t of = 0; of < request.ranks; ++of) std::copy_n(ran.in[of].begin(), part(of).count, expected.begin() + part(of).offset);
    return expected;
  }
  if (request.collective == Collective::kReduce && rank != request.root) return expected;
  const Extent mine = request.collective == Collective::kReduceScatter ? part(rank) : Extent{0, count};
  for (std::int64_t i = 0; i < mine.count; ++i) {
    std::int32_t result = ran.in[0][mine.offset + i];
    for (std::int32_t of = 1; of < request.ranks; ++of) {
      const std::int32_t x = ran.in[of][mine.offset + i];
      result = request.op == ReduceOp::kMin ? std::min(result, x) : request.op == ReduceOp::kMax ? std::max(result, x) : result + x;
    }
    expected[i] = result;
  }
  return expected;
}

TEST(Native, EveryCollectiveLeavesWhatItPromisesWithTheTraceOfVirtualTime) {
  for (std::int32_t ranks : {1, 2, 3, 5, 8})
    for (std::int64_t count : {0, 1, 7, 8, 1003})
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax})
        for (const Case& one : AllCases(ranks, 0, Dtype::kI32)) {
          if (!one.algorithm.starts_with("native_")) continue;
          Request request = one.request;
          request.op = op;
          const std::string what = Name(one) + " N=" + std::to_string(count) + " " + std::string(collective::Name(op));
          Plan plan = Built(BuildPlan(one.algorithm, request));
          LibraryMeeting meeting;
          Ran ran = RunAll(plan, count, 1, 11, &meeting);
          for (std::int32_t rank = 0; rank < ranks; ++rank) {
            ASSERT_TRUE(ran.statuses[rank].ok()) << what << ": " << ran.statuses[rank].ToString();
            ASSERT_EQ(ran.out[rank], Expected(plan, ran, count, rank)) << what << " rank " << rank;
          }
          auto simulated = Simulate(plan, {.sizes = {.count = count}, .trace = true});
          ASSERT_TRUE(simulated.ok()) << what;
          EXPECT_EQ(ran.trace, simulated->trace) << what;
        }
}

// The proof knows whose vector is whose: a group that begins with another rank has another root.
TEST(Native, ARootThatIsNotTheFirstOfItsGroupIsFound) {
  for (const char* algorithm : {"native_broadcast", "native_reduce"}) {
    const Collective collective = algorithm == std::string("native_broadcast") ? Collective::kBroadcast : Collective::kReduce;
    Plan plan = Built(BuildPlan(algorithm, {.collective = collective, .ranks = 4, .root = 2}));
    EXPECT_TRUE(CheckAll(plan).ok()) << CheckAll(plan).ToString();
    std::rotate(plan.header.groups[0].begin(), plan.header.groups[0].begin() + 1, plan.header.groups[0].end());
    Status status = Check(plan, {.sizes = {.count = 9}}).status();
    // A reduce finds it before: only the root has room for what the first gets.
    EXPECT_EQ(status.tag(), collective == Collective::kBroadcast ? "COLL06" : "COLL03") << status.ToString();
  }
}

// Whom a rank gets nothing of, it has not waited for.
TEST(Native, OnlyWhatReachesAllRanksFromAllIsABarrier) {
  for (const Case& one : AllCases(3, 0)) {
    if (!one.algorithm.starts_with("native")) continue;
    Plan plan = Built(BuildPlan(one.algorithm, one.request));
    PostWriter(plan.header, &(plan.post = {})).Add({.kind = ClaimKind::kBarrier});
    const bool is_rooted = one.request.collective == Collective::kBroadcast || one.request.collective == Collective::kReduce;
    auto checked = Check(plan, {.sizes = {.count = 9}});
    EXPECT_EQ(checked.ok(), !is_rooted) << Name(one) << " " << checked.status().ToString();
  }
}

TEST(Native, MeansAndDeterministicSumsAreRefusedWithTheReason) {
  for (const Case& one : AllCases(3, 0)) {
    if (!one.algorithm.starts_with("native")) continue;
    const bool sums = Folds(one.request.collective);
    Request mean = one.request, strict = one.request;
    mean.op = ReduceOp::kAvg;
    strict.deterministic = true;
    Status no_mean = BuildPlan(one.algorithm, mean).status(), no_order = BuildPlan(one.algorithm, strict).status();
    EXPECT_EQ(no_mean.tag(), sums ? "COLL10" : "") << Name(one);
    EXPECT_EQ(no_order.tag(), sums ? "COLL10" : "") << Name(one);
    if (!sums) continue;
    EXPECT_NE(no_mean.why().find("NCCL multiplies before it adds"), std::string::npos) << no_mean.ToString();
    // A builder that says that it keeps the order is found by the proof.
    Plan lies = Built(BuildPlan(one.algorithm, one.request));
    lies.header.request.deterministic = true;
    EXPECT_EQ(Check(lies, {.sizes = {.count = 9}}).status().tag(), "COLL08") << Name(one);
  }
}

// The control: the sums above come from the library, and from nothing beside it.
TEST(Native, ALibraryThatForgetsARankIsSeen) {
  Plan plan = Built(BuildPlan("native", {.dtype = Dtype::kI32, .ranks = 3}));
  LibraryMeeting meeting;
  meeting.skips_the_last = true;
  Ran ran = RunAll(plan, 100, 1, 3, &meeting);
  EXPECT_FALSE(AreSums(ran, ran.out, false));
}

TEST(Native, StreamsKeepTheirOrderAndWhatIsReadyTogetherIsOneGroup) {
  Plan plan = Built(BuildPlan(kTwo, {.dtype = Dtype::kI32, .ranks = 4}));
  LibraryMeeting meeting;
  constexpr std::uint64_t kRounds = 7;
  Ran ran = RunAll(plan, 50, kRounds, 5, &meeting);
  const std::vector<std::int32_t> all = {0, 1, 2, 3};
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(ran.statuses[rank].ok()) << ran.statuses[rank].ToString();
    const auto& groups = ran.libraries[rank]->groups;
    ASSERT_EQ(groups.size(), kRounds);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      ASSERT_EQ(groups[round].size(), 2u);
      EXPECT_EQ(groups[round][0], std::pair(LibraryMeeting::Stream(plan.header.groups[rank % 2], 0), round));
      EXPECT_EQ(groups[round][1], std::pair(LibraryMeeting::Stream(all, 1), round));
    }
  }
}

// Whoever is its root: the ranks of a communicator are one stream on a channel.
TEST(Native, CallsWithOtherRootsAreOneStream) {
  LibraryMeeting meeting;
  Fabric fabric(Kind::kThreads, 3, 1);
  std::vector<Plan> plans;
  for (std::int32_t root : {0, 2, 1, 0})
    plans.push_back(
        Built(BuildPlan("native_broadcast", {.collective = Collective::kBroadcast, .dtype = Dtype::kI32, .ranks = 3, .root = root})));
  OnAllRanks(3, [&](std::int32_t rank) {
    CpuLibrary library(rank, &meeting);
    NativeDesk desk(&library, &fabric.endpoint(rank));
    for (std::size_t i = 0; i < plans.size(); ++i) {
      std::int32_t in = 10 * rank, out = kUntouched;
      auto instance = Instance::Make(&plans[i].header, &plans[i].programs[rank], {.count = 1}, &fabric.endpoint(rank), {.native = &desk});
      ASSERT_TRUE(instance.ok()) << instance.status().ToString();
      ASSERT_TRUE((*instance)->Bind(std::vector<void*>{&in, &out}).ok());
      Status status = (*instance)->Run();
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(out, 10 * plans[i].header.request.root);
      EXPECT_EQ(library.groups.back()[0].second, i);
    }
  });
}

TEST(Native, WithoutALibraryThePlanIsRefusedAndSaysWhatToDo) {
  Plan plan = Built(BuildPlan("native", {.dtype = Dtype::kI32, .ranks = 2}));
  Fabric fabric(Kind::kThreads, 2, 1);
  Status status = Instance::Make(&plan.header, &plan.programs[0], {.count = 4}, &fabric.endpoint(0)).status();
  EXPECT_EQ(status.tag(), "COLL12");
  EXPECT_EQ(status.what(), "a native allreduce cannot be run");
  EXPECT_FALSE(status.why().empty());
  EXPECT_NE(status.fix().find("CommunicatorOptions::native"), std::string::npos);
  WithRanks(2, Over(Wire::kShared), [&](Communicator& all, Meeting&) {
    std::vector<float> x(10);
    EXPECT_EQ(all.AllReduce({.in = x.data(), .out = x.data(), .count = 10, .name = "x", .algorithm = "native"}).tag(), "COLL12");
    EXPECT_TRUE(all.Barrier().ok());  // nothing has moved
  });
}

// A library's own refusal is passed on.
TEST(Native, WhatTheLibraryCannotDoIsRefusedBeforeAnythingMoves) {
  Plan plan = Built(BuildPlan("native", {.dtype = Dtype::kI32, .ranks = 2}));
  for (Program& program : plan.programs) program.steps[0].native = Collective::kGather;
  LibraryMeeting meeting;
  CpuLibrary library(0, &meeting);
  Fabric fabric(Kind::kThreads, 2, 1);
  NativeDesk desk(&library, &fabric.endpoint(0));
  EXPECT_EQ(Instance::Make(&plan.header, &plan.programs[0], {.count = 4}, &fabric.endpoint(0), {.native = &desk}).status().tag(), "TEST10");
}

// Runs `body` on each rank of a gang with a library.
void WithLibraries(std::int32_t ranks, Wire wire, const std::function<void(Communicator&, Meeting&)>& body) {
  Meeting meeting(ranks);
  LibraryMeeting library;
  OnAllRanks(ranks, [&](std::int32_t rank) {
    CpuLibrary mine(rank, &library);
    CommunicatorOptions options = Over(wire);
    options.native = &mine;
    auto connected = Communicator::Connect(meeting.Of(rank), options);
    ASSERT_TRUE(connected.ok()) << connected.status().ToString();
    body(**connected, meeting);
  });
}

TEST(Native, CommunicatorsRunAndSubmitThem) {
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    WithLibraries(3, wire, [&](Communicator& all, Meeting&) {
      std::vector<std::vector<float>> x(12, std::vector<float>(1000));
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < x.size(); ++i) {
        std::fill(x[i].begin(), x[i].end(), static_cast<float>(i + all.rank()));
        CollectiveCall call{.in = x[i].data(), .out = x[i].data(), .count = 1000, .name = "x", .algorithm = "native"};
        if (i % 4 == 3) {
          Status status = all.AllReduce(call);
          ASSERT_TRUE(status.ok()) << status.ToString();
        } else {
          auto handle = all.Submit(call, {.priority = static_cast<std::int64_t>(12 - i)});
          ASSERT_TRUE(handle.ok()) << handle.status().ToString();
          handles.push_back(*handle);
        }
      }
      for (const Handle& handle : handles) ASSERT_TRUE(all.Wait(handle).ok());
      for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], std::vector<float>(1000, static_cast<float>(3 * i + 3)));
    });
}

TEST(Native, CommunicatorsRunTheOtherCollectivesByName) {
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    WithLibraries(3, wire, [&](Communicator& all, Meeting&) {
      constexpr std::int64_t kCount = 7;
      const Extent mine = PartOf(kCount, 3, all.rank());
      std::vector<float> in(kCount), sum(kCount), from_last(kCount), side_by_side;
      for (std::int64_t i = 0; i < kCount; ++i) {
        in[i] = static_cast<float>(10 * all.rank() + i);
        sum[i] = static_cast<float>(30 + 3 * i);
        from_last[i] = static_cast<float>(20 + i);
      }
      for (std::int32_t of = 0; of < 3; ++of)
        for (std::int64_t i = 0; i < PartOf(kCount, 3, of).count; ++i) side_by_side.push_back(static_cast<float>(10 * of + i));
      const std::vector<float> part_of_sum(sum.begin() + mine.offset, sum.begin() + mine.end());
      const std::vector<float> nothing(kCount, -1);
      auto call = [&](Collective collective, std::string_view algorithm, const std::vector<float>& expected) {
        std::vector<float> out = nothing;
        Status status = all.Run({.collective = collective,
                                 .in = in.data(),
                                 .out = out.data(),
                                 .count = kCount,
                                 .root = 2,
                                 .name = "x",
                                 .algorithm = algorithm});
        ASSERT_TRUE(status.ok()) << algorithm << ": " << status.ToString();
        out.resize(expected.size());
        EXPECT_EQ(out, expected) << algorithm;
      };
      call(Collective::kBroadcast, "native_broadcast", from_last);
      call(Collective::kReduce, "native_reduce", all.rank() == 2 ? sum : nothing);
      call(Collective::kReduceScatter, "native_reduce_scatter", part_of_sum);
      call(Collective::kAllgather, "native_allgather", side_by_side);
    });
}

// The others stand in the library; the one that is missed never comes.
TEST(Native, ARankThatAbortsFreesTheOthersFromTheLibrary) {
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    WithLibraries(3, wire, [&](Communicator& all, Meeting& meeting) {
      std::vector<float> x(10, 1);
      if (all.rank() == 1) {
        all.Abort(Status(Code::kUnavailable, "TEST14", "rank 1 gives up"));
      } else {
        Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = 10, .name = "x", .algorithm = "native"});
        EXPECT_EQ(status.tag(), "TEST14") << status.ToString();
        EXPECT_EQ(x, std::vector<float>(10, 1));
      }
      meeting.Barrier(all.rank());
    });
}

// Submitted, too, an all-to-all says what came.
TEST(Submitted, AnAllToAllSaysWhatItReceived) {
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    WithRanks(3, Over(wire), [&](Communicator& all, Meeting&) {
      std::vector<std::vector<std::int32_t>> in(6), out(6, std::vector<std::int32_t>(1000, -1));
      std::vector<std::vector<std::int64_t>> counts(6), received(6, std::vector<std::int64_t>(3, -1));
      std::vector<Handle> handles;
      for (std::int64_t i = 0; i < 6; ++i) {
        counts[i] = {i, 10 * all.rank(), i * all.rank()};
        in[i].assign(static_cast<std::size_t>(counts[i][0] + counts[i][1] + counts[i][2]), all.rank());
        auto handle = all.Submit({.collective = Collective::kAllToAllV,
                                  .in = in[i].data(),
                                  .out = out[i].data(),
                                  .count = 1000,
                                  .dtype = Dtype::kI32,
                                  .name = "v",
                                  .counts = counts[i].data(),
                                  .received = received[i].data()},
                                 {});
        ASSERT_TRUE(handle.ok()) << handle.status().ToString();
        handles.push_back(*handle);
      }
      for (std::int64_t i = 0; i < 6; ++i) {
        Status status = all.Wait(handles[i]);
        ASSERT_TRUE(status.ok()) << status.ToString();
        std::size_t at = 0;
        for (std::int32_t from = 0; from < 3; ++from) {
          const std::int64_t expected = all.rank() == 0 ? i : all.rank() == 1 ? 10 * from : i * from;
          EXPECT_EQ(received[i][from], expected);
          for (std::int64_t k = 0; k < expected; ++k) ASSERT_EQ(out[i][at++], from);
        }
        EXPECT_EQ(out[i][at], -1);
      }
    });
}

}  // namespace
}  // namespace ropewalk::collective::testing
