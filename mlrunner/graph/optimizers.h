// Optimisers as graph updates: each parameter's update is a region of its own, so that it may run as soon as its gradient is there, be
// cut over
// ranks, or cross the border of the step. Learning rates are scalar states that the host sets between steps.
//
// Thread rule: as the builder's.
#pragma once

#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// Gradients that are rows of a table (IndexedRows) cost as much as those rows where neither momentum nor decay is asked for.
struct SgdOptions {
  double momentum = 0;      // v = momentum v + g; p -= lr v
  double weight_decay = 0;  // g += weight_decay p
};
struct AdamWOptions {
  double beta1 = .9, beta2 = .999, epsilon = 1e-8, weight_decay = .01;
};

// Name of the state that holds the learning rate, a scalar: f64 where a parameter is, else f32 (also of parameters of 16 bits, whose
// moments are of their own type). It begins as `learning_rate`.
inline constexpr const char* kLearningRate = "optimizer/learning_rate";

// For the ops of an update: the update region of the parameter, in the stage that reads it. Strategies with an update of their own use it.
Scope UpdateScope(const Builder& b, const Parameter& parameter);

void ApplySgd(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
              SgdOptions options = {});
void ApplyAdamW(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
                AdamWOptions options = {});

// Sums gradients over `count` micro-batches, each with weight 1/count, in states. The values that come back are read in the update regions,
// where the sums are also set to zero again.
std::vector<Gradient> AccumulateGradients(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                          int count);

}  // namespace ropewalk::mlrunner
