// One-sided and eager steps for real: windows that are mapped and windows that are served by frames, against plain models, and with the
// trace of virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "base/random.h"
#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/simulate.h"
#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::collective::testing {
namespace {

const char* Name(Kind kind) { return kind == Kind::kThreads ? "threads" : kind == Kind::kPools ? "pools" : "sockets"; }

Plan Built(Result<Plan> plan) {
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// What each rank has for one-sided work, with one window as long as the plan needs it.
class Windows {
 public:
  Windows(Fabric* fabric, const Plan& plan, const Sizes& sizes) : fabric_(fabric), ranks_(plan.header.request.ranks) {
    std::int64_t bytes = 0;
    for (const Program& program : plan.programs)
      for (std::size_t b = 0; b < plan.header.buffers.size(); ++b) {
        if (plan.header.buffers[b].role != Role::kWindow) continue;
        auto layout = Layout::Make(plan.header, program, sizes);
        EXPECT_TRUE(layout.ok());
        window_buffer_ = static_cast<std::int32_t>(b);
        bytes = std::max(bytes, layout->ElementsOf(window_buffer_) * layout->BytesOfElement(window_buffer_));
      }
    std::vector<OneSided::Place> places;
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      sides_.push_back(std::make_unique<OneSided>(rank, ranks_, &fabric->endpoint(rank), plan.header.channel_count));
      EXPECT_EQ(*sides_.back()->AddWindow(static_cast<std::size_t>(bytes)), 0);
      places.push_back(sides_.back()->PlaceOf(0));
    }
    for (auto& side : sides_) EXPECT_TRUE(side->SetPlaces(0, places).ok());
  }
  OneSided& of(std::int32_t rank) { return *sides_[rank]; }
  Result<std::unique_ptr<Instance>> Make(const Plan& plan, std::int32_t rank, const Sizes& sizes) {
    auto instance = Instance::Make(&plan.header, &plan.programs[rank], sizes, &fabric_->endpoint(rank),
                                   {.one_sided = &of(rank), .raises = RaisesOf(plan, rank)});
    if (instance.ok() && window_buffer_ >= 0) {
      Status status = (*instance)->BindWindow(window_buffer_, 0);
      if (!status.ok()) return status;
    }
    return instance;
  }
  // A rank that is done goes on to serve the others, as an engine's thread does.
  void ServeUntilAllAreDone(std::int32_t rank) {
    ++done_;
    for (std::int32_t other = 0; other < ranks_; ++other) fabric_->endpoint(other).Ring();
    while (done_.load() < ranks_)
      if (!of(rank).Serve()) fabric_->endpoint(rank).Wait(false);
  }

 private:
  Fabric* const fabric_;
  const std::int32_t ranks_;
  std::int32_t window_buffer_ = -1;
  std::vector<std::unique_ptr<OneSided>> sides_;
  std::atomic<std::int32_t> done_{0};
};

class OneSidedRuns : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Transports, OneSidedRuns, ::testing::Values(Kind::kThreads, Kind::kPools, Kind::kSockets),
                         [](const auto& info) { return std::string(Name(info.param)); });

// ---- neighbour mixing --------------------------------------------------------------------------------------------------------------

TEST_P(OneSidedRuns, OrderedWindowsMixExactlyAndHaveTheTraceOfVirtualTime) {
  for (std::int32_t ranks : {1, 2, 3, 5})
    for (std::int64_t count : {std::int64_t{1}, std::int64_t{7}, std::int64_t{3001}})
      for (bool in_place : {false, true}) {
        Plan plan = Built(BuildPlan("window", {.collective = Collective::kMix, .ranks = ranks, .mixing = RingOfNeighbours(ranks)}));
        Fabric fabric(GetParam(), ranks, plan.header.channel_count + 1);
        Windows windows(&fabric, plan, {.count = count});
        Trace trace(ranks);
        std::vector<std::uint64_t> steps(ranks);
        constexpr int kRounds = 4;
        OnAllRanks(ranks, [&](std::int32_t rank) {
          auto instance = windows.Make(plan, rank, {.count = count});
          ASSERT_TRUE(instance.ok()) << instance.status().ToString();
          auto value = [&](std::int32_t of, int round, std::int64_t i) { return static_cast<float>((i * (of + 1) + round * 7) % 100); };
          for (int round = 0; round < kRounds; ++round) {
            std::vector<float> in(count), out(count);
            for (std::int64_t i = 0; i < count; ++i) in[i] = value(rank, round, i);
            float* result = in_place ? in.data() : out.data();
            ASSERT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), result}).ok());
            if (round == 0) (*instance)->Record(&trace[rank]);
            Status status = (*instance)->Run();
            ASSERT_TRUE(status.ok()) << status.ToString();
            if (round == 0) {
              (*instance)->Record(nullptr);
              steps[rank] = (*instance)->steps();
            }
            for (std::int64_t i = 0; i < count; ++i) {
              double expected = 0;
              for (std::int32_t other = 0; other < ranks; ++other)
                expected += plan.header.request.mixing[rank][other] * static_cast<double>(value(other, round, i));
              ASSERT_EQ(result[i], static_cast<float>(expected)) << "rank " << rank << " round " << round << " element " << i;
            }
          }
          windows.ServeUntilAllAreDone(rank);
        });
        auto simulated = Simulate(plan, {.sizes = {.count = count}, .trace = true});
        ASSERT_TRUE(simulated.ok());
        EXPECT_EQ(ByChannel(std::move(trace)), simulated->trace) << ranks << " " << count;
        std::uint64_t all = 0;
        for (std::uint64_t one : steps) all += one;
        EXPECT_EQ(all, simulated->steps);
      }
}

// Who reads what is open; who puts what where, and in which order, is not.
TEST_P(OneSidedRuns, RelaxedWindowsHaveTheTraceOfVirtualTime) {
  for (std::int32_t ranks : {2, 3, 5})
    for (std::int64_t count : {std::int64_t{1}, std::int64_t{3001}}) {
      Plan plan = Built(BuildPlan("window_relaxed", {.collective = Collective::kMix, .ranks = ranks, .mixing = RingOfNeighbours(ranks)}));
      Fabric fabric(GetParam(), ranks, plan.header.channel_count + 1);
      Windows windows(&fabric, plan, {.count = count});
      Trace trace(ranks);
      std::vector<std::uint64_t> steps(ranks);
      OnAllRanks(ranks, [&](std::int32_t rank) {
        auto instance = windows.Make(plan, rank, {.count = count});
        ASSERT_TRUE(instance.ok()) << instance.status().ToString();
        std::vector<float> in(count, 1), out(count);
        ASSERT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), out.data()}).ok());
        (*instance)->Record(&trace[rank]);
        Status status = (*instance)->Run();
        ASSERT_TRUE(status.ok()) << status.ToString();
        steps[rank] = (*instance)->steps();
        windows.ServeUntilAllAreDone(rank);
      });
      auto simulated = Simulate(plan, {.sizes = {.count = count}, .trace = true});
      ASSERT_TRUE(simulated.ok());
      EXPECT_EQ(ByChannel(std::move(trace)), simulated->trace) << ranks << " " << count;
      std::uint64_t all = 0;
      for (std::uint64_t one : steps) all += one;
      EXPECT_EQ(all, simulated->steps);
    }
}

// Everybody puts without order; whatever is read is one put, whole. Where windows are mapped they go on until ranks have often come while
// another one was at it; that a put over sockets is under way while its window is read, and what this looks like without the lock, is in
// collective_one_sided_torn_test.cc.
TEST_P(OneSidedRuns, RelaxedWindowsAreReadAndWrittenWhole) {
  constexpr std::int32_t kRanks = 3;
  constexpr std::int64_t kCount = 50'000;
  constexpr std::uint64_t kMeetings = 20;
  std::vector<std::vector<double>> mixing(kRanks, std::vector<double>(kRanks));
  for (std::int32_t rank = 0; rank < kRanks; ++rank) mixing[rank][rank] = mixing[rank][(rank + 1) % kRanks] = 1;
  Plan plan = Built(BuildPlan("window_relaxed", {.collective = Collective::kMix, .ranks = kRanks, .mixing = mixing}));
  EXPECT_TRUE(CheckAll(plan).ok());
  Fabric fabric(GetParam(), kRanks, plan.header.channel_count + 1);
  Windows windows(&fabric, plan, {.count = kCount});
  auto have_met = [&] {
    std::uint64_t met = 0;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) met += windows.of(rank).refused();
    return GetParam() == Kind::kSockets || met >= kMeetings;
  };
  OnAllRanks(kRanks, [&](std::int32_t rank) {
    auto instance = windows.Make(plan, rank, {.count = kCount});
    ASSERT_TRUE(instance.ok()) << instance.status().ToString();
    std::vector<float> in(kCount), out(kCount);
    float last = 0;
    for (int round = 1; round <= 200 || !have_met(); ++round) {
      std::fill(in.begin(), in.end(), static_cast<float>(round));
      ASSERT_TRUE((*instance)->Bind(std::vector<void*>{in.data(), out.data()}).ok());
      Status status = (*instance)->Run();
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(std::count(out.begin(), out.end(), out[0]), kCount) << "a torn read in round " << round;
      ASSERT_GE(out[0] - in[0], last);  // a neighbour's puts keep their order
      last = out[0] - in[0];
    }
    windows.ServeUntilAllAreDone(rank);
  });
}

// ---- random programs ---------------------------------------------------------------------------------------------------------------

constexpr std::int64_t kSlot = 5, kSlots = 6, kPieces = 8;  // elements of a slot; slots of a window; pieces of `in` and of `out`

struct Act {
  Op op = Op::kPut;
  std::int32_t rank = 0, to = 0;
  std::int64_t slot = 0, piece = 0;
};
struct Script {
  std::int32_t ranks = 0;
  std::vector<std::vector<Act>> epochs;
  bool has_fences = true;
};
const Script* script = nullptr;  // of the plan that is being built

// In an epoch a slot is put into by one rank, or added to by several, or read by several.
Script Drawn(Random* random) {
  Script drawn;
  drawn.ranks = static_cast<std::int32_t>(2 + random->Below(4));
  for (std::uint64_t e = 1 + random->Below(4); e > 0; --e) {
    std::vector<Act> acts;
    std::vector<std::set<std::int64_t>> landed(drawn.ranks);
    for (std::int32_t owner = 0; owner < drawn.ranks; ++owner)
      for (std::int64_t slot = 0; slot < kSlots; ++slot) {
        const Op op = std::vector{Op::kPut, Op::kAccumulate, Op::kGet, Op::kFlush}[random->Below(4)];
        if (op == Op::kFlush) continue;  // nothing
        for (std::int32_t rank = 0; rank < drawn.ranks; ++rank) {
          if (rank == owner || random->OneIn(2)) continue;
          const auto piece = static_cast<std::int64_t>(random->Below(kPieces));
          if (op == Op::kGet && !landed[rank].insert(piece).second) continue;
          acts.push_back({op, rank, owner, slot, piece});
          if (op == Op::kPut) break;
        }
      }
    for (std::size_t i = acts.size(); i > 1; --i) std::swap(acts[i - 1], acts[random->Below(i)]);
    drawn.epochs.push_back(std::move(acts));
  }
  return drawn;
}

Status DeclareScript(Header* header) {
  header->buffers = {{.name = "in", .role = Role::kIn}, {.name = "out", .role = Role::kState}, {.name = "window", .role = Role::kWindow}};
  header->counter_count = static_cast<std::int32_t>(script->epochs.size());
  return {};
}
void WriteScript(Writer& w) {
  for (std::size_t e = 0; e < script->epochs.size(); ++e) {
    std::set<std::int32_t> touched;
    for (const Act& act : script->epochs[e]) {
      if (act.rank != w.rank()) continue;
      const ChunkId remote = w.At(2, w.Span(0, kSlot, 0, act.slot * kSlot));
      const ChunkId local = w.At(act.op == Op::kGet ? 1 : 0, w.Span(0, kSlot, 0, act.piece * kSlot));
      if (act.op == Op::kPut) w.Put(local, act.to, remote);
      if (act.op == Op::kAccumulate) w.Accumulate(local, act.to, remote);
      if (act.op == Op::kGet) w.Get(act.to, remote, local);
      touched.insert(act.to);
    }
    if (!script->has_fences) continue;
    for (std::int32_t peer : touched) w.Flush(peer);
    const auto counter = static_cast<std::int32_t>(e);
    for (std::int32_t d = 1; d < w.ranks(); ++d) w.Notify(w.Around(d), counter);
    w.Wait(counter, w.ranks() - 1);
  }
}
// What a fence gives; what the windows hold is the plain model's affair.
void PromiseFence(PostWriter& post) { post.Add({.kind = ClaimKind::kBarrier}); }
const Algorithm kScript{"script", Collective::kMix, true, DeclareScript, WriteScript, PromiseFence};

using Cells = std::vector<std::int64_t>;

TEST_P(OneSidedRuns, RandomProgramsDoWhatThePlainModelDoes) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random = Random::ForPurpose(seed, static_cast<std::uint64_t>(GetParam()));
  int acts = 0;
  for (int round = 0; round < 25; ++round) {
    const Script drawn = Drawn(&random);
    script = &drawn;
    const std::int32_t ranks = drawn.ranks;
    Plan plan = Built(BuildPlan(kScript, {.collective = Collective::kMix, .dtype = Dtype::kI64, .ranks = ranks}));
    ASSERT_TRUE(CheckAll(plan).ok()) << CheckAll(plan).ToString();
    const Sizes sizes{.count = kSlot * kPieces};
    Fabric fabric(GetParam(), ranks, plan.header.channel_count + 1);
    Windows windows(&fabric, plan, sizes);
    std::vector<Cells> in(ranks, Cells(kSlot * kPieces)), out(ranks, Cells(kSlot * kPieces, -1)), model_out = out;
    std::vector<Cells> model(ranks, Cells(kSlot * kSlots));
    for (Cells& cells : in)
      for (std::int64_t& cell : cells) cell = static_cast<std::int64_t>(random());
    // Twice: what the windows hold and the counters of the first run must not disturb the second.
    for (int again = 0; again < 2; ++again)
      for (const auto& epoch : drawn.epochs)
        for (const Act& act : epoch)
          for (std::int64_t i = 0; i < kSlot; ++i) {
            std::int64_t& there = model[act.to][act.slot * kSlot + i];
            const std::int64_t mine = in[act.rank][act.piece * kSlot + i];
            if (act.op == Op::kPut) there = mine;
            if (act.op == Op::kAccumulate)
              there = static_cast<std::int64_t>(static_cast<std::uint64_t>(there) + static_cast<std::uint64_t>(mine));
            if (act.op == Op::kGet) model_out[act.rank][act.piece * kSlot + i] = there;
            ++acts;
          }
    Trace trace(ranks);
    OnAllRanks(ranks, [&](std::int32_t rank) {
      auto instance = windows.Make(plan, rank, sizes);
      ASSERT_TRUE(instance.ok()) << instance.status().ToString();
      ASSERT_TRUE((*instance)->Bind(std::vector<void*>{in[rank].data(), out[rank].data()}).ok());
      for (int again = 0; again < 2; ++again) {
        (*instance)->Record(again == 0 ? &trace[rank] : nullptr);
        Status status = (*instance)->Run();
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      windows.ServeUntilAllAreDone(rank);
    });
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      Cells held(kSlot * kSlots);
      std::memcpy(held.data(), windows.of(rank).MemoryOf(0), static_cast<std::size_t>(windows.of(rank).BytesOf(0)));
      EXPECT_EQ(held, model[rank]) << "round " << round << " window of rank " << rank;
      EXPECT_EQ(out[rank], model_out[rank]) << "round " << round << " rank " << rank;
    }
    auto simulated = Simulate(plan, {.sizes = sizes, .trace = true});
    ASSERT_TRUE(simulated.ok()) << simulated.status().ToString();
    EXPECT_EQ(ByChannel(std::move(trace)), simulated->trace) << "round " << round;
  }
  EXPECT_GT(acts, 1000);
}

// The control: without fences the same programs are no programs.
TEST(OneSided, ProgramsWithoutFencesAreRefused) {
  Script bad{.ranks = 3, .epochs = {{{Op::kPut, 0, 2, 1, 0}}, {{Op::kPut, 1, 2, 1, 3}}}};
  script = &bad;
  const Request request{.collective = Collective::kMix, .dtype = Dtype::kI64, .ranks = 3};
  EXPECT_TRUE(CheckAll(Built(BuildPlan(kScript, request))).ok());
  bad.has_fences = false;
  EXPECT_EQ(CheckAll(Built(BuildPlan(kScript, request))).tag(), "COLL04");
}

TEST(OneSided, WhatCannotBeRunIsRefused) {
  Plan plan = Built(BuildPlan("window", {.collective = Collective::kMix, .ranks = 3, .mixing = RingOfNeighbours(3)}));
  Fabric fabric(Kind::kThreads, 3, 2);
  EXPECT_EQ(Instance::Make(&plan.header, &plan.programs[0], {.count = 4}, &fabric.endpoint(0)).status().tag(), "COLL12");
  Windows windows(&fabric, plan, {.count = 4});
  EXPECT_EQ(windows.Make(plan, 0, {.count = 5}).status().tag(), "COLL27");  // the window is for 4
  plan.programs[0].operands[plan.programs[0].steps[0].first_operand].scale = 0;
  EXPECT_EQ(windows.Make(plan, 0, {.count = 4}).status().tag(), "COLL12");  // a put is as it is
}

// ---- eager -------------------------------------------------------------------------------------------------------------------------

constexpr std::int64_t kEagerCount = 100;

Status Drive(Instance* instance, OneSided* side, Transport* transport) {
  for (;;) switch (instance->Advance()) {
      case Outcome::kDone:
        return {};
      case Outcome::kFailed:
        return instance->status();
      default:
        if (!side->Serve()) transport->Wait(true);
    }
}

struct EagerRan {
  std::vector<std::vector<std::vector<float>>> sums;  // by round and rank
  std::vector<std::vector<float>> counters;           // likewise
  Trace trace;
  std::uint64_t steps = 0;
};

float EagerValue(std::int32_t rank, std::size_t round, std::int64_t i) {
  return static_cast<float>((i + 1) * (rank + 1) + 1000 * static_cast<std::int64_t>(round));
}

// `late[round]`: the rank whose call comes when the others have their sum already; -1: none.
EagerRan RunEager(Kind kind, const Plan& plan, const std::vector<std::int32_t>& late) {
  const std::int32_t ranks = plan.header.request.ranks;
  Fabric fabric(kind, ranks, plan.header.channel_count + 1);
  Windows windows(&fabric, plan, {.count = kEagerCount});
  EagerRan ran;
  ran.sums.assign(late.size(), std::vector<std::vector<float>>(ranks, std::vector<float>(kEagerCount)));
  ran.counters.assign(late.size(), std::vector<float>(ranks));
  ran.trace.resize(ranks);
  std::vector<std::atomic<std::int32_t>> have_it(late.size());
  std::vector<std::uint64_t> steps(ranks);
  OnAllRanks(ranks, [&](std::int32_t rank) {
    Transport* transport = &fabric.endpoint(rank);
    auto instance = windows.Make(plan, rank, {.count = kEagerCount});
    ASSERT_TRUE(instance.ok()) << instance.status().ToString();
    (*instance)->Record(&ran.trace[rank]);
    std::vector<float> stale(kEagerCount), in(kEagerCount);
    const CallLabel label = LabelOf(plan.header, kEagerCount, "eager", 0);
    for (std::size_t round = 0; round < late.size(); ++round) {
      for (std::int64_t i = 0; i < kEagerCount; ++i) in[i] = EagerValue(rank, round, i);
      ASSERT_TRUE((*instance)
                      ->Bind(std::vector<void*>{in.data(), ran.sums[round][rank].data(), stale.data(), nullptr, nullptr,
                                                &ran.counters[round][rank]})
                      .ok());
      const bool is_late = late[round] == rank;
      (*instance)->Start(0, label, !is_late);
      Status status = Drive(instance->get(), &windows.of(rank), transport);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ++have_it[round];
      if (!is_late) continue;
      while (have_it[round].load() < ranks)
        if (!windows.of(rank).Serve()) std::this_thread::yield();
      EXPECT_FALSE((*instance)->Come());
      status = Drive(instance->get(), &windows.of(rank), transport);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    steps[rank] = (*instance)->steps();
    windows.ServeUntilAllAreDone(rank);
  });
  for (std::uint64_t one : steps) ran.steps += one;
  ran.trace = ByChannel(std::move(ran.trace));
  return ran;
}

// What a late rank owes goes into the next sum that it misses; without a state it is left out.
TEST_P(OneSidedRuns, AnEagerSumTakesWhoIsThereAndWhatTheOthersOwe) {
  constexpr std::int32_t kRanks = 4;
  const std::vector<std::int32_t> late = {3, -1, 3, 3, 1, -1};
  for (bool keeps_state : {true, false}) {
    Plan plan = Built(BuildPlan("eager", {.ranks = kRanks, .quorum = 3}));
    if (!keeps_state)
      for (Program& program : plan.programs)
        for (Step& step : program.steps)
          if (step.op == Op::kContribute) step.operand_count = 1;
    EagerRan ran = RunEager(GetParam(), plan, late);
    std::vector<std::vector<float>> owed(kRanks, std::vector<float>(kEagerCount));
    for (std::size_t round = 0; round < late.size(); ++round) {
      std::vector<float> expected(kEagerCount);
      float fresh = 0;
      for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        fresh += rank == late[round] ? 0 : 1;
        for (std::int64_t i = 0; i < kEagerCount; ++i) {
          expected[i] += rank == late[round] ? owed[rank][i] : EagerValue(rank, round, i);
          if (rank == late[round] && keeps_state) owed[rank][i] = EagerValue(rank, round, i);
        }
      }
      for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(ran.sums[round][rank], expected) << "round " << round << " rank " << rank;
        EXPECT_EQ(ran.counters[round][rank], fresh);
      }
    }
  }
}

TEST_P(OneSidedRuns, AnEagerSumHasTheTraceOfVirtualTime) {
  for (std::int32_t late : {-1, 2}) {
    Plan plan = Built(BuildPlan("eager", {.ranks = 3, .quorum = late < 0 ? 3 : 2}));
    EagerRan ran = RunEager(GetParam(), plan, {late});
    SimulateOptions options{.sizes = {.count = kEagerCount}, .network = {.latency_ns = 1000, .ns_per_byte = 1}, .trace = true};
    if (late >= 0) options.start_ns = {1, 1, 1'000'000'000};
    auto simulated = Simulate(plan, options);
    ASSERT_TRUE(simulated.ok());
    EXPECT_EQ(ran.trace, simulated->trace);
    EXPECT_EQ(ran.steps, simulated->steps);
    EXPECT_EQ(simulated->contributed, late < 0 ? 3 : 2);
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
