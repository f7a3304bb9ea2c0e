// Checkpoints that several ranks write: whole or not there, whatever fails, dies or writes beside them; which parts stay and which go.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "tests/unit/faulty_files.h"
#include "tests/unit/sliced_checkpoints.h"
#include "tests/unit/temp_folder.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

using storage::FaultyFiles;
using storage::LocalFileSystem;
using testing::CutStates;
using testing::RandomTensor;
using Paths = std::vector<std::string>;

constexpr std::uint64_t kRun = 0xfedcba9876543210, kOtherRun = 5;

// What a checkpoint of that step and run holds: w is cut over both ranks, v is held by both.
CutStates Make(std::int64_t step, std::uint64_t run = kRun) {
  Random random(static_cast<std::uint64_t>(step) + run);
  CutStates states{{{{"ranks", 2}}}, {}, {}};
  states.Add("w", {{0, ShardingSpec::kReplicated}, {}}, RandomTensor(random, Dtype::kF32, {5, 2}));
  states.Add("v", {}, RandomTensor(random, Dtype::kF64, {3}));
  return states;
}
Checkpoint About(std::int64_t step, std::uint64_t run = kRun) {
  return {.step = step, .position = {0, step}, .seed = 1, .tensors = {}, .run = run};
}
Status Save(storage::FileSystem& files, const std::string& folder, std::int64_t step, std::int64_t stands_on, std::int64_t keep = 1,
            std::uint64_t run = kRun, std::uint32_t forming = 0) {
  return testing::SaveSlices(files, folder, About(step, run), Make(step, run).Written(2),
                             {.keep = keep, .stands_on = stands_on, .forming = forming});
}
// Of one rank, in one file.
Status SaveAlone(storage::FileSystem& files, const std::string& folder, std::int64_t step, std::int64_t stands_on, std::uint64_t run) {
  Checkpoint checkpoint = About(step, run);
  checkpoint.tensors = Make(step, run).whole;
  return SaveCheckpoint(files, folder, checkpoint, {.stands_on = stands_on}).status();
}
// The step of the newest whole one, which holds what it should; -1: none.
std::int64_t Newest(const std::string& folder, std::size_t passed_over_max = 0) {
  LocalFileSystem files;
  std::vector<Status> passed_over;
  auto newest = LoadNewestCheckpoint(files, folder, &passed_over);
  EXPECT_TRUE(newest.ok()) << newest.status().ToString();
  EXPECT_LE(passed_over.size(), passed_over_max) << passed_over[0].ToString();
  if (!newest.ok() || newest->step < 0) return -1;
  const CutStates expected = Make(newest->step, newest->run);
  EXPECT_EQ(newest->tensors.size(), expected.whole.size());
  for (const auto& [name, tensor] : expected.whole) EXPECT_EQ(newest->tensors.at(name).bytes, tensor.bytes) << name;
  return newest->step;
}
Paths Names(const std::string& folder) {
  LocalFileSystem files;
  Paths names;
  EXPECT_EQ(files.List(folder, &names), 0);
  return names;
}
std::string PartOf(std::int64_t step, int rank, std::uint64_t run = kRun, std::uint32_t forming = 0, int tries = 0) {
  return fmt::format("part-{:012}-{:016x}-{}-{}-{}.safetensors", step, run, forming, rank, tries);
}
std::string NameOf(std::int64_t step) { return CheckpointPath("", step).substr(1); }

TEST(Parts, GoWithTheCheckpointThatNamesThem) {
  testing::TempFolder folder;
  LocalFileSystem files;
  std::int64_t last = -1;
  for (std::int64_t step : {100, 200, 300}) {
    ASSERT_TRUE(Save(files, folder.path() + "/deep/er", step, std::exchange(last, step), 2).ok());
    EXPECT_EQ(Newest(folder.path() + "/deep/er"), step);
  }
  EXPECT_EQ(Names(folder.path() + "/deep/er"),
            (Paths{PartOf(200, 0), PartOf(200, 1), PartOf(300, 0), PartOf(300, 1), NameOf(200), NameOf(300)}));
  // Those of another training that this one goes on from go too, when it is their turn.
  ASSERT_TRUE(Save(files, folder.path() + "/deep/er", 400, 300, 2, kOtherRun).ok());
  EXPECT_EQ(Names(folder.path() + "/deep/er"),
            (Paths{PartOf(300, 0), PartOf(300, 1), PartOf(400, 0, kOtherRun), PartOf(400, 1, kOtherRun), NameOf(300), NameOf(400)}));
  // And one rank alone may go on.
  ASSERT_TRUE(SaveAlone(files, folder.path() + "/deep/er", 500, 400, kOtherRun).ok());
  EXPECT_EQ(Names(folder.path() + "/deep/er"), Paths{NameOf(500)});
  EXPECT_EQ(Newest(folder.path() + "/deep/er"), 500);
}

// One that was set aside can be used again: it has its parts.
TEST(Parts, StayWithACheckpointThatIsSetAside) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(Save(files, folder.path(), 100, -1).ok());
  std::int64_t last = -1;
  for (std::int64_t step : {50, 100, 150}) {
    ASSERT_TRUE(Save(files, folder.path(), step, std::exchange(last, step), 1, kOtherRun).ok());
    EXPECT_EQ(Newest(folder.path()), step);
  }
  EXPECT_EQ(Names(folder.path()), (Paths{"aside-0000000000000005-" + NameOf(100), PartOf(100, 0), PartOf(100, 1), PartOf(150, 0, kOtherRun),
                                         PartOf(150, 1, kOtherRun), NameOf(150)}));
  auto aside = LoadCheckpoint(files, folder.path() + "/aside-0000000000000005-" + NameOf(100));
  ASSERT_TRUE(aside.ok()) << aside.status().ToString();
  EXPECT_EQ(aside->tensors.at("w").bytes, Make(100).whole.at("w").bytes);
}

// A good one that somebody keeps under a name of his own is still good when its step is long gone.
TEST(Parts, StayWithACheckpointThatIsRenamed) {
  testing::TempFolder folder;
  LocalFileSystem files;
  const std::string best = folder.path() + "/best.safetensors";
  ASSERT_TRUE(Save(files, folder.path(), 100, -1).ok());
  std::filesystem::rename(CheckpointPath(folder.path(), 100), best);
  std::ofstream(folder.path() + "/notes.safetensors") << "no tensors";
  for (std::int64_t step : {200, 300}) ASSERT_TRUE(Save(files, folder.path(), step, step - 100).ok());
  EXPECT_EQ(Names(folder.path()),
            (Paths{"best.safetensors", "notes.safetensors", PartOf(100, 0), PartOf(100, 1), PartOf(300, 0), PartOf(300, 1), NameOf(300)}));
  auto kept = LoadCheckpoint(files, best);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_EQ(kept->tensors.at("w").bytes, Make(100).whole.at("w").bytes);
  std::filesystem::remove(best);
  ASSERT_TRUE(Save(files, folder.path(), 400, 300).ok());
  EXPECT_EQ(Names(folder.path()), (Paths{"notes.safetensors", PartOf(400, 0), PartOf(400, 1), NameOf(400)}));
}

// The checkpoint of a step that is saved again is not written over: until the new one has its name, it is the old one that is there.
TEST(Parts, OfTheSameStepAreWrittenBesideThoseThatAreNamed) {
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(Save(files, folder.path(), 100, -1).ok());
  auto again = WriteCheckpointPart(files, folder.path(), 100, {.run = kRun}, Make(200).Written(2)[0]);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->file, PartOf(100, 0, kRun, 0, 1));
  EXPECT_EQ(Newest(folder.path()), 100);
  ASSERT_TRUE(Save(files, folder.path(), 100, 100).ok());
  EXPECT_EQ(Newest(folder.path()), 100);
  EXPECT_EQ(Names(folder.path()), (Paths{PartOf(100, 0, kRun, 0, 2), PartOf(100, 1, kRun, 0, 1), NameOf(100)}));
}

// A process that dies in any operation of a save, between two ranks' parts and before or behind the commit.
TEST(Parts, KilledAnywhereInASaveTheNewestWholeOneLoads) {
  int survived_new = 0, survived_old = 0;
  for (bool torn : {false, true}) {
    for (int fail_at = 0;; ++fail_at) {
      SCOPED_TRACE(fmt::format("killed in operation {}{}", fail_at, torn ? ", torn" : ""));
      testing::TempFolder folder;
      LocalFileSystem files;
      ASSERT_TRUE(Save(files, folder.path(), 100, -1).ok());
      FaultyFiles dying;
      dying.fail_at = fail_at;
      dying.crash = true;
      dying.torn = torn;
      const Status status = Save(dying, folder.path(), 200, 100);
      if (dying.operations <= fail_at) break;  // it was over before
      const std::int64_t newest = Newest(folder.path());
      ASSERT_TRUE(newest == 100 || newest == 200);
      ++(newest == 200 ? survived_new : survived_old);
      if (status.ok()) {
        EXPECT_EQ(newest, 200) << "a save that said it was done";
      }
      // The next save, of the gang that is formed anew, goes through and leaves nothing of the dead one.
      ASSERT_TRUE(Save(files, folder.path(), 300, newest, 1, kRun, 1).ok());
      EXPECT_EQ(Newest(folder.path()), 300);
      EXPECT_EQ(Names(folder.path()), (Paths{PartOf(300, 0, kRun, 1), PartOf(300, 1, kRun, 1), NameOf(300)}));
    }
  }
  EXPECT_GT(survived_new, 0);
  EXPECT_GT(survived_old, 20);
}

TEST(Parts, AFullDiskKeepsTheOldOneAndSaysSo) {
  int failed = 0;
  for (int fail_at = 0;; ++fail_at) {
    SCOPED_TRACE(fail_at);
    testing::TempFolder folder;
    LocalFileSystem files;
    ASSERT_TRUE(Save(files, folder.path(), 100, -1).ok());
    FaultyFiles full;
    full.fail_at = fail_at;
    full.error = ENOSPC;
    full.torn = true;
    const Status status = Save(full, folder.path(), 200, 100);
    if (full.operations <= fail_at) break;
    if (status.ok()) {  // the fault met what is no part of being safe
      EXPECT_EQ(Newest(folder.path()), 200);
      continue;
    }
    ++failed;
    EXPECT_EQ(status.tag(), "CKPT01");
    EXPECT_NE(status.what().find(folder.path()), std::string::npos) << status.ToString();
    EXPECT_TRUE(LoadCheckpoint(files, CheckpointPath(folder.path(), 100)).ok());
    if (Newest(folder.path()) == 200) continue;  // it has its name, and the folder could not be synced
    // A rank that could not write leaves nothing, rank 0 takes away what it could not commit; a first part waits for the next save.
    const Paths names = Names(folder.path());
    for (const std::string& name : names) EXPECT_TRUE(name[0] != '.' && name != PartOf(200, 1)) << "it takes room: " << name;
  }
  EXPECT_GT(failed, 20);
}

// Somebody else saves the same step between two operations of a save: a gang that took the place of this one, or another training.
TEST(Parts, ASecondWriterBetweenItsOperationsBreaksNoSave) {
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
      ASSERT_TRUE(Save(files, folder.path(), 100, -1).ok());
      Status second(Code::kInternal, "TEST01", "it was not called");
      FaultyFiles first;
      first.before = [&](int operation) {
        if (operation == at) second = Save(files, folder.path(), 200, 100, 1, other.run, other.forming);
      };
      const Status status = Save(first, folder.path(), 200, 100, 1, kRun, 3);
      operations = std::max(operations, first.operations);
      if (first.operations <= at) break;  // it was over before: more is to do only where the other has come before
      EXPECT_TRUE(second.ok()) << second.ToString();
      EXPECT_EQ(Newest(folder.path()), 200);
      if (!status.ok()) {  // only one that was replaced
        ++refused;
        EXPECT_EQ(status.tag(), "CKPT01") << status.ToString();
        EXPECT_TRUE(other.run == kRun && other.forming > 3) << status.ToString();
      }
      EXPECT_EQ(*ListCheckpoints(files, folder.path()), Paths{CheckpointPath(folder.path(), 200)});
    }
    EXPECT_GT(operations, 20);
  }
  EXPECT_GT(refused, 10);
}

// Of others only what is nobody's for long goes.
TEST(Parts, OnlyAbandonedOnesOfOthersAreRemoved) {
  testing::TempFolder folder;
  LocalFileSystem files;
  const Paths parts = {PartOf(7, 0, kOtherRun), PartOf(7, 1, kRun, 9), "part-of-a-letter.safetensors"};
  auto put = [&](std::chrono::minutes age) {
    for (const std::string& name : parts) {
      std::ofstream(folder.path() + "/" + name) << "half";
      std::filesystem::last_write_time(folder.path() + "/" + name, std::filesystem::file_time_type::clock::now() - age);
    }
  };
  put(std::chrono::minutes(30));
  ASSERT_TRUE(Save(files, folder.path(), 10, -1).ok());
  EXPECT_EQ(Names(folder.path()).size(), 6u);
  put(std::chrono::minutes(90));
  ASSERT_TRUE(Save(files, folder.path(), 20, 10).ok());
  EXPECT_EQ(Names(folder.path()), (Paths{PartOf(20, 0), PartOf(20, 1), "part-of-a-letter.safetensors", NameOf(20)}));
}

// What ranks have written that together is no state is not committed, and the one before it stays.
TEST(Parts, ThatMakeUpNoStateAreRefused) {
  const CutStates states = Make(200);
  auto slice = [&](std::int64_t begin, std::int64_t end) {
    const Slice rows{{begin, 0}, {end, 2}};
    return StateSlice{"w", {5, 2}, rows, testing::Cut(states.whole.at("w"), rows)};
  };
  StateSlice other_type = slice(3, 5), other_shape = slice(3, 5);
  other_type.tensor = Tensor{Dtype::kI32, {2, 2}, std::vector<std::byte>(16)};
  other_shape.logical = {6, 2};
  struct Case {
    std::vector<std::vector<StateSlice>> slices;
    const char* why;
  };
  for (const Case& c : {Case{{{slice(0, 3)}, {}}, "state w (5, 2) has a gap: its pieces hold 6 of 10 elements"},
                        Case{{{slice(0, 3)}, {slice(2, 5)}}, "state w has elements twice: [0:3, 0:2] in part-"},
                        Case{{{slice(0, 3)}, {slice(0, 3)}}, "state w has elements twice"},
                        Case{{{slice(0, 3)}, {other_type}}, "state w is (5, 2) i32 in part-"},
                        Case{{{slice(0, 3)}, {other_shape}}, "state w is (6, 2) f32 in part-"}}) {
    testing::TempFolder folder;
    LocalFileSystem files;
    ASSERT_TRUE(Save(files, folder.path(), 100, -1).ok());
    const Status status = testing::SaveSlices(files, folder.path(), About(200), c.slices, {.stands_on = 100});
    EXPECT_EQ(status.tag(), "CKPT01") << c.why;
    EXPECT_NE(status.why().find(c.why), std::string::npos) << status.ToString();
    EXPECT_EQ(Newest(folder.path()), 100);
    EXPECT_EQ(Names(folder.path()), (Paths{PartOf(100, 0), PartOf(100, 1), NameOf(100)})) << "nothing of it is left";
  }
}

// --- all ranks at once ---

// Rank `rank` of two; the folder of the last one may be another.
struct Together {
  std::vector<Status> statuses;
};
Together SaveOnThreads(std::int64_t step, const std::vector<std::string>& folders, const std::vector<Result<std::vector<StateSlice>>>& mine,
                       bool tries_first = false) {
  testing::Hall hall(static_cast<std::int32_t>(folders.size()));
  Together done{std::vector<Status>(folders.size())};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    threads.emplace_back([&, i] {
      LocalFileSystem files;
      const auto rank = static_cast<std::int32_t>(i);
      const ExchangeBytes exchange = [&](std::string bytes) { return hall.Exchange(rank, std::move(bytes)); };
      Status status;
      if (tries_first) status = TryFolderTogether(files, folders[i], {.run = kRun, .rank = rank}, exchange);
      if (status.ok()) status = SaveTogether(files, folders[i], About(step), mine[i], rank, {.stands_on = step - 1}, exchange).status();
      done.statuses[i] = status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return done;
}

TEST(Parts, AreWrittenAtOnceAndCommittedByRankZero) {
  testing::TempFolder folder;
  const std::string made = folder.path() + "/a/b";  // by whoever comes first
  const auto slices = Make(200).Written(2);
  const Together done = SaveOnThreads(200, {made, made}, {slices[0], slices[1]}, true);
  for (const Status& status : done.statuses) EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(Newest(made), 200);
  EXPECT_EQ(Names(made), (Paths{PartOf(200, 0), PartOf(200, 1), NameOf(200)}));
}

TEST(Parts, ARankThatCannotWriteIsNamedByAll) {
  testing::TempFolder folder;
  const auto slices = Make(200).Written(2);
  const Together done = SaveOnThreads(200, {folder.path(), folder.path()},
                                      {slices[0], Status(Code::kUserError, "TRAIN01", "step 199: state w holds what is no number",
                                                         "so it is not checkpointed", "mend it")});
  EXPECT_EQ(done.statuses[0].what(), "rank 1: step 199: state w holds what is no number");
  EXPECT_EQ(done.statuses[1].what(), "step 199: state w holds what is no number");
  for (const Status& status : done.statuses) {
    EXPECT_EQ(status.tag(), "TRAIN01");
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_EQ(status.why(), "so it is not checkpointed");
    EXPECT_EQ(status.fix(), "mend it");
  }
  EXPECT_TRUE(Names(folder.path()).empty());
}

TEST(Parts, FoldersThatAreNotTheSameAreNoticed) {
  testing::TempFolder here, there;
  const auto slices = Make(200).Written(2);
  // Before the first step, on all ranks.
  for (const Status& status : SaveOnThreads(200, {here.path(), there.path()}, {slices[0], slices[1]}, true).statuses) {
    EXPECT_EQ(status.tag(), "CKPT01") << status.ToString();
    EXPECT_NE(status.what().find("is not seen by rank"), std::string::npos) << status.ToString();
    EXPECT_NE(status.fix().find("a folder that all machines share"), std::string::npos);
  }
  // And at the commit, should it have become so since.
  const Status status = SaveOnThreads(200, {here.path(), there.path()}, {slices[0], slices[1]}).statuses[0];
  EXPECT_EQ(status.tag(), "CKPT01") << status.ToString();
  EXPECT_NE(status.what().find(PartOf(200, 1)), std::string::npos) << status.ToString();
  EXPECT_EQ(Newest(here.path()), -1);
  EXPECT_TRUE(Names(here.path()).empty());
  // One that can be made by nobody, and one by one rank only.
  std::ofstream(here.path() + "/file") << "no folder";
  const std::string none = here.path() + "/file";
  for (const auto& folders : {Paths{none, none}, Paths{there.path(), none}}) {
    for (const Status& refused : SaveOnThreads(200, folders, {slices[0], slices[1]}, true).statuses)
      EXPECT_EQ(refused.tag(), "CKPT01") << refused.ToString();
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
