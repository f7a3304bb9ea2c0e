// The sizes that a user asks for: "4K,1M,3M", "1K:64M" (doubled each time), "1K:64M:4" (four times as much each time), also mixed.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::measure {

// In the order of the text. The first of a range is in it, the last one where the factor meets it. kInvalid BENCH21 with the part of the
// text that makes no sense.
Result<std::vector<std::int64_t>> ParseSizes(const std::string& text);

}  // namespace ropewalk::measure
