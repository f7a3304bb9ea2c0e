// The plans that several tests go through.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mlrunner/collective/algorithms.h"

namespace ropewalk::collective::testing {

inline Codec MinMax(std::int64_t bits) { return {.name = "min_max", .bits = bits, .bucket_elements = 4, .bucket_header_bytes = 8}; }

// A ring of neighbours, with weights that are whole numbers so that they can be followed exactly.
inline std::vector<std::vector<double>> RingOfNeighbours(std::int32_t ranks) {
  std::vector<std::vector<double>> w(ranks, std::vector<double>(ranks));
  for (std::int32_t i = 0; i < ranks; ++i) {
    w[i][i] = 5;
    w[i][(i + 1) % ranks] += 2;
    w[i][(i + ranks - 1) % ranks] += 3;
  }
  return w;
}

// Whom each rank hears from: those beside it in a ring, backwards, the last one itself, too, rank 1 of many nobody.
inline Neighbors SomeNeighbors(std::int32_t ranks) {
  Neighbors from(ranks);
  for (std::int32_t i = 0; i < ranks; ++i) {
    if (i == 1 && ranks > 2) continue;
    from[i] = {(i + 1) % ranks};
    if (ranks > 2) from[i].push_back((i + ranks - 1) % ranks);
    if (i == ranks - 1 && ranks > 1) from[i].insert(from[i].begin() + 1, i);
  }
  return from;
}

// Nodes of `size` ranks each, which are dealt out in turn.
inline Nodes NodesOf(std::int32_t ranks, std::int32_t size) {
  Nodes nodes;
  for (std::int32_t rank = 0; rank < ranks; ++rank) nodes.push_back(rank % (ranks / size));
  return nodes;
}
// The largest that leaves as many nodes as ranks in each, or more; 1 for a prime number of ranks.
inline std::int32_t NodeSize(std::int32_t ranks) {
  std::int32_t size = 1;
  for (std::int32_t n = 1; n * n <= ranks; ++n)
    if (ranks % n == 0) size = n;
  return size;
}
inline bool IsHierarchical(const Algorithm& algorithm) { return algorithm.name.starts_with("hierarchical_"); }

// The even ones from 2 on, the odd ones back, then 0: no rotation of the ranks, where they are more than two.
inline Order SomeOrder(std::int32_t ranks) {
  Order order;
  for (std::int32_t rank = 2; rank < ranks; rank += 2) order.push_back(rank);
  for (std::int32_t rank = ranks - 1; rank > 0; --rank)
    if (rank % 2 != 0) order.push_back(rank);
  order.push_back(0);
  return order;
}

struct Case {
  std::string algorithm;
  Request request;
};
inline bool IsHierarchical(const Case& one) { return one.algorithm.starts_with("hierarchical_"); }

// Every algorithm at `ranks`, with segments and channels where it has them.
inline std::vector<Case> AllCases(std::int32_t ranks, std::int64_t segment_bytes, Dtype dtype = Dtype::kF32) {
  std::vector<Case> cases;
  auto add = [&](std::string_view algorithm, Request request) {
    request.ranks = ranks;
    request.dtype = dtype;
    cases.push_back({std::string(algorithm), request});
  };
  add("direct", {.segment_bytes = segment_bytes});
  add("direct", {.deterministic = true, .slots = 1});
  add("direct", {.channels = 2, .segment_bytes = segment_bytes});
  add("ring", {.channels = 1, .segment_bytes = segment_bytes});
  add("ring", {.channels = 2, .segment_bytes = segment_bytes});
  add("recursive_doubling", {.slots = 1});
  add("chain", {.deterministic = true, .segment_bytes = segment_bytes, .slots = 1});
  add("chain", {.segment_bytes = segment_bytes, .slots = 2});
  add("halving_doubling", {.segment_bytes = segment_bytes, .slots = 1});
  add("halving_doubling", {.channels = 2, .segment_bytes = segment_bytes});
  // Without nodes that are worth the name half of them is for one node, the other half for nodes of one rank.
  std::int32_t in_node = NodeSize(ranks);
  for (const Algorithm& algorithm : Algorithms())
    if (IsHierarchical(algorithm)) {
      if (NodeSize(ranks) == 1) in_node = in_node == 1 ? ranks : 1;
      add(algorithm.name, {.channels = 2, .segment_bytes = segment_bytes, .nodes = NodesOf(ranks, in_node)});
    }
  for (std::int32_t root : {0, ranks - 1}) {
    add("tree", {.root = root, .segment_bytes = segment_bytes, .slots = 1});
    add("double_tree", {.root = root, .segment_bytes = segment_bytes, .slots = root == 0 ? 1 : 2});
    add("central_ps", {.root = root, .deterministic = true, .channels = root == 0 ? 1 : 2, .segment_bytes = segment_bytes, .slots = 1});
    add("broadcast_tree", {.collective = Collective::kBroadcast, .root = root, .segment_bytes = segment_bytes, .slots = 1});
    add("broadcast_chain", {.collective = Collective::kBroadcast, .root = root, .segment_bytes = segment_bytes});
    add("send_recv", {.collective = Collective::kSendRecv, .root = root, .peer = ranks / 2, .segment_bytes = segment_bytes});
  }
  add("barrier", {.collective = Collective::kBarrier, .slots = 1});
  add("sra", {.codecs = {MinMax(4)}});
  Codec keeping = MinMax(4);
  keeping.error_feedback = true;
  add("sra", {.codecs = {keeping}});
  add("all_to_all_v", {.collective = Collective::kAllToAllV});
  add("all_to_all", {.collective = Collective::kAllToAll, .segment_bytes = segment_bytes, .slots = 1});
  add("neighbor_exchange",
      {.collective = Collective::kNeighborExchange, .segment_bytes = segment_bytes, .slots = 1, .neighbors = SomeNeighbors(ranks)});
  add("reduce_scatter_direct", {.collective = Collective::kReduceScatter, .deterministic = true, .slots = 1});
  add("reduce_scatter_direct", {.collective = Collective::kReduceScatter, .channels = 2, .segment_bytes = segment_bytes});
  add("reduce_scatter_ring", {.collective = Collective::kReduceScatter, .channels = 2, .segment_bytes = segment_bytes});
  add("allgather_direct", {.collective = Collective::kAllgather, .channels = 2, .segment_bytes = segment_bytes, .slots = 1});
  add("allgather_ring", {.collective = Collective::kAllgather, .channels = 2, .segment_bytes = segment_bytes});
  add("allgather_v", {.collective = Collective::kAllgatherV, .slots = 1});
  const std::int32_t last = ranks - 1, middle = ranks / 2;
  add("reduce_direct",
      {.collective = Collective::kReduce, .root = last, .deterministic = true, .segment_bytes = segment_bytes, .slots = 1});
  add("reduce_tree", {.collective = Collective::kReduce, .root = middle, .segment_bytes = segment_bytes, .slots = 1});
  add("gather_direct", {.collective = Collective::kGather, .root = last, .segment_bytes = segment_bytes, .slots = 1});
  add("scatter_direct", {.collective = Collective::kScatter, .root = last, .segment_bytes = segment_bytes, .slots = 1});
  for (std::int32_t root : {0, middle}) {
    add("gather_tree", {.collective = Collective::kGather, .root = root, .slots = 1});
    add("scatter_tree", {.collective = Collective::kScatter, .root = root, .slots = 1});
  }
  const Order order = SomeOrder(ranks);
  add("ring", {.channels = 2, .segment_bytes = segment_bytes, .order = order});
  add("chain", {.segment_bytes = segment_bytes, .slots = 1, .order = order});
  add("broadcast_chain", {.collective = Collective::kBroadcast, .root = middle, .segment_bytes = segment_bytes, .order = order});
  add("reduce_scatter_ring", {.collective = Collective::kReduceScatter, .channels = 2, .segment_bytes = segment_bytes, .order = order});
  add("allgather_ring", {.collective = Collective::kAllgather, .channels = 2, .segment_bytes = segment_bytes, .order = order});
  for (const char* algorithm : {"hierarchical_ring_ring", "hierarchical_direct_ring"})
    add(algorithm, {.channels = 1, .segment_bytes = segment_bytes, .nodes = NodesOf(ranks, NodeSize(ranks)), .order = order});
  add("eager", {.slots = 1, .quorum = ranks});
  add("window", {.collective = Collective::kMix, .mixing = RingOfNeighbours(ranks)});
  add("window_relaxed", {.collective = Collective::kMix, .mixing = RingOfNeighbours(ranks)});
  add("native", {});
  add("native_reduce_scatter", {.collective = Collective::kReduceScatter});
  add("native_allgather", {.collective = Collective::kAllgather});
  add("native_broadcast", {.collective = Collective::kBroadcast, .root = last});
  add("native_reduce", {.collective = Collective::kReduce, .root = middle});
  return cases;
}

// The allreduces of the table that take every operation and need nothing beside a transport.
inline std::vector<std::string> PlainAllreduces() {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : Algorithms())
    if (algorithm.collective == Collective::kAllreduce && algorithm.codecs == Codecs::kNone && algorithm.name != "eager" &&
        algorithm.name != "native")
      names.emplace_back(algorithm.name);
  return names;
}

// What a run of a plan takes beside a transport.
enum class Needs {
  kNothing,
  kOneSided,  // windows or counters: those of OneSided
  kLibrary,   // a NativeBackend
};
inline Needs NeedsOf(const Plan& plan) {
  for (const Program& program : plan.programs)
    for (const Step& step : program.steps)
      if (step.op == Op::kNative) return Needs::kLibrary;
  for (const Buffer& buffer : plan.header.buffers)
    if (buffer.role == Role::kWindow) return Needs::kOneSided;
  return plan.header.counter_count > 0 ? Needs::kOneSided : Needs::kNothing;
}

inline std::string Name(const Case& one) {
  return one.algorithm + " P=" + std::to_string(one.request.ranks) + " segment=" + std::to_string(one.request.segment_bytes) +
         " channels=" + std::to_string(one.request.channels) + " slots=" + std::to_string(one.request.slots) +
         " root=" + std::to_string(one.request.root) + (one.request.deterministic ? " deterministic" : "") +
         (one.request.order.empty() ? "" : " in an order") + " " + std::string(collective::Name(one.request.dtype));
}

}  // namespace ropewalk::collective::testing
