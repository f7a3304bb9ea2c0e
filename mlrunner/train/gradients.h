// What happens to gradients between backward and the updates: sums over micro-batches, and a bound on the norm of all of them.
//
// Both need something that happens once a step and before every update. The region of an update is run once a step, and a program runs
// regions after those that they need: so it may happen in the update of the first parameter (BetweenScope), and the others wait for it.
// What must not wait for the end of backward, such as sums over ranks, has a region beside the last backward instead (BesideLastScope).
//
// Thread rule: as the builder's.
#pragma once

#include <functional>
#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// For ops that run once a step, after the last backward and before any update. At least one parameter.
Scope BetweenScope(const Builder& b, const std::vector<Parameter>& parameters);

// For ops that run once a step, while the last micro-batch's backward goes on: a region beside backward (ProgramStep::beside), which
// IsBesideLast() knows again. At least one parameter.
Scope BesideLastScope(const Builder& b, const std::vector<Parameter>& parameters);
bool IsBesideLast(const RegionInfo& region);

// The sums of the gradients, and of the scalars `beside` them, over all micro-batches of a step, to be read in `read_in`, one of the two
// scopes above. Nothing is weighted: the losses are. The sums are states (kAccumulator), of f32 at least, zero again when the step ends.
std::vector<Gradient> SumOverMicroBatches(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                          std::vector<Value>* beside, const Scope& read_in);

// The sum of the squares of each gradient, (), each computed where `scope_of` says: the root of their sum is the norm of all, and a
// gradient that holds what is no number is told from the others.
std::vector<Value> SquaresOf(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                             const std::function<Scope(const Parameter&)>& scope_of);

// All gradients times min(1, norm_max / norm), where norm is the root of the sum of all their squares (Pascanu et al. 2013). With gradients
// that are sums over the ranks, every rank finds the same norm.
// A valid `factor`, a scalar, is what all gradients are multiplied by before that.
std::vector<Gradient> ClipByGlobalNorm(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                                       double norm_max, const Value& factor = {});

// All gradients times a scalar, each in its parameter's update.
std::vector<Gradient> ScaleBy(Builder& b, const std::vector<Parameter>& parameters, const std::vector<Gradient>& gradients,
                              const Value& factor);

}  // namespace ropewalk::mlrunner
