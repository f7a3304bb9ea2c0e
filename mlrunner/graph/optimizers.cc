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

// Counts updates from 1 on: read behind this, it is the number of the one that is under way.
StateId CountUpdates(Builder& b, const std::vector<Parameter>& parameters, const char* name) {
  StateId count = ScalarState(b, parameters, name, 0);
  // A region of its own, so that nobody waits for it. Where a flag guards it, it waits for that, which is made in the first parameter's.
  auto scope = b.With(b.guards_assigns() ? UpdateOf(b, parameters.front().state, b.graph().StageOf(parameters.front().id))
                                         : UpdateOf(b, count, b.scope().stage));
  b.Assign(count, b.Read(count) + 1.0);
  return count;
}

double DecayFor(const Builder& b, const Parameter& parameter, double decay, DecayOf of) {
  return of == DecayOf::kMatrices && b.graph().state(parameter.state).logical.size() < 2 ? 0 : decay;
}

// The gradient and what L2 adds to it.
Value WithDecay(const Gradient& gradient, const Value& p, double decay) {
  Value g = Cast(gradient, p.dtype());
  return decay == 0 ? g : g + p * decay;
}

bool StayRows(const Gradient& gradient, double decay) { return gradient.IsRows() && decay == 0; }

}  // namespace

Scope UpdateScope(const Builder& b, const Parameter& parameter) { return UpdateOf(b, parameter.state, b.graph().StageOf(parameter.id)); }

void ApplySgd(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
              SgdOptions options) {
  StateId rate = ScalarState(b, parameters, kLearningRate, learning_rate);
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    const double decay = DecayFor(b, parameters[i], options.weight_decay, options.decay_of);
    StateId velocity;
    if (options.momentum != 0) velocity = MomentOf(b, parameters[i].state, "velocity");
    auto scope = b.With(UpdateScope(b, parameters[i]));
    Value p = b.Read(parameters[i].state);
    // Rows stay rows where the update changes no others, as a decay or a velocity does.
    if (options.momentum == 0 && StayRows(gradients[i], decay)) {
      const IndexedRows& g = gradients[i].rows();
      b.Assign(parameters[i].state, AddRows(p, g.indices, -(Cast(b.Read(rate), p.dtype()) * Cast(g.rows, p.dtype()))));
      continue;
    }
    Value g = WithDecay(gradients[i], p, decay);
    if (options.momentum != 0) {
      Value v = b.Read(velocity) * options.momentum + g;
      b.Assign(velocity, v);
      g = options.nesterov ? g + v * options.momentum : v;
    }
    b.Assign(parameters[i].state, p - Cast(b.Read(rate), p.dtype()) * g);
  }
}

void ApplyAdam(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
               AdamOptions options) {
  std::vector<Gradient> decayed;
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    auto scope = b.With(UpdateScope(b, parameters[i]));
    const double decay = DecayFor(b, parameters[i], options.weight_decay, options.decay_of);
    decayed.emplace_back(decay == 0 ? gradients[i] : Gradient(WithDecay(gradients[i], b.Read(parameters[i].state), decay)));
  }
  if (b.status().ok())
    ApplyAdamW(b, parameters, decayed, learning_rate,
               {.beta1 = options.beta1, .beta2 = options.beta2, .epsilon = options.epsilon, .weight_decay = 0});
}

void ApplyAdamW(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
                AdamWOptions options) {
  StateId rate = ScalarState(b, parameters, kLearningRate, learning_rate), step = CountUpdates(b, parameters, "optimizer/step");
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    StateId m = MomentOf(b, parameters[i].state, "first_moment"), v = MomentOf(b, parameters[i].state, "second_moment");
    auto scope = b.With(UpdateScope(b, parameters[i]));
    Value p = b.Read(parameters[i].state);
    auto number = [&](StateId state) { return Cast(b.Read(state), AtLeastF32(p.dtype())); };
    std::vector<Value> next = b.Emit(kAdamW, {p, b.Read(m), b.Read(v), Cast(gradients[i], p.dtype()), number(rate), number(step)},
                                     {{Attr::kLow, options.beta1},
                                      {Attr::kHigh, options.beta2},
                                      {Attr::kEpsilon, options.epsilon},
                                      {Attr::kValue, DecayFor(b, parameters[i], options.weight_decay, options.decay_of)}});
    b.Assign(parameters[i].state, next[0]);
    b.Assign(m, next[1]);
    b.Assign(v, next[2]);
  }
}

void ApplyLamb(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
               LambOptions options) {
  StateId rate = ScalarState(b, parameters, kLearningRate, learning_rate), step = CountUpdates(b, parameters, "optimizer/step");
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    const double decay = DecayFor(b, parameters[i], options.weight_decay, options.decay_of);
    StateId first = MomentOf(b, parameters[i].state, "first_moment"), second = MomentOf(b, parameters[i].state, "second_moment");
    auto scope = b.With(UpdateScope(b, parameters[i]));
    Value p = b.Read(parameters[i].state);
    auto number = [&](StateId state) { return Cast(b.Read(state), AtLeastF32(p.dtype())); };
    std::vector<Value> next =
        b.Emit(kLamb, {p, b.Read(first), b.Read(second), Cast(gradients[i], p.dtype()), number(rate), number(step)},
               {{Attr::kLow, options.beta1}, {Attr::kHigh, options.beta2}, {Attr::kEpsilon, options.epsilon}, {Attr::kValue, decay}});
    if (next.size() < 3) return;
    b.Assign(parameters[i].state, next[0]);
    b.Assign(first, next[1]);
    b.Assign(second, next[2]);
  }
}

void ApplyAdagrad(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients, double learning_rate,
                  AdagradOptions options) {
  StateId rate = ScalarState(b, parameters, kLearningRate, learning_rate);
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    const double decay = DecayFor(b, parameters[i], options.weight_decay, options.decay_of);
    StateId squares = MomentOf(b, parameters[i].state, "squares");
    auto scope = b.With(UpdateScope(b, parameters[i]));
    Value p = b.Read(parameters[i].state), s = b.Read(squares), lr = Cast(b.Read(rate), p.dtype());
    if (StayRows(gradients[i], decay)) {
      const IndexedRows& g = gradients[i].rows();
      std::vector<Value> next = b.Emit(kAdagradRows, {p, s, g.indices, Cast(g.rows, p.dtype()), lr}, {{Attr::kEpsilon, options.epsilon}});
      b.Assign(parameters[i].state, next[0]);
      if (next.size() > 1) b.Assign(squares, next[1]);
      continue;
    }
    std::vector<Value> next = b.Emit(kAdagrad, {p, s, Cast(gradients[i], p.dtype()), Cast(b.Read(rate), AtLeastF32(p.dtype()))},
                                     {{Attr::kEpsilon, options.epsilon}, {Attr::kValue, decay}});
    if (next.size() < 2) return;
    b.Assign(parameters[i].state, next[0]);
    b.Assign(squares, next[1]);
  }
}

void AverageParameters(Builder& b, const std::vector<Parameter>& parameters, double decay) {
  StateId count = CountUpdates(b, parameters, "optimizer/averaged");
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    StateId average = MomentOf(b, parameters[i].state, kAverage + 1);
    auto scope = b.With(UpdateScope(b, parameters[i]));
    const Value p = b.Read(parameters[i].state);
    const Dtype wide = AtLeastF32(p.dtype());
    Value kept = Select(Equal(Cast(b.Read(count), wide), 1.0), b.Number(0, wide), b.Number(decay, wide));
    b.Assign(average, Cast(Cast(b.Read(average), wide) * kept + Cast(p, wide) * (1.0 - kept), p.dtype()));
  }
}

std::vector<Gradient> AccumulateGradients(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                          int count) {
  std::vector<Gradient> sums;
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    const StateInfo info = b.graph().state(parameters[i].state);
    const Dtype wide = AtLeastF32(info.type.dtype);  // in 16 bits a sum stops growing: 256 + 1 is 256 in bf16
    StateId sum = b.NewState(info.name + "/gradient_sum", StateKind::kAccumulator, {wide, info.logical}, Initializer::Zeros(),
                             parameters[i].state, info.sharding);
    {
      Scope scope = UpdateScope(b, parameters[i]);
      scope.phase = Phase::kBackward;
      scope.role = Role::kGradient;
      scope.region = RegionKind::kBackward;
      scope.parameter = {};
      auto guard = b.With(scope);
      b.Assign(sum, b.Read(sum) + Cast(gradients[i], wide) * (1.0 / count));
    }
    auto guard = b.With(UpdateScope(b, parameters[i]));
    // A copy is kept by whoever reads it: the zeros are the next version.
    sums.emplace_back(b.Read(sum));
    b.Assign(sum, Fill(b, 0, wide, info.type.shape));
  }
  return sums;
}

}  // namespace ropewalk::mlrunner
