// Killed ranks leave no hang, no child and no segment of shared memory; the others name who died. Twenty here, two hundred in tests/long.
// Stopped ranks are named, too, when the time is over.
#include "tests/unit/collective_kills.h"

namespace ropewalk::collective::testing {
namespace {

TEST(KilledRanks, FreeTheOthersWhoNameThem) { RunKills(1'000, 20); }

// It computes, or does nothing: the others are in a call by its window, ordered or relaxed, or between two.
TEST(KilledRanks, FreeThoseWhoWaitForTheirWindow) {
  std::int64_t worst_ms = 0;
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    for (std::uint64_t seed : {1, 2, 3, 4})
      worst_ms = std::max(worst_ms, RunKill({.seed = seed,
                                             .ranks = 3,
                                             .victim = static_cast<std::int32_t>(seed % 3),
                                             .wire = wire,
                                             .doing = Doing::kStandsStill,
                                             .delay_us = 20'000}));
  std::printf("the last survivor was gone %lld ms after the strike\n", static_cast<long long>(worst_ms));
}

TEST(KilledRanks, OfFourFreeTheThreeWhoNameThem) {
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    for (Doing doing : {Doing::kCalls, Doing::kSplits})
      std::printf("the last survivor was gone %lld ms after the strike\n",
                  static_cast<long long>(RunKill({.seed = 11, .ranks = 4, .victim = 2, .wire = wire, .doing = doing, .delay_us = 15'000})));
}

TEST(KilledGangs, LeaveNoSegment) { RunKillsOfAll(2'000, 10); }

TEST(KilledRanks, OneAfterTheOtherAreLeftBehind) { RunKillsOfTwo(3'000, 12); }

TEST(StoppedRanks, AreNamedByAllWhenTheTimeIsOver) {
  std::int64_t worst_ms = 0;
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    worst_ms = std::max(worst_ms, RunKill({.seed = 7,
                                           .ranks = 3,
                                           .victim = wire == Wire::kTcp ? 0 : 2,
                                           .wire = wire,
                                           .is_stopped = true,
                                           .delay_us = 20'000,
                                           .timeout_ms = 400}));
  std::printf("the last one that waited was gone %lld ms after the strike\n", static_cast<long long>(worst_ms));
}

}  // namespace
}  // namespace ropewalk::collective::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "rank") return ropewalk::collective::testing::RankMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
