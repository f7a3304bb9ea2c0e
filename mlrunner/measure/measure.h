// The program of one rank of `ropewalk bench collective`. For each wire: connect, calibrate, then all sizes, and at each size all
// algorithms in turn.
//
//   a size     warm up; rounds of a block of iterations of each algorithm, forwards and backwards in turn, so that a machine that gets
//              slower or faster on the way favours none; then one more call of each, whose result is checked
//   iteration  all meet in a barrier, each rank takes its own time of the call, the slowest one's counts
//
// Thread rule: once for each rank of a forming, on the rank's thread.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "dag/gang.h"
#include "mlrunner/collective/algorithms.h"
#include "mlrunner/measure/job.h"

namespace ropewalk::measure {

// Of rank 0 an encoded BenchReport (report.h). Wrong results are in the report and are no error here. `job.algorithms` must be ones that
// ChooseContenders() let through. COLL*: as the communicator; kResourceExhausted BENCH25: a machine has no memory for its ranks' vectors.
Result<std::string> BenchRank(dag::GangContext& gang, const BenchJob& job,
                              std::span<const collective::Algorithm> table = collective::Algorithms());

}  // namespace ropewalk::measure
