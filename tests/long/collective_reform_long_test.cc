// Two thousand rounds over each wire in which ranks come, go and are killed.
#include "tests/unit/collective_reformers.h"

namespace ropewalk::collective::testing {
namespace {

TEST(ReformedRanks, AreTheSameForAllThatLiveFourThousandTimes) {
  for (std::uint64_t seed = 9'100; seed < 9'120; ++seed)
    for (Wire wire : {Wire::kShared, Wire::kTcp}) RunReforms(wire, seed, 100);
}

}  // namespace
}  // namespace ropewalk::collective::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "reformer") return ropewalk::collective::testing::ReformerMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
