// What one rank has measured and not told yet: of each series one point, the means over the steps since. Nothing is allocated but
// by the first step of a series since it was told, so that it may be called every step.
//
// Thread rule: a value; the caller locks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "dag/gang.h"
#include "storage/metrics.h"

namespace ropewalk::job {

class MetricBuffer {
 public:
  // As dag::GangContext has them.
  void Measure(std::string_view series, std::uint64_t step, std::span<const dag::GangFigure> figures);
  void Notice(dag::GangNotice notice);

  // What there is, as told by this rank of that gang now; from then on it begins anew.
  storage::Metrics Take(std::uint64_t gang, std::uint32_t rank);

 private:
  storage::Metrics waiting_;  // a series without a point: nothing since
};

}  // namespace ropewalk::job
