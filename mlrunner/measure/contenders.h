// Which algorithms of a table take part: all that do the collective and that a plain call can run by, or those that are named.
//
// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/algorithms.h"
#include "mlrunner/measure/job.h"

namespace ropewalk::measure {

// Broadcasts begin at rank 0, which gathers, too; a message goes to the last rank; neighbours are those of a ring.
collective::Request RequestOf(const BenchJob& job);

// Every collective that `table` has an algorithm for.
std::vector<std::string> CollectiveNames(std::span<const collective::Algorithm> table);

// Sets `algorithms` and `left_out`. `names`: "all" (but for those that ask for a certain placement), "chosen", or names with commas between
// them. kInvalid BENCH21 for a name that cannot take part, and where there is none that can.
Status ChooseContenders(std::span<const collective::Algorithm> table, const std::string& names, BenchJob* job);

}  // namespace ropewalk::measure
