#include "mlrunner/collective/run/blame.h"

#include <algorithm>
#include <string>

#include "mlrunner/collective/run/call_label.h"

namespace ropewalk::collective {
namespace {

constexpr const char* kIsSilent = "its process does not answer: it is stopped, or its machine hangs";

Status IsWaitedFor(std::int32_t rank, const Engine::Stall& stall, const std::vector<std::int32_t>& blamed, Code code, const char* why,
                   const char* fix) {
  std::string names;
  for (std::int32_t peer : blamed) names += (names.empty() ? "" : ", ") + ("rank " + std::to_string(peer));
  if (names.empty()) names = "the library";
  return Status(code, "COLL28",
                names + (blamed.size() > 1 ? " are" : " is") + " waited for: rank " + std::to_string(rank) + " has been at " +
                    (stall.call.fingerprint == 0 ? "its last orders" : Describe(stall.call)) + " for " + std::to_string(stall.waited_ms) +
                    " ms" + (stall.has_begun ? "" : ", which has not begun"),
                why, fix);
}

}  // namespace

Status BlameSilent(std::int32_t rank, const Engine::Stall& stall, std::span<const std::int64_t> silent_ms, std::int64_t silence_ms) {
  std::vector<std::int32_t> silent;
  for (std::size_t peer = 0; peer < silent_ms.size(); ++peer)
    if (silent_ms[peer] >= silence_ms) silent.push_back(static_cast<std::int32_t>(peer));
  if (silent.empty()) return {};
  return IsWaitedFor(rank, stall, silent, Code::kUnavailable, kIsSilent,
                     "look at that process; where one may be stopped for longer (in a debugger), raise silence_ms");
}

Status Blame(std::int32_t rank, const Engine::Stall& stall, std::span<const std::optional<Activity>> before,
             std::span<const std::optional<Activity>> now, std::int64_t timeout_ms) {
  std::vector<std::int32_t> silent, elsewhere;
  bool any_gets_on = false;
  for (std::size_t at = 0; at < now.size(); ++at) {
    const auto peer = static_cast<std::int32_t>(at);
    if (peer == rank) continue;
    if (!now[at].has_value()) {
      silent.push_back(peer);
      continue;
    }
    const bool works = !now[at]->waits && now[at]->worked_ms_ago < static_cast<std::uint64_t>(timeout_ms);
    const bool gets_on = works || (before[at].has_value() && GetsOn(*before[at], *now[at]));
    any_gets_on = any_gets_on || gets_on;
    if (!now[at]->waits && !gets_on) elsewhere.push_back(peer);
  }
  const char* fix = "look at that rank; if it may take so long, raise the time-out (timeout_ms; of a training: train.timeout)";
  if (!silent.empty()) return IsWaitedFor(rank, stall, silent, Code::kUnavailable, kIsSilent, fix);
  auto is_missed = [&](std::int32_t peer) { return std::find(stall.ranks.begin(), stall.ranks.end(), peer) != stall.ranks.end(); };
  const bool any_is_missed = std::any_of(elsewhere.begin(), elsewhere.end(), is_missed);
  if (any_is_missed) std::erase_if(elsewhere, [&](std::int32_t peer) { return !is_missed(peer); });
  if (any_gets_on && !any_is_missed) return {};
  // Of the programs, both: formed anew, they would come to the same place.
  if (!elsewhere.empty())
    return IsWaitedFor(rank, stall, elsewhere, Code::kDeadlineExceeded,
                       "its program is in no call: it computes, waits for something else, or has forgotten this call", fix);
  return IsWaitedFor(rank, stall, stall.ranks, Code::kDeadlineExceeded, "they wait in calls, too: of other ranks, or in another order",
                     fix);
}

}  // namespace ropewalk::collective
