// Killed ranks leave no hang, no child and no segment of shared memory; the others name who died. Twenty here, two hundred in
// tests/long.
#include "tests/unit/collective_kills.h"

namespace ropewalk::collective::testing {
namespace {

TEST(KilledRanks, FreeTheOthersWhoNameThem) { RunKills(1'000, 20); }

}  // namespace
}  // namespace ropewalk::collective::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "rank") return ropewalk::collective::testing::RankMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
