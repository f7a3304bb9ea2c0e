// In the steady state nothing allocates, over any transport.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <deque>
#include <new>
#include <vector>

#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/collective/run/codecs.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_ranks.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ropewalk::collective::testing {
namespace {

TEST(SteadyState, DoesNotAllocate) {
  constexpr std::int32_t kRanks = 3;
  constexpr std::int64_t kCount = 5000;
  for (Kind kind : {Kind::kThreads, Kind::kPools, Kind::kSockets})
    for (const char* algorithm : {"direct", "ring", "recursive_doubling", "chain"}) {
      auto plan =
          BuildPlan(algorithm, {.dtype = Dtype::kBF16, .op = ReduceOp::kAvg, .ranks = kRanks, .channels = 2, .segment_bytes = 1024});
      ASSERT_TRUE(plan.ok());
      Fabric fabric(kind, kRanks, plan->header.channel_count);
      std::atomic<int> ready{0}, done{0};
      std::atomic<std::uint64_t> before{0}, after{0};
      std::atomic<bool> all_well{true};
      // All wait for all, so that what starting and ending threads allocate is not counted.
      auto meet = [](std::atomic<int>* count) {
        ++*count;
        while (count->load() < kRanks) std::this_thread::yield();
      };
      OnAllRanks(kRanks, [&](std::int32_t rank) {
        char* memory = fabric.endpoint(rank).Allocate(kCount * 2);
        std::fill(memory, memory + kCount * 2, 0);
        auto instance = Instance::Make(&plan->header, &plan->programs[rank], {.count = kCount}, &fabric.endpoint(rank));
        bool well = instance.ok();
        void* buffers[] = {memory, memory};
        well = well && (*instance)->Bind(buffers).ok() && (*instance)->Run().ok();
        meet(&ready);
        if (rank == 0) before = allocations.load();
        for (int round = 0; well && round < 20; ++round) well = (*instance)->Run().ok();
        if (!well) all_well = false;
        if (rank == 0) after = allocations.load();
        meet(&done);
      });
      EXPECT_TRUE(all_well) << algorithm;
      EXPECT_EQ(before, after) << algorithm << " over transport " << static_cast<int>(kind);
    }
}

// The same of a communicator's blocking calls, with all that lies above an instance: every algorithm that it can run, codecs and mixing
// matrices too, and more kinds and lengths of calls than are remembered as the last ones. Not what is submitted, whose handles are made at
// each call, nor what travels as frames of one-sided work: counters of windows, and relaxed windows over TCP.
TEST(SteadyState, CallsOfACommunicatorDoNotAllocate) {
  constexpr std::int32_t kRanks = 3;
  for (Wire wire : {Wire::kShared, Wire::kTcp}) {
    std::atomic<int> ready{0}, done{0}, read{0};
    std::atomic<std::uint64_t> before{0}, after{0};
    std::atomic<bool> all_well{true};
    std::atomic<int> kinds{0};
    auto meet = [](std::atomic<int>* count) {
      ++*count;
      while (count->load() < kRanks) std::this_thread::yield();
    };
    WithRanks(kRanks, Over(wire), [&](Communicator& all, Meeting&) {
      Codec keeping = SignCodec(64);
      keeping.error_feedback = true;
      const Codec min_max = MinMaxCodec(8, 512);
      const MixingMatrix ring = RingOfNeighbours(kRanks), mean(kRanks, std::vector<double>(kRanks, 1.0 / kRanks));
      const std::vector<std::int64_t> each(kRanks, 100);
      std::vector<std::int64_t> received(kRanks);
      const Neighbors neighbors = SomeNeighbors(kRanks);
      constexpr std::int64_t kCountMax = 40'000;
      auto pooled = all.Allocate(kRanks * kCountMax * sizeof(float));  // a vector for each rank
      bool well = pooled.ok();
      auto* in = well ? reinterpret_cast<float*>(*pooled) : nullptr;
      std::vector<float> own(kRanks * kCountMax), residual(2 * kCountMax);
      std::deque<Window> windows;  // each belongs to calls of one kind

      std::vector<CollectiveCall> calls;
      for (const Algorithm& algorithm : Algorithms())
        for (std::int64_t count : {std::int64_t{1000}, kCountMax}) {
          CollectiveCall call{.collective = algorithm.collective,
                              .in = in,
                              .out = own.data(),
                              .count = count,
                              .peer = 1,
                              .name = "a name that is too long to be kept where a short one is",
                              .algorithm = algorithm.name};
          if (algorithm.name == "eager" || algorithm.name.starts_with("native")) continue;
          if (LearnsCounts(algorithm.collective)) call.counts = each.data(), call.received = received.data();
          if (algorithm.collective == Collective::kNeighborExchange) call.neighbors = &neighbors;
          if (algorithm.codecs != Codecs::kNone) {
            call.codec = &min_max;
            calls.push_back(call);
            call.codec = &keeping;
            call.residual = residual.data();
          }
          if (algorithm.collective == Collective::kMix) {
            if (wire == Wire::kTcp || algorithm.name == "window") continue;
            for (const MixingMatrix* matrix : {&ring, &mean}) {
              auto window = all.MakeWindow(kRanks * kCountMax * sizeof(float));
              well = well && window.ok();
              if (!window.ok()) continue;
              call.mixing = matrix;
              call.window = &windows.emplace_back(*window);
              calls.push_back(call);
            }
            continue;
          }
          calls.push_back(call);
        }
      if (all.rank() == 0) kinds = static_cast<int>(calls.size());
      auto run_all = [&] {
        for (const CollectiveCall& call : calls) well = well && all.Run(call).ok();
      };
      for (int round = 0; round < 3; ++round) run_all();
      meet(&ready);
      if (all.rank() == 0) before = allocations.load();
      for (int round = 0; round < 10; ++round) run_all();
      meet(&done);
      if (all.rank() == 0) after = allocations.load();
      meet(&read);
      if (!well) all_well = false;
    });
    EXPECT_TRUE(all_well);
    EXPECT_GE(kinds.load(), 46);
    EXPECT_EQ(before, after) << (wire == Wire::kShared ? "shared memory" : "TCP");
  }
}

// A group is a communicator like any other.
TEST(SteadyState, CallsOfAGroupDoNotAllocate) {
  constexpr std::int32_t kRanks = 3;
  for (Wire wire : {Wire::kShared, Wire::kTcp}) {
    std::barrier<> meet(kRanks);
    std::atomic<bool> is_steady{false}, all_well{true};
    WithRanks(kRanks, Over(wire), [&](Communicator& all, Meeting&) {
      auto pair = all.Split({.color = all.rank() == 1 ? kNoGroup : 0});
      bool well = pair.ok();
      std::vector<float> x(5000);
      auto run = [&](Communicator* one) {
        if (one == nullptr) return;
        for (std::int64_t count : {10, 5000})
          well = well && one->AllReduce({.in = x.data(), .out = x.data(), .count = count, .op = ReduceOp::kMax, .name = "x"}).ok();
        well = well && one->Barrier().ok();
      };
      // In turns with the gang's.
      auto run_both = [&] {
        run(well ? pair->get() : nullptr);
        run(&all);
      };
      for (int round = 0; round < 3; ++round) run_both();
      // A queue that has never been as long grows, once: where a rank is held up, perhaps later than in three rounds. What
      // a call allocates is seen in every ten.
      for (int window = 0; window < 20 && !is_steady; ++window) {
        meet.arrive_and_wait();
        const std::uint64_t before = allocations.load();
        meet.arrive_and_wait();
        for (int round = 0; round < 10; ++round) run_both();
        meet.arrive_and_wait();
        if (all.rank() == 0) is_steady = allocations.load() == before;
        meet.arrive_and_wait();
      }
      if (!well) all_well = false;
    });
    EXPECT_TRUE(all_well);
    EXPECT_TRUE(is_steady) << (wire == Wire::kShared ? "shared memory" : "TCP");
  }
}

// Choosing by predicted times: what is allocated, is at the first call of a kind.
TEST(SteadyState, ChoosingDoesNotAllocate) {
  LinkModel world;
  world.latency_ns = 10'000;
  world.overhead_ns = 1'000;
  world.ns_per_byte = world.alone_ns_per_byte = .5;
  const Chooser chooser({.ranks = 3}, {.model = world, .from = CostsFrom::kMeasured});
  std::size_t chosen = 0;
  auto choose_all = [&] {
    for (Collective collective : {Collective::kAllreduce, Collective::kBroadcast, Collective::kReduce, Collective::kBarrier})
      for (bool deterministic : {false, true})
        for (std::int64_t count = 1; count < 100'000'000; count *= 10)
          chosen += chooser.For({.collective = collective, .count = count, .deterministic = deterministic}).algorithm.size();
  };
  const std::uint64_t begin = allocations.load();
  choose_all();
  const std::uint64_t before = allocations.load();
  EXPECT_GT(before, begin) << "the tables are made of nothing";
  for (int round = 0; round < 10; ++round) choose_all();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_GT(chosen, 0u);
}

}  // namespace
}  // namespace ropewalk::collective::testing
