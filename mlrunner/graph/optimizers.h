// Optimisers as graph updates: each parameter's update is a region of its own, so that it may run as soon as its gradient is there, be cut
// over ranks, or cross the border of the step. Learning rates are scalar states that the host sets between steps. All but LAMB, which is
// the paper's, do what PyTorch's optimiser of that name does.
//
// SGD without momentum and Adagrad, both without weight decay, update only the rows that a gradient has, where it is IndexedRows.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// What weight decay is for: all parameters, or those of two dimensions and more. Biases, gains of norms and single numbers are left alone
// then.
enum class DecayOf : std::uint8_t { kAll, kMatrices };

struct SgdOptions {
  double momentum = 0;      // v = momentum v + g; p -= lr v
  double weight_decay = 0;  // g += weight_decay p
  bool nesterov = false;    // p -= lr (g + momentum v)
  DecayOf decay_of = DecayOf::kAll;
};
// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr m / (1-b1^t) / (sqrt(v / (1-b2^t)) + epsilon).
struct AdamOptions {
  double beta1 = .9, beta2 = .999, epsilon = 1e-8;
  double weight_decay = 0;  // g += weight_decay p (Kingma and Ba 2015, with L2)
  DecayOf decay_of = DecayOf::kAll;
};
struct AdamWOptions {
  double beta1 = .9, beta2 = .999, epsilon = 1e-8;
  double weight_decay = .01;  // p -= lr weight_decay p, beside the rest (Loshchilov and Hutter 2019)
  DecayOf decay_of = DecayOf::kAll;
};
// You et al. 2020, algorithm 2: u = m / (1-b1^t) / (sqrt(v / (1-b2^t)) + epsilon) + weight_decay p; p -= lr |p| / |u| u, or lr u where one
// of the norms, which are each parameter's own, is 0.
struct LambOptions {
  double beta1 = .9, beta2 = .999, epsilon = 1e-6, weight_decay = .01;
  DecayOf decay_of = DecayOf::kAll;
};
struct AdagradOptions {
  double epsilon = 1e-10;   // s += g^2; p -= lr g / (sqrt(s) + epsilon)
  double weight_decay = 0;  // g += weight_decay p
  DecayOf decay_of = DecayOf::kAll;
};

// The updates as ops: what their optimisers above say, of tensors of one type and scalars of at least f32 (AtLeastF32), in which they
// compute. AdamW's is in ops.h.
// (parameter, first moment, second moment, gradient, learning rate (), step ()) -> the first three anew. kLow, kHigh: the betas; kEpsilon;
// kValue: the decay.
extern const OpDef kLamb;
// (parameter, sum of squares, gradient, learning rate ()) -> the first two anew. kEpsilon; kValue: the decay.
extern const OpDef kAdagrad;

// Name of the state that holds the learning rate, a scalar: f64 where a parameter is, else f32 (also of parameters of 16 bits, whose
// moments are of their own type). It begins as `learning_rate`.
inline constexpr const char* kLearningRate = "optimizer/learning_rate";

// For the ops of an update: the update region of the parameter, in the stage that reads it. Strategies with an update of their own use it.
Scope UpdateScope(const Builder& b, const Parameter& parameter);

void ApplySgd(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
              SgdOptions options = {});
void ApplyAdam(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
               AdamOptions options = {});
void ApplyAdamW(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
                AdamWOptions options = {});

void ApplyLamb(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
               LambOptions options = {});
void ApplyAdagrad(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
                  AdagradOptions options = {});

// Behind the updates: for each parameter a state NAME + kAverage, which is the parameter after the first update and then
// decay average + (1 - decay) parameter after each.
inline constexpr const char* kAverage = "/average";
void AverageParameters(Builder& b, const std::vector<Parameter>& parameters, double decay);

// Sums gradients over `count` micro-batches, each with weight 1/count, in states of f32 at least. That is the gradient of one batch where
// the micro-batches have equally many labels; of others, weigh the losses instead (train/gradients.h). The values that come back are read
// in the update regions, where the sums are also set to zero again.
std::vector<Gradient> AccumulateGradients(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                          int count);

}  // namespace ropewalk::mlrunner
