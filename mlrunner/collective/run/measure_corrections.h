// Runs each way to do an allreduce that a communicator could choose, at a few lengths, and holds it against what the link model predicts
// (corrections.h says what comes of it).
//
// All lengths and ways are gone through in several passes, so that what the machine does beside spoils a pass and not a length. A pass is a
// median of calls, and of a way's passes the one counts that a third of them are not above: other work only adds, but the least of a few
// calls of a long vector is the luckiest, and who takes the least of many ways would choose by luck. After two passes ways that take
// half as long again as the best one are left out. It ends when its time is over: what was not come to has no point then.
//
// Thread rule: as Communicator::Run().
#pragma once

#include "base/status.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/link_model.h"
#include "mlrunner/collective/run/candidates.h"
#include "mlrunner/collective/run/corrections.h"

namespace ropewalk::collective {

// A blocking call of all ranks, with nothing submitted under way; `model` and `ground` are the same on all of them, and so is what comes of
// it, up to the last bits of a machine's arithmetic. Takes two seconds at most, but for a call that takes longer.
// Lengths of which a pool has no room for two vectors and scratch are left out. Of one rank, and of more than are predicted: none.
Result<Corrections> MeasureCorrections(Communicator* ranks, const LinkModel& model, const Ground& ground);

}  // namespace ropewalk::collective
