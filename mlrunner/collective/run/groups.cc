#include "mlrunner/collective/run/groups.h"

#include <algorithm>
#include <utility>

namespace ropewalk::collective {
namespace {

// More ranks would make a status that nobody reads.
constexpr std::size_t kShownMax = 32;

}  // namespace

std::vector<std::int32_t> GroupOf(std::span<const Going> going, std::int32_t rank) {
  std::vector<std::int32_t> members;
  if (going[rank].color < 0) return members;
  for (std::size_t other = 0; other < going.size(); ++other)
    if (going[other].color == going[rank].color) members.push_back(static_cast<std::int32_t>(other));
  std::stable_sort(members.begin(), members.end(), [&](std::int32_t a, std::int32_t b) { return going[a].key < going[b].key; });
  return members;
}

std::string OfGroup(std::span<const std::int32_t> members) {
  std::string text = " (of the group of the gang's ranks ";
  for (std::size_t i = 0; i < std::min(members.size(), kShownMax); ++i) text += (i > 0 ? ", " : "") + std::to_string(members[i]);
  return text + (members.size() > kShownMax ? ", ...)" : ")");
}

Losses::Losses(std::function<void(Told)> on_lost) : on_lost_(std::move(on_lost)) {
  if (!on_lost_) return;
  on_lost_([this](const Status& why) {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return;
    why_ = why;
    for (const auto& [who, told] : told_) told(why_);
  });
}

Losses::~Losses() {
  if (on_lost_) on_lost_({});
}

void Losses::Add(const void* who, Told told) {
  std::lock_guard lock(mutex_);
  if (!why_.ok()) told(why_);
  told_[who] = std::move(told);
}

void Losses::Remove(const void* who) {
  std::lock_guard lock(mutex_);
  told_.erase(who);
}

}  // namespace ropewalk::collective
