// Checkpoints are written beside the steps: from a copy, one at a time, and to their end whatever ends the training.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "mlrunner/train/checkpoint.h"
#include "tests/unit/faulty_files.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using storage::FaultyFiles;
using storage::LocalFileSystem;
using testing::JobOf;
using testing::ThreadGang;
using testing::TrainOnThreads;

// How many steps the training has made, for a disk that waits for them.
class Progress {
 public:
  void Made(std::int64_t steps) {
    std::lock_guard lock(mutex_);
    steps_ = std::max(steps_, steps);
    changed_.notify_all();
  }
  // False: they were not made in any time that a test can wait.
  bool Await(std::int64_t steps) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return steps_ >= steps; });
  }
  std::int64_t steps() {
    std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t steps_ = 0;
};

class Saves : public ::testing::Test {
 protected:
  Saves() { std::ofstream(folder_.path() + "/text") << std::string(40, 'a') + "red fish, blue bird; one fish, two fish. What a day!"; }
  TrainJob Job(int steps, int every) {
    return JobOf(testing::TinyGpt(folder_.path() + "/text", steps,
                                  {{"train.batch=4", "optimizer.kind=adamw", "checkpoint.folder=" + Folder(),
                                    "checkpoint.every_steps=" + std::to_string(every), "checkpoint.keep=100"}}));
  }
  std::string Folder() { return folder_.path() + "/checkpoints"; }
  Checkpoint At(const std::string& folder, std::int64_t step) {
    LocalFileSystem files;
    auto loaded = LoadCheckpoint(files, CheckpointPath(folder, step));
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return loaded.ok() ? *std::move(loaded) : Checkpoint();
  }
  testing::TempFolder folder_;
};

TEST_F(Saves, StepsGoOnMeanwhileAndChangeNothingInWhatIsSaved) {
  for (std::int32_t ranks : {1, 2}) {
    Progress progress;
    std::atomic<bool> went_on = true;
    FaultyFiles slow;
    slow.before = [&](int) {
      if (const std::int64_t made = progress.steps(); made >= 3 && made < 6) went_on = went_on && progress.Await(6);
    };
    auto result = TrainOnThreads(Job(8, 3), ranks, {.files = &slow, .on_step = [&](ThreadGang& gang, std::int64_t step) {
                                                      if (gang.rank() == 0) progress.Made(step + 1);
                                                    }});
    ASSERT_TRUE(result[0].status.ok()) << result[0].status.ToString();
    EXPECT_TRUE(went_on) << "the steps waited for the disk";
    EXPECT_EQ(result[0].milestones, (std::vector<std::uint64_t>{3, 6, 8}));
    const Checkpoint beside = At(Folder(), 3);
    storage::LocalFileSystem files;
    ASSERT_EQ(storage::RemoveTree(files, Folder()), 0);
    ASSERT_TRUE(TrainOnThreads(Job(3, 3), ranks)[0].status.ok());
    const Checkpoint alone = At(Folder(), 3);
    ASSERT_EQ(beside.tensors.size(), alone.tensors.size());
    for (const auto& [name, tensor] : alone.tensors) EXPECT_EQ(beside.tensors.at(name).bytes, tensor.bytes) << name;
    EXPECT_EQ(beside.position, alone.position);
    EXPECT_EQ(beside.loss, alone.loss);
    ASSERT_EQ(storage::RemoveTree(files, Folder()), 0);
  }
}

TEST_F(Saves, ASlowDiskIsNotOvertaken) {
  Progress progress;
  std::atomic<std::int64_t> asked = 0, most = 0;
  FaultyFiles slow;
  // With a checkpoint after each step, the one of step n is on its way at the earliest when that of step n-1 is safe.
  slow.before = [&](int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    LocalFileSystem files;
    auto there = ListCheckpoints(files, Folder());
    if (there.ok()) most = std::max(most.load(), progress.steps() - static_cast<std::int64_t>(there->size()));
    ++asked;
  };
  auto result = TrainOnThreads(Job(6, 1), 1, {.files = &slow, .on_step = [&](ThreadGang&, std::int64_t step) { progress.Made(step + 1); }});
  ASSERT_TRUE(result[0].status.ok()) << result[0].status.ToString();
  EXPECT_GT(asked, 0);
  EXPECT_LE(most, 2);
  EXPECT_EQ(result[0].milestones, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6}));
  for (std::int64_t step = 1; step <= 6; ++step) EXPECT_EQ(At(Folder(), step).step, step);
}

TEST_F(Saves, WhatIsUnderWayWhenTheTrainingEndsIsWritten) {
  Progress progress;
  FaultyFiles slow;
  slow.before = [&](int) {
    if (progress.steps() >= 3) {
      EXPECT_TRUE(progress.Await(5));
    }
  };
  auto result = TrainOnThreads(Job(20, 3), 1, {.files = &slow, .on_step = [&](ThreadGang&, std::int64_t step) {
                                                 progress.Made(step + 1);
                                                 if (step == 4) throw std::runtime_error("a step that fails");
                                               }});
  EXPECT_EQ(result[0].status.tag(), "TEST01");
  EXPECT_EQ(At(Folder(), 3).step, 3);
}

TEST_F(Saves, AFailureIsHeardOfAtTheNextStepThatAsks) {
  Progress progress;
  FaultyFiles full;
  full.before = [&](int n) {
    if (progress.steps() >= 3 && full.fail_at < 0) full.fail_at = n;
  };
  full.error = ENOSPC;
  full.crash = true;
  auto result =
      TrainOnThreads(Job(1000, 3), 1, {.files = &full, .on_step = [&](ThreadGang&, std::int64_t step) { progress.Made(step + 1); }});
  EXPECT_EQ(result[0].status.tag(), "CKPT01") << result[0].status.ToString();
  EXPECT_TRUE(result[0].milestones.empty());
  EXPECT_LE(result[0].losses.size(), 6u) << "the next save waits for this one";
}

}  // namespace
}  // namespace ropewalk::mlrunner
