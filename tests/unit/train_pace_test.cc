#include "mlrunner/train/pace.h"

#include <gtest/gtest.h>

namespace ropewalk::mlrunner {
namespace {

TEST(StepPace, SaysNothingBeforeItHasSeenEnough) {
  StepPace pace;
  EXPECT_LT(pace.SecondsFor(100), 0);
  pace.Made(5, .5);
  EXPECT_LT(pace.SecondsFor(100), 0);
  EXPECT_EQ(LeftText(pace.SecondsFor(100)), "");
  pace.Made(10, 1);
  EXPECT_NEAR(pace.SecondsFor(100), 10, .5);
}

TEST(StepPace, FollowsAMachineThatBecomesBusy) {
  StepPace pace;
  for (int second = 0; second < 600; ++second) pace.Made(10, 1);
  EXPECT_NEAR(pace.SecondsFor(1000), 100, 1e-6);
  for (int second = 0; second < 10; ++second) pace.Made(1, 1);
  EXPECT_GT(pace.SecondsFor(1000), 120) << "ten slow seconds are seen";
  EXPECT_LT(pace.SecondsFor(1000), 500) << "and are not all there is";
  for (int second = 0; second < 300; ++second) pace.Made(1, 1);
  EXPECT_NEAR(pace.SecondsFor(1000), 1000, 10) << "what was five minutes ago is forgotten";
}

TEST(LeftText, IsShort) {
  EXPECT_EQ(LeftText(-1), "");
  EXPECT_EQ(LeftText(0), "0 s left");
  EXPECT_EQ(LeftText(.2), "1 s left");
  EXPECT_EQ(LeftText(99), "99 s left");
  EXPECT_EQ(LeftText(100), "2 min left");
  EXPECT_EQ(LeftText(3000), "50 min left");
  EXPECT_EQ(LeftText(9000), "2.5 h left");
}

}  // namespace
}  // namespace ropewalk::mlrunner
