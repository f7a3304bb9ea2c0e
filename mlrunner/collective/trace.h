// What a rank sent and received, in the order of each channel: the same for every transport, and for virtual time.
//
// Thread rule: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

struct TraceEntry {
  bool sent = false;
  std::int32_t channel = 0, peer = 0;
  std::int64_t bytes = 0;
  bool operator==(const TraceEntry&) const = default;
};

// By rank; within a rank, the entries of one channel are in order, those of different channels are not compared.
using Trace = std::vector<std::vector<TraceEntry>>;

// What a native collective counts for, whatever its library does: what the direct algorithm sends for each rank, on the average where a
// rank sends all. A rank gives `in_bytes` and gets `out_bytes`; the longer one is the whole vector. Its entry names the rank itself as the
// peer.
inline std::int64_t NativeBytes(Collective collective, std::int64_t in_bytes, std::int64_t out_bytes, std::int64_t ranks) {
  return (collective == Collective::kAllreduce ? 2 : 1) * std::max(in_bytes, out_bytes) * (ranks - 1) / ranks;
}

// Sorted by channel, so that equal runs are equal values.
Trace ByChannel(Trace trace);

}  // namespace ropewalk::collective
