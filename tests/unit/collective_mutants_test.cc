// Mutants of the plans of three ranks, which are no power of two. Those of four: collective_mutants_*_test.
#include "tests/unit/collective_mutants.h"

namespace ropewalk::collective::testing {
namespace {

TEST(Mutants, OfThreeRanksThatSomeScheduleGetsWrongAreRefused) { ExpectMutantsRefused(AllCases(3, 8)); }

}  // namespace
}  // namespace ropewalk::collective::testing
