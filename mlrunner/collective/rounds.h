// A plan as rounds, for libraries that move messages between devices by pairs of calls (NCCL's sends and receives). All that a rank does is
// known before anything runs and can be queued on its stream at once:
//
//   fold, fold, ... │ group: send, receive, send, ... │ fold, ... │ group ... │ fold, ...
//   └─ round 0 ──────────────────────────────────────┘└─ round 1 ────────────┘└─ the last, without a group
//
// A round's group holds every message whose sender has come to its step, in the order of the program and within the slots of its edge,
// with what came in the rounds before. It is the same for sender and receiver, because one schedule is made of the programs of all ranks:
// who runs one makes it of the same plan and lengths. Within a group all transfers go on together, so that none waits for another; a group
// is over on a rank's stream when its transfers are.
//
// So what a plan's steps wait for becomes the order of the stream, and nothing is left to wait for: slots and flushes are used up when the
// schedule is made. A message without elements, because the vector is short, is left out on both sides. One that is only a sign (a
// barrier's) travels as one byte.
//
// Thread rule: pure functions; values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// A stretch of one of a rank's memories: those of the plan's buffers, in the header's order, and behind them the one where messages land
// that cannot be received where they belong.
struct RoundPlace {
  std::int32_t memory = 0;
  std::int64_t offset_bytes = 0;
  bool operator==(const RoundPlace&) const = default;
};

struct RoundRow {
  RoundPlace from;
  Dtype dtype = Dtype::kF32;
  double scale = 1;
};

// out = scale · fold of the rows in their order, in the accumulator's type, rounded once (FoldRows). One row: a copy, or a conversion.
struct RoundFold {
  RoundPlace out;
  Dtype dtype = Dtype::kF32;
  double scale = 1;
  std::int64_t count = 0;
  std::int32_t first_row = 0, row_count = 0;
};

// Half of a message; the peer has the other. Of two ranks the n-th send of one is the n-th receive of the other.
struct Transfer {
  bool sends = false;
  bool is_sign = false;  // nobody reads what it brings
  std::int32_t peer = 0;
  RoundPlace place;
  Dtype dtype = Dtype::kF32;
  std::int64_t count = 0;
  std::int32_t channel = 0;  // of the plan, and which message of its edge
  std::int64_t number = 0;
};

struct Round {
  std::int32_t first_fold = 0, fold_count = 0;
  std::int32_t first_transfer = 0, transfer_count = 0;  // the group, behind the folds; none: nothing of this round concerns the rank
};

// `memory` may be bound to where `of` lies from `offset_bytes` on, or to memory of its own.
struct RoundAlias {
  std::int32_t memory = 0, of = 0;
  std::int64_t offset_bytes = 0;
};

struct RankRounds {
  std::vector<Round> rounds;  // as many on all ranks
  std::vector<RoundFold> folds;
  std::vector<RoundRow> rows;
  std::vector<Transfer> transfers;
  std::vector<std::int64_t> memory_bytes;  // by memory: how long it must be
  std::vector<RoundAlias> aliases;
};

struct Rounds {
  std::vector<RankRounds> ranks;
  std::int64_t groups = 0;    // rounds that have one
  std::int64_t messages = 0;  // of all ranks
  std::int64_t bytes = 0;
  std::int64_t landed = 0;  // messages that were not received where they belong
};

// The plan must be proved (check.h); the rounds are, by CheckRounds(). COLL12, with the reason, for a plan that is no matter of messages of
// known lengths: windows, counters, codecs, eager sums, counts that are learned on the way, native steps; kResourceExhausted (COLL12) for
// one that is cut into more than kRoundStepsMax steps.
Result<Rounds> MakeRounds(const Plan& plan, const Sizes& sizes);
inline constexpr std::int64_t kRoundStepsMax = std::int64_t{1} << 20;

// Whether rounds, wherever they come from, may be given to such a library, whose transfers wait for their other half and have no memory
// between them.
//   COLL02  a place outside of its memory; a rank that is none
//   COLL03  a deadlock: ranks whose groups wait for each other; halves that differ in length or type, or have no other half
//   COLL04  memory that a group receives into and sends from, or receives into twice, in whatever form the buffers alias; a message that
//           lands on one that is not read yet
//   COLL05  a fold that reads a message that has not landed
Status CheckRounds(const Rounds& rounds);

}  // namespace ropewalk::collective
