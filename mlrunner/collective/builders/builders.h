// The builders, one file each, and what they share. A builder is three functions (see Algorithm): declare, write, promise.
//
// Thread rule: pure functions.
#pragma once

#include "mlrunner/collective/algorithms.h"

namespace ropewalk::collective {

// The buffers of collectives that read `in` and fill `out`, in this order; the caller may give the same memory.
inline constexpr std::int32_t kIn = 0, kOut = 1;
void DeclareInOut(Header* header);
std::int32_t DeclareScratch(Header* header, const char* name, Element element = Element::kPayload);
std::int32_t DeclareScale(Header* header, double scale);

// The average is a sum with a scale: where partial sums are stored in the payload's type and that is f16, each contribution is scaled
// before it is added (or the sum could overflow), otherwise the finished sum is.
struct Scales {
  std::int32_t before = kNone, after = kNone;
};
Scales DeclareAverage(Header* header, bool partial_sums_are_stored);

// What the header's one scale is for, in write functions.
Scales ScalesOf(const Header& header, bool partial_sums_are_stored);

// out of every rank = fold of all ranks' in, the same bits everywhere.
void PromiseAllreduce(PostWriter& post);

extern const Algorithm kDirectAllreduce, kRingAllreduce, kDoublingAllreduce, kChainAllreduce, kTreeBroadcast, kChainBroadcast,
    kDisseminationBarrier, kPointToPoint, kSra, kAllToAllV, kEager, kWindow, kWindowRelaxed, kNativeAllreduce;
extern const Algorithm kHalvingDoublingAllreduce, kTreeAllreduce, kDoubleTreeAllreduce, kCentralAllreduce;

}  // namespace ropewalk::collective
