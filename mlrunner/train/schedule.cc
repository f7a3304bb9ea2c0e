#include "mlrunner/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ropewalk::mlrunner {

double LearningRateAt(const OptimizerSpec& optimizer, std::int64_t step, std::int64_t steps_in_all) {
  using Schedule = OptimizerSpec::Schedule;
  const double rate = optimizer.learning_rate;
  if (step < optimizer.warmup_steps) return rate * (static_cast<double>(step + 1) / static_cast<double>(optimizer.warmup_steps));
  const std::int64_t since = step - optimizer.warmup_steps;
  switch (optimizer.schedule) {
    case Schedule::kConstant:
      break;
    case Schedule::kStep:
      return rate * std::pow(optimizer.step_factor, static_cast<double>(since / optimizer.step_every));
    case Schedule::kLinear:
    case Schedule::kCosine: {
      const std::int64_t span =
          optimizer.decay_steps > 0 ? optimizer.decay_steps : std::max<std::int64_t>(1, steps_in_all - optimizer.warmup_steps);
      const double done = std::min(1.0, static_cast<double>(since) / static_cast<double>(span));
      const double left = optimizer.schedule == Schedule::kLinear ? 1 - done : (1 + std::cos(std::numbers::pi * done)) / 2;
      return rate * (optimizer.final_fraction + (1 - optimizer.final_fraction) * left);
    }
  }
  return rate;
}

}  // namespace ropewalk::mlrunner
