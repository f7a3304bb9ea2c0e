#include "base/sim/routes.h"

#include <algorithm>

#include "base/hash.h"

namespace ropewalk::sim {
namespace {

constexpr std::size_t kFoundMax = 8 << 20;       // links of ways that are kept: 32 MiB
constexpr std::size_t kDistancesMax = 32 << 20;  // entries: 64 MiB
constexpr std::uint16_t kFar = UINT16_MAX;

std::uint64_t PairOf(std::int32_t from, std::int32_t to) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(from)) << 32 | static_cast<std::uint32_t>(to);
}

// The links of each node, one node's behind the other's.
void Sort(const Topology& topology, bool by_end, std::vector<std::int32_t>* first, std::vector<std::int32_t>* links) {
  first->assign(static_cast<std::size_t>(topology.nodes()) + 1, 0);
  for (const Topology::Link& link : topology.links) ++(*first)[(by_end ? link.to : link.from) + 1];
  for (std::size_t n = 1; n < first->size(); ++n) (*first)[n] += (*first)[n - 1];
  links->resize(topology.links.size());
  std::vector<std::int32_t> next(first->begin(), first->end() - 1);
  for (std::size_t i = 0; i < topology.links.size(); ++i)
    (*links)[next[by_end ? topology.links[i].to : topology.links[i].from]++] = static_cast<std::int32_t>(i);
}

}  // namespace

Routes::Routes(const Topology* topology) : topology_(topology), core_(static_cast<std::size_t>(topology->nodes()), -1) {
  Sort(*topology_, false, &first_out_, &out_);
  Sort(*topology_, true, &first_in_, &in_);
  for (std::int32_t node = 0; node < topology_->nodes(); ++node) {
    const bool is_end =
        node < topology_->hosts && first_out_[node + 1] - first_out_[node] == 1 && first_in_[node + 1] - first_in_[node] == 1;
    if (!is_end) core_[node] = core_count_++;
  }
}

std::span<const std::int32_t> Routes::Find(std::int32_t from, std::int32_t to) {
  auto [kept, is_new] = kept_.try_emplace(PairOf(from, to));
  if (is_new) {
    if (found_.size() > kFoundMax) {
      found_.clear();
      kept_.clear();
      kept = kept_.try_emplace(PairOf(from, to)).first;
    }
    const auto first = static_cast<std::int32_t>(found_.size());
    if (from != to) topology_->routing == Routing::kDimensionOrder ? WalkDimensions(from, to) : WalkShortest(from, to);
    kept->second = {first, static_cast<std::int32_t>(found_.size())};
  }
  return std::span(found_).subspan(kept->second.first, kept->second.second - kept->second.first);
}

void Routes::WalkShortest(std::int32_t from, std::int32_t to) {
  // Hosts at the end of one link are no part of the search: one leaves and comes by that link.
  std::int32_t at = from, goal = to, last = -1;
  if (core_[goal] < 0) {
    last = in_[first_in_[goal]];
    goal = topology_->links[last].from;
  }
  if (core_[at] < 0) {
    const std::int32_t link = out_[first_out_[at]];
    Take(link);
    at = topology_->links[link].to;
    if (link == last) return;  // two hosts on one cable
  }
  if (at != goal) {
    const Distances& distances = DistancesTo(goal);
    const std::uint64_t flow = HashCombine(topology_->seed, PairOf(from, to));
    while (at != goal) {
      auto nears = [&](std::int32_t link) {
        const std::int32_t place = core_[topology_->links[link].to];
        return place >= 0 && distances[place] + 1 == distances[core_[at]];
      };
      std::uint64_t ways = 0;
      for (std::int32_t i = first_out_[at]; i < first_out_[at + 1]; ++i) ways += nears(out_[i]) ? 1 : 0;
      // The node is part of the hash: with the same number at each level all flows of one switch would take one way at the next.
      std::uint64_t chosen = HashCombine(flow, static_cast<std::uint64_t>(at)) % ways;
      for (std::int32_t i = first_out_[at]; i < first_out_[at + 1]; ++i) {
        if (!nears(out_[i]) || chosen-- > 0) continue;
        Take(out_[i]);
        at = topology_->links[out_[i]].to;
        break;
      }
    }
  }
  if (last >= 0) Take(last);
}

const Routes::Distances& Routes::DistancesTo(std::int32_t node) {
  auto found = distances_.find(node);
  if (found != distances_.end()) return found->second;
  if ((distances_.size() + 1) * static_cast<std::size_t>(core_count_) > kDistancesMax) distances_.clear();
  Distances& distances = distances_[node];
  distances.assign(static_cast<std::size_t>(core_count_), kFar);
  std::vector<std::int32_t> queue = {node};
  distances[core_[node]] = 0;
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (std::int32_t k = first_in_[queue[i]]; k < first_in_[queue[i] + 1]; ++k) {
      const std::int32_t before = topology_->links[in_[k]].from;
      if (core_[before] < 0 || distances[core_[before]] != kFar) continue;
      distances[core_[before]] = static_cast<std::uint16_t>(distances[core_[queue[i]]] + 1);
      queue.push_back(before);
    }
  return distances;
}

void Routes::WalkDimensions(std::int32_t from, std::int32_t to) {
  std::int32_t at = from, stride = 1;
  for (std::size_t d = 0; d < topology_->extents.size(); ++d) {
    const std::int32_t extent = topology_->extents[d];
    const std::int32_t goal = to / stride % extent;
    const std::int32_t ahead = (goal - at / stride % extent + extent) % extent;
    // Half way round both ways are as short: half of the pairs take each.
    const bool up = 2 * ahead < extent || (2 * ahead == extent && HashCombine(topology_->seed + d, PairOf(from, to)) % 2 == 0);
    while (at / stride % extent != goal) {
      const std::int32_t here = at / stride % extent;
      const std::int32_t next = at + ((up ? here + 1 : here + extent - 1) % extent - here) * stride;
      for (std::int32_t i = first_out_[at]; i < first_out_[at + 1]; ++i)
        if (topology_->links[out_[i]].to == next) {
          Take(out_[i]);
          break;
        }
      at = next;
    }
    stride *= extent;
  }
}

}  // namespace ropewalk::sim
