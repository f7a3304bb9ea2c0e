// Learning rates against their formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "mlrunner/train/schedule.h"

namespace ropewalk::mlrunner {
namespace {

using Schedule = OptimizerSpec::Schedule;

TEST(LearningRate, IsConstantBehindAWarmUp) {
  OptimizerSpec spec{.learning_rate = .2};
  for (std::int64_t step : {0, 1, 1000}) EXPECT_EQ(LearningRateAt(spec, step, 10), .2);
  spec.warmup_steps = 4;
  for (std::int64_t step = 0; step < 4; ++step) EXPECT_DOUBLE_EQ(LearningRateAt(spec, step, 10), .05 * static_cast<double>(step + 1));
  EXPECT_EQ(LearningRateAt(spec, 4, 10), .2);
}

// rate * (1 + cos(pi t)) / 2 = rate * cos^2(pi t / 2), with t from 0 at the end of the warm-up to 1 at the end of the training.
TEST(LearningRate, CosineHasTheValuesOfItsFormula) {
  const OptimizerSpec spec{.schedule = Schedule::kCosine, .learning_rate = .3, .warmup_steps = 10};
  EXPECT_DOUBLE_EQ(LearningRateAt(spec, 9, 110), .3);
  for (std::int64_t step = 10; step < 110; ++step) {
    const double half = std::cos(3.14159265358979323846 * static_cast<double>(step - 10) / 200);
    EXPECT_NEAR(LearningRateAt(spec, step, 110), .3 * half * half, 1e-15) << step;
  }
  EXPECT_NEAR(LearningRateAt(spec, 60, 110), .15, 1e-15);
  EXPECT_NEAR(LearningRateAt(spec, 110, 110), 0, 1e-15);
}

TEST(LearningRate, FallsForSoManyStepsToWhatIsLeft) {
  OptimizerSpec spec{.schedule = Schedule::kCosine, .learning_rate = 1, .decay_steps = 20, .final_fraction = .1};
  EXPECT_NEAR(LearningRateAt(spec, 10, 1000), .55, 1e-15);
  EXPECT_NEAR(LearningRateAt(spec, 20, 1000), .1, 1e-15);
  EXPECT_NEAR(LearningRateAt(spec, 999, 1000), .1, 1e-15);
  spec.schedule = Schedule::kLinear;
  EXPECT_NEAR(LearningRateAt(spec, 5, 1000), .775, 1e-15);
  EXPECT_NEAR(LearningRateAt(spec, 20, 1000), .1, 1e-15);
  spec.decay_steps = 0;  // to the end
  spec.final_fraction = 0;
  for (std::int64_t step = 0; step <= 40; ++step) EXPECT_NEAR(LearningRateAt(spec, step, 40), 1 - static_cast<double>(step) / 40, 1e-15);
  spec.warmup_steps = 50;  // longer than the training: it never falls
  EXPECT_NEAR(LearningRateAt(spec, 39, 40), .8, 1e-15);
}

TEST(LearningRate, FallsInSteps) {
  const OptimizerSpec spec{.schedule = Schedule::kStep, .learning_rate = .8, .warmup_steps = 3, .step_every = 5, .step_factor = .5};
  const double expected[] = {.8 / 3, 1.6 / 3, .8, .8, .8, .8, .8, .8, .4, .4, .4, .4, .4, .2, .2};
  for (std::int64_t step = 0; step < 15; ++step) EXPECT_NEAR(LearningRateAt(spec, step, 15), expected[step], 1e-15) << step;
}

}  // namespace
}  // namespace ropewalk::mlrunner
