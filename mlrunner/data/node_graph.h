// A graph whose nodes have features and a label each, and parts of it to learn from.
//
// Thread rule: values and const functions.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"

namespace ropewalk {
class Random;
}

namespace ropewalk::mlrunner {

struct NodeGraph {
  std::int64_t features = 0;         // of each node
  std::vector<float> x;              // (nodes, features)
  std::vector<std::int32_t> labels;  // (nodes), in [0, classes)
  std::int64_t classes = 0;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;  // both nodes hear each other, whichever stands first

  std::int64_t nodes() const { return static_cast<std::int64_t>(labels.size()); }
};
// kUserError DATA19: sizes that do not fit together, a feature that is no number, a label or a node of an edge that there is none of.
Status Check(const NodeGraph& graph);

// Who hears whom: each neighbour once, in the order of their numbers, and no node itself.
class Neighbours {
 public:
  // Of a graph that Check() finds good.
  explicit Neighbours(const NodeGraph& graph);
  std::int64_t nodes() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  std::int64_t edges() const { return static_cast<std::int64_t>(of_.size()); }  // in each direction: twice as many as pairs of nodes
  std::span<const std::int32_t> Of(std::int32_t node) const {
    const auto at = static_cast<std::size_t>(node);
    return std::span(of_).subspan(static_cast<std::size_t>(first_[at]), static_cast<std::size_t>(first_[at + 1] - first_[at]));
  }

 private:
  std::vector<std::int64_t> first_;  // (nodes + 1): where each one's begin
  std::vector<std::int32_t> of_;
};

// Some nodes of a graph, and edges among them, by their places in `nodes`: to[i] hears from[i].
struct Subgraph {
  std::vector<std::int32_t> nodes, from, to;
};

Subgraph WholeOf(const Neighbours& neighbours);

// What a network of as many layers as `fan_out` has numbers may hear at the targets (Hamilton et al. 2017, algorithm 2): of each target up
// to fan_out[0] neighbours, of each of these up to fan_out[1], and so on, drawn without one twice. The targets, which differ, come first. A
// node is asked once, as soon as it is met; where none has more neighbours than the fan-out, a target hears what it does in the whole
// graph.
Subgraph SampleNeighbours(const Neighbours& neighbours, std::span<const std::int32_t> targets, std::span<const std::int64_t> fan_out,
                          Random* random);

}  // namespace ropewalk::mlrunner
