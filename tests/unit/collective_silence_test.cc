// A process that says nothing is not waited for, though its connections stand and no time is over; one that computes is.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_kills.h"

namespace ropewalk::collective::testing {
namespace {

TEST(SilentRanks, AreNamedByAllWithinTenSecondsWithoutATimeOut) {
  std::vector<std::int64_t> took_ms(2);
  std::vector<std::thread> threads;
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    threads.emplace_back([&, wire] {
      const bool is_shared = wire == Wire::kShared;
      took_ms[is_shared ? 0 : 1] =
          RunKill({.seed = 11, .ranks = 3, .victim = is_shared ? 0 : 1, .wire = wire, .is_stopped = true, .delay_us = 20'000});
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("the last one that waited was gone %lld ms after the stop (shared memory), %lld ms (TCP)\n",
              static_cast<long long>(took_ms[0]), static_cast<long long>(took_ms[1]));
}

// Rank 0 looks at its results for five times as long as a silence may last: it is there, and nobody is told otherwise.
TEST(SilentRanks, AreNotThoseThatCompute) {
  std::vector<std::thread> threads;
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    threads.emplace_back([wire] {
      CommunicatorOptions options = Over(wire);
      options.silence_ms = 600;
      WithRanks(3, options, [&](Communicator& all, Meeting&) {
        std::vector<float> x(1000, 1);
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(all.rank() == 0 ? 3'000 : 0);
        volatile std::uint64_t results = 0;
        while (std::chrono::steady_clock::now() < end) results = results + 1;
        Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = 1000, .name = "grad"});
        EXPECT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(x, std::vector<float>(1000, 3));
      });
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ropewalk::collective::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "rank") return ropewalk::collective::testing::RankMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
