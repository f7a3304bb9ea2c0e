// Checkpoints: whole or not there, whatever fails or dies during a save; rotation; damage; a training that goes on is the training that
// never stopped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/random.h"
#include "mlrunner/train/checkpoint.h"
#include "tests/unit/faulty_files.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using storage::FaultyFiles;
using storage::LocalFileSystem;
using testing::JobOf;
using testing::TrainOnThreads;

Checkpoint Make(std::int64_t step) {
  Checkpoint checkpoint{step, {2, step + 7}, 11, {}, ~std::uint64_t{0}};
  RefTensor w{{3, 4}, {}};
  for (int i = 0; i < 12; ++i) w.data.push_back(static_cast<double>(step) + i * .25);
  checkpoint.tensors["layer0/w"] = ToTensor(Dtype::kF32, w);
  checkpoint.tensors["layer0/w/first_moment"] = ToTensor(Dtype::kBF16, w);
  checkpoint.tensors["optimizer/step"] = ToTensor(Dtype::kF64, RefTensor::Scalar(static_cast<double>(step)));
  checkpoint.tensors["nothing"] = Tensor{Dtype::kF32, {0, 5}, {}};
  return checkpoint;
}
void ExpectEqual(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.vocabulary, b.vocabulary);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    ASSERT_TRUE(b.tensors.contains(name)) << name;
    EXPECT_EQ(tensor.dtype, b.tensors.at(name).dtype);
    EXPECT_EQ(tensor.dims, b.tensors.at(name).dims);
    EXPECT_EQ(tensor.bytes, b.tensors.at(name).bytes);
  }
}
std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
Checkpoint Newest(const std::string& folder) {
  LocalFileSystem files;
  std::vector<Status> passed_over;
  auto loaded = LoadNewestCheckpoint(files, folder, &passed_over);
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return loaded.ok() ? *loaded : Checkpoint{-2, {}, 0, {}};
}

TEST(Checkpoint, RoundTripAndRotation) {
  testing::TempFolder folder;
  LocalFileSystem files;
  const std::string path = folder.path() + "/deep/er";
  EXPECT_EQ(Newest(path).step, -1);
  for (std::int64_t step : {9900, 9950, 10000, 100000}) ASSERT_TRUE(SaveCheckpoint(files, path, Make(step), 2).ok());
  auto paths = ListCheckpoints(files, path);
  ASSERT_TRUE(paths.ok());
  EXPECT_EQ(*paths, (std::vector<std::string>{path + "/step-000000100000.safetensors", path + "/step-000000010000.safetensors"}));
  ExpectEqual(Newest(path), Make(100000));
}

// The form that other tools read: the header's length, JSON, bytes at the offsets that it says.
TEST(Checkpoint, IsASafetensorsFile) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(SaveCheckpoint(files, folder.path(), Make(5), 2).ok());
  std::string file = Slurp(CheckpointPath(folder.path(), 5));
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  ASSERT_LT(8 + length, file.size());
  EXPECT_EQ(length % 8, 0u);
  std::string header = file.substr(8, length);
  EXPECT_NE(header.find(R"("layer0/w":{"data_offsets":[0,48],"dtype":"F32","shape":[3,4]})"), std::string::npos) << header;
  EXPECT_NE(header.find(R"("step":"5")"), std::string::npos) << header;
  float first = 0;
  std::memcpy(&first, file.data() + 8 + length, sizeof first);
  EXPECT_EQ(first, 5);
}

// A process that dies in any operation of a save: everything after it does not happen, and what was being written is half there.
TEST(Checkpoint, KilledAnywhereInASaveTheNewestWholeOneLoads) {
  int survived_new = 0, survived_old = 0;
  for (bool torn : {false, true}) {
    for (int fail_at = 0;; ++fail_at) {
      testing::TempFolder folder;
      LocalFileSystem files;
      ASSERT_TRUE(SaveCheckpoint(files, folder.path(), Make(100), 1).ok());
      FaultyFiles dying;
      dying.fail_at = fail_at;
      dying.crash = true;
      dying.torn = torn;
      Status status = SaveCheckpoint(dying, folder.path(), Make(200), 1);
      if (dying.operations <= fail_at) break;  // it was over before
      Checkpoint newest = Newest(folder.path());
      ASSERT_TRUE(newest.step == 100 || newest.step == 200) << "killed in operation " << fail_at;
      ExpectEqual(newest, Make(newest.step));
      ++(newest.step == 200 ? survived_new : survived_old);
      if (status.ok()) {
        EXPECT_EQ(newest.step, 200) << "a save that said it was done, killed in operation " << fail_at;
      }
      // The next save goes through and leaves nothing of the dead one.
      ASSERT_TRUE(SaveCheckpoint(files, folder.path(), Make(300), 1).ok());
      std::vector<std::string> names;
      ASSERT_EQ(files.List(folder.path(), &names), 0);
      EXPECT_EQ(names, std::vector<std::string>{"step-000000000300.safetensors"}) << "killed in operation " << fail_at;
    }
  }
  EXPECT_GT(survived_new, 0);
  EXPECT_GT(survived_old, 4);
}

TEST(Checkpoint, AFullDiskKeepsTheOldOneAndSaysSo) {
  for (int fail_at = 0; fail_at < 9; ++fail_at) {
    testing::TempFolder folder;
    LocalFileSystem files;
    ASSERT_TRUE(SaveCheckpoint(files, folder.path(), Make(100), 1).ok());
    FaultyFiles full;
    full.fail_at = fail_at;
    full.error = ENOSPC;
    full.torn = true;
    Status status = SaveCheckpoint(full, folder.path(), Make(200), 1);
    if (status.ok()) continue;  // the fault met what is no part of being safe
    EXPECT_EQ(status.tag(), "CKPT01");
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
    EXPECT_NE(status.what().find(folder.path()), std::string::npos) << status.ToString();
    EXPECT_GE(Newest(folder.path()).step, 100);
  }
}

TEST(Checkpoint, EveryFlippedBitAndEveryTruncationIsNoticed) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(SaveCheckpoint(files, folder.path(), Make(1), 9).ok());
  ASSERT_TRUE(SaveCheckpoint(files, folder.path(), Make(2), 9).ok());
  const std::string path = CheckpointPath(folder.path(), 2), whole = Slurp(path);
  auto try_with = [&](const std::string& bytes, std::size_t at) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    auto loaded = LoadCheckpoint(files, path);
    ASSERT_FALSE(loaded.ok()) << at;
    EXPECT_EQ(loaded.status().tag(), "CKPT02") << at;
    EXPECT_EQ(loaded.status().code(), Code::kDataLoss) << at;
  };
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    try_with(bytes, bit);
  }
  for (std::size_t length = 0; length < whole.size(); length += 3) try_with(whole.substr(0, length), length);
  // The one before it is used, and why is told.
  std::vector<Status> passed_over;
  auto loaded = LoadNewestCheckpoint(files, folder.path(), &passed_over);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->step, 1);
  ASSERT_EQ(passed_over.size(), 1u);
  EXPECT_NE(passed_over[0].what().find("step-000000000002"), std::string::npos);
}

// --- of a training ---

class Resume : public ::testing::Test {
 protected:
  Resume() {
    std::ofstream text(folder_.path() + "/text");
    Random random(3);
    for (int i = 0; i < 200; ++i) text << (random.OneIn(2) ? "red fish. " : "blue bird! ");
  }
  TrainJob Job(int steps, std::vector<std::string> more = {}) {
    return JobOf(
        testing::TinyGpt(folder_.path() + "/text", steps,
                         {{"train.batch=10", "optimizer.kind=adamw", "optimizer.learning_rate=0.01", "optimizer.warmup_steps=20"}, more}));
  }
  std::string Checkpoints() { return "checkpoint.folder=" + folder_.path() + "/checkpoints"; }
  testing::TempFolder folder_;
};

// 310 samples in batches of 10: step 45 lies in the middle of an epoch.
TEST_F(Resume, GoesOnBitForBit) {
  for (std::int32_t ranks : {1, 2}) {
    auto whole = TrainOnThreads(Job(70), ranks);
    ASSERT_TRUE(whole[0].status.ok()) << whole[0].status.ToString();
    TrainOnThreads(Job(45, {Checkpoints()}), ranks);
    auto rest = TrainOnThreads(Job(70, {Checkpoints()}), ranks);
    ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
    EXPECT_EQ(rest[0].summary.resumed_from, 45);
    EXPECT_EQ(rest[0].losses, (std::vector<double>(whole[0].losses.begin() + 45, whole[0].losses.end()))) << ranks;
    EXPECT_EQ(rest[0].summary.held_out_loss, whole[0].summary.held_out_loss);
    // Nothing is left to do: it counts, and trains no more.
    auto over = TrainOnThreads(Job(70, {Checkpoints()}), ranks);
    ASSERT_TRUE(over[0].status.ok()) << over[0].status.ToString();
    EXPECT_TRUE(over[0].losses.empty());
    EXPECT_EQ(over[0].summary.held_out_loss, whole[0].summary.held_out_loss);
    LocalFileSystem files;
    ASSERT_EQ(storage::RemoveTree(files, folder_.path() + "/checkpoints"), 0);
  }
}

TEST_F(Resume, AtOtherNumbersOfRanks) {
  auto whole = TrainOnThreads(Job(40, {"train.dtype=f64"}), 1);
  TrainOnThreads(Job(30, {"train.dtype=f64", Checkpoints()}), 4);
  for (std::int32_t ranks : {1, 2, 3, 8}) {
    auto rest = TrainOnThreads(Job(40, {"train.dtype=f64", Checkpoints(), "checkpoint.keep=9"}), ranks);
    ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
    ASSERT_EQ(rest[0].losses.size(), 10u);
    for (int i = 0; i < 10; ++i) EXPECT_NEAR(rest[0].losses[i], whole[0].losses[30 + i], 1e-9) << ranks;
    LocalFileSystem files;
    ASSERT_EQ(files.RemoveFile(CheckpointPath(folder_.path() + "/checkpoints", 40)), 0);
  }
}

// Another order of the same losses would not do: without the moments, or with the wrong samples, they differ.
TEST_F(Resume, MomentsAndPositionMatter) {
  auto whole = TrainOnThreads(Job(50), 1);
  TrainOnThreads(Job(40, {Checkpoints()}), 1);
  LocalFileSystem files;
  auto loaded = LoadCheckpoint(files, CheckpointPath(folder_.path() + "/checkpoints", 40));
  ASSERT_TRUE(loaded.ok());
  EXPECT_TRUE(loaded->tensors.contains("block0/qkv/w/first_moment"));
  EXPECT_FALSE(loaded->tensors.contains("optimizer/learning_rate"));
  for (bool moments : {true, false}) {
    Checkpoint changed = *loaded;
    if (moments) {
      for (auto& [name, tensor] : changed.tensors) {
        if (name.ends_with("_moment")) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0});
      }
    } else {
      changed.position = {0, 0};
    }
    ASSERT_TRUE(SaveCheckpoint(files, folder_.path() + "/checkpoints", changed, 1).ok());
    auto rest = TrainOnThreads(Job(50, {Checkpoints(), "checkpoint.every_steps=1000000"}), 1);
    ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
    EXPECT_NE(rest[0].losses, (std::vector<double>(whole[0].losses.begin() + 40, whole[0].losses.end())));
    ASSERT_EQ(files.RemoveFile(CheckpointPath(folder_.path() + "/checkpoints", 50)), 0);
  }
}

TEST_F(Resume, ACheckpointOfAnotherJobIsRefused) {
  TrainOnThreads(Job(5, {Checkpoints()}), 1);
  struct Case {
    const char* setting;
    const char* why;
  };
  for (const Case& c :
       {Case{"model.width=16", "state "}, Case{"train.seed=2", "seed"}, Case{"model.layers=2", "block1"}, Case{"train.dtype=f64", "f32"}}) {
    auto result = TrainOnThreads(Job(9, {Checkpoints(), c.setting}), 1);
    EXPECT_EQ(result[0].status.tag(), "CKPT03") << c.setting;
    EXPECT_NE(result[0].status.why().find(c.why), std::string::npos) << result[0].status.ToString();
  }
  auto anew = TrainOnThreads(Job(9, {Checkpoints(), "model.width=16", "checkpoint.resume=false"}), 1);
  EXPECT_TRUE(anew[0].status.ok()) << anew[0].status.ToString();
}

// A text with as many characters, of which one is another: all shapes are the same, and ids would mean other characters.
TEST_F(Resume, ACheckpointOfOtherCharactersIsRefused) {
  TrainOnThreads(Job(5, {Checkpoints()}), 1);
  const std::string path = folder_.path() + "/text";
  std::string text = Slurp(path);
  std::replace(text.begin(), text.end(), '!', '?');
  std::ofstream(path, std::ios::trunc) << text;
  auto result = TrainOnThreads(Job(9, {Checkpoints()}), 1);
  EXPECT_EQ(result[0].status.tag(), "CKPT03") << result[0].status.ToString();
  EXPECT_NE(result[0].status.why().find("a text of other characters"), std::string::npos) << result[0].status.ToString();
  // One that was written before checkpoints said of which characters they are is believed.
  LocalFileSystem files;
  Checkpoint old = Newest(folder_.path() + "/checkpoints");
  EXPECT_NE(old.vocabulary, 0u);
  old.vocabulary = 0;
  ASSERT_TRUE(SaveCheckpoint(files, folder_.path() + "/checkpoints", old, 1).ok());
  auto again = TrainOnThreads(Job(9, {Checkpoints()}), 1);
  EXPECT_TRUE(again[0].status.ok()) << again[0].status.ToString();
}

// Before the first step, not after the last.
TEST_F(Resume, AFolderThatTakesNoCheckpointsEndsTheTrainingAtItsStart) {
  std::ofstream(folder_.path() + "/file") << "no folder";
  for (const char* folder : {"/file", "/file/below"}) {
    auto result = TrainOnThreads(Job(5, {"checkpoint.resume=false", "checkpoint.folder=" + folder_.path() + folder}), 1);
    EXPECT_EQ(result[0].status.tag(), "CKPT01") << result[0].status.ToString();
    EXPECT_NE(result[0].status.what().find(folder_.path() + "/file"), std::string::npos) << result[0].status.ToString();
    EXPECT_FALSE(result[0].status.fix().empty());
    EXPECT_TRUE(result[0].losses.empty());
  }
  // One that is only read is enough for a training that is over: it counts what is held out.
  TrainOnThreads(Job(5, {Checkpoints()}), 1);
  FaultyFiles read_only;
  read_only.fail_at = 2;  // after the list and the checkpoint
  read_only.error = EROFS;
  read_only.crash = true;
  EXPECT_TRUE(TrainOnThreads(Job(5, {Checkpoints()}), 1, {.files = &read_only})[0].status.ok());
  read_only.operations = 0;
  EXPECT_EQ(TrainOnThreads(Job(6, {Checkpoints()}), 1, {.files = &read_only})[0].status.tag(), "CKPT01");
  // What is tried is not left behind, and a folder that is missing is made.
  LocalFileSystem files;
  ASSERT_TRUE(TryCheckpointFolder(files, folder_.path() + "/a/b").ok());
  std::vector<std::string> names;
  ASSERT_EQ(files.List(folder_.path() + "/a/b", &names), 0);
  EXPECT_TRUE(names.empty());
  FaultyFiles full;
  full.fail_at = 1;
  full.error = EROFS;
  Status status = TryCheckpointFolder(full, folder_.path() + "/a/b");
  EXPECT_EQ(status.tag(), "CKPT01");
  EXPECT_NE(status.fix().find("writable"), std::string::npos) << status.ToString();
}

// A checkpoint that is passed over, and a batch that is larger than the data, are said: the training goes on, but not as somebody thinks.
TEST_F(Resume, WhatIsDoneOtherwiseThanAskedForIsSaid) {
  TrainOnThreads(Job(5, {Checkpoints()}), 1);
  std::filesystem::resize_file(CheckpointPath(folder_.path() + "/checkpoints", 5), 100);
  ::testing::internal::CaptureStderr();
  auto result = TrainOnThreads(Job(2, {Checkpoints(), "train.batch=1000"}), 2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(result[0].status.ok()) << result[0].status.ToString();
  for (const char* line : {"warning: passed over: ", "warning: train.batch is 1000, more than all training samples (315)"}) {
    const std::size_t at = said.find(line);
    EXPECT_NE(at, std::string::npos) << said;
    EXPECT_EQ(said.find(line, at + 1), std::string::npos) << "once, not by each rank: " << said;
  }
}

// A training that runs into what is no number stops there, names the step, and its newest checkpoint is from before.
TEST_F(Resume, NoNumberIsCheckpointed) {
  for (std::int32_t ranks : {1, 2}) {
    auto result = TrainOnThreads(Job(200, {Checkpoints(), "checkpoint.every_steps=1", "optimizer.kind=sgd", "optimizer.learning_rate=1e5",
                                           "optimizer.warmup_steps=0"}),
                                 ranks);
    for (const auto& rank : result) {
      EXPECT_EQ(rank.status.tag(), "TRAIN01") << rank.status.ToString();
      EXPECT_NE(rank.status.what().find("step "), std::string::npos) << rank.status.ToString();
    }
    Checkpoint newest = Newest(folder_.path() + "/checkpoints");
    EXPECT_GT(newest.step, 0);
    for (const auto& [name, tensor] : newest.tensors) {
      for (double value : ToRef(tensor).data) ASSERT_TRUE(std::isfinite(value)) << name;
    }
    LocalFileSystem files;
    ASSERT_EQ(storage::RemoveTree(files, folder_.path() + "/checkpoints"), 0);
  }
}

TEST_F(Resume, ASaveThatFailsEndsTheTrainingWithItsReason) {
  FaultyFiles full;
  full.fail_at = 12;
  full.error = ENOSPC;
  full.crash = true;
  auto result = TrainOnThreads(Job(20, {Checkpoints(), "checkpoint.every_steps=2"}), 1, {.files = &full});
  EXPECT_EQ(result[0].status.tag(), "CKPT01") << result[0].status.ToString();
  EXPECT_GE(result[0].losses.size(), 2u);
}

}  // namespace
}  // namespace ropewalk::mlrunner
