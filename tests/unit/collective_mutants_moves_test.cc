// Mutants of the plans of four ranks, but for allreduces.
#include "tests/unit/collective_mutants.h"

namespace ropewalk::collective::testing {
namespace {

TEST(Mutants, OfMovesThatSomeScheduleGetsWrongAreRefused) {
  std::vector<Case> cases = AllCases(4, 8);
  std::erase_if(cases, [](const Case& one) { return one.request.collective == Collective::kAllreduce; });
  ExpectMutantsRefused(cases);
}

}  // namespace
}  // namespace ropewalk::collective::testing
