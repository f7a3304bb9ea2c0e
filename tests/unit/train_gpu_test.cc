// train.device: the GPU's kernels where a GPU is found, else the CPU's, and then rank 0 says why.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

class TrainDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream file(folder_.path() + "/text");
    for (int i = 0; i < 300; ++i) file << (i % 3 == 0 ? "the cat sat. " : "a dog ran! ");
  }
  void TearDown() override { unsetenv("ROPEWALK_GPU_PLUGIN"); }
  std::vector<RankResult> Train(const std::string& device, const std::string& plugin, std::int32_t ranks) {
    setenv("ROPEWALK_GPU_PLUGIN", (std::string(ROPEWALK_GPU_PLUGINS) + "/" + plugin + ".so").c_str(), 1);
    TrainJob job = JobOf({"model.kind=gpt", "model.layers=1", "model.width=8", "model.heads=2", "model.length=6", "data.kind=text",
                          "data.path=" + folder_.path() + "/text", "train.batch=8", "train.steps=12", "train.threads=1",
                          "optimizer.kind=adamw", "optimizer.learning_rate=0.01", "train.device=" + device});
    std::vector<RankResult> results = TrainOnThreads(job, ranks);
    for (const RankResult& result : results) EXPECT_TRUE(result.status.ok()) << result.status.ToString();
    return results;
  }
  static std::vector<std::string> Said(const RankResult& result) {
    std::vector<std::string> said;
    for (const std::string& line : result.lines) {
      if (line.find("computes on the CPU") != std::string::npos) said.push_back(line);
    }
    return said;
  }
  testing::TempFolder folder_;
};

// The fake plugin's sums are in another order than the CPU's, so that equal bits would mean that it was not asked.
TEST_F(TrainDevice, TheGpuLearnsWhatTheCpuLearns) {
  for (std::int32_t ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const auto cpu = Train("cpu", "fake_gpu_plugin", ranks), gpu = Train("gpu", "fake_gpu_plugin", ranks);
    EXPECT_TRUE(Said(gpu[0]).empty());
    ASSERT_EQ(gpu[0].losses.size(), 12u);
    for (std::size_t step = 0; step < 12; ++step) EXPECT_NEAR(gpu[0].losses[step], cpu[0].losses[step], 1e-4) << step;
    EXPECT_NE(gpu[0].losses, cpu[0].losses);
  }
}

TEST_F(TrainDevice, WithoutAGpuTheCpuComputesAndTheReasonIsSaidOnce) {
  ::testing::internal::CaptureStderr();
  const auto cpu = Train("cpu", "broken_gpu_plugin_driver", 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("computes on the CPU"), std::string::npos);
  ::testing::internal::CaptureStderr();
  const auto none = Train("gpu", "broken_gpu_plugin_driver", 2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::size_t at = said.find("the driver is older than the runtime");
  EXPECT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("computes on the CPU", at), std::string::npos) << said;
  EXPECT_TRUE(Said(cpu[0]).empty());
  EXPECT_EQ(none[0].losses, cpu[0].losses);
  ASSERT_EQ(Said(none[0]).size(), 1u);
  EXPECT_NE(Said(none[0])[0].find("the driver is older than the runtime"), std::string::npos) << Said(none[0])[0];
}

}  // namespace
}  // namespace ropewalk::mlrunner
