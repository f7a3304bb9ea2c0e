#include "mlrunner/executor/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

constexpr std::size_t kAlign = 64;
std::size_t Rounded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
bool Meet(const Lifetime& a, const Lifetime& b) { return a.begin <= b.end && b.begin <= a.end; }

// Each at the lowest place where it meets no buffer that lives at the same time and was placed before it.
MemoryPlan PlaceInOrder(const std::vector<Lifetime>& buffers, const std::vector<std::size_t>& order) {
  MemoryPlan plan{std::vector<std::size_t>(buffers.size()), 0};
  std::vector<std::size_t> placed;  // by offset
  for (std::size_t i : order) {
    std::size_t at = 0, size = Rounded(buffers[i].bytes);
    for (std::size_t other : placed) {
      if (!Meet(buffers[i], buffers[other])) continue;
      if (at + size <= plan.offsets[other]) break;
      at = std::max(at, plan.offsets[other] + Rounded(buffers[other].bytes));
    }
    plan.offsets[i] = at;
    plan.bytes = std::max(plan.bytes, at + size);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), at, [&](std::size_t o, std::size_t p) { return o < plan.offsets[p]; }), i);
  }
  return plan;
}

}  // namespace

MemoryPlan PlanMemory(const std::vector<Lifetime>& buffers) {
  // No order is best everywhere, and a plan is made once for many runs.
  auto length = [](const Lifetime& l) { return static_cast<std::size_t>(l.end - l.begin) + 1; };
  const std::function<bool(const Lifetime&, const Lifetime&)> orders[] = {
      [](const Lifetime& a, const Lifetime& b) { return a.bytes > b.bytes; },
      [&](const Lifetime& a, const Lifetime& b) { return a.bytes * length(a) > b.bytes * length(b); },
      [&](const Lifetime& a, const Lifetime& b) { return length(a) > length(b); },
      [](const Lifetime& a, const Lifetime& b) { return a.begin < b.begin; },
  };
  std::size_t bound = LowerBound(buffers);
  MemoryPlan best;
  for (const auto& before : orders) {
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return before(buffers[a], buffers[b]); });
    MemoryPlan plan = PlaceInOrder(buffers, order);
    if (best.offsets.empty() || plan.bytes < best.bytes) best = std::move(plan);
    if (best.bytes == bound) break;
  }
  return best;
}

std::size_t LowerBound(const std::vector<Lifetime>& buffers) {
  std::size_t most = 0;
  for (const Lifetime& at : buffers) {
    // The peak begins where some buffer begins.
    std::size_t alive = 0;
    for (const Lifetime& b : buffers) alive += b.begin <= at.begin && at.begin <= b.end ? Rounded(b.bytes) : 0;
    most = std::max(most, alive);
  }
  return most;
}

Status CheckPlan(const std::vector<Lifetime>& buffers, const MemoryPlan& plan) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      bool share = plan.offsets[i] < plan.offsets[j] + buffers[j].bytes && plan.offsets[j] < plan.offsets[i] + buffers[i].bytes;
      if (share && Meet(buffers[i], buffers[j])) {
        return Status(Code::kInternal, "RUN09", fmt::format("buffers {} and {} share bytes", i, j), "both are alive at one instruction");
      }
    }
  }
  return {};
}

}  // namespace ropewalk::mlrunner
