// Trainings that go on from a checkpoint are the trainings that never stopped; what does not fit, what was disowned, what a last step
// spoils.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/random.h"
#include "mlrunner/train/checkpoint.h"
#include "tests/unit/faulty_files.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using storage::FaultyFiles;
using storage::LocalFileSystem;
using testing::JobOf;
using testing::RankResult;
using testing::TrainOnThreads;

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
  return loaded.ok() ? *loaded : Checkpoint{.step = -2, .position = {}, .tensors = {}};
}
Status Save(const std::string& folder, const Checkpoint& checkpoint) {
  LocalFileSystem files;
  return SaveCheckpoint(files, folder, checkpoint, {.stands_on = checkpoint.step}).status();
}

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
  std::string Folder() { return folder_.path() + "/checkpoints"; }
  std::string Checkpoints() { return "checkpoint.folder=" + Folder(); }
  // Linear in what it learns from, so that its weights, which each step makes 10^12 times as large, outgrow f32 in a step whose loss does
  // not.
  static TrainJob Exploding(int steps) {
    return JobOf({"model.hidden=", "data.samples_max=64", "train.batch=32", "train.threads=1", "train.steps=" + std::to_string(steps),
                  "optimizer.learning_rate=999999", "optimizer.weight_decay=999999"});
  }
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
    EXPECT_EQ(rest[0].resumed, std::vector<std::string>{"45 " + Folder() + "/step-000000000045.safetensors, 0"}) << "before the first step";
    EXPECT_TRUE(whole[0].resumed.empty() && rest.back().resumed.size() == (ranks == 1 ? 1u : 0u)) << "once, by rank 0";
    ASSERT_FALSE(rest[0].lines.empty());
    EXPECT_TRUE(rest[0].lines[0].starts_with("step 46 of 70, resumed at 45, epoch ")) << rest[0].lines[0];
    EXPECT_EQ(rest[0].losses, (std::vector<double>(whole[0].losses.begin() + 45, whole[0].losses.end()))) << ranks;
    EXPECT_EQ(rest[0].summary.held_out_loss, whole[0].summary.held_out_loss);
    // Nothing is left to do: it counts, and trains no more.
    auto over = TrainOnThreads(Job(70, {Checkpoints()}), ranks);
    ASSERT_TRUE(over[0].status.ok()) << over[0].status.ToString();
    EXPECT_TRUE(over[0].losses.empty());
    EXPECT_EQ(over[0].summary.held_out_loss, whole[0].summary.held_out_loss);
    EXPECT_EQ(over[0].summary.loss, whole[0].losses.back()) << "the last step's, whoever made it";
    LocalFileSystem files;
    ASSERT_EQ(storage::RemoveTree(files, Folder()), 0);
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
    ASSERT_EQ(files.RemoveFile(CheckpointPath(Folder(), 40)), 0);
  }
}

// Another order of the same losses would not do: without the moments, or with the wrong samples, they differ.
TEST_F(Resume, MomentsAndPositionMatter) {
  auto whole = TrainOnThreads(Job(50), 1);
  TrainOnThreads(Job(40, {Checkpoints()}), 1);
  LocalFileSystem files;
  auto loaded = LoadCheckpoint(files, CheckpointPath(Folder(), 40));
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
    ASSERT_TRUE(Save(Folder(), changed).ok());
    auto rest = TrainOnThreads(Job(50, {Checkpoints(), "checkpoint.every_steps=1000000"}), 1);
    ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
    EXPECT_NE(rest[0].losses, (std::vector<double>(whole[0].losses.begin() + 40, whole[0].losses.end())));
    ASSERT_EQ(files.RemoveFile(CheckpointPath(Folder(), 50)), 0);
  }
}

// What a gang is formed anew for is counted from the newest checkpoint on. The rank that saves says so.
TEST_F(Resume, TheGangHearsOfEachCheckpoint) {
  auto ranks = TrainOnThreads(Job(20, {Checkpoints(), "checkpoint.every_steps=8"}), 2);
  ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
  EXPECT_EQ(ranks[0].milestones, (std::vector<std::uint64_t>{8, 16, 20}));
  EXPECT_TRUE(ranks[1].milestones.empty());
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
  Checkpoint old = Newest(Folder());
  EXPECT_NE(old.vocabulary, 0u);
  old.vocabulary = old.data = 0;
  old.samples = 0;
  ASSERT_TRUE(Save(Folder(), old).ok());
  auto again = TrainOnThreads(Job(9, {Checkpoints()}), 1);
  EXPECT_TRUE(again[0].status.ok()) << again[0].status.ToString();
}

// The same characters in another text, and another number of samples of the same text: all shapes are the same, and the place in the epoch
// is one of other samples.
TEST_F(Resume, ACheckpointOfOtherDataIsRefused) {
  TrainOnThreads(Job(5, {Checkpoints()}), 1);
  auto fewer = TrainOnThreads(Job(9, {Checkpoints(), "data.samples_max=300"}), 1);
  EXPECT_EQ(fewer[0].status.tag(), "CKPT03") << fewer[0].status.ToString();
  EXPECT_EQ(fewer[0].status.why(), "it has learnt from 315 samples, and there are 300 now");
  const std::string path = folder_.path() + "/text", text = Slurp(path);
  std::ofstream(path, std::ios::trunc) << std::string(text.rbegin(), text.rend());
  for (int steps : {5, 9}) {  // also where nothing is left to do
    auto other = TrainOnThreads(Job(steps, {Checkpoints()}), 2);
    EXPECT_EQ(other[0].status.tag(), "CKPT03") << other[0].status.ToString();
    EXPECT_NE(other[0].status.why().find("from other samples"), std::string::npos) << other[0].status.ToString();
  }
  // One that was written before checkpoints said it is believed.
  Checkpoint old = Newest(Folder());
  EXPECT_EQ(old.samples, 315);
  old.data = 0;
  old.samples = 0;
  ASSERT_TRUE(Save(Folder(), old).ok());
  EXPECT_TRUE(TrainOnThreads(Job(9, {Checkpoints()}), 1)[0].status.ok());
}

// resume = false disowns what others have left, in whichever forming, and not what the gang itself has written.
TEST_F(Resume, BeginsAnewAndGoesOnWithItsOwn) {
  const std::vector<std::string> settings = {Checkpoints(), "checkpoint.resume=false", "checkpoint.every_steps=10", "checkpoint.keep=2"};
  auto whole = TrainOnThreads(Job(40), 2);
  TrainOnThreads(Job(70, {Checkpoints(), "checkpoint.every_steps=10", "optimizer.learning_rate=0.02"}), 2, {.run = 5});
  const TrainJob job = Job(40, settings);
  auto dying = TrainOnThreads(job, 2,
                              {.on_step =
                                   [](testing::ThreadGang&, std::int64_t step) {
                                     if (step == 25) throw std::runtime_error("the power is gone");
                                   },
                               .run = 7});
  EXPECT_EQ(dying[0].losses, (std::vector<double>(whole[0].losses.begin(), whole[0].losses.begin() + 26)));
  auto rest = TrainOnThreads(job, 2, {.run = 7, .epoch = 1});
  ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
  EXPECT_EQ(rest[0].summary.resumed_from, 20);
  EXPECT_EQ(rest[0].losses, (std::vector<double>(whole[0].losses.begin() + 20, whole[0].losses.end())));
  LocalFileSystem files;
  EXPECT_EQ(*ListCheckpoints(files, Folder()), (std::vector<std::string>{CheckpointPath(Folder(), 40), CheckpointPath(Folder(), 30)}));
  std::vector<std::string> names;
  ASSERT_EQ(files.List(Folder(), &names), 0);
  EXPECT_EQ(std::count_if(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("aside-"); }), 3);
  // One of another run: it has nothing yet, whichever forming it is. And resume = true takes what is there.
  for (std::uint32_t epoch : {0u, 3u}) {
    auto other = TrainOnThreads(Job(5, settings), 2, {.run = 8 + epoch, .epoch = epoch});
    ASSERT_TRUE(other[0].status.ok()) << other[0].status.ToString();
    EXPECT_EQ(other[0].summary.resumed_from, -1);
    EXPECT_EQ(*ListCheckpoints(files, Folder()), std::vector<std::string>{CheckpointPath(Folder(), 5)});
  }
  EXPECT_EQ(TrainOnThreads(Job(40, {Checkpoints()}), 2, {.run = 9})[0].summary.resumed_from, 5);
}

TEST_F(Resume, WhatItWritesStaysInAFolderOfALongerTraining) {
  TrainOnThreads(Job(60, {Checkpoints(), "checkpoint.every_steps=20"}), 1, {.run = 5});
  auto result = TrainOnThreads(Job(9, {Checkpoints(), "checkpoint.resume=false", "checkpoint.every_steps=3"}), 1, {.run = 6});
  ASSERT_TRUE(result[0].status.ok()) << result[0].status.ToString();
  LocalFileSystem files;
  EXPECT_EQ(*ListCheckpoints(files, Folder()),
            (std::vector<std::string>{CheckpointPath(Folder(), 9), CheckpointPath(Folder(), 6), CheckpointPath(Folder(), 3)}));
  EXPECT_EQ(Newest(Folder()).run, 6u);
}

// Steps that were made with another batch count as what they were: the rate falls to its end over the steps that are left.
TEST_F(Resume, AnotherBatchKeepsTheScheduleToTheEndOfTheEpochs) {
  auto job = [&](int steps, std::int64_t epochs, std::int64_t batch) {
    TrainJob job = Job(steps, {Checkpoints(), "optimizer.schedule=linear", "optimizer.warmup_steps=0", "checkpoint.keep=9"});
    job.epochs = epochs;
    job.batch = batch;
    return job;
  };
  TrainOnThreads(job(0, 1, 5), 1);
  ASSERT_EQ(Newest(Folder()).step, 63);  // two epochs in batches of 20 make 32
  auto rest = TrainOnThreads(job(0, 2, 20), 1);
  ASSERT_TRUE(rest[0].status.ok()) << rest[0].status.ToString();
  EXPECT_EQ(rest[0].summary.resumed_from, 63);
  EXPECT_EQ(rest[0].summary.steps, 79);
  LocalFileSystem files;
  ASSERT_EQ(files.RemoveFile(CheckpointPath(Folder(), 79)), 0);
  auto said = TrainOnThreads(job(79, 0, 20), 1);
  ASSERT_TRUE(said[0].status.ok()) << said[0].status.ToString();
  EXPECT_EQ(rest[0].losses, said[0].losses);
}

// A disk that fails for one rank is another matter than a folder that it does not have: only the second is a mistake of the job.
TEST_F(Resume, ARankThatCannotReadTheCheckpointSaysWhy) {
  TrainOnThreads(Job(5, {Checkpoints()}), 1);
  struct Case {
    int error;
    Code code;
  };
  for (const Case& c : {Case{EIO, Code::kUnavailable}, Case{ENOENT, Code::kNotFound}}) {
    FaultyFiles files;
    files.fail_at = 2;  // after rank 0's list and its checkpoint
    files.error = c.error;
    auto result = TrainOnThreads(Job(5, {Checkpoints()}), 2, {.files = &files});
    EXPECT_EQ(result[1].status.tag(), "CKPT04") << result[1].status.ToString();
    EXPECT_EQ(result[1].status.code(), c.code) << result[1].status.ToString();
  }
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
  ASSERT_TRUE(TryCheckpointFolder(files, folder_.path() + "/a/b", {}).ok());
  std::vector<std::string> names;
  ASSERT_EQ(files.List(folder_.path() + "/a/b", &names), 0);
  EXPECT_TRUE(names.empty());
  FaultyFiles full;
  full.fail_at = 1;
  full.error = EROFS;
  Status status = TryCheckpointFolder(full, folder_.path() + "/a/b", {});
  EXPECT_EQ(status.tag(), "CKPT01");
  EXPECT_NE(status.fix().find("writable"), std::string::npos) << status.ToString();
}

// A checkpoint that is passed over, and a batch that is larger than the data, are said: the training goes on, but not as somebody thinks.
TEST_F(Resume, WhatIsDoneOtherwiseThanAskedForIsSaid) {
  TrainOnThreads(Job(5, {Checkpoints()}), 1);
  std::filesystem::resize_file(CheckpointPath(Folder(), 5), 100);
  ::testing::internal::CaptureStderr();
  auto result = TrainOnThreads(Job(2, {Checkpoints(), "train.batch=1000"}), 2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(result[0].status.ok()) << result[0].status.ToString();
  EXPECT_EQ(Newest(Folder()).step, 2) << "what was passed over is not what is kept";
  for (const char* line : {"warning: passed over: ", "warning: train.batch is 1000, more than all training samples (315)",
                           "warning: a checkpoint that this training does not go on from was set aside as \""}) {
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
    Checkpoint newest = Newest(Folder());
    EXPECT_GT(newest.step, 0);
    for (const auto& [name, tensor] : newest.tensors) {
      for (double value : ToRef(tensor).data) ASSERT_TRUE(std::isfinite(value)) << name;
    }
    LocalFileSystem files;
    ASSERT_EQ(storage::RemoveTree(files, Folder()), 0);
  }
}

// A step whose loss is a number, and whose update makes none of the parameters: no step comes after it that would notice.
TEST_F(Resume, TheLastUpdateIsLookedAtToo) {
  int spoilt = 0, fine = 0;
  for (int steps : {2, 4, 5}) {
    for (const RankResult& rank : TrainOnThreads(Exploding(steps), 2)) {
      if (rank.status.ok()) {
        ++fine;
        EXPECT_EQ(spoilt, 0);
        continue;
      }
      EXPECT_EQ(rank.status.tag(), "TRAIN01") << rank.status.ToString();
      if (rank.losses.size() < static_cast<std::size_t>(steps)) continue;  // the loss said it
      ++spoilt;
      EXPECT_NE(rank.status.what().find("step " + std::to_string(steps - 1) + ": "), std::string::npos) << rank.status.ToString();
      EXPECT_NE(rank.status.what().find("the first is out/"), std::string::npos) << rank.status.ToString();
      EXPECT_EQ(rank.status.why(), "its loss was a number");
    }
  }
  EXPECT_GT(fine, 0);
  EXPECT_EQ(spoilt, 2) << "once, on both ranks";
}

// Held-out samples that take long, during which the job is cancelled or a peer is lost.
class SlowSamples final : public Samples {
 public:
  SlowSamples(testing::ThreadGang& gang, int* asked) : gang_(gang), asked_(asked) {}
  std::int64_t count() const override { return 64; }
  const std::vector<Field>& fields() const override { return fields_; }
  void Fill(const FillCall& call) const override {
    if (call.field == 1) {
      std::fill_n(static_cast<std::int32_t*>(call.rows), call.ids.size(), 0);
      return;
    }
    std::fill_n(static_cast<float*>(call.rows), 2 * call.ids.size(), 1.f);
    if (asked_ == nullptr || ++*asked_ != 3) return;
    EXPECT_TRUE(gang_.on_lost) << "nobody would hear of it";
    if (gang_.on_lost) gang_.on_lost(Status(Code::kUnavailable, "GANG02", "a rank is lost"));
  }
  std::uint64_t content_hash() const override { return 1; }

 private:
  testing::ThreadGang& gang_;
  int* asked_;
  std::vector<Field> fields_ = {{"features", Dtype::kF32, {2}}, {"label", Dtype::kI32, {}, 2}};
};

TEST_F(Resume, ALossWhileTheHeldOutSamplesAreCountedIsNoticed) {
  for (std::int32_t ranks : {1, 2}) {
    std::vector<int> asked(static_cast<std::size_t>(ranks));
    auto result = TrainOnThreads(JobOf({"model.hidden=3", "train.batch=4", "train.steps=2", "train.threads=1", "train.evaluate_batch=1"}),
                                 ranks, {.load = [&](testing::ThreadGang& gang) -> Result<DataSet> {
                                   DataSet data;
                                   data.training = std::make_unique<SlowSamples>(gang, nullptr);
                                   data.held_out = std::make_unique<SlowSamples>(gang, &asked[static_cast<std::size_t>(gang.rank())]);
                                   return data;
                                 }});
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(result[rank].losses.size(), 2u) << result[rank].status.ToString();
      EXPECT_EQ(result[rank].status.tag(), "GANG02") << result[rank].status.ToString();
      EXPECT_EQ(asked[rank], 3);
    }
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
