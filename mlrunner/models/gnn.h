// Graph networks on a sparse adjacency: GCN (Kipf and Welling 2017) and GraphSAGE with means (Hamilton et al. 2017).
//
// Edges are two vectors of node numbers: edge i goes from[i] -> to[i], and a node hears those that have an edge to it. An undirected graph
// has both directions of each edge. What is not there costs nothing: sums go over edges.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

struct Edges {
  Value from, to;  // (E), i32 or i64
};

// x (N, in) -> (N, out): D^-1/2 (A + I) D^-1/2 x w + b, where D has one more than the edges to each node: itself.
Value GcnLayer(Layers& m, const std::string& name, const Value& x, const Edges& edges, std::int64_t out);
// x (N, in) -> (targets, out): x w_self + mean of the neighbours w_neighbours + b, for the first `targets` nodes. A whole graph has N
// targets; of a sampled one the nodes that are asked for come first, and edges go to them. A node that hears nobody has zeros for the mean.
Value SageLayer(Layers& m, const std::string& name, const Value& x, const Edges& edges, const Dim& targets, std::int64_t out);

struct GnnShape {
  std::vector<std::int64_t> hidden = {64};
  std::int64_t classes = 2;
  double dropout = 0;  // of what goes into each layer
};
// features (N, in) -> logits (N, classes), ReLU between layers
Model Gcn(Builder& b, const GnnShape& shape, const Value& features, const Edges& edges);
Model Sage(Builder& b, const GnnShape& shape, const Value& features, const Edges& edges);

}  // namespace ropewalk::mlrunner
