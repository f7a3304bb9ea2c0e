// Who is to blame when a call stands still, as far as what the ranks say of themselves can tell.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/run/activity.h"
#include "mlrunner/collective/run/engine.h"

namespace ropewalk::collective {

// kUnavailable COLL28 names the ranks that have been silent for `silence_ms` or more; OK: none. `silent_ms`: by rank. `rank`: who waits.
Status BlameSilent(std::int32_t rank, const Engine::Stall& stall, std::span<const std::int64_t> silent_ms, std::int64_t silence_ms);

// What each rank said when it was asked, and again a moment later; none: it did not answer. Of `rank` itself it does not count. Blamed is
// one that does not answer (kUnavailable COLL28), else one that this rank waits for and that is at no call (kDeadlineExceeded COLL28, as
// in what follows). Otherwise nobody is (OK), while the calls of any rank get on; at last one that is at no call, else one that this rank
// waits for. `timeout_ms`: how long it counts that a program has said that it gets on.
Status Blame(std::int32_t rank, const Engine::Stall& stall, std::span<const std::optional<Activity>> before,
             std::span<const std::optional<Activity>> now, std::int64_t timeout_ms);

}  // namespace ropewalk::collective
