// Trains a graph network to tell the classes of a graph's nodes, on one machine: GCN (Kipf and Welling 2017) or GraphSAGE (Hamilton et al.
// 2017), on the whole graph at each step or on sampled neighbourhoods, and an MLP of the features alone to compare with.
//
//   mlrunner::NodesTrained trained = mlrunner::TrainNodes(graph, {.model = mlrunner::NodeModel::kSage, .batch = 512});
//
//   whole graph:  x (N, F), edges ──▶ layers ──▶ logits (N, classes) ──▶ loss of the training nodes
//   sampled:      batch of training nodes ─ neighbours ─ theirs ─▶ the same layers on that part ─▶ loss of the batch
//
// Nodes are divided at random, by the seed, into some to train on, some to validate with and the rest to test with. All edges are heard in
// every part (transductive). What is counted is counted on the whole graph, however it was trained.
//
// Thread rule: pure functions; kernels use OpenMP.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "mlrunner/data/node_graph.h"

namespace ropewalk::mlrunner {

enum class NodeModel : std::uint8_t { kMlp, kGcn, kSage };

struct NodeJob {
  NodeModel model = NodeModel::kGcn;
  std::vector<std::int64_t> hidden = {64};  // widths of the hidden layers
  // 0: each step hears the whole graph. Else so many training nodes a step, of GraphSAGE with sampled neighbours, by one number a layer.
  std::int64_t batch = 0;
  std::vector<std::int64_t> fan_out = {10, 5};
  std::int64_t epochs = 100;  // over the training nodes; with the whole graph an epoch is a step
  std::int64_t evaluate_every = 1;
  double learning_rate = .01;  // of AdamW
  double weight_decay = 0;
  double training_part = .6, validation_part = .2;
  std::uint64_t seed = 1;
  int threads = 1;
};

struct NodeCounts {
  std::int64_t right = 0, nodes = 0;
  double part() const { return nodes == 0 ? 0 : static_cast<double>(right) / static_cast<double>(nodes); }
};

// Of the evaluation with most validation nodes right, the first of several.
struct NodesTrained {
  NodeCounts training, validation, test;
  std::int64_t epoch = 0;         // after which that was
  std::vector<double> losses;     // the mean of each epoch's steps
  double seconds = 0;             // of all, evaluations included
  std::int64_t majority = 0;      // the most frequent class of the training nodes
  NodeCounts majority_of_test{};  // who always says that one
};

// DATA19: what is wrong with the graph. TRAIN09: what is wrong with the job. TRAIN01: a loss that is no number.
Result<NodesTrained> TrainNodes(const NodeGraph& graph, const NodeJob& job);

}  // namespace ropewalk::mlrunner
