// Trainings whose sums are chosen by what messages cost.
#include <gtest/gtest.h>

#include <stdlib.h>

#include <algorithm>
#include <fstream>

#include "base/random.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::TrainOnThreads;

class TrainChoosing : public ::testing::Test {
 protected:
  TrainChoosing() {
    setenv("ROPEWALK_HOME", folder_.path().c_str(), 1);  // of costs that are kept
    std::ofstream text(folder_.path() + "/text");
    Random random(5);
    for (int i = 0; i < 200; ++i) text << (random.OneIn(2) ? "red fish. " : "blue bird! ");
  }
  ~TrainChoosing() override { unsetenv("ROPEWALK_HOME"); }

  auto Train(const std::string& choose_by, testing::Sums sums) {
    return TrainOnThreads(
        testing::JobOf(testing::TinyGpt(folder_.path() + "/text", 8, {{"train.batch=12", "train.choose_by=" + choose_by}})), 2,
        {.sums = sums});
  }
  static bool Says(const std::vector<std::string>& lines, const std::string& what) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.find(what) != std::string::npos; });
  }
  testing::TempFolder folder_;
};

// In deterministic mode whatever is chosen adds in the same order.
TEST_F(TrainChoosing, ByCostsLearnsTheSameBitsAndSaysByWhat) {
  for (const testing::Sums sums : {testing::Sums::kSharedMemory, testing::Sums::kTcp}) {
    auto fixed = Train("fixed-sizes", sums), first = Train("kept-costs", sums), second = Train("kept-costs", sums);
    for (const auto* results : {&fixed, &first, &second})
      for (const auto& result : *results) ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_FALSE(fixed[0].losses.empty());
    EXPECT_EQ(first[0].losses, fixed[0].losses);
    EXPECT_EQ(second[0].losses, fixed[0].losses);
    EXPECT_FALSE(Says(fixed[0].lines, "predicted by"));
    EXPECT_TRUE(Says(first[0].lines, "predicted by measured costs"));
    EXPECT_TRUE(Says(second[0].lines, "predicted by costs of an earlier run"));
    EXPECT_FALSE(Says(first[1].lines, "predicted by")) << "once is enough";
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
