// Graph networks learn what neither the features nor the commonest class tell, on the whole graph and on samples of it alike.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/train/nodes.h"

namespace ropewalk::mlrunner {
namespace {

// A planted partition: nodes of four classes, of whose six edges each nine in ten are among their own class, and features that say little.
// `mixed`: edges know nothing of classes.
NodeGraph Planted(std::uint64_t seed, bool mixed = false) {
  constexpr std::int32_t kNodes = 800, kClasses = 4, kFeatures = 8;
  Random random(seed);
  NodeGraph graph{.features = kFeatures, .x = {}, .labels = {}, .classes = kClasses, .edges = {}};
  for (std::int32_t node = 0; node < kNodes; ++node) {
    graph.labels.push_back(node % kClasses);
    for (std::int32_t k = 0; k < kFeatures; ++k)
      graph.x.push_back(static_cast<float>(2 * random.Unit() - 1 + (k == node % kClasses ? .4 : 0)));
    for (int edge = 0; edge < 6; ++edge) {
      auto other = static_cast<std::int32_t>(random.Below(kNodes));
      if (!mixed && !random.OneIn(10)) other = other / kClasses * kClasses + node % kClasses;
      graph.edges.emplace_back(node, other);
    }
  }
  return graph;
}

NodesTrained Trained(const NodeGraph& graph, const NodeJob& job) {
  auto trained = TrainNodes(graph, job);
  EXPECT_TRUE(trained.ok()) << trained.status().ToString();
  return trained.ok() ? *trained : NodesTrained();
}

std::uint64_t Seed(std::uint64_t more) { return static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) + more; }

TEST(TrainNodes, NeighboursTellMoreThanFeatures) {
  const std::uint64_t seed = Seed(24);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const NodeGraph graph = Planted(seed);
  const NodeJob base{.hidden = {16}, .epochs = 60, .weight_decay = .01, .seed = seed};
  auto with = [&](NodeModel model, std::int64_t batch) {
    NodeJob job = base;
    job.model = model;
    job.batch = batch;
    if (batch > 0) job.epochs = 20;
    return Trained(graph, job);
  };
  const NodesTrained mlp = with(NodeModel::kMlp, 0), gcn = with(NodeModel::kGcn, 0), sage = with(NodeModel::kSage, 0),
                     sampled = with(NodeModel::kSage, 64);
  EXPECT_EQ(mlp.training.nodes, 480);
  EXPECT_EQ(mlp.validation.nodes, 160);
  EXPECT_EQ(mlp.test.nodes, 160);
  EXPECT_NEAR(mlp.majority_of_test.part(), .25, .1);
  EXPECT_LT(mlp.test.part(), .7);
  EXPECT_GT(gcn.test.part(), mlp.test.part() + .15);
  EXPECT_GT(sage.test.part(), mlp.test.part() + .15);
  EXPECT_NEAR(sampled.test.part(), sage.test.part(), .08);
  for (const NodesTrained* one : {&mlp, &gcn, &sage, &sampled}) EXPECT_LT(one->losses.back(), .9 * one->losses.front());
  EXPECT_EQ(gcn.losses.size(), 60u);
  EXPECT_EQ(sampled.losses.size(), 20u);
  // A control: where edges say nothing, a network over them finds nothing.
  NodeJob job = base;
  job.model = NodeModel::kGcn;
  EXPECT_LT(Trained(Planted(seed, true), job).test.part(), .5);
}

// Where samples take all neighbours and all training nodes there is no difference but for the order of sums.
TEST(TrainNodes, SamplesOfEverythingAreTheWholeGraph) {
  const NodeGraph graph = Planted(5);
  NodeJob job{.model = NodeModel::kSage, .hidden = {16}, .epochs = 6, .seed = 3};
  const NodesTrained whole = Trained(graph, job);
  job.batch = 1000;
  job.fan_out = {1000, 1000};
  const NodesTrained sampled = Trained(graph, job);
  ASSERT_EQ(whole.losses.size(), 6u);
  ASSERT_EQ(sampled.losses.size(), 6u);
  for (std::size_t epoch = 0; epoch < 6; ++epoch) EXPECT_NEAR(sampled.losses[epoch], whole.losses[epoch], 1e-5) << epoch;
  // The control: with fewer neighbours it is another loss.
  job.fan_out = {2, 2};
  EXPECT_GT(std::fabs(Trained(graph, job).losses[0] - whole.losses[0]), 1e-3);
}

TEST(TrainNodes, TheSameSeedIsTheSameTraining) {
  const NodeGraph graph = Planted(6);
  NodeJob job{.model = NodeModel::kSage, .hidden = {8}, .batch = 50, .epochs = 3, .seed = 4};
  const NodesTrained one = Trained(graph, job), again = Trained(graph, job);
  job.threads = 2;
  const NodesTrained threads = Trained(graph, job);
  EXPECT_EQ(one.losses, again.losses);
  EXPECT_EQ(one.test.right, again.test.right);
  EXPECT_EQ(one.test.nodes, threads.test.nodes);
  job.seed = 5;
  EXPECT_NE(one.losses, Trained(graph, job).losses);
}

TEST(TrainNodes, NoEdgesAreEnough) {
  NodeGraph graph = Planted(7);
  graph.edges.clear();
  for (NodeModel model : {NodeModel::kMlp, NodeModel::kGcn, NodeModel::kSage})
    EXPECT_LT(Trained(graph, {.model = model, .hidden = {8}, .epochs = 20}).losses.back(), std::log(4.0));
  EXPECT_LT(Trained(graph, {.model = NodeModel::kSage, .hidden = {8}, .batch = 100, .epochs = 5}).losses.back(), std::log(4.0) + .1);
}

TEST(TrainNodes, WhatIsWrongIsSaid) {
  const NodeGraph graph = Planted(8);
  auto refused = [&](const NodeJob& job, const std::string& tag, const std::string& what) {
    const auto trained = TrainNodes(graph, job);
    ASSERT_FALSE(trained.ok()) << what;
    EXPECT_EQ(trained.status().tag(), tag);
    EXPECT_NE(trained.status().ToString().find(what), std::string::npos) << trained.status().ToString();
  };
  refused({.hidden = {0}}, "TRAIN09", "a width below 1");
  refused({.epochs = 0}, "TRAIN09", "epochs is 0");
  refused({.batch = 8}, "TRAIN09", "only GraphSAGE has batches");
  refused({.model = NodeModel::kSage, .batch = 8, .fan_out = {3}}, "TRAIN09", "fan_out has 1 numbers");
  refused({.model = NodeModel::kSage, .batch = 8, .fan_out = {3, 0}}, "TRAIN09", "fan_out has 2 numbers");
  refused({.training_part = .8, .validation_part = .2}, "TRAIN09", "something has to be left to test with");
  refused({.training_part = std::numeric_limits<double>::quiet_NaN()}, "TRAIN09", "the parts to train on");
  refused({.training_part = .0001}, "TRAIN09", "0 are to train on");
  refused({.epochs = 20, .learning_rate = 1e30}, "TRAIN01", "the loss is");
  NodeGraph spoilt = graph;
  spoilt.labels[9] = 4;
  EXPECT_EQ(TrainNodes(spoilt, {}).status().tag(), "DATA19");
}

}  // namespace
}  // namespace ropewalk::mlrunner
