// Dynamic loss scaling for gradients of f16 (Micikevicius et al. 2018): backward begins with a scale in the place of 1, so that small
// gradients stay above the least number of f16. A step whose gradients are no numbers changes nothing and halves the scale; after so many
// clean ones in a row it is doubled. Scale and count are states of the graph: checkpoints hold them, and no host looks at a number.
//
// The scale is a power of 2, so that taking it off again changes no digit.
//
// Thread rule: as the builder's.
#pragma once

#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

inline constexpr double kFirstLossScale = 65536, kLossScaleMax = 16777216;
inline constexpr int kCleanStepsToDouble = 2000;
inline constexpr const char* kLossScale = "loss_scale";  // its state
inline constexpr const char* kCleanSteps = "loss_scale/clean_steps";

struct LossScale {
  StateId scale, clean_steps;  // scalars of f32
};
LossScale NewLossScale(Builder& b);

// Gradients of `loss` times the scale of this step.
std::vector<Gradient> ScaledGrad(Builder& b, const LossScale& scale, const Value& loss, const std::vector<Parameter>& parameters);

// What takes the scale off a gradient, a scalar; in the scope that there is.
Value Unscaling(Builder& b, const LossScale& scale);

// The next step's scale, by whether this step's gradients are all numbers (a scalar bool); in the scope that there is. To be called where
// no assignments are guarded.
void AdjustLossScale(Builder& b, const LossScale& scale, const Value& all_finite);

}  // namespace ropewalk::mlrunner
