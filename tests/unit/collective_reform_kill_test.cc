// Ranks come, go and are killed while their communicator is formed anew: those that live have one of the same ranks, whose sums are right,
// and nothing of the old ones is left. A hundred and fifty rounds over each wire here, two thousand in tests/long.
#include "tests/unit/collective_reformers.h"

namespace ropewalk::collective::testing {
namespace {

TEST(ReformedRanks, AreTheSameForAllThatLiveWhereMemoryIsShared) { RunReforms(Wire::kShared, 9'000, 150); }

TEST(ReformedRanks, AreTheSameForAllThatLiveOverTcp) { RunReforms(Wire::kTcp, 9'001, 150); }

// The one that gathers what the others say, and another one.
TEST(ReformedRanks, DoNotWaitForOneThatIsStopped) {
  std::vector<std::thread> threads;
  for (int victim : {0, 1}) threads.emplace_back([victim] { RunStopped(victim == 0 ? Wire::kShared : Wire::kTcp, victim); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ropewalk::collective::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "reformer") return ropewalk::collective::testing::ReformerMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
