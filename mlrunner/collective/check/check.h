// Proves that a plan does what its postcondition says, by running all its programs on symbols instead of numbers.
//
// Refused, with rank, channel and step:
//   COLL02  what names something that does not exist (structure)
//   COLL03  a deadlock, with finite slots; a message nobody takes; a length or element type that sender and receiver see differently
//   COLL04  a race: a write that nothing orders against a read, a write, or a message still being read from that memory
//   COLL05  a read of what was never written
//   COLL06  a result that is not what the postcondition says; with in_place, a read after the overwrite shows here
//   COLL07  ranks whose results have different expressions where they must have the same bits
//   COLL08  deterministic mode: an element that is not the left fold over the ranks in the accumulator's type
//   COLL09  a value that was encoded lossily more often than the plan allows
//
// Why one run is enough: each message has one sender and one receiver and each channel is sequential, so whether the plan ends does not
// depend on the order in which ranks run (a Kahn network with bounded channels); and what has no race has one result. Slots are honoured
// for deadlocks, but never taken as an order between steps, so that a transport with more room is covered.
//
// Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

struct CheckOptions {
  Sizes sizes;
  bool in_place = false;             // buffers that may alias do
  std::vector<std::int32_t> absent;  // ranks without a local call (eager plans): their kLocalCall channels never run
};

// What the proof saw.
struct CheckReport {
  std::uint64_t steps = 0;
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

// Indices, peers, loops: whether an interpreter can run it at all.
Status CheckProgram(const Header& header, const Program& program);

Result<CheckReport> Check(const Plan& plan, const CheckOptions& options);

// Check() at the counts that have caught most mistakes: 0, 1, 7, ranks - 1, ranks, 1000003; in place and not.
Status CheckAll(const Plan& plan);

}  // namespace ropewalk::collective
