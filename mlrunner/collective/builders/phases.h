// Phases: what a group of ranks does with a stretch of two buffers. An algorithm for all ranks is one phase, or two, over all of them; a
// hierarchical one is made of phases whose groups are the ranks of a node, or one rank of each node.
//
// A phase is written where the writer stands, inside of its loop, and cuts nothing into segments itself. Groups of one rank have none.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "mlrunner/collective/builders/builders.h"

namespace ropewalk::collective {

struct Group {
  std::vector<std::int32_t> ranks;  // by place
  std::int32_t place = 0;           // this rank's

  std::int32_t size() const { return static_cast<std::int32_t>(ranks.size()); }
  // The place that stands `distance` behind this rank's, round the group.
  std::int32_t Around(std::int32_t distance) const { return (((place + distance) % size()) + size()) % size(); }
};
Group AllRanks(const Writer& w);
// All of them, at their places in the request's order.
Group InOrder(const Writer& w);

struct Phase {
  Group group;
  RangeId range = kNone;                      // what it is about, for phases that cut it as they need
  std::function<RangeId(std::int32_t)> part;  // of the member at a place, for phases in which each has its own part
  std::int32_t in = kIn, out = kOut;          // the same buffer, where a phase goes on with what an earlier one has left
  std::int32_t scratch = kNone;               // DoublingAllreduce: no other phase's
  bool repeats = false;                       // in a loop: what was sent of `scratch` the time before is waited for
  Scales scales;                              // before: of what `in` holds; after: of what is left at the end
};

// Folds the chunk of all members, in the order of their places, in one step: the left fold.
void FoldInOrder(Writer& w, const Group& group, ChunkId chunk, const Scales& scales, ChunkId dst);

// Each member's part of the sum is left in its `out`: the part of the place that they return. Partial sums of the ring travel in the
// payload's type; `passes_on`: the finished part is sent on as well, as RingAllgather() with `is_passed_on` expects.
std::int32_t DirectReduceScatter(Writer& w, const Phase& phase);
std::int32_t RingReduceScatter(Writer& w, const Phase& phase, bool passes_on = false);
// All parts in every member's `out`, each from where the function above has left it.
void DirectAllgather(Writer& w, const Phase& phase);
void RingAllgather(Writer& w, const Phase& phase, bool is_passed_on = false);

// The sum in every member's `out`.
void DirectAllreduce(Writer& w, const Phase& phase);
void RingAllreduce(Writer& w, const Phase& phase);
void DoublingAllreduce(Writer& w, const Phase& phase);
void HalvingDoublingAllreduce(Writer& w, const Phase& phase);

}  // namespace ropewalk::collective
