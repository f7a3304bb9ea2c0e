#include "mlrunner/data/node_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <unordered_map>

#include <fmt/format.h>

#include "base/random.h"

namespace ropewalk::mlrunner {
namespace {

Status Wrong(const std::string& what, const std::string& why) {
  return Status(Code::kUserError, "DATA19", what, why, "mend what makes the graph");
}

}  // namespace

Status Check(const NodeGraph& graph) {
  const std::int64_t nodes = graph.nodes();
  if (nodes == 0) return Wrong("a graph has no nodes", "there is nothing to learn from");
  if (graph.features < 1 || static_cast<std::int64_t>(graph.x.size()) % graph.features != 0 ||
      static_cast<std::int64_t>(graph.x.size()) / graph.features != nodes)
    return Wrong(fmt::format("a graph has {} nodes and {} features", nodes, graph.x.size()),
                 fmt::format("each node has {} of them, and at least one", graph.features));
  for (std::size_t i = 0; i < graph.x.size(); ++i) {
    if (!std::isfinite(graph.x[i]))
      return Wrong(fmt::format("feature {} of node {} is {}", static_cast<std::int64_t>(i) % graph.features,
                               static_cast<std::int64_t>(i) / graph.features, graph.x[i]),
                   "features are numbers");
  }
  for (std::int64_t node = 0; node < nodes; ++node) {
    const std::int32_t label = graph.labels[static_cast<std::size_t>(node)];
    if (label < 0 || label >= graph.classes)
      return Wrong(fmt::format("node {} has the label {}", node, label),
                   fmt::format("there are {} classes: labels lie in [0, {})", graph.classes, graph.classes));
  }
  for (std::size_t i = 0; i < graph.edges.size(); ++i) {
    const auto [a, b] = graph.edges[i];
    if (a < 0 || a >= nodes || b < 0 || b >= nodes)
      return Wrong(fmt::format("edge {} is of the nodes {} and {}", i, a, b),
                   fmt::format("there are {} nodes: their numbers lie in [0, {})", nodes, nodes));
  }
  return {};
}

Neighbours::Neighbours(const NodeGraph& graph) {
  std::vector<std::pair<std::int32_t, std::int32_t>> both;
  both.reserve(2 * graph.edges.size());
  for (const auto& [a, b] : graph.edges) {
    if (a == b) continue;
    both.emplace_back(a, b);
    both.emplace_back(b, a);
  }
  std::sort(both.begin(), both.end());
  both.erase(std::unique(both.begin(), both.end()), both.end());
  first_.assign(static_cast<std::size_t>(graph.nodes()) + 1, 0);
  of_.reserve(both.size());
  for (const auto& [node, other] : both) {
    ++first_[static_cast<std::size_t>(node) + 1];
    of_.push_back(other);
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
}

Subgraph WholeOf(const Neighbours& neighbours) {
  Subgraph whole;
  whole.nodes.resize(static_cast<std::size_t>(neighbours.nodes()));
  std::iota(whole.nodes.begin(), whole.nodes.end(), 0);
  for (std::int32_t node : whole.nodes) {
    for (std::int32_t other : neighbours.Of(node)) {
      whole.from.push_back(other);
      whole.to.push_back(node);
    }
  }
  return whole;
}

Subgraph SampleNeighbours(const Neighbours& neighbours, std::span<const std::int32_t> targets, std::span<const std::int64_t> fan_out,
                          Random* random) {
  Subgraph part;
  std::unordered_map<std::int32_t, std::int32_t> places;
  auto place_of = [&](std::int32_t node) {
    const auto [at, is_new] = places.try_emplace(node, static_cast<std::int32_t>(part.nodes.size()));
    if (is_new) part.nodes.push_back(node);
    return at->second;
  };
  for (std::int32_t target : targets) place_of(target);
  std::vector<std::int32_t> drawn;
  std::size_t begin = 0;  // of those that were met in the last round
  for (const std::int64_t most : fan_out) {
    const std::size_t end = part.nodes.size();
    for (; begin < end; ++begin) {
      const std::span<const std::int32_t> all = neighbours.Of(part.nodes[begin]);
      const std::size_t count = std::min(all.size(), static_cast<std::size_t>(std::max<std::int64_t>(most, 0)));
      drawn.assign(all.begin(), all.end());
      // The first steps of Fisher and Yates; where all are taken, they come in their order.
      for (std::size_t i = 0; count < all.size() && i < count; ++i) std::swap(drawn[i], drawn[i + random->Below(drawn.size() - i)]);
      for (std::size_t i = 0; i < count; ++i) {
        part.from.push_back(place_of(drawn[i]));
        part.to.push_back(static_cast<std::int32_t>(begin));
      }
    }
  }
  return part;
}

}  // namespace ropewalk::mlrunner
