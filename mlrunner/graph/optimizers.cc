#include "mlrunner/graph/optimizers.h"

#include <algorithm>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"

namespace ropewalk::mlrunner {
namespace {

Scope UpdateOf(const Builder& b, StateId parameter, std::int32_t stage) {
  Scope scope;
  scope.module = "optimizer/" + b.graph().state(parameter).name;
  scope.role = Role::kOptimizer;
  scope.phase = Phase::kUpdate;
  scope.region = RegionKind::kUpdate;
  scope.stage = stage;
  scope.parameter = parameter;
  return scope;
}

// A number for all parameters. Of f32 at least: 256 + 1 is 256 in bf16, and a counter of steps would stop there.
StateId ScalarState(Builder& b, const std::vector<Parameter>& parameters, const char* name, double value) {
  const bool wide = std::any_of(parameters.begin(), parameters.end(),
                                [&](const Parameter& p) { return b.graph().state(p.state).type.dtype == Dtype::kF64; });
  return b.NewState(name, StateKind::kScalar, {wide ? Dtype::kF64 : Dtype::kF32, {}}, Initializer::Constant(value));
}

StateId MomentOf(Builder& b, StateId parameter, const char* name) {
  const StateInfo info = b.graph().state(parameter);
  return b.NewState(info.name + "/" + name, StateKind::kOptimizer, {info.type.dtype, info.logical}, Initializer::Zeros(), parameter,
                    info.sharding);
}

}  // namespace

Scope UpdateScope(const Builder& b, const Parameter& parameter) { return UpdateOf(b, parameter.state, b.graph().StageOf(parameter.id)); }

void ApplySgd(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
              SgdOptions options) {
  StateId rate = ScalarState(b, parameters, kLearningRate, learning_rate);
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    StateId velocity;
    if (options.momentum != 0) velocity = MomentOf(b, parameters[i].state, "velocity");
    auto scope = b.With(UpdateScope(b, parameters[i]));
    Value p = b.Read(parameters[i].state);
    // Rows stay rows where the update changes no others, as a decay or a velocity does.
    if (gradients[i].IsRows() && options.momentum == 0 && options.weight_decay == 0) {
      const IndexedRows& g = gradients[i].rows();
      b.Assign(parameters[i].state, AddRows(p, g.indices, -(Cast(b.Read(rate), p.dtype()) * Cast(g.rows, p.dtype()))));
      continue;
    }
    Value g = Cast(gradients[i], p.dtype());
    if (options.weight_decay != 0) g = g + p * options.weight_decay;
    if (options.momentum != 0) {
      g = b.Read(velocity) * options.momentum + g;
      b.Assign(velocity, g);
    }
    b.Assign(parameters[i].state, p - Cast(b.Read(rate), p.dtype()) * g);
  }
}

void ApplyAdamW(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
                AdamWOptions options) {
  StateId rate = ScalarState(b, parameters, kLearningRate, learning_rate), step = ScalarState(b, parameters, "optimizer/step", 0);
  {
    auto scope = b.With(UpdateOf(b, step, b.scope().stage));
    b.Assign(step, b.Read(step) + 1.0);
  }
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    StateId m = MomentOf(b, parameters[i].state, "first_moment"), v = MomentOf(b, parameters[i].state, "second_moment");
    auto scope = b.With(UpdateScope(b, parameters[i]));
    Value p = b.Read(parameters[i].state);
    auto number = [&](StateId state) { return Cast(b.Read(state), AtLeastF32(p.dtype())); };
    std::vector<Value> next = b.Emit(kAdamW, {p, b.Read(m), b.Read(v), Cast(gradients[i], p.dtype()), number(rate), number(step)},
                                     {{Attr::kLow, options.beta1},
                                      {Attr::kHigh, options.beta2},
                                      {Attr::kEpsilon, options.epsilon},
                                      {Attr::kValue, options.weight_decay}});
    b.Assign(parameters[i].state, next[0]);
    b.Assign(m, next[1]);
    b.Assign(v, next[2]);
  }
}

std::vector<Gradient> AccumulateGradients(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                          int count) {
  std::vector<Gradient> sums;
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    const StateInfo info = b.graph().state(parameters[i].state);
    StateId sum = b.NewState(info.name + "/gradient_sum", StateKind::kAccumulator, {info.type.dtype, info.logical}, Initializer::Zeros(),
                             parameters[i].state, info.sharding);
    {
      Scope scope = UpdateScope(b, parameters[i]);
      scope.phase = Phase::kBackward;
      scope.role = Role::kGradient;
      scope.region = RegionKind::kBackward;
      scope.parameter = {};
      auto guard = b.With(scope);
      b.Assign(sum, b.Read(sum) + Cast(gradients[i], info.type.dtype) * (1.0 / count));
    }
    auto guard = b.With(UpdateScope(b, parameters[i]));
    // A copy is kept by whoever reads it: the zeros are the next version.
    sums.emplace_back(b.Read(sum));
    b.Assign(sum, Fill(b, 0, info.type.dtype, info.type.shape));
  }
  return sums;
}

}  // namespace ropewalk::mlrunner
