// Which algorithm a call runs by, when it does not say: a function of what all ranks know, so that all choose the same.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

struct Choice {
  std::string_view algorithm;
  std::int64_t segment_bytes = 0;
  std::int32_t channels = 1;
};

// `is_coded`: by a codec. `segment_bytes`: 0, or the caller's.
Choice Choose(const Request& request, bool is_coded, std::int64_t count, bool shares_memory, std::int64_t segment_bytes);

}  // namespace ropewalk::collective
