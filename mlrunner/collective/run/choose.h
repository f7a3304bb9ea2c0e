// Which algorithm a call runs by, when it does not say: a function of what all ranks know, so that all choose the same. Here by fixed
// sizes; by predicted times in chooser.h.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// What is chosen of a request.
struct Choice {
  std::string_view algorithm;
  std::int64_t segment_bytes = 0;
  std::int32_t channels = 1;
  bool operator==(const Choice&) const = default;
};
// "direct, segments of 524288 bytes, 2 channels".
std::string Describe(const Choice& choice);

// By fixed sizes, for who has no costs of messages (chooser.h). `is_coded`: by a codec. `segment_bytes`: 0, or the caller's.
Choice Choose(const Request& request, bool is_coded, std::int64_t count, bool shares_memory, std::int64_t segment_bytes);

// What a call runs by: the algorithm that it names, or the one that is chosen; likewise its segments and channels.
struct Chosen {
  std::string_view algorithm;
  Request request;  // without its vectors (codecs, matrix, neighbours, nodes): the one who asks has them, and a copy would allocate
};
Chosen ChosenFor(const CollectiveCall& call, std::int32_t ranks, const Choice& choice);
// By fixed sizes. `shares_memory`, `segment_bytes`: of the communicator and of its options.
Chosen ChooseFor(const CollectiveCall& call, std::int32_t ranks, bool shares_memory, std::int64_t segment_bytes);

}  // namespace ropewalk::collective
