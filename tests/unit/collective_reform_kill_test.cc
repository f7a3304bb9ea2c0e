// Ranks come, go and are killed while their communicator is formed anew: those that live have one of the same ranks, whose sums are right,
// and nothing of the old ones is left. A hundred and fifty rounds over each wire here, two thousand in tests/long.
#include "tests/unit/collective_reformers.h"

namespace ropewalk::collective::testing {
namespace {

TEST(ReformedRanks, AreTheSameForAllThatLiveWhereMemoryIsShared) { RunReforms(Wire::kShared, 9'000, 150); }

TEST(ReformedRanks, AreTheSameForAllThatLiveOverTcp) { RunReforms(Wire::kTcp, 9'001, 150); }

}  // namespace
}  // namespace ropewalk::collective::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "reformer") return ropewalk::collective::testing::ReformerMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
