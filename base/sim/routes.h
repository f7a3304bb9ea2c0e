// Ways through a topology, found when they are first asked for.
//
// Owner: a network. Thread rule: single-threaded (what was found is kept).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/sim/topology.h"

namespace ropewalk::sim {

class Routes {
 public:
  // The topology must be sound (Check) and outlive it.
  explicit Routes(const Topology* topology);

  // The links from one host to another in order, as indices of Topology::links; none from a host to itself. Valid until the next call.
  std::span<const std::int32_t> Find(std::int32_t from, std::int32_t to);
  // How many links there are in all.
  std::int32_t hops(std::int32_t from, std::int32_t to) { return static_cast<std::int32_t>(Find(from, to).size()); }

 private:
  using Distances = std::vector<std::uint16_t>;  // by place in core_
  void WalkShortest(std::int32_t from, std::int32_t to);
  void WalkDimensions(std::int32_t from, std::int32_t to);
  const Distances& DistancesTo(std::int32_t node);
  void Take(std::int32_t link) { found_.push_back(link); }

  const Topology* topology_;
  std::vector<std::int32_t> first_out_, out_;  // links by the node that they leave: out_[first_out_[n]] to before out_[first_out_[n + 1]]
  std::vector<std::int32_t> first_in_, in_;    // likewise by the node that they come to
  std::vector<std::int32_t> core_;             // by node: its place among those that ways go through; -1: a host with one link each way
  std::int32_t core_count_ = 0;
  std::unordered_map<std::int32_t, Distances> distances_;                          // by the node that they lead to
  std::unordered_map<std::uint64_t, std::pair<std::int32_t, std::int32_t>> kept_;  // by pair of hosts: first link and end in found_
  std::vector<std::int32_t> found_;
};

}  // namespace ropewalk::sim
