// The evaluation with the smallest held-out loss so far, and whether there has been none smaller for too long (train.patience).
//
// Thread rule: values.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

struct BestSoFar {
  std::int64_t step = -1;  // after so many steps; -1: nothing was evaluated on the way
  double loss = std::numeric_limits<double>::quiet_NaN();

  // Whether it is the best, which it is from then on. One that is no number is none.
  bool Take(std::int64_t steps, double held_out_loss) {
    if (!std::isfinite(held_out_loss) || (step >= 0 && held_out_loss >= loss)) return false;
    step = steps;
    loss = held_out_loss;
    return true;
  }
  // After `steps`, train.patience evaluations in a row have found no smaller one.
  bool PatienceIsOver(const TrainJob& job, std::int64_t steps) const {
    return job.patience > 0 && step >= 0 && (steps - step) / job.evaluate_every >= job.patience;
  }
};

}  // namespace ropewalk::mlrunner
