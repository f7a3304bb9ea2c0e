// In the steady state nothing allocates, over any transport.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

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

}  // namespace
}  // namespace ropewalk::collective::testing
