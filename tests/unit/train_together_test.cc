// Trainings whose checkpoints all ranks write together: they go on as those whose rank 0 writes alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/random.h"
#include "mlrunner/train/checkpoint.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using storage::LocalFileSystem;
using testing::TrainOnThreads;

class Together : public ::testing::Test {
 protected:
  Together() {
    std::ofstream text(folder_.path() + "/text");
    Random random(3);
    for (int i = 0; i < 200; ++i) text << (random.OneIn(2) ? "red fish. " : "blue bird! ");
  }
  TrainJob Job(int steps, std::vector<std::string> more = {}) {
    return testing::JobOf(testing::TinyGpt(folder_.path() + "/text", steps,
                                           {{"train.batch=12", "optimizer.kind=adamw", "optimizer.learning_rate=0.01"}, more}));
  }
  std::string Folder() { return folder_.path() + "/checkpoints"; }
  std::string Checkpoints() { return "checkpoint.folder=" + Folder(); }
  std::size_t Count(const std::string& prefix) {
    LocalFileSystem files;
    std::vector<std::string> names;
    EXPECT_EQ(files.List(Folder(), &names), 0);
    return static_cast<std::size_t>(
        std::count_if(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); }));
  }
  testing::TempFolder folder_;
};

TEST_F(Together, GoesOnBitForBitAndByWhicheverWay) {
  auto whole = TrainOnThreads(Job(30), 2);
  ASSERT_TRUE(whole[0].status.ok()) << whole[0].status.ToString();
  for (bool together : {true, false}) {  // the rest saves the other way than the beginning
    auto begun = TrainOnThreads(Job(20, {Checkpoints(), "checkpoint.every_steps=8"}), 2, {.run = 3, .together = together});
    ASSERT_TRUE(begun[0].status.ok()) << begun[0].status.ToString();
    ASSERT_TRUE(begun[1].status.ok()) << begun[1].status.ToString();
    EXPECT_EQ(begun[0].milestones, (std::vector<std::uint64_t>{8, 16, 20}));
    EXPECT_TRUE(begun[1].milestones.empty());
    EXPECT_EQ(Count("step-"), 3u);
    EXPECT_EQ(Count("part-"), together ? 6u : 0u);
    EXPECT_EQ(Count("."), 0u);
    auto rest = TrainOnThreads(Job(30, {Checkpoints(), "checkpoint.keep=1"}), 2, {.run = 4, .together = !together});
    ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
    EXPECT_EQ(rest[0].summary.resumed_from, 20);
    EXPECT_EQ(rest[0].losses, (std::vector<double>(whole[0].losses.begin() + 20, whole[0].losses.end())));
    EXPECT_EQ(Count("step-"), 1u);
    EXPECT_EQ(Count("part-"), together ? 0u : 2u);
    LocalFileSystem files;
    ASSERT_EQ(storage::RemoveTree(files, Folder()), 0);
  }
}

// What one rank reads was written by four, or the reverse; in f64, whose rounding is below what is compared.
TEST_F(Together, AtOtherNumbersOfRanks) {
  auto whole = TrainOnThreads(Job(20, {"train.dtype=f64"}), 1);
  for (std::int32_t from : {4, 3}) {
    TrainOnThreads(Job(15, {"train.dtype=f64", Checkpoints()}), from, {.run = 3, .together = true});
    EXPECT_EQ(Count("part-"), static_cast<std::size_t>(from));
    for (std::int32_t to : {1, 2, 4}) {
      auto rest = TrainOnThreads(Job(20, {"train.dtype=f64", Checkpoints(), "checkpoint.keep=9"}), to, {.run = 3, .together = true});
      ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
      EXPECT_EQ(rest[0].summary.resumed_from, 15);
      ASSERT_EQ(rest[0].losses.size(), 5u);
      for (int i = 0; i < 5; ++i) EXPECT_NEAR(rest[0].losses[i], whole[0].losses[15 + i], 1e-9) << from << " to " << to;
      std::filesystem::remove(CheckpointPath(Folder(), 20));
    }
    LocalFileSystem files;
    ASSERT_EQ(storage::RemoveTree(files, Folder()), 0);
  }
}

// Of a rank that dies in the middle the gang is formed anew; a part that is gone makes its checkpoint one that is passed over.
TEST_F(Together, ADamagedPartIsPassedOverByAllRanks) {
  auto whole = TrainOnThreads(Job(20), 2);
  const TrainJob job = Job(20, {Checkpoints(), "checkpoint.every_steps=5"});
  auto dying = TrainOnThreads(job, 2,
                              {.on_step =
                                   [](testing::ThreadGang& gang, std::int64_t step) {
                                     if (step == 12 && gang.rank() == 1) throw std::runtime_error("the power is gone");
                                   },
                               .run = 7,
                               .together = true});
  EXPECT_FALSE(dying[0].status.ok());
  EXPECT_EQ(Count("part-"), 4u);  // of steps 5 and 10
  std::filesystem::remove(Folder() + "/part-000000000010-0000000000000007-0-1-0.safetensors");
  ::testing::internal::CaptureStderr();
  auto rest = TrainOnThreads(job, 2, {.run = 7, .epoch = 1, .together = true});
  const std::string said = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
  EXPECT_EQ(rest[0].summary.resumed_from, 5);
  EXPECT_EQ(rest[0].losses, (std::vector<double>(whole[0].losses.begin() + 5, whole[0].losses.end())));
  EXPECT_NE(said.find("step-000000000010.safetensors\" is no whole checkpoint"), std::string::npos) << said;
  EXPECT_NE(said.find("is missing: there is no such file"), std::string::npos) << said;
}

TEST_F(Together, AFolderThatTakesNoCheckpointsEndsAllRanksAtTheirStart) {
  std::ofstream(folder_.path() + "/file") << "no folder";
  for (const auto& rank :
       TrainOnThreads(Job(5, {"checkpoint.folder=" + folder_.path() + "/file/below", "checkpoint.resume=false"}), 3, {.together = true})) {
    EXPECT_EQ(rank.status.tag(), "CKPT01") << rank.status.ToString();
    EXPECT_TRUE(rank.losses.empty());
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
