// Two hundred killed ranks leave no hang, no child and no segment of shared memory; the others name who died.
#include "tests/unit/collective_kills.h"

namespace ropewalk::collective::testing {
namespace {

TEST(KilledRanks, FreeTheOthersTwoHundredTimes) { RunKills(5'000, 200); }

TEST(KilledRanks, OneAfterTheOtherAreLeftBehindAHundredTimes) { RunKillsOfTwo(7'000, 100); }

TEST(KilledGangs, LeaveNoSegmentFiftyTimes) { RunKillsOfAll(6'000, 50); }

}  // namespace
}  // namespace ropewalk::collective::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "rank") return ropewalk::collective::testing::RankMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
