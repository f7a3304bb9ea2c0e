#include "mlrunner/collective/run/instance_cache.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

namespace ropewalk::collective {

namespace {

template <typename T>
std::partial_ordering ByContent(const T* a, const T* b) {
  if (a == nullptr || b == nullptr) return (a != nullptr) <=> (b != nullptr);
  return *a <=> *b;
}

// All of a request but its vectors.
auto Numbers(const Request& r) {
  return std::tie(r.collective, r.dtype, r.op, r.ranks, r.root, r.peer, r.deterministic, r.channels, r.segment_bytes, r.slots, r.quorum);
}

}  // namespace

std::partial_ordering operator<=>(const Asked& a, const Asked& b) {
  if (auto order = a.algorithm <=> b.algorithm; order != 0) return order;
  if (auto order = Numbers(*a.request) <=> Numbers(*b.request); order != 0) return order;
  if (auto order = ByContent(a.codec, b.codec); order != 0) return order;
  if (auto order = ByContent(a.mixing, b.mixing); order != 0) return order;
  return ByContent(a.neighbors, b.neighbors);
}

Result<InstanceCache::Plans::iterator> InstanceCache::PlanOf(const Asked& asked) {
  auto found = plans_.find(asked);
  if (found != plans_.end()) return found;
  Kind kind{.algorithm = std::string(asked.algorithm), .request = *asked.request};
  kind.request.codecs.clear();
  kind.request.mixing.clear();
  kind.request.neighbors.clear();
  if (asked.codec != nullptr) kind.request.codecs = {*asked.codec};
  if (asked.mixing != nullptr) kind.request.mixing = *asked.mixing;
  if (asked.neighbors != nullptr) kind.request.neighbors = *asked.neighbors;
  kind.request.nodes = nodes_;
  ASSIGN_OR_RETURN(const Algorithm* algorithm, FindAlgorithm(algorithms_, asked.algorithm));
  kind.request.order = OrderOf(orders_, *algorithm, kind.request);
  auto built = std::make_unique<Built>();
  ASSIGN_OR_RETURN(built->plan, BuildProgram(*algorithm, kind.request, rank_));
  if (built->plan.header.counter_count > 0) {
    ASSIGN_OR_RETURN(Plan all, BuildPlan(*algorithm, kind.request));
    built->raises = RaisesOf(all, rank_);
  }
  while (plans_.size() >= kPlansMax && DropOldestPlan()) continue;
  ++built_;
  return plans_.emplace(std::move(kind), std::move(built)).first;
}

void InstanceCache::Arrange(const Nodes& nodes, const Orders& orders) {
  std::lock_guard lock(mutex_);
  nodes_ = nodes;
  orders_ = orders;
}

Result<Instance*> InstanceCache::Take(const Asked& asked, std::int64_t count) {
  std::lock_guard lock(mutex_);
  for (Entry* recent : recent_)
    if (recent != nullptr && !recent->is_taken && recent->key.count == count && (recent->kind->asked() <=> asked) == 0) {
      recent->is_taken = true;
      --resting_;
      return recent->instance.get();
    }
  ASSIGN_OR_RETURN(auto plan, PlanOf(asked));
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
  if (LearnsCounts(asked.request->collective)) sizes.table.resize(static_cast<std::size_t>(asked.request->ranks) * asked.request->ranks);
  Means means = means_;
  means.raises = key.plan->raises;
  const RankPlan& of = key.plan->plan;
  auto instance = Instance::Make(&of.header, &of.program, sizes, transport_, means);
  // What rests is there to be quick. No call fails for its memory.
  while (!instance.ok() && instance.status().code() == Code::kResourceExhausted && DropOldest())
    instance = Instance::Make(&of.header, &of.program, sizes, transport_, means);
  RETURN_IF_ERROR(instance.status());
  Instance* raw = instance->get();
  auto made = entries_.emplace(key, Entry{.key = key, .instance = *std::move(instance), .kind = &plan->first, .is_taken = true});
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
  // Those that peers still read are no more than messages can be on their way.
  if (++resting_ > kRestingMax) (void)DropOldest();
}

bool InstanceCache::MakeRoom() {
  std::lock_guard lock(mutex_);
  return DropOldest();
}

bool InstanceCache::DropOldest() {
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it)
    if (!it->second.is_taken && it->second.instance->IsAtRest() &&
        (oldest == entries_.end() || it->second.last_used < oldest->second.last_used))
      oldest = it;
  if (oldest == entries_.end()) return false;
  Drop(oldest);
  return true;
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
