// Mutants of the allreduces of four ranks on two nodes of two.
#include "tests/unit/collective_mutants.h"

namespace ropewalk::collective::testing {
namespace {

TEST(Mutants, OfSumsOverNodesThatSomeScheduleGetsWrongAreRefused) {
  std::vector<Case> cases = AllCases(4, 8);
  std::erase_if(cases, [](const Case& one) { return one.request.collective != Collective::kAllreduce || !IsHierarchical(one); });
  ExpectMutantsRefused(cases);
}

}  // namespace
}  // namespace ropewalk::collective::testing
