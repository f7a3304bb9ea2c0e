// Bandwidths as nccl-tests define them (doc/PERFORMANCE.md there), so that figures can be held against those of other libraries.
//
//   algorithm bandwidth   size / time
//   bus bandwidth         that times a factor, so that the result can be compared with what a link can carry, however many ranks there are
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ropewalk::measure {

// allreduce 2(P - 1)/P; reduce_scatter, allgather, all_to_all, gather and scatter (P - 1)/P; broadcast, reduce and send_recv 1. Nothing for
// a collective that nccl-tests know no factor of.
std::optional<double> BusFactor(std::string_view collective, std::int32_t ranks);

// Of 10⁹ bytes a second; 0 where there is no time.
double AlgorithmGbPerS(std::int64_t bytes, double us);

}  // namespace ropewalk::measure
