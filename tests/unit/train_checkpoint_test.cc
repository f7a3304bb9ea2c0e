// Checkpoint files: whole or not there, whatever fails, dies or writes beside it during a save; rotation; what is set aside; damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/tensor_file.h"
#include "tests/unit/faulty_files.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using storage::FaultyFiles;
using storage::LocalFileSystem;
using Paths = std::vector<std::string>;
constexpr std::uint64_t kRun = 0xfedcba9876543210, kOtherRun = 5;

Checkpoint Make(std::int64_t step, std::uint64_t run = kRun) {
  Checkpoint checkpoint{.step = step, .position = {2, step + 7}, .seed = 11, .tensors = {}, .vocabulary = ~std::uint64_t{0}};
  checkpoint.data = ~std::uint64_t{0} - 1;
  checkpoint.samples = std::int64_t{1} << 40;
  checkpoint.run = run;
  checkpoint.loss = 1. / 3;
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
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(a.run, b.run);
  EXPECT_TRUE(a.loss == b.loss || (std::isnan(a.loss) && std::isnan(b.loss))) << a.loss << " " << b.loss;
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
Checkpoint Newest(const std::string& folder, std::uint64_t run = 0) {
  LocalFileSystem files;
  std::vector<Status> passed_over;
  auto loaded = LoadNewestCheckpoint(files, folder, &passed_over, run);
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return loaded.ok() ? *loaded : Checkpoint{.step = -2, .position = {}, .tensors = {}};
}
// By a training that stands on `stands_on`.
Status Save(storage::FileSystem& files, const std::string& folder, const Checkpoint& checkpoint, std::int64_t stands_on,
            std::int64_t keep = 1, std::uint32_t forming = 0) {
  return SaveCheckpoint(files, folder, checkpoint, {.keep = keep, .stands_on = stands_on, .forming = forming}).status();
}
// What lies in the folder, hidden files too.
Paths Names(const std::string& folder) {
  LocalFileSystem files;
  Paths names;
  EXPECT_EQ(files.List(folder, &names), 0);
  return names;
}
void FlipABit(const std::string& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  EXPECT_TRUE(file.good());
}

TEST(Checkpoint, RoundTripAndRotation) {
  testing::TempFolder folder;
  LocalFileSystem files;
  const std::string path = folder.path() + "/deep/er";
  EXPECT_EQ(Newest(path).step, -1);
  std::int64_t last = -1;
  for (std::int64_t step : {9900, 9950, 10000, 100000}) {
    ASSERT_TRUE(Save(files, path, Make(step), std::exchange(last, step), 2).ok());
    ExpectEqual(Newest(path), Make(step));
  }
  EXPECT_EQ(*ListCheckpoints(files, path), (Paths{path + "/step-000000100000.safetensors", path + "/step-000000010000.safetensors"}));
  Checkpoint without = Make(100001);
  without.loss = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(Save(files, path, without, 100000, 2).ok());
  ExpectEqual(Newest(path), without);
}

// Bit by bit, what is no number too; of very many the newest.
TEST(Checkpoint, KeepsTheLossesOfItsSteps) {
  testing::TempFolder folder;
  LocalFileSystem files;
  Checkpoint checkpoint = Make(70'000);
  ASSERT_TRUE(Save(files, folder.path(), checkpoint, -1).ok());
  EXPECT_TRUE(Newest(folder.path()).losses.empty());
  for (int step = 0; step < 70'000; ++step) checkpoint.losses.push_back(1.0 / (step + 3));
  checkpoint.losses.back() = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(Save(files, folder.path(), checkpoint, 70'000).ok());
  const std::vector<double> kept = Newest(folder.path()).losses;
  ASSERT_EQ(kept.size(), kKeptLossesMax);
  const std::span<const double> last = std::span<const double>(checkpoint.losses).last(kKeptLossesMax);
  EXPECT_EQ(std::memcmp(kept.data(), last.data(), last.size_bytes()), 0);
  // More than it has made steps is no checkpoint.
  checkpoint = Make(2);
  checkpoint.losses = {1, 2, 3};
  ASSERT_TRUE(Save(files, folder.path() + "/short", checkpoint, -1).ok());
  EXPECT_EQ(LoadCheckpoint(files, CheckpointPath(folder.path() + "/short", 2)).status().tag(), "CKPT02");
}

// A training that begins anew in the folder of a longer one: what it writes stays, and what it has disowned is neither looked for nor lost.
TEST(Checkpoint, WhatIsDisownedIsSetAsideAndTakesNoPlaceInTheRotation) {
  testing::TempFolder folder;
  LocalFileSystem files;
  std::int64_t last = -1;
  for (std::int64_t step : {50, 100, 2245, 2345}) ASSERT_TRUE(Save(files, folder.path(), Make(step), std::exchange(last, step), 4).ok());
  last = -1;
  for (std::int64_t step = 100; step <= 500; step += 100) {
    auto saved = SaveCheckpoint(files, folder.path(), Make(step, kOtherRun), {.keep = 2, .stands_on = std::exchange(last, step)});
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_TRUE(saved->left.ok()) << saved->left.ToString();
    ASSERT_EQ(saved->aside.size(), step == 100 ? 4u : 0u);
    if (step == 100) {
      EXPECT_EQ(saved->aside[0], folder.path() + "/aside-0000000000000005-step-000000000100.safetensors");  // its name is needed
      EXPECT_EQ(saved->aside[1], folder.path() + "/aside-0000000000000005-step-000000002345.safetensors");
    }
    ExpectEqual(Newest(folder.path()), Make(step, kOtherRun));
  }
  const std::string aside = "aside-0000000000000005-step-";
  EXPECT_EQ(Names(folder.path()),
            (Paths{aside + "000000000050.safetensors", aside + "000000000100.safetensors", aside + "000000002245.safetensors",
                   aside + "000000002345.safetensors", "step-000000000400.safetensors", "step-000000000500.safetensors"}));
  for (std::int64_t step : {50, 100, 2245, 2345}) {
    auto loaded = LoadCheckpoint(files, fmt::format("{}/{}{:012}.safetensors", folder.path(), aside, step));
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    ExpectEqual(*loaded, Make(step));
  }
}

// The same of damaged ones, above the new one and below it.
TEST(Checkpoint, WhatIsDamagedIsSetAsideAndTakesNoPlaceInTheRotation) {
  for (std::int64_t next : {150, 200, 250}) {
    SCOPED_TRACE(next);
    testing::TempFolder folder;
    LocalFileSystem files;
    ASSERT_TRUE(Save(files, folder.path(), Make(100), -1, 2).ok());
    ASSERT_TRUE(Save(files, folder.path(), Make(200), 100, 2).ok());
    FlipABit(CheckpointPath(folder.path(), 200));
    std::vector<Status> passed_over;
    ASSERT_EQ(LoadNewestCheckpoint(files, folder.path(), &passed_over)->step, 100);
    EXPECT_EQ(passed_over.size(), 1u);
    ASSERT_TRUE(Save(files, folder.path(), Make(next), 100, 2).ok());
    Paths expected = {"step-000000000100.safetensors", CheckpointPath("", next).substr(1)};
    if (next != 200) expected.insert(expected.begin(), "aside-fedcba9876543210-step-000000000200.safetensors");  // else it is replaced
    EXPECT_EQ(Names(folder.path()), expected);
    ExpectEqual(Newest(folder.path()), Make(next));
  }
  // The only one that is kept.
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(Save(files, folder.path(), Make(200), -1).ok());
  FlipABit(CheckpointPath(folder.path(), 200));
  ASSERT_TRUE(Save(files, folder.path(), Make(10), -1).ok());
  ExpectEqual(Newest(folder.path()), Make(10));
  ASSERT_TRUE(Save(files, folder.path(), Make(20), 10).ok());
  EXPECT_EQ(*ListCheckpoints(files, folder.path()), Paths{CheckpointPath(folder.path(), 20)});
}

// Those of other runs, and what another version wrote, play no part for a training that asks for its own.
TEST(Checkpoint, OfItsOwnRunOnly) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(Save(files, folder.path(), Make(100), -1, 9).ok());
  EXPECT_EQ(Newest(folder.path(), kOtherRun).step, -1);
  ASSERT_TRUE(Save(files, folder.path(), Make(50, kOtherRun), 40, 9).ok());  // sets 100 aside
  ASSERT_TRUE(Save(files, folder.path(), Make(200), 100, 9).ok());
  EXPECT_EQ(Newest(folder.path()).step, 200);
  EXPECT_EQ(Newest(folder.path(), kOtherRun).step, 50);
  EXPECT_EQ(Newest(folder.path(), 77).step, -1);
}

// It is no damage: to pass it over would be to go back behind it, and to replace what came after.
TEST(Checkpoint, OneOfAnotherVersionIsRefused) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(Save(files, folder.path(), Make(100), -1, 9).ok());
  const std::string path = CheckpointPath(folder.path(), 200);
  ASSERT_TRUE(WriteTensorFile(files, path, {{"format", "ropewalk-checkpoint-3"}, {"where", "elsewhere"}}, Make(200).tensors).ok());
  std::vector<Status> passed_over;
  for (const Status& status : {LoadCheckpoint(files, path).status(), LoadNewestCheckpoint(files, folder.path(), &passed_over).status()}) {
    EXPECT_EQ(status.code(), Code::kVersionSkew) << status.ToString();
    EXPECT_EQ(status.tag(), "CKPT05");
    EXPECT_NE(status.what().find(path), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find("\"ropewalk-checkpoint-3\", and this version reads \"ropewalk-checkpoint-1\""), std::string::npos)
        << status.ToString();
  }
  EXPECT_TRUE(passed_over.empty());
  EXPECT_EQ(Newest(folder.path(), kRun).step, 100);
  // Another program's file is no checkpoint.
  ASSERT_TRUE(WriteTensorFile(files, path, {{"format", "pt"}}, Make(200).tensors).ok());
  EXPECT_EQ(LoadCheckpoint(files, path).status().code(), Code::kDataLoss);
  EXPECT_EQ(Newest(folder.path()).step, 100);
}

// The form that other tools read: the header's length, JSON, bytes at the offsets that it says.
TEST(Checkpoint, IsASafetensorsFile) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(Save(files, folder.path(), Make(5), -1).ok());
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

// Byte for byte what versions wrote that knew no parts. It is still what one rank alone writes, so that those can go on from it, too.
TEST(Checkpoint, TheFirstFormIsReadAndWrittenAsItWas) {
  std::string header =
      R"({"__metadata__":{"checksum":"8beb6df72dc8752c","data":"9","epoch":"1","format":"ropewalk-checkpoint-1","loss":"0.5",)"
      R"("offset":"6","run":"7","samples":"8","seed":"3","step":"40","vocabulary":"5"},)"
      R"("w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  const float values[] = {1, -2};
  std::string bytes(sizeof length + sizeof values, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, values, sizeof values);
  bytes.insert(sizeof length, header);
  testing::TempFolder before, now;
  LocalFileSystem files;
  std::ofstream(CheckpointPath(before.path(), 40), std::ios::binary) << bytes;
  const Checkpoint read = Newest(before.path());
  Checkpoint wanted{
      .step = 40, .position = {1, 6}, .seed = 3, .tensors = {}, .vocabulary = 5, .data = 9, .samples = 8, .run = 7, .loss = .5};
  wanted.tensors["w"] = ToTensor(Dtype::kF32, RefTensor{{2}, {1, -2}});
  ExpectEqual(read, wanted);
  ASSERT_TRUE(Save(files, now.path(), wanted, -1).ok());
  EXPECT_EQ(Slurp(CheckpointPath(now.path(), 40)), bytes);
}

// A process that dies in any operation of a save: everything after it does not happen, and what was being written is half there.
TEST(Checkpoint, KilledAnywhereInASaveTheNewestWholeOneLoads) {
  int survived_new = 0, survived_old = 0;
  for (bool torn : {false, true}) {
    for (int fail_at = 0;; ++fail_at) {
      testing::TempFolder folder;
      LocalFileSystem files;
      ASSERT_TRUE(Save(files, folder.path(), Make(100), -1).ok());
      FaultyFiles dying;
      dying.fail_at = fail_at;
      dying.crash = true;
      dying.torn = torn;
      Status status = Save(dying, folder.path(), Make(200), 100);
      if (dying.operations <= fail_at) break;  // it was over before
      Checkpoint newest = Newest(folder.path());
      ASSERT_TRUE(newest.step == 100 || newest.step == 200) << "killed in operation " << fail_at;
      ExpectEqual(newest, Make(newest.step));
      ++(newest.step == 200 ? survived_new : survived_old);
      if (status.ok()) {
        EXPECT_EQ(newest.step, 200) << "a save that said it was done, killed in operation " << fail_at;
      }
      // The next save, of the gang that is formed anew, goes through and leaves nothing of the dead one.
      ASSERT_TRUE(Save(files, folder.path(), Make(300), newest.step, 1, 1).ok());
      EXPECT_EQ(Names(folder.path()), Paths{"step-000000000300.safetensors"}) << "killed in operation " << fail_at;
    }
  }
  EXPECT_GT(survived_new, 0);
  EXPECT_GT(survived_old, 4);
}

// The same where the folder has what is to be set aside: its own is found, and the next save sets aside what this one did not come to.
TEST(Checkpoint, KilledAnywhereInASaveThatSetsAside) {
  LocalFileSystem files;
  std::set<std::int64_t> survived;
  for (int fail_at = 0;; ++fail_at) {
    testing::TempFolder folder;
    ASSERT_TRUE(Save(files, folder.path(), Make(200), -1, 2).ok());
    ASSERT_TRUE(Save(files, folder.path(), Make(300), 200, 2).ok());
    FaultyFiles dying;
    dying.fail_at = fail_at;
    dying.crash = true;
    Status status = Save(dying, folder.path(), Make(10, kOtherRun), -1);
    if (dying.operations <= fail_at) break;
    SCOPED_TRACE(fmt::format("killed in operation {}", fail_at));
    survived.insert(Newest(folder.path()).step);
    const std::int64_t own = Newest(folder.path(), kOtherRun).step;
    EXPECT_EQ(own, std::filesystem::exists(CheckpointPath(folder.path(), 10)) ? 10 : -1);
    if (status.ok()) {
      EXPECT_EQ(own, 10);
    }
    ASSERT_TRUE(Save(files, folder.path(), Make(20, kOtherRun), own, 2, 1).ok());
    EXPECT_EQ(Newest(folder.path()).step, 20);
    const Paths left = *ListCheckpoints(files, folder.path());
    EXPECT_EQ(left.size(), own == 10 ? 2u : 1u);
    EXPECT_EQ(Names(folder.path()).size(), left.size() + 2) << "what is set aside is still there";
  }
  EXPECT_EQ(survived, (std::set<std::int64_t>{10, 200, 300}));  // the last but one sets aside the last one
}

// Somebody else saves the same step between two operations of a save: a rank 0 that took the place of this one, or another training. What
// lies there is always whole, and a save that says it is done has been done.
TEST(Checkpoint, ASecondWriterBetweenItsOperationsBreaksNoSave) {
  struct Case {
    std::uint64_t run;
    std::uint32_t forming;  // of the second writer; the first one's is 3
  };
  int refused = 0;
  for (const Case& other : {Case{kRun, 2}, Case{kRun, 4}, Case{kOtherRun, 0}, Case{kOtherRun, 9}}) {
    int operations = 1;
    for (int at = 0; at < operations; ++at) {
      SCOPED_TRACE(fmt::format("run {:x}, forming {}, before operation {}", other.run, other.forming, at));
      testing::TempFolder folder;
      LocalFileSystem files;
      ASSERT_TRUE(Save(files, folder.path(), Make(100), -1).ok());
      Status second(Code::kInternal, "TEST01", "it was not called");
      FaultyFiles first;
      first.before = [&](int operation) {
        if (operation == at) second = Save(files, folder.path(), Make(200, other.run), 100, 1, other.forming);
      };
      const Status status = Save(first, folder.path(), Make(200), 100, 1, 3);
      operations = std::max(operations, first.operations);
      if (first.operations <= at) break;  // it was over before: more is to do only where the other has come before
      EXPECT_TRUE(second.ok()) << second.ToString();
      const Checkpoint newest = Newest(folder.path());
      ExpectEqual(newest, Make(200, newest.run));
      if (!status.ok()) {  // only one that was replaced
        ++refused;
        EXPECT_EQ(status.tag(), "CKPT01") << status.ToString();
        EXPECT_TRUE(other.run == kRun && other.forming > 3) << status.ToString();
        EXPECT_EQ(newest.run, other.run);
      }
      EXPECT_EQ(*ListCheckpoints(files, folder.path()), Paths{CheckpointPath(folder.path(), 200)});
      EXPECT_EQ(Names(folder.path()).front().substr(0, 1) == ".", false) << Names(folder.path()).front();
    }
    EXPECT_GT(operations, 10);
  }
  EXPECT_GT(refused, 3);
}

// What is hidden there and nobody's for long goes, whoever it was of; what somebody may be writing stays.
TEST(Checkpoint, OnlyAbandonedFilesOfOthersAreRemoved) {
  testing::TempFolder folder;
  LocalFileSystem files;
  const Paths names = {".step-000000000100-0000000000000005-0.safetensors", ".step-000000000300.safetensors",
                       ".step-000000000100-fedcba9876543210-4.safetensors", ".step-trial-0000000000000005-7.safetensors"};
  auto put = [&](std::chrono::minutes age) {
    for (const std::string& name : names) {
      std::ofstream(folder.path() + "/" + name) << "half";
      std::filesystem::last_write_time(folder.path() + "/" + name, std::filesystem::file_time_type::clock::now() - age);
    }
  };
  put(std::chrono::minutes(30));
  ASSERT_TRUE(Save(files, folder.path(), Make(10), -1, 1, 3).ok());
  EXPECT_EQ(Names(folder.path()).size(), names.size() + 1);
  ASSERT_TRUE(Save(files, folder.path(), Make(20), 10, 1, 4).ok());  // now one is of an earlier save of its own
  EXPECT_EQ(Names(folder.path()).size(), names.size());
  put(std::chrono::minutes(90));
  ASSERT_TRUE(Save(files, folder.path(), Make(30), 20, 1, 3).ok());
  EXPECT_EQ(Names(folder.path()), Paths{"step-000000000030.safetensors"});
}

TEST(Checkpoint, AFullDiskKeepsTheOldOneAndSaysSo) {
  int failed = 0, unsure = 0;
  for (int fail_at = 0;; ++fail_at) {
    testing::TempFolder folder;
    LocalFileSystem files;
    ASSERT_TRUE(Save(files, folder.path(), Make(100), -1).ok());
    FaultyFiles full;
    full.fail_at = fail_at;
    full.error = ENOSPC;
    full.torn = true;
    Status status = Save(full, folder.path(), Make(200), 100);
    if (full.operations <= fail_at) break;
    if (status.ok()) {  // the fault met what is no part of being safe
      EXPECT_EQ(Newest(folder.path()).step, 200);
      continue;
    }
    ++failed;
    EXPECT_EQ(status.tag(), "CKPT01");
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
    EXPECT_NE(status.what().find(folder.path()), std::string::npos) << status.ToString();
    EXPECT_TRUE(LoadCheckpoint(files, CheckpointPath(folder.path(), 100)).ok());
    unsure += Newest(folder.path()).step == 200;
    for (const std::string& name : Names(folder.path())) EXPECT_NE(name[0], '.') << "it takes room: " << name;
  }
  EXPECT_GT(failed, 8);
  EXPECT_EQ(unsure, 1);  // it has its name, and the folder could not be synced
}

// A folder that is made is synced into the one above it: otherwise a checkpoint that is safe in it may vanish with it.
TEST(Checkpoint, FoldersThatAreMadeAreSyncedIntoThoseAbove) {
  testing::TempFolder folder;
  FaultyFiles watched;
  ASSERT_TRUE(Save(watched, folder.path() + "/a/b", Make(1), -1).ok());
  EXPECT_EQ(watched.synced_folders, (Paths{folder.path(), folder.path() + "/a", folder.path() + "/a/b"}));
  watched.synced_folders.clear();
  ASSERT_TRUE(Save(watched, folder.path() + "/a/b", Make(2), 1).ok());
  EXPECT_EQ(watched.synced_folders, Paths{folder.path() + "/a/b"});
}

TEST(Checkpoint, EveryFlippedBitAndEveryTruncationIsNoticed) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(Save(files, folder.path(), Make(1), -1, 9).ok());
  ASSERT_TRUE(Save(files, folder.path(), Make(2), 1, 9).ok());
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

}  // namespace
}  // namespace ropewalk::mlrunner
