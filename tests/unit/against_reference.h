// What tests of fast kernels share: functions of drawn inputs, run by kernels and by the float64 reference.
//
// Thread rule: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "mlrunner/executor/executor.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {

using CaseFunction = std::function<Vars(Builder&, const Vars&)>;

// A function, and then its gradients by all of its inputs: of half the sum of its squares, or of the sum of its sines.
inline CaseFunction WithGradient(const std::function<Value(Builder&, const Vars&)>& f, bool of_squares = true) {
  return [f, of_squares](Builder& b, const Vars& v) {
    Value y = f(b, v);
    Vars all{y};
    for (const Gradient& g : Grad(ReduceSum(of_squares ? y * y * .5 : Sin(y)), v)) all.push_back(g);
    return all;
  };
}

inline std::optional<Graph> GraphOf(const std::vector<Shape>& shapes, Dtype dtype, const CaseFunction& function) {
  Builder b;
  Vars inputs;
  for (std::size_t i = 0; i < shapes.size(); ++i) inputs.push_back(b.Input("x" + std::to_string(i), dtype, shapes[i]));
  for (const Value& y : function(b, inputs)) b.Output("y", y);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return graph.ok() ? std::optional<Graph>(*std::move(graph)) : std::nullopt;
}

// The same inputs for both sides: numbers of [low, high) that `dtype` has.
struct DrawnInputs {
  DrawnInputs(const std::vector<Shape>& shapes, Dtype dtype, double low, double high) {
    Random random(11);
    for (const Shape& shape : shapes) {
      RefTensor tensor{Evaluate(shape, {}), {}};
      for (std::int64_t i = 0; i < NumElements(tensor.dims); ++i) tensor.data.push_back(RoundTo(dtype, low + (high - low) * random.Unit()));
      tensors.push_back(ToTensor(dtype, tensor));
      refs.push_back(std::move(tensor));
    }
  }
  std::vector<RefTensor> refs;
  std::vector<Tensor> tensors;
};

// What the reference makes of them; `round`: to the type of each value on the way.
inline std::vector<RefTensor> ByReference(const Graph& graph, const DrawnInputs& inputs, bool round) {
  std::map<std::string, RefTensor> states;
  auto expected = Evaluate(graph, {}, inputs.refs, states, {}, {.round = round});
  EXPECT_TRUE(expected.ok()) << expected.status().ToString();
  return expected.ok() ? expected->outputs : std::vector<RefTensor>();
}

struct Ran {
  double error = HUGE_VAL;  // the worst of any output, relative to the largest magnitude of that output
  std::size_t fallbacks = 0;
};
inline Ran RunAgainst(const std::vector<RefTensor>& expected, const Graph& graph, const DrawnInputs& inputs, const KernelTable& table,
                      const ExecutorOptions& options) {
  Ran ran;
  auto executable = Compile(graph, {}, {}, table, options);
  EXPECT_TRUE(executable.ok()) << executable.status().ToString();
  if (!executable.ok()) return ran;
  ran.fallbacks = (*executable)->fallback_ops();
  RunInputs run;
  for (const Tensor& tensor : inputs.tensors) run.micro_batches[0].push_back(&tensor);
  StateStore store;
  auto result = (*executable)->Run(run, store);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  if (!result.ok()) return ran;
  EXPECT_EQ(result->outputs[0].size(), expected.size());
  if (result->outputs[0].size() != expected.size()) return ran;
  ran.error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const RefTensor got = ToRef(result->outputs[0][i]);
    double scale = 1e-30;
    for (double value : expected[i].data) scale = std::max(scale, std::fabs(value));
    for (std::size_t k = 0; k < got.data.size(); ++k) {
      const double difference = std::fabs(got.data[k] - expected[i].data[k]) / scale;
      ran.error = std::isnan(difference) ? HUGE_VAL : std::max(ran.error, difference);
    }
  }
  return ran;
}

}  // namespace ropewalk::mlrunner
