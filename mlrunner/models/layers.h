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

  Parameter New(std::string name, Shape shape, Initializer init);

  // x (..., in) -> x w + c (..., out); w (in, out) begins as `init`, c (out) as zeros.
  Value Linear(const std::string& name, const Value& x, std::int64_t out, Initializer init);
  // Layer norm over the last dimension, with a gain and a bias.
  Value Norm(const std::string& name, const Value& x);

 private:
  Builder& b_;
  std::vector<Parameter> parameters_;
};

// Normal with the deviation sqrt(gain / in): 2 keeps the size of what follows a ReLU (He et al. 2015), 1 that of a linear map.
Initializer FanIn(const Value& x, double gain);

// A model: what its last layer gives, and what is trained.
struct Model {
  Value logits;
  std::vector<Parameter> parameters;
};

}  // namespace ropewalk::mlrunner
