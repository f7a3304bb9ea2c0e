// The builders, one file each, and what they share. A builder is three functions (see Algorithm): declare, write, promise.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "mlrunner/collective/algorithms.h"

namespace ropewalk::collective {

// The buffers of collectives that read `in` and fill `out`, in this order; the caller may give the same memory.
inline constexpr std::int32_t kIn = 0, kOut = 1;
void DeclareInOut(Header* header);
// The same of collectives whose `out` is this rank's part of a vector such as `in`, or whose `in` is its part of one such as `out`; there
// it may lie.
void DeclareInPartOut(Header* header);
void DeclarePartInOut(Header* header);
// Rank `rank`'s part of the whole, and as much at the begin of a buffer that holds nothing else.
RangeId PartOfWhole(ShapeWriter& w, std::int32_t rank);
RangeId PartAlone(ShapeWriter& w, std::int32_t rank);
// Who stands at a place of the request's order, counted round it; and where a rank stands.
std::int32_t RankAt(const Request& request, std::int32_t place);
std::int32_t PlaceOf(const Request& request, std::int32_t rank);
// Round a ring each rank holds one message in its slot while it waits to pass on the next: with one slot all wait. COLL10.
Status NeedTwoSlots(const Header& header);
std::int32_t DeclareScratch(Header* header, const char* name, Element element = Element::kPayload);
std::int32_t DeclareScale(Header* header, double scale);

// The average is a sum with a scale: where partial sums are stored in the payload's type and that is f16, each contribution is scaled
// before it is added (or the sum could overflow), otherwise the finished sum is.
struct Scales {
  std::int32_t before = kNone, after = kNone;
  // Of a rank by itself, whose own numbers are the sum.
  std::int32_t alone() const { return before != kNone ? before : after; }
};
Scales DeclareAverage(Header* header, bool partial_sums_are_stored);

// What the header's one scale is for, in write functions.
Scales ScalesOf(const Header& header, bool partial_sums_are_stored);

// All ranks' numbers at `chunk`, as many times as the request's operation counts each.
Term OfAll(const PostWriter& post, ChunkId chunk);
// out of every rank = fold of all ranks' in, the same bits everywhere.
void PromiseAllreduce(PostWriter& post);
void PromiseReduceScatter(PostWriter& post);
void PromiseAllgather(PostWriter& post);
void PromiseBroadcast(PostWriter& post);
void PromiseReduce(PostWriter& post);

extern const Algorithm kDirectAllreduce, kRingAllreduce, kDoublingAllreduce, kChainAllreduce, kTreeBroadcast, kChainBroadcast,
    kDisseminationBarrier, kPointToPoint, kSra, kAllToAllV, kEager, kWindow, kWindowRelaxed, kNativeAllreduce;
extern const Algorithm kHalvingDoublingAllreduce, kTreeAllreduce, kDoubleTreeAllreduce, kCentralAllreduce;
extern const Algorithm kDirectReduceScatter, kRingReduceScatter, kDirectAllgather, kRingAllgather, kAllgatherV, kDirectReduce, kTreeReduce,
    kDirectGather, kTreeGather, kDirectScatter, kTreeScatter, kAllToAll, kNeighborExchange;
extern const Algorithm kNativeReduceScatter, kNativeAllgather, kNativeBroadcast, kNativeReduce;
extern const std::array<Algorithm, 8> kHierarchicalAllreduces;

}  // namespace ropewalk::collective
