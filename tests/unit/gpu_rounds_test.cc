// Plans as rounds of sends and receives, by NcclBackend: over a twin of NCCL that moves bytes between ranks, against what the interpreter
// leaves over a transport, bit by bit; and what the library is told, in which groups.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/rounds.h"
#include "mlrunner/collective/run/rounds_instance.h"
#include "mlrunner/gpu/gpu.h"
#include "mlrunner/gpu/nccl_backend.h"
#include "tests/unit/collective_early.h"
#include "tests/unit/collective_numbers.h"
#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_ranks.h"
#include "tests/unit/collective_ungrouped.h"
#include "tests/unit/fake_nccl.h"
#include "tests/unit/twin_gang.h"

namespace ropewalk::collective::testing {
namespace {

using gpu::FakeNccl;
using gpu::FakeStreams;
using gpu::TwinNccl;
using mlrunner::NcclBackend;

constexpr char kUntouched = 0x5a;

// What all ranks hold before or after: in and out, or the one that both lie in.
using Memories = std::vector<std::vector<std::vector<char>>>;  // by rank and buffer

struct Job {
  std::string what;
  Plan plan;
  std::int64_t count = 0;
  bool in_place = false;
};

// The one of `in` and `out` that may lie in the other; kNone: neither.
std::int32_t InOther(const Plan& plan) {
  for (std::int32_t buffer : {0, 1})
    if (plan.header.buffers[buffer].may_alias == 1 - buffer) return buffer;
  return kNone;
}

Memories Before(const Job& job, std::uint64_t seed) {
  const Request& request = job.plan.header.request;
  Memories memories(static_cast<std::size_t>(request.ranks));
  const std::int32_t inner = job.in_place ? InOther(job.plan) : kNone;
  for (std::int32_t rank = 0; rank < request.ranks; ++rank) {
    Random random = Random::ForPurpose(seed, static_cast<std::uint64_t>(rank));
    const Layout layout = *Layout::Make(job.plan.header, job.plan.programs[rank], {.count = job.count});
    const auto size = static_cast<std::int64_t>(SizeOf(request.dtype));
    auto& mine = memories[static_cast<std::size_t>(rank)];
    for (std::int32_t b : {0, 1})
      mine.emplace_back(static_cast<std::size_t>(std::max(job.count, layout.ElementsOf(b)) * size + 8), kUntouched);
    // In place `in` may begin within `out`.
    const std::int64_t shift = inner == 0 ? layout.AliasOffset(0, rank) : 0;
    char* in = mine[inner == 0 ? 1 : 0].data() + shift * size;
    for (std::int64_t i = 0; i < layout.ElementsOf(0); ++i) {
      const double value = IsFloat(request.dtype) ? random.Unit() * 4 - 2 : static_cast<double>(random.Below(9)) - 4;
      Set(request.dtype, in, i, request.dtype == Dtype::kU8 ? static_cast<double>(random.Below(256)) : value);
    }
  }
  return memories;
}

// Where the plan's buffers lie in a rank's memories.
std::vector<void*> Bound(const Job& job, std::int32_t rank, std::vector<std::vector<char>>* memories) {
  std::vector<void*> buffers(job.plan.header.buffers.size());
  buffers[0] = (*memories)[0].data();
  buffers[1] = (*memories)[1].data();
  const std::int32_t inner = job.in_place ? InOther(job.plan) : kNone;
  if (inner == kNone) return buffers;
  const Layout layout = *Layout::Make(job.plan.header, job.plan.programs[rank], {.count = job.count});
  buffers[inner] =
      (*memories)[1 - inner].data() + layout.AliasOffset(inner, rank) * static_cast<std::int64_t>(SizeOf(job.plan.header.request.dtype));
  return buffers;
}

// As the interpreter leaves them, over shared memory: all jobs one after the other. One thread drives all ranks, so that none waits for its
// turn on a busy machine.
std::vector<Memories> ByInterpreter(const std::vector<Job>& jobs, std::vector<Memories> memories) {
  const std::int32_t ranks = jobs[0].plan.header.request.ranks;
  std::int32_t channels = 1;
  for (const Job& job : jobs) channels = std::max(channels, job.plan.header.channel_count);
  Fabric fabric(Kind::kThreads, ranks, channels);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Plan& plan = jobs[i].plan;
    std::vector<std::unique_ptr<Instance>> instances;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      auto instance = Instance::Make(&plan.header, &plan.programs[rank], {.count = jobs[i].count}, &fabric.endpoint(rank));
      EXPECT_TRUE(instance.ok()) << jobs[i].what << ": " << instance.status().ToString();
      if (!instance.ok()) return memories;
      Status status = (*instance)->Bind(Bound(jobs[i], rank, &memories[i][static_cast<std::size_t>(rank)]));
      EXPECT_TRUE(status.ok()) << jobs[i].what << ": " << status.ToString();
      (*instance)->Start(0, LabelOf(plan.header, jobs[i].count, "", kUncounted));
      instances.push_back(*std::move(instance));
    }
    for (bool is_done = false; !is_done;) {
      is_done = true;
      for (const auto& instance : instances) {
        const Outcome outcome = instance->Advance();
        EXPECT_NE(outcome, Outcome::kFailed) << jobs[i].what << ": " << instance->status().ToString();
        if (outcome == Outcome::kFailed) return memories;
        is_done = is_done && outcome == Outcome::kDone && instance->IsAtRest();
      }
    }
  }
  return memories;
}
Memories ByInterpreter(const Job& job, const Memories& memories) { return ByInterpreter(std::vector<Job>{job}, {memories})[0]; }

Plan Built(std::string_view algorithm, const Request& request) {
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// All jobs one after the other on one gang: the calls of one stream.
void ExpectTheInterpretersBits(std::int32_t ranks, const std::vector<Job>& jobs) {
  std::vector<Memories> before;
  std::vector<Rounds> rounds;
  std::int64_t bytes = 0;
  for (const Job& job : jobs) {
    auto made = MakeRounds(job.plan, {.count = job.count});
    ASSERT_TRUE(made.ok()) << job.what << ": " << made.status().ToString();
    rounds.push_back(*std::move(made));
    before.push_back(Before(job, 17));
    bytes += rounds.back().bytes;
  }
  const std::vector<Memories> expected = ByInterpreter(jobs, before);
  TwinGang gang(ranks);
  gang.OnAllRanks([&](std::int32_t rank, NcclBackend& backend) {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const auto mine = static_cast<std::size_t>(rank);
      auto instance = RoundsInstance::Make(&jobs[i].plan.header, &rounds[i].ranks[mine], &backend);
      ASSERT_TRUE(instance.ok()) << jobs[i].what << ": " << instance.status().ToString();
      std::vector<std::vector<char>> memories = before[i][mine];
      Status status = (*instance)->Bind(Bound(jobs[i], rank, &memories));
      if (status.ok()) status = (*instance)->Run({.channel = 0, .sequence = i});
      ASSERT_TRUE(status.ok()) << jobs[i].what << ": " << status.ToString();
      ASSERT_TRUE(memories == expected[i][mine]) << jobs[i].what << ": rank " << rank << " holds other bits than the interpreter's";
    }
  });
  EXPECT_EQ(gang.twin.why(), "");
  EXPECT_EQ(gang.twin.moved_bytes, bytes) << "what moved is what the schedule says";
}

bool IsOfMessages(const Case& one) {
  static const std::set<std::string> kOthers = {"sra", "all_to_all_v", "allgather_v", "eager", "window", "window_relaxed"};
  return !kOthers.contains(one.algorithm) && !one.algorithm.starts_with("native");
}

class RoundsOfRanks : public ::testing::TestWithParam<std::int32_t> {};

TEST_P(RoundsOfRanks, EveryPlanOfMessagesLeavesTheBitsOfTheInterpreter) {
  const std::int32_t ranks = GetParam();
  std::vector<Job> jobs;
  std::set<std::string> names;
  for (const Case& one : AllCases(ranks, 64)) {
    if (!IsOfMessages(one)) continue;
    names.insert(one.algorithm);
    const Plan plan = Built(one.algorithm, one.request);
    for (std::int64_t count : std::set<std::int64_t>{0, 1, ranks - 1, ranks, 53})
      for (bool in_place : {false, true}) {
        if (in_place && InOther(plan) == kNone) continue;
        jobs.push_back({Name(one) + " N=" + std::to_string(count) + (in_place ? " in place" : ""), plan, count, in_place});
      }
  }
  EXPECT_EQ(names.size() + 11, Algorithms().size()) << "six that are no matter of messages, and five that are a library's own";
  ExpectTheInterpretersBits(ranks, jobs);
}

TEST_P(RoundsOfRanks, AllTypesAndOperationsLeaveTheBitsOfTheInterpreter) {
  const std::int32_t ranks = GetParam();
  const std::int64_t counts[] = {29, ranks - 1, 0};
  std::set<std::string> seen;
  std::vector<Job> jobs;
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8})
    for (const Case& one : AllCases(ranks, 0, dtype)) {
      // One of each algorithm: its other forms differ in what the types have no part in.
      if (!IsOfMessages(one) || !seen.insert(one.algorithm + std::string(collective::Name(dtype))).second) continue;
      const bool folds = Folds(one.request.collective);
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kAvg}) {
        if ((!folds && op != ReduceOp::kSum) || (op == ReduceOp::kAvg && !IsFloat(dtype))) continue;
        Request request = one.request;
        request.op = op;
        // Most of them long enough that each rank has some.
        const std::int64_t count = counts[std::max<std::size_t>(jobs.size() % 5, 2) - 2];
        jobs.push_back({Name(one) + " " + std::string(collective::Name(op)) + " N=" + std::to_string(count), Built(one.algorithm, request),
                        count, false});
      }
    }
  ExpectTheInterpretersBits(ranks, jobs);
}
INSTANTIATE_TEST_SUITE_P(Ranks, RoundsOfRanks, ::testing::Values(1, 2, 3, 4, 5, 8));

// Messages that come early wait where they land.
TEST(Rounds, WhatComesBeforeItsMemoryIsFreeLeavesTheBitsOfTheInterpreter) {
  std::vector<Job> jobs;
  for (const Algorithm& algorithm : {kTwice, kOvertakes})
    for (bool in_place : {false, true}) {
      auto plan = BuildPlan(algorithm, {.collective = algorithm.collective, .ranks = 2});
      ASSERT_TRUE(plan.ok() && CheckAll(*plan).ok()) << plan.status().ToString() << CheckAll(*plan).ToString();
      jobs.push_back({std::string(algorithm.name) + (in_place ? " in place" : ""), *std::move(plan), 9, in_place});
    }
  ExpectTheInterpretersBits(2, jobs);
}

// NaN, infinities, zeros of both signs and what overflows: the kernels' arithmetic is the interpreter's to the last bit.
TEST(Rounds, FoldsOfOddNumbersAreTheInterpreters) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8})
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd})
      for (std::size_t row_count : {1u, 2u, 5u})
        for (double scale : {1.0, 1.0 / 3}) {
          if (scale != 1 && !IsFloat(dtype)) continue;
          constexpr std::size_t kCount = 2000;
          const std::size_t bytes = kCount * SizeOf(dtype);
          std::vector<std::vector<char>> numbers(row_count, std::vector<char>(bytes));
          std::vector<Row> rows;
          std::vector<gpu::FoldRow> told;
          gpu::Element element = {}, accumulator = {};
          ASSERT_TRUE(mlrunner::ToElement(dtype, &element) && mlrunner::ToElement(AccumulatorOf(dtype), &accumulator));
          for (auto& row : numbers) {
            for (char& byte : row) byte = static_cast<char>(random());  // any bits
            rows.push_back({row.data(), dtype, scale});
            told.push_back({row.data(), scale, element});
          }
          std::vector<char> expected(bytes), got(bytes);
          FoldRows(op, AccumulatorOf(dtype), rows, scale, dtype, expected.data(), kCount);
          gpu::Message why;
          ASSERT_EQ(TwinNccl::Fold({.sum = mlrunner::SumOf(op),
                                    .accumulator = accumulator,
                                    .element = element,
                                    .row_count = static_cast<std::int32_t>(row_count),
                                    .rows = told.data(),
                                    .scale = scale,
                                    .count = kCount,
                                    .out = got.data()},
                                   &why),
                    gpu::Failure::kNone);
          // Which of two NaNs' bits come out of a sum is the processor's affair and the compiler's, who may swap the sides.
          int nans = 0;
          for (std::size_t i = 0; i < kCount; ++i) {
            const double a = Get(dtype, expected.data(), static_cast<std::int64_t>(i)),
                         b = Get(dtype, got.data(), static_cast<std::int64_t>(i));
            nans += a != a ? 1 : 0;
            if (a != a && b != b) continue;
            ASSERT_EQ(std::memcmp(expected.data() + i * SizeOf(dtype), got.data() + i * SizeOf(dtype), SizeOf(dtype)), 0)
                << collective::Name(op) << " of " << Name(dtype) << ", element " << i;
          }
          EXPECT_LT(nans, static_cast<int>(kCount) / 2);
        }
}

// The control: the same transfers, each by itself. The proof refuses them, and the twin's ranks wait for each other, which it sees.
TEST(Rounds, WithoutGroupsRanksWaitForEachOther) {
  for (const char* algorithm : {"ring", "direct", "halving_doubling", "recursive_doubling"}) {
    const Job job{algorithm, Built(algorithm, {.ranks = 4}), 40, false};
    auto rounds = MakeRounds(job.plan, {.count = job.count});
    ASSERT_TRUE(rounds.ok()) << rounds.status().ToString();
    const Rounds ungrouped = Ungrouped(*rounds);
    EXPECT_EQ(CheckRounds(ungrouped).tag(), "COLL03") << algorithm;
    const Memories before = Before(job, 3), expected = ByInterpreter(job, before);
    for (bool grouped : {true, false}) {
      TwinGang gang(4);
      gang.OnAllRanks([&](std::int32_t rank, NcclBackend& backend) {
        const auto mine = static_cast<std::size_t>(rank);
        std::vector<std::vector<char>> memories = before[mine];
        auto instance = RoundsInstance::Make(&job.plan.header, &(grouped ? *rounds : ungrouped).ranks[mine], &backend);
        ASSERT_TRUE(instance.ok()) << instance.status().ToString();
        ASSERT_TRUE((*instance)->Bind(Bound(job, rank, &memories)).ok());
        Status status = (*instance)->Run({.channel = 0, .sequence = 0});
        EXPECT_EQ(status.ok(), grouped) << algorithm << ": " << status.ToString();
        EXPECT_EQ(memories == expected[mine], grouped) << algorithm;
        EXPECT_EQ(status.tag(), grouped ? "" : "GPU06") << status.ToString();
      });
      EXPECT_EQ(gang.twin.why(), grouped ? "" : "deadlock of ranks 0 1 2 3") << algorithm;
      EXPECT_EQ(gang.twin.widest_group > 1, grouped);
    }
  }
}

// Where everything goes one way, no group is needed: the proof and the twin refuse nothing for its own sake.
TEST(Rounds, WhatGoesOneWayNeedsNoGroups) {
  const Job job{"tree", Built("broadcast_tree", {.collective = Collective::kBroadcast, .ranks = 5, .root = 2, .segment_bytes = 32}), 40,
                false};
  auto rounds = MakeRounds(job.plan, {.count = job.count});
  ASSERT_TRUE(rounds.ok()) << rounds.status().ToString();
  const Rounds ungrouped = Ungrouped(*rounds);
  EXPECT_TRUE(CheckRounds(ungrouped).ok()) << CheckRounds(ungrouped).ToString();
  const Memories before = Before(job, 3), expected = ByInterpreter(job, before);
  TwinGang gang(5);
  gang.OnAllRanks([&](std::int32_t rank, NcclBackend& backend) {
    const auto mine = static_cast<std::size_t>(rank);
    std::vector<std::vector<char>> memories = before[mine];
    auto instance = RoundsInstance::Make(&job.plan.header, &ungrouped.ranks[mine], &backend);
    ASSERT_TRUE(instance.ok()) << instance.status().ToString();
    ASSERT_TRUE((*instance)->Bind(Bound(job, rank, &memories)).ok());
    ASSERT_TRUE((*instance)->Run({.channel = 0, .sequence = 0}).ok());
    EXPECT_TRUE(memories == expected[mine]) << rank;
  });
  EXPECT_EQ(gang.twin.widest_group, 1);
}

// ---- what NCCL is told -----------------------------------------------------------------------------------------------------------------

struct Recorded {
  FakeNccl nccl;
  FakeStreams streams;
  std::unique_ptr<NcclBackend> Connect(std::int32_t rank, std::int32_t ranks) {
    gpu::NcclId id = {};
    id.bytes[0] = 1;
    auto connected = NcclBackend::Connect(
        {&FakeStreams::api(), streams.context(), &FakeNccl::table()},
        {.rank = rank, .ranks = ranks, .channels = {0}, .exchange = [&](const std::string&) {
           return Result<std::vector<std::string>>(std::vector<std::string>{std::string(id.bytes, sizeof id.bytes), ""});
         }});
    EXPECT_TRUE(connected.ok()) << connected.status().ToString();
    if (!connected.ok()) return nullptr;
    streams.notes = &nccl.comms.back();
    return *std::move(connected);
  }
};

// The groups, and the folds between them, of one rank.
std::vector<std::vector<std::string>> Told(const Plan& plan, const Rounds& rounds, std::int32_t rank, std::int64_t count) {
  Recorded recorded;
  auto backend = recorded.Connect(rank, plan.header.request.ranks);
  if (backend == nullptr) return {};
  std::vector<float> in(static_cast<std::size_t>(count)), out(static_cast<std::size_t>(count));
  auto instance = RoundsInstance::Make(&plan.header, &rounds.ranks[static_cast<std::size_t>(rank)], backend.get());
  EXPECT_TRUE(instance.ok()) << instance.status().ToString();
  EXPECT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), out.data()}).ok());
  int woken = 0;
  EXPECT_TRUE((*instance)->Start({.channel = 0, .sequence = 0}, [&] { ++woken; }).ok());
  // All is queued, and nothing is done yet.
  Result<bool> is_done = (*instance)->IsDone();
  EXPECT_TRUE(is_done.ok() && !*is_done);
  EXPECT_TRUE(recorded.streams.End(1));
  EXPECT_EQ(woken, 1);
  is_done = (*instance)->IsDone();
  EXPECT_TRUE(is_done.ok() && *is_done);
  EXPECT_EQ(recorded.nccl.depth, 0);
  instance->reset();
  EXPECT_EQ(recorded.streams.allocated, 0) << "scratch is given back";
  return recorded.nccl.comms.back().groups;
}

TEST(Rounds, OneGroupForEachRoundInTheOrderOfTheStream) {
  using Groups = std::vector<std::vector<std::string>>;
  const Plan direct = Built("direct", {.ranks = 3});
  auto rounds = MakeRounds(direct, {.count = 9});
  ASSERT_TRUE(rounds.ok()) << rounds.status().ToString();
  EXPECT_EQ(
      Told(direct, *rounds, 0, 9),
      (Groups{{"send of 3, type 0, to 1", "send of 3, type 0, to 2", "receive of 3, type 0, from 1", "receive of 3, type 0, from 2"},
              {"fold of 3, rows 3"},
              {"send of 3, type 0, to 1", "send of 3, type 0, to 2", "receive of 3, type 0, from 1", "receive of 3, type 0, from 2"}}));
  const Plan ring = Built("ring", {.ranks = 3});
  auto around = MakeRounds(ring, {.count = 9});
  ASSERT_TRUE(around.ok()) << around.status().ToString();
  const std::vector<std::string> both = {"send of 3, type 0, to 2", "receive of 3, type 0, from 0"}, fold = {"fold of 3, rows 2"};
  EXPECT_EQ(Told(ring, *around, 1, 9), (Groups{both, fold, both, fold, both, both}));
  // With fewer elements than ranks, who has none of a part neither sends nor waits.
  const Plan short_ring = Built("ring", {.ranks = 3});
  auto few = MakeRounds(short_ring, {.count = 1});
  ASSERT_TRUE(few.ok()) << few.status().ToString();
  std::size_t transfers = 0;
  for (std::int32_t rank = 0; rank < 3; ++rank)
    for (const auto& group : Told(short_ring, *few, rank, 1)) transfers += group[0].starts_with("fold") ? 0 : group.size();
  EXPECT_EQ(transfers, 8u) << "four messages: twice to the next, as sum and as result";
}

// Every rank's sends to another are that one's receives, in their order and groups.
TEST(Rounds, HalvesStandInTheSameGroupsOnBothSides) {
  for (const Case& one : AllCases(5, 16)) {
    if (!IsOfMessages(one) || one.request.collective == Collective::kAllToAll || one.request.collective == Collective::kNeighborExchange)
      continue;
    const Plan plan = Built(one.algorithm, one.request);
    auto rounds = MakeRounds(plan, {.count = 23});
    ASSERT_TRUE(rounds.ok()) << Name(one) << ": " << rounds.status().ToString();
    std::vector<std::vector<std::vector<std::string>>> told;
    for (std::int32_t rank = 0; rank < 5; ++rank) {
      told.push_back(Told(plan, *rounds, rank, 23));
      std::erase_if(told.back(), [](const auto& group) { return group[0].starts_with("fold"); });
    }
    auto half = [&](std::int32_t rank, const std::string& word, std::int32_t peer) {
      std::vector<std::string> said;
      for (const auto& group : told[static_cast<std::size_t>(rank)])
        for (const std::string& call : group)
          if (call.starts_with(word) && call.ends_with(" " + std::to_string(peer)))
            said.push_back(call.substr(word.size(), call.rfind(',') - word.size()));
      return said;
    };
    for (std::int32_t from = 0; from < 5; ++from)
      for (std::int32_t to = 0; to < 5; ++to) EXPECT_EQ(half(from, "send", to), half(to, "receive", from)) << Name(one) << from << to;
  }
}

TEST(Rounds, MoreVectorsThanAKernelTakesAreRefused) {
  for (std::int32_t ranks : {gpu::kFoldRowsMax, gpu::kFoldRowsMax + 1}) {
    const Plan wide = Built("reduce_direct", {.collective = Collective::kReduce, .ranks = ranks});
    auto rounds = MakeRounds(wide, {.count = 1});
    ASSERT_TRUE(rounds.ok()) << rounds.status().ToString();
    Recorded recorded;
    auto backend = recorded.Connect(0, ranks);
    ASSERT_NE(backend, nullptr);
    Status status = RoundsInstance::Make(&wide.header, &rounds->ranks[0], backend.get()).status();
    EXPECT_EQ(status.tag(), ranks == gpu::kFoldRowsMax ? "" : "COLL12");
    EXPECT_TRUE(status.ok() || status.why().find("129 vectors") != std::string::npos) << status.ToString();
  }
}

TEST(Rounds, WhatCannotBeRunIsRefusedAndFailuresAreTold) {
  const Plan plan = Built("ring", {.ranks = 2});
  auto rounds = MakeRounds(plan, {.count = 8});
  ASSERT_TRUE(rounds.ok());
  Recorded recorded;
  auto backend = recorded.Connect(0, 2);
  ASSERT_NE(backend, nullptr);
  std::vector<float> in(8), out(8);
  recorded.streams.room_bytes = 0;
  EXPECT_EQ(RoundsInstance::Make(&plan.header, &rounds->ranks[0], backend.get()).status().tag(), "COLL13");
  recorded.streams.room_bytes = 1 << 20;
  {
    const Plan three = Built("ring", {.ranks = 3});
    auto others = MakeRounds(three, {.count = 8});
    ASSERT_TRUE(others.ok());
    EXPECT_EQ(RoundsInstance::Make(&three.header, &others->ranks[0], backend.get()).status().tag(), "COLL12") << "not all ranks";
  }
  auto instance = RoundsInstance::Make(&plan.header, &rounds->ranks[0], backend.get());
  ASSERT_TRUE(instance.ok());
  EXPECT_EQ((*instance)->Bind(std::vector<void*>{in.data(), in.data() + 1}).tag(), "COLL10") << "no form of in place";
  EXPECT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), in.data()}).ok());
  ASSERT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), out.data()}).ok());
  recorded.streams.host_memory = out.data();
  EXPECT_EQ((*instance)->Start({.channel = 0, .sequence = 0}, [] {}).tag(), "COLL12");
  recorded.streams.host_memory = nullptr;
  EXPECT_EQ((*instance)->Start({.channel = 5, .sequence = 0}, [] {}).tag(), "GPU06") << "no such channel";
  EXPECT_EQ((*instance)->Start({.channel = 0, .sequence = 1}, [] {}).tag(), "GPU06") << "number 0 is missing";
  EXPECT_EQ(recorded.nccl.comms[0].groups.size(), 0u);
  recorded.nccl.fail_after = 1;
  Status status = (*instance)->Start({.channel = 0, .sequence = 0}, [] {});
  EXPECT_EQ(status.tag(), "GPU06");
  EXPECT_NE(status.what().find("a receive of 4 f32 with rank 1"), std::string::npos) << status.ToString();
  EXPECT_EQ(recorded.nccl.depth, 0) << "the group is still open";
  recorded.nccl.fail_after = -1;
  // An abort while it runs: the device has let go of the vectors.
  ASSERT_TRUE((*instance)->Start({.channel = 0, .sequence = 1}, [] {}).ok());
  recorded.streams.work_ends = true;
  instance->reset();
  EXPECT_EQ(recorded.nccl.aborts, 1);
  EXPECT_TRUE(recorded.streams.work.empty());
}

}  // namespace
}  // namespace ropewalk::collective::testing
