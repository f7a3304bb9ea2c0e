#include "mlrunner/collective/run/instance_cache.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace ropewalk::collective {

bool InstanceCache::Kind::IsOf(std::string_view wanted, const Request& request) const {
  return algorithm == wanted && collective == request.collective && dtype == request.dtype && op == request.op && root == request.root &&
         peer == request.peer && channels == request.channels && slots == request.slots && deterministic == request.deterministic &&
         segment_bytes == request.segment_bytes && codec.empty() && request.codecs.empty() && mixing == request.mixing;
}

Result<InstanceCache::Plans::iterator> InstanceCache::PlanOf(std::string_view algorithm, const Request& request) {
  Kind kind{.algorithm = std::string(algorithm),
            .collective = request.collective,
            .dtype = request.dtype,
            .op = request.op,
            .root = request.root,
            .peer = request.peer,
            .channels = request.channels,
            .slots = request.slots,
            .deterministic = request.deterministic,
            .segment_bytes = request.segment_bytes,
            .codec = {},
            .mixing = request.mixing};
  for (const Codec& codec : request.codecs)
    kind.codec += codec.name + " " + std::to_string(codec.bits) + " " + std::to_string(codec.bucket_elements) + " " +
                  std::to_string(codec.bucket_header_bytes) + (codec.error_feedback ? " feedback" : "");
  auto found = plans_.find(kind);
  if (found == plans_.end()) {
    auto built = std::make_unique<Built>();
    ASSIGN_OR_RETURN(built->plan, BuildProgram(algorithm, request, rank_));
    if (built->plan.header.counter_count > 0) {
      ASSIGN_OR_RETURN(Plan all, BuildPlan(algorithm, request));
      built->raises = RaisesOf(all, rank_);
    }
    while (plans_.size() >= kPlansMax && DropOldestPlan()) continue;
    found = plans_.emplace(std::move(kind), std::move(built)).first;
    ++built_;
  }
  return found;
}

Result<Instance*> InstanceCache::Take(std::string_view algorithm, const Request& request, std::int64_t count) {
  std::lock_guard lock(mutex_);
  for (Entry* recent : recent_)
    if (recent != nullptr && !recent->is_taken && recent->key.count == count && recent->kind->IsOf(algorithm, request)) {
      recent->is_taken = true;
      --resting_;
      return recent->instance.get();
    }
  ASSIGN_OR_RETURN(auto plan, PlanOf(algorithm, request));
  const Key key{.plan = plan->second.get(), .count = count};
  auto [begin, end] = entries_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    if (it->second.is_taken) continue;
    it->second.is_taken = true;
    --resting_;
    return it->second.instance.get();
  }
  Sizes sizes{.count = count};
  // Learned at each call.
  if (request.collective == Collective::kAllToAllV) sizes.table.resize(static_cast<std::size_t>(request.ranks) * request.ranks);
  Means means = means_;
  means.raises = key.plan->raises;
  const RankPlan& of = key.plan->plan;
  ASSIGN_OR_RETURN(auto instance, Instance::Make(&of.header, &of.program, sizes, transport_, means));
  Instance* raw = instance.get();
  auto made = entries_.emplace(key, Entry{.key = key, .instance = std::move(instance), .kind = &plan->first, .is_taken = true});
  by_instance_[raw] = &made->second;
  return raw;
}

void InstanceCache::GiveBack(Instance* instance) {
  std::lock_guard lock(mutex_);
  auto recent = std::find_if(recent_.begin(), recent_.end(),
                             [&](const Entry* entry) { return entry != nullptr && entry->instance.get() == instance; });
  if (recent == recent_.end()) {
    recent = recent_.begin() + static_cast<std::ptrdiff_t>(next_recent_++ % recent_.size());
    *recent = by_instance_.at(instance);
  }
  Entry* entry = *recent;
  entry->is_taken = false;
  entry->last_used = ++clock_;
  if (++resting_ > kRestingMax) DropOldest();
}

void InstanceCache::DropOldest() {
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it)
    if (!it->second.is_taken && it->second.instance->IsAtRest() &&
        (oldest == entries_.end() || it->second.last_used < oldest->second.last_used))
      oldest = it;
  // Those that peers still read are no more than messages can be on their way.
  if (oldest != entries_.end()) Drop(oldest);
}

bool InstanceCache::DropOldestPlan() {
  // By plan: when it was used last; none while it is in use.
  std::map<const Built*, std::optional<std::uint64_t>> last_used;
  for (const auto& [kind, built] : plans_) last_used[built.get()] = 0;
  for (const auto& [key, entry] : entries_) {
    std::optional<std::uint64_t>& last = last_used[key.plan];
    if (entry.is_taken || !entry.instance->IsAtRest())
      last.reset();
    else if (last.has_value())
      last = std::max(*last, entry.last_used);
  }
  auto oldest = plans_.end();
  for (auto it = plans_.begin(); it != plans_.end(); ++it)
    if (const auto last = last_used[it->second.get()];
        last.has_value() && (oldest == plans_.end() || *last < *last_used[oldest->second.get()]))
      oldest = it;
  if (oldest == plans_.end()) return false;
  for (auto it = entries_.lower_bound({.plan = oldest->second.get()}); it != entries_.end() && it->first.plan == oldest->second.get();)
    it = Drop(it);
  plans_.erase(oldest);
  return true;
}

InstanceCache::Entries::iterator InstanceCache::Drop(Entries::iterator entry) {
  std::replace(recent_.begin(), recent_.end(), &entry->second, static_cast<Entry*>(nullptr));
  by_instance_.erase(entry->second.instance.get());
  --resting_;
  return entries_.erase(entry);
}

InstanceCache::Counts InstanceCache::counts() const {
  std::lock_guard lock(mutex_);
  return {.plans = plans_.size(), .instances = entries_.size(), .built = built_};
}

}  // namespace ropewalk::collective
