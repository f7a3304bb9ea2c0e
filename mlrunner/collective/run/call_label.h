// What a rank says it is doing. It goes with the messages of a call, so that ranks which do different things find out on the first one, and
// can say what each of them does.
//
// Thread rule: values; they cross between processes as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

// The sequence of a call that nobody counts.
inline constexpr std::uint64_t kUncounted = ~std::uint64_t{0};

struct CallLabel {
  std::uint64_t fingerprint = 0;  // of everything that must be equal; 0: not said
  std::uint64_t sequence = 0;     // which call it is of its kind; shown, and says whether two labels are about the same one
  std::int64_t count = 0;
  std::int32_t root = 0;
  std::uint8_t collective = 0, dtype = 0, op = 0, coded = 0;
  char name[32] = {};  // cut
};
static_assert(sizeof(CallLabel) == 64 && std::is_trivially_copyable_v<CallLabel>);

// The fingerprint is over operation, type, count, operation of the sum, root, destination, codecs, algorithm, segments, mixing matrix,
// neighbours, nodes, order of ranks and the whole name.
CallLabel LabelOf(const Header& header, std::int64_t count, std::string_view name, std::uint64_t sequence);
// The same, for who calls by one plan again and again: what of the fingerprint is the plan's, some of it as long as there are ranks, once.
std::uint64_t PlanFingerprint(const Header& header);
CallLabel LabelOf(const Header& header, std::uint64_t plan_fingerprint, std::int64_t count, std::string_view name, std::uint64_t sequence);
// Of a call that uses this window: also over the window. If the window is relaxed the call is not counted, and its name, which is shown,
// may be another one each time.
CallLabel LabelOfWindow(const Header& header, std::uint64_t plan_fingerprint, std::int64_t count, std::string_view name,
                        std::int32_t window);

// `allreduce "layer7" (call 12: sum of 4096 f32)`. The label may be a peer's: nothing in it is believed.
std::string Describe(const CallLabel& label);

// COLL21 for what both ranks are told.
Status Mismatch(std::int32_t peer, const CallLabel& theirs, std::int32_t rank, const CallLabel& mine);

}  // namespace ropewalk::collective
