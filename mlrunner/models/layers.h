// Layers as functions: h = Relu(m.Linear("first", x, 512)). A Layers object only names and collects the parameters that they make.
//
// Owner: it must not outlive its builder. Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// What a model is built for. Its parameters, and the statistics that a training leaves behind, have the same names either way, so the one
// graph goes on with the states of the other.
enum class Mode : std::uint8_t { kTraining, kEvaluation };

struct LayerOptions {
  Mode mode = Mode::kTraining;
  // The axis of the graph's mesh over whose ranks statistics of a batch are taken together: then they are those of the global batch, and
  // each rank keeps the same. Empty: each rank has its own.
  std::string ranks{};
  // (N), of the samples: one of weight 0 is only there to fill a batch up, and is left out of statistics. Not valid: all count.
  Value weights{};
};

struct ConvLayer {
  std::int64_t kernel = 3, stride = 1, padding = 0, groups = 1;
  bool bias = false;
};
struct BatchNormLayer {
  bool relu = false;     // followed by one
  double momentum = .1;  // how much of each batch goes into the running statistics
  double epsilon = 1e-5;
};

class Layers {
 public:
  explicit Layers(Builder& b, LayerOptions options = {}) : b_(b), options_(std::move(options)) {}

  bool trains() const { return options_.mode == Mode::kTraining; }

  // What a model has made so far, in order: what is trained.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  Parameter New(std::string name, Shape shape, Initializer init, ShardingSpec sharding = {});

  // x (..., in) -> x w + c (..., out); w (in, out) begins as `init`, c (out) as zeros.
  Value Linear(const std::string& name, const Value& x, std::int64_t out, Initializer init);
  // x (N, C, H, W) -> (N, out, P, Q); w (out, C / groups, kernel, kernel) keeps the size of what follows a ReLU, b (out) begins as zeros.
  Value Conv(const std::string& name, const Value& x, std::int64_t out, ConvLayer layer = {});
  // Batch norm of the channels of x (N, C, ...), with a gain and a bias. A training normalises by the moments of its batch, and keeps
  // running ones in states `running_mean` and `running_variance` (of the population: divided by one less), by which an evaluation does.
  // Of a step of several micro-batches each has its own, one after the other.
  Value BatchNorm(const std::string& name, const Value& x, BatchNormLayer layer = {});
  // Layer norm over the last dimension, with a gain and a bias.
  Value Norm(const std::string& name, const Value& x, double epsilon = 1e-5);

 private:
  std::string InModule(const std::string& name) const;
  StateId Statistic(const std::string& name, const Parameter& of, Initializer init);
  // Which rows count, where not all do.
  Value Counted(Dtype dtype);

  Builder& b_;
  LayerOptions options_;
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
