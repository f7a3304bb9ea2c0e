#include "mlrunner/train/gradients.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/optimizers.h"

namespace ropewalk::mlrunner {
namespace {

// In backward, which runs for each micro-batch, as the gradient itself.
Scope BackwardScope(const Builder& b, const Parameter& parameter) {
  Scope scope = UpdateScope(b, parameter);
  scope.phase = Phase::kBackward;
  scope.role = Role::kGradient;
  scope.region = RegionKind::kBackward;
  scope.parameter = {};
  return scope;
}

// Adds `value` to `sum` in each micro-batch; the whole is read, and the sum set to zero, once.
Value AddUp(Builder& b, StateId sum, const Value& value, const Scope& backward, const Scope& once) {
  const TensorType type = b.graph().state(sum).type;
  {
    auto guard = b.With(backward);
    b.Assign(sum, b.Read(sum) + Cast(value, type.dtype));
  }
  auto guard = b.With(once);
  Value whole = b.Read(sum);
  b.Assign(sum, Fill(b, 0, type.dtype, type.shape));
  return whole;
}

}  // namespace

Scope BetweenScope(const Builder& b, const std::vector<Parameter>& parameters) {
  Scope scope = UpdateScope(b, parameters.front());
  scope.module = "gradients";
  scope.role = Role::kGradient;
  return scope;
}

// An update is of a parameter, and backward of none: a backward of a parameter is free to mean this.
Scope BesideLastScope(const Builder& b, const std::vector<Parameter>& parameters) {
  Scope scope = BetweenScope(b, parameters);
  scope.phase = Phase::kBackward;
  scope.region = RegionKind::kBackward;
  return scope;
}

bool IsBesideLast(const RegionInfo& region) { return region.kind == RegionKind::kBackward && region.parameter.valid(); }

std::vector<Gradient> SumOverMicroBatches(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                          std::vector<Value>* beside, const Scope& read_in) {
  for (std::size_t i = 0; i < beside->size() && b.status().ok(); ++i) {
    Value& scalar = (*beside)[i];
    StateId sum = b.NewState("scalar_sum" + std::to_string(i), StateKind::kAccumulator, {AtLeastF32(scalar.dtype()), scalar.shape()},
                             Initializer::Zeros());
    scalar = AddUp(b, sum, scalar, BackwardScope(b, parameters.front()), read_in);
  }
  std::vector<Value> dense;
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    auto guard = b.With(BackwardScope(b, parameters[i]));
    dense.push_back(gradients[i].Dense());
  }
  if (!b.status().ok()) return gradients;
  // In the order in which backward makes them, so that whoever takes the sums finds them in that order, too.
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
    return b.graph().value(dense[x].id).producer.value < b.graph().value(dense[y].id).producer.value;
  });
  std::vector<Gradient> sums(parameters.size());
  for (std::size_t i : order) {
    const StateInfo info = b.graph().state(parameters[i].state);
    StateId sum = b.NewState(info.name + "/gradient_sum", StateKind::kAccumulator, {AtLeastF32(info.type.dtype), info.logical},
                             Initializer::Zeros(), parameters[i].state, info.sharding);
    sums[i] = AddUp(b, sum, dense[i], BackwardScope(b, parameters[i]), read_in);
    if (!b.status().ok()) return gradients;
  }
  return sums;
}

std::vector<Value> SquaresOf(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                             const std::function<Scope(const Parameter&)>& scope_of) {
  std::vector<Value> squares;
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    auto guard = b.With(scope_of(parameters[i]));
    squares.push_back(ReduceSum(Square(gradients[i].Dense())));
  }
  return squares;
}

std::vector<Gradient> ClipByGlobalNorm(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                       double norm_max, const Value& factor) {
  std::vector<Gradient> dense;
  Value scale;
  {
    auto guard = b.With(BetweenScope(b, parameters));
    Value squares;
    for (const Gradient& gradient : gradients) {
      dense.emplace_back(gradient.Dense());
      Value mine = ReduceSum(Square(dense.back()));
      squares = squares.valid() ? squares + mine : mine;
    }
    Value norm = Sqrt(squares);
    if (factor.valid()) norm = norm * factor;
    // A norm of zero gives infinity, and that is not the smaller one.
    scale = Minimum(norm_max / norm, 1.0);
    if (factor.valid()) scale = scale * factor;
  }
  return ScaleBy(b, parameters, dense, scale);
}

std::vector<Gradient> ScaleBy(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                              const Value& factor) {
  std::vector<Gradient> scaled;
  for (std::size_t i = 0; i < parameters.size() && b.status().ok(); ++i) {
    auto guard = b.With(UpdateScope(b, parameters[i]));
    scaled.emplace_back(gradients[i].Dense() * factor);
  }
  return scaled;
}

}  // namespace ropewalk::mlrunner
