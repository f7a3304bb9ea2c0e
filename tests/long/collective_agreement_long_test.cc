// Every order of events of three ranks that agree twice, with a death at every moment.
#include "tests/unit/collective_agreement_world.h"

namespace ropewalk::collective::testing {
namespace {

TEST(Agreement, HoldsInEveryOrderOfMoreEvents) { ExpectEveryOrderHolds(3, 2, 1); }

}  // namespace
}  // namespace ropewalk::collective::testing
