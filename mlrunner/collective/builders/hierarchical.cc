// Hierarchical: the ranks of a node sum up a part each, those of the same place in their nodes sum up that part over the nodes, and the
// ranks of a node give each other their parts. What crosses from node to node is N/g a rank and direction of the middle phase, g the ranks
// of a node, instead of N.
//
//   nodes {0, 1} {2, 3} {4, 5}:   in each node      the lower rank has the sum of the first half, the upper of the second
//                                 0 2 4 and 1 3 5   sum up their half over the nodes
//                                 in each node      halves are exchanged
//
// Which algorithm sums in the nodes and which between them is said by the name, in this order; the phases are those of these algorithms.
// Ranks have their places in a node as they follow each other in the request's order, and nodes follow each other as they come in it first.
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/collective/builders/phases.h"

namespace ropewalk::collective {
namespace {

enum class Within { kDirect, kRing };
enum class Across { kDirect, kRing, kDoubling, kHalvingDoubling };

// The header's groups: the nodes, then the ranks of each place.
Status Declare(Header* header, Within within, Across across) {
  const Request& request = header->request;
  auto refuse = [&](const std::string& what, const std::string& why, const std::string& fix) {
    return Status(Code::kInvalid, "COLL10", header->algorithm + ": " + what, why, fix);
  };
  if (!request.nodes.empty() && static_cast<std::int32_t>(request.nodes.size()) != request.ranks)
    return refuse(
        "a node for each rank is needed",
        "there are " + std::to_string(request.ranks) + " ranks, and nodes of " + std::to_string(request.nodes.size()) + " are given",
        "give as many as ranks, or none: then all share one");
  std::map<std::int32_t, std::size_t> index_of;
  std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> nodes;
  for (std::int32_t place = 0; place < request.ranks; ++place) {
    const std::int32_t rank = RankAt(request, place), node = request.nodes.empty() ? 0 : request.nodes[rank];
    if (index_of.try_emplace(node, nodes.size()).second) nodes.emplace_back(node, std::vector<std::int32_t>());
    nodes[index_of[node]].second.push_back(rank);
  }
  const auto& [first, ranks_of_first] = nodes.front();
  for (const auto& [node, ranks] : nodes)
    if (ranks.size() != ranks_of_first.size())
      return refuse("nodes of one size are needed",
                    "node " + std::to_string(first) + " has " + std::to_string(ranks_of_first.size()) + " ranks and node " +
                        std::to_string(node) + " has " + std::to_string(ranks.size()) +
                        "; each place sums up its part over the nodes, so no node may lack one",
                    "place as many ranks on each node, or take an algorithm that asks for no nodes, such as halving_doubling");
  if (within == Within::kRing || across == Across::kRing) RETURN_IF_ERROR(NeedTwoSlots(*header));
  std::vector<std::vector<std::int32_t>> places(ranks_of_first.size());
  for (const auto& [node, ranks] : nodes) {
    header->groups.push_back(ranks);
    for (std::size_t place = 0; place < ranks.size(); ++place) places[place].push_back(ranks[place]);
  }
  header->groups.insert(header->groups.end(), places.begin(), places.end());
  DeclareInOut(header);
  DeclareAverage(header, true);
  header->channel_count = request.ranks == 1 ? 1 : request.channels;
  if (across == Across::kDoubling)
    for (std::int32_t lane = 0; lane < header->channel_count; ++lane) DeclareScratch(header, "sums");
  return {};
}

// The `number`-th of the header's groups, from the first on, that this rank is in.
Group GroupOf(const Writer& w, std::int32_t number) {
  for (const std::vector<std::int32_t>& ranks : w.header().groups)
    for (std::size_t place = 0; place < ranks.size(); ++place)
      if (ranks[place] == w.rank() && number-- == 0) return {.ranks = ranks, .place = static_cast<std::int32_t>(place)};
  return {};
}

void WriteAcross(Writer& w, const Phase& phase, Across across) {
  switch (across) {
    case Across::kDirect:
      return DirectAllreduce(w, phase);
    case Across::kRing:
      return RingAllreduce(w, phase);
    case Across::kDoubling:
      return DoublingAllreduce(w, phase);
    case Across::kHalvingDoubling:
      return HalvingDoublingAllreduce(w, phase);
  }
}

void Write(Writer& w, Within within, Across across) {
  const Scales scales = ScalesOf(w.header(), true);
  if (w.ranks() == 1) {
    w.Copy(w.At(kIn, w.Whole()), w.At(kOut, w.Whole()), scales.alone());
    return;
  }
  const Group node = GroupOf(w, 0), peers = GroupOf(w, 1);
  const bool has_node = node.size() > 1, has_peers = peers.size() > 1;
  const std::int32_t lanes = w.header().channel_count;
  for (std::int32_t lane = 0; lane < lanes; ++lane) {
    w.OnChannel(lane);
    w.BeginLoop(w.Part(w.Whole(), node.size(), 0), kIn, lanes);
    auto part = [&](std::int32_t of) { return w.Segment(w.Part(w.Whole(), node.size(), of), lane, lanes); };
    const Phase in_node{.group = node, .part = part, .scales = {.before = scales.before, .after = has_peers ? kNone : scales.after}};
    std::int32_t mine = 0;
    if (has_node) mine = within == Within::kRing ? RingReduceScatter(w, in_node) : DirectReduceScatter(w, in_node);
    if (has_peers) {
      const RangeId range = part(mine);
      WriteAcross(w,
                  {.group = peers,
                   .range = range,
                   .part = [&](std::int32_t of) { return w.Part(range, peers.size(), of); },
                   .in = has_node ? kOut : kIn,
                   .scratch = kOut + 1 + lane,
                   .repeats = true,
                   .scales = {.before = has_node ? kNone : scales.before, .after = scales.after}},
                  across);
    }
    if (has_node) within == Within::kRing ? RingAllgather(w, in_node) : DirectAllgather(w, in_node);
    w.EndLoop();
  }
}

template <Within within, Across across>
constexpr Algorithm Entry(std::string_view name) {
  return {name,
          Collective::kAllreduce,
          false,
          [](Header* header) { return Declare(header, within, across); },
          [](Writer& w) { Write(w, within, across); },
          PromiseAllreduce,
          Codecs::kNone,
          within == Within::kRing || across == Across::kRing ? Follows::kRing : Follows::kNothing};
}

}  // namespace

const std::array<Algorithm, 8> kHierarchicalAllreduces = {
    Entry<Within::kDirect, Across::kDirect>("hierarchical_direct_direct"),
    Entry<Within::kDirect, Across::kRing>("hierarchical_direct_ring"),
    Entry<Within::kDirect, Across::kDoubling>("hierarchical_direct_recursive_doubling"),
    Entry<Within::kDirect, Across::kHalvingDoubling>("hierarchical_direct_halving_doubling"),
    Entry<Within::kRing, Across::kDirect>("hierarchical_ring_direct"),
    Entry<Within::kRing, Across::kRing>("hierarchical_ring_ring"),
    Entry<Within::kRing, Across::kDoubling>("hierarchical_ring_recursive_doubling"),
    Entry<Within::kRing, Across::kHalvingDoubling>("hierarchical_ring_halving_doubling"),
};

}  // namespace ropewalk::collective
