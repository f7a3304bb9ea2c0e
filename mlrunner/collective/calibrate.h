// Measures what messages cost between the ranks of a communicator (link_model.h), in about a second on one machine: vectors there and back
// between rank 0 and each other rank, all ranks sending at once, also vectors that no cache holds, chains of small messages, and how fast a
// processor adds up.
//
// Thread rule: as Communicator::Run().
#pragma once

#include "base/status.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/link_model.h"

namespace ropewalk::collective {

// A blocking call of all ranks, with nothing submitted under way; each gets the same model. `dtype` and `op` are of the sums to be timed.
// The communicator's table must have send_recv, all_to_all_v, ring, direct, recursive_doubling and barrier (COLL11), its pool room for
// 2 MiB (COLL13); with less than 64 MiB long vectors are taken to cost what shorter ones do.
Result<LinkModel> Calibrate(Communicator* ranks, Dtype dtype = Dtype::kF32, ReduceOp op = ReduceOp::kSum);

// Likewise: one pair of ranks after the other, so that none is in another's way; twelve vectors of 1 MiB each, and a few bytes. So it
// takes P(P - 1)/2 times a tenth of a second over links of 1 Gb/s, which is why only who asks for it has it. What took least counts:
// whoever else needs the link or a processor makes it slower and never faster. The table must have send_recv, barrier and what is chosen
// for a short allreduce; the pool room for 1 MiB.
Result<PairLines> CalibratePairs(Communicator* ranks);

}  // namespace ropewalk::collective
