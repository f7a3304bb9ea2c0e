// How a call of some bytes looks for any collective of the table: found from its plan, so that collectives that are added later need no
// word here.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::measure {

struct Shape {
  std::int64_t count = 0;                          // of the call
  std::int64_t bytes = 0;                          // of the longest vector of any rank; 0: the collective moves none
  std::int64_t in_elements = 0, out_elements = 0;  // room for every rank's
  std::int64_t scratch_bytes = 0;                  // what the plan keeps beside them, of the rank that keeps most
  collective::Sizes sizes;
  // Where counts are learned: what each rank has for each, or for all.
  std::int64_t each = 0;
};

// The largest whole call of at most `bytes`, at least an element (for each rank, where vectors are made of such). kInvalid as
// Layout::Make().
Result<Shape> ShapeOf(const collective::Plan& plan, std::int64_t bytes);

}  // namespace ropewalk::measure
