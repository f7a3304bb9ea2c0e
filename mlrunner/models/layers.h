// Layers as functions: h = Relu(m.Linear("first", x, 512)). A Layers object only names and collects the parameters that they make.
//
// Owner: it must not outlive its builder. Thread rule: as the builder's.
#pragma once

#include <string>
#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

class Layers {
 public:
  explicit Layers(Builder& b) : b_(b) {}

  // What a model has made so far, in order: what is trained.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  Parameter New(std::string name, Shape shape, Initializer init, ShardingSpec sharding = {});

  // x (..., in) -> x w + c (..., out); w (in, out) begins as `init`, c (out) as zeros.
  Value Linear(const std::string& name, const Value& x, std::int64_t out, Initializer init);
  // Layer norm over the last dimension, with a gain and a bias.
  Value Norm(const std::string& name, const Value& x, double epsilon = 1e-5);

 private:
  Builder& b_;
  std::vector<Parameter> parameters_;
};

// Normal with the deviation sqrt(gain / in): 2 keeps the size of what follows a ReLU (He et al. 2015), 1 that of a linear map.
Initializer FanIn(const Value& x, double gain);

// For weights from `in` numbers to `out` of them (Glorot and Bengio 2010): the variance is 2 / (in + out), times the square of the gain.
Initializer XavierUniform(const Dim& in, const Dim& out, double gain = 1);
Initializer XavierNormal(const Dim& in, const Dim& out, double gain = 1);
// The variance is gain^2 / in, as He et al. 2015 have it with a gain of sqrt(2). PyTorch begins linear maps, weights and biases, with
// U(-1 / sqrt(in), 1 / sqrt(in)), which is a gain of sqrt(1 / 3).
Initializer KaimingUniform(const Dim& in, double gain);
Initializer KaimingNormal(const Dim& in, double gain);

// A model: what its last layer gives, and what is trained.
struct Model {
  Value logits;
  std::vector<Parameter> parameters;
};

}  // namespace ropewalk::mlrunner
