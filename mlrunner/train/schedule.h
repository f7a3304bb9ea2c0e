// The learning rate of a step: a function of the step alone, so that a training that was resumed goes on with the rate that it would have
// had.
//
//   rate ──      ┌───────── constant      ┌──╲_  linear, cosine        ┌──┐   step
//              ╱                        ╱      ╲___                  ╱     └──┐
//            ╱ warm-up                ╱  ◀ decay_steps ▶           ╱  ◀every▶ └──
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

// Of step `step` (0, 1, ...) of a training that makes `steps_in_all`.
double LearningRateAt(const OptimizerSpec& optimizer, std::int64_t step, std::int64_t steps_in_all);

}  // namespace ropewalk::mlrunner
