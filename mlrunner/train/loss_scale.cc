#include "mlrunner/train/loss_scale.h"

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {

LossScale NewLossScale(Builder& b) {
  auto scalar = [&](const char* name, double value) {
    return b.NewState(name, StateKind::kScalar, {Dtype::kF32, {}}, Initializer::Constant(value));
  };
  return {scalar(kLossScale, kFirstLossScale), scalar(kCleanSteps, 0)};
}

std::vector<Gradient> ScaledGrad(Builder& b, const LossScale& scale, const Value& loss, const std::vector<Parameter>& parameters) {
  if (!loss.valid()) return std::vector<Gradient>(parameters.size());
  Scope scope = BackwardScope(b, b.graph().StageOf(loss.id));
  scope.module = "loss_scale";
  Gradient seed;
  {
    auto guard = b.With(scope);
    seed = Cast(b.Read(scale.scale), loss.dtype());
  }
  return Grad(std::vector<Value>{loss}, {seed}, {parameters.begin(), parameters.end()});
}

Value Unscaling(Builder& b, const LossScale& scale) { return 1.0 / b.Read(scale.scale); }

void AdjustLossScale(Builder& b, const LossScale& scale, const Value& all_finite) {
  const Value now = b.Read(scale.scale), none = b.Number(0, Dtype::kF32), clean = Select(all_finite, b.Read(scale.clean_steps) + 1.0, none);
  const Value full = Greater(clean, kCleanStepsToDouble - .5);
  b.Assign(scale.scale, Select(all_finite, Select(full, Minimum(now * 2.0, kLossScaleMax), now), now * .5));
  b.Assign(scale.clean_steps, Select(full, none, clean));
}

}  // namespace ropewalk::mlrunner
