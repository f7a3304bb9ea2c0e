// What tests of models share: a model with its gradients in float64, inputs for it, and gradients against central differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/passes/pass.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

constexpr std::int64_t kRows = 3;  // what batches are bound to

struct Built {
  Graph graph;  // outputs: the loss, the logits, the gradient of each parameter
  std::vector<std::string> parameters;
  std::int64_t numbers = 0;  // of all parameters
  std::string logits;        // their shape
};
// All but the graph.
inline Built Describe(const Builder& b, const Model& model) {
  Built built;
  built.logits = ToString(model.logits.shape(), b.graph().symbols);
  for (const Parameter& parameter : model.parameters) {
    built.parameters.push_back(b.graph().state(parameter.state).name);
    built.numbers += NumElements(parameter.shape()).Constant().value_or(0);
  }
  return built;
}
inline Built FinishWithLoss(Builder& b, const Model& model, const Value& loss) {
  Built built = Describe(b, model);
  b.Output("loss", loss);
  b.Output("logits", model.logits);
  for (const Gradient& gradient : Grad(loss, {model.parameters.begin(), model.parameters.end()})) b.Output("gradient", gradient);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  if (!graph.ok()) return built;
  auto wide = ChangeFloats(*graph, Dtype::kF32, Dtype::kF64);
  EXPECT_TRUE(wide.ok() && Check(*wide).ok());
  if (wide.ok()) built.graph = *wide;
  return built;
}

inline Built Finish(Builder& b, const Model& model, const Value& labels) {
  return FinishWithLoss(b, model, Mean(CrossEntropy(model.logits, labels)));
}

inline std::vector<RefTensor> Inputs(const Graph& graph, std::uint64_t seed, std::int64_t ids) {
  Random random(seed);
  std::vector<RefTensor> inputs;
  for (ValueId id : graph.inputs) {
    RefTensor tensor{Evaluate(graph.value(id).type.shape, {kRows}), {}};
    for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) {
      bool real = IsFloat(graph.value(id).type.dtype);
      tensor.data.push_back(real ? random.Unit() * 2 - 1 : static_cast<double>(random.Below(static_cast<std::uint64_t>(ids))));
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

// Of a model of the symbol that comes next, (B, T) -> (B, T, symbols): a place sees itself and what is before it. Another symbol there
// changes its logits, one behind it does not.
inline void LooksBackOnly(const Built& built, std::int64_t length, std::int64_t symbols) {
  std::vector<RefTensor> inputs = Inputs(built.graph, 3, symbols);
  std::map<std::string, RefTensor> states;
  const RefTensor before = Evaluate(built.graph, {kRows}, inputs, states)->outputs[1];
  const std::int64_t changed = 2;
  double& id = inputs[0].data[static_cast<std::size_t>(length + changed)];  // of the second sample
  id = id == 0 ? 1 : 0;
  const RefTensor after = Evaluate(built.graph, {kRows}, inputs, states)->outputs[1];
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t place = 0; place < length; ++place) {
      const auto first = static_cast<std::ptrdiff_t>((row * length + place) * symbols);
      const bool same = std::equal(before.data.begin() + first, before.data.begin() + first + symbols, after.data.begin() + first);
      EXPECT_EQ(same, row != 1 || place < changed) << "sample " << row << ", place " << place;
    }
  }
}

// A few elements of every parameter, drawn from a seed. Of those that are `unused` all are zeros.
inline void GradientsAreDifferences(const Built& built, std::int64_t ids, const std::set<std::string>& unused = {}) {
  std::vector<RefTensor> inputs = Inputs(built.graph, 7, ids);
  std::map<std::string, RefTensor> states;
  auto at = Evaluate(built.graph, {kRows}, inputs, states);
  ASSERT_TRUE(at.ok()) << at.status().ToString();
  // Away from the start, where many gradients are small or nothing.
  Random random(11);
  for (auto& [name, tensor] : states) {
    for (double& value : tensor.data) value += (random.Unit() - .5) * .6;
  }
  at = Evaluate(built.graph, {kRows}, inputs, states);
  ASSERT_TRUE(at.ok());
  for (std::size_t p = 0; p < built.parameters.size(); ++p) {
    const RefTensor& gradient = at->outputs[2 + p];
    double largest = 0;
    for (int trial = 0; trial < 4; ++trial) {
      std::size_t element = random.Below(gradient.data.size());
      double losses[2];
      for (int side : {0, 1}) {
        std::map<std::string, RefTensor> moved = states;
        moved[built.parameters[p]].data[element] += side == 0 ? -1e-5 : 1e-5;
        losses[side] = Evaluate(built.graph, {kRows}, inputs, moved)->outputs[0].data[0];
      }
      double difference = (losses[1] - losses[0]) / 2e-5;
      EXPECT_NEAR(gradient.data[element], difference, 1e-6 * std::max(1.0, std::fabs(difference))) << built.parameters[p];
      for (double value : gradient.data) largest = std::max(largest, std::fabs(value));
    }
    EXPECT_EQ(largest == 0, unused.contains(built.parameters[p])) << built.parameters[p] << " learns nothing, or is not unused";
  }
}

}  // namespace ropewalk::mlrunner
