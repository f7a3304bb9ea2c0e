// The output folder: refusals, publication, and faults and crashes at every single operation.
#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "base/bytes.h"
#include "base/hash.h"
#include "storage/file_system.h"
#include "storage/output_folder.h"
#include "tests/unit/faulty_files.h"

namespace ropewalk::storage {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class Output : public testing::Test {
 protected:
  Output() {
    // In memory where possible: thousands of syncs to a disk take minutes and prove nothing more here.
    std::string name = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/ropewalk-output-XXXXXX";
    root_ = mkdtemp(name.data());
    spec_ = {root_ + "/out", "job-1-action-2", false, ""};
  }
  ~Output() override { fs::remove_all(root_); }

  std::string WritePart(std::uint32_t part, std::uint32_t attempt, const std::string& text) {
    auto writer = PartWriter::Open(spec_, part, attempt);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    EXPECT_TRUE((*writer)->Append(AsBytes(text)).ok());
    auto winner = (*writer)->Finish(1);
    EXPECT_TRUE(winner.ok()) << winner.status().ToString();
    EXPECT_EQ((*writer)->content_hash(), Checksum64(text));
    return *winner;
  }
  std::vector<std::string> Winners() { return {WritePart(0, 1, "first\n"), WritePart(1, 3, "second\n"), WritePart(2, 1, "")}; }
  // name -> content of the final folder, without the manifest.
  std::map<std::string, std::string> Final(bool* manifest = nullptr) {
    std::map<std::string, std::string> files;
    if (manifest != nullptr) *manifest = fs::exists(root_ + "/out/_SUCCESS");
    if (!fs::exists(root_ + "/out")) return files;
    for (const auto& entry : fs::directory_iterator(root_ + "/out"))
      if (entry.path().filename() != "_SUCCESS") files[entry.path().filename().string()] = ReadAll(entry.path().string());
    return files;
  }
  std::vector<std::string> Leftovers() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_))
      if (entry.path().filename() != "out") names.push_back(entry.path().filename().string());
    return names;
  }
  void Old() {
    fs::create_directory(root_ + "/out");
    std::ofstream(root_ + "/out/part-00099") << "old";
  }
  const std::map<std::string, std::string> kNew = {{"part-00000", "first\n"}, {"part-00001", "second\n"}, {"part-00002", ""}};
  const std::map<std::string, std::string> kOld = {{"part-00099", "old"}};
  std::string root_;
  OutputSpec spec_;
};

TEST_F(Output, AppearsWholeWithAManifestAndNothingBesideIt) {
  ASSERT_TRUE(CheckOutput(spec_, {}).ok());
  WritePart(1, 2, "a losing attempt\n");
  auto winners = Winners();
  EXPECT_FALSE(fs::exists(spec_.folder));
  Status status = CommitOutput(spec_, winners);
  ASSERT_TRUE(status.ok()) << status.ToString();
  bool manifest = false;
  EXPECT_EQ(Final(&manifest), kNew);
  EXPECT_TRUE(manifest);
  EXPECT_EQ(Leftovers(), std::vector<std::string>{});
  std::string text = ReadAll(spec_.folder + "/_SUCCESS");
  EXPECT_NE(text.find("\"records\": 3"), std::string::npos) << text;
  EXPECT_NE(text.find("\"bytes\": 13"), std::string::npos) << text;
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(Checksum64("second\n")));
  EXPECT_NE(text.find(std::string("\"name\": \"part-00001\", \"records\": 1, \"bytes\": 7, \"xxh3\": \"") + hash), std::string::npos)
      << text;
  // Once more, as after a crash between commit and acknowledgement.
  EXPECT_TRUE(CommitOutput(spec_, winners).ok());
  EXPECT_EQ(Final(), kNew);
}

// What was published is known without a look at the folder, which may be another job's by then.
TEST_F(Output, TheWinnersSayWhatIsPublishedInAll) {
  auto totals = TotalsOf(Winners());
  ASSERT_TRUE(totals.ok()) << totals.status().ToString();
  EXPECT_EQ(totals->records, 3u);
  EXPECT_EQ(totals->bytes, 13u);
  totals = TotalsOf({});
  ASSERT_TRUE(totals.ok());
  EXPECT_EQ(totals->records + totals->bytes, 0u);
  EXPECT_EQ(TotalsOf(std::vector<std::string>{"rubbish"}).status().tag(), "OUT07");
}

TEST_F(Output, TheManifestNamesItsWriter) {
  spec_.writer = "job j-012";
  ASSERT_TRUE(CommitOutput(spec_, Winners()).ok());
  const std::string text = ReadAll(spec_.folder + "/_SUCCESS");
  EXPECT_NE(text.find("\"writer\": \"job j-012\""), std::string::npos) << text;
}

// A folder that is mounted twice has two names; what must not be read and written at once is the folder.
TEST_F(Output, AFolderOfTwoNamesIsOneFolder) {
  fs::create_directories(root_ + "/in/below");
  fs::create_directories(root_ + "/twin");
  fs::create_directories(root_ + "/beside");
  std::ofstream(root_ + "/in/text") << "x";
  if (mount((root_ + "/in").c_str(), (root_ + "/twin").c_str(), nullptr, MS_BIND, nullptr) != 0)
    GTEST_SKIP() << "no right to mount here: " << std::strerror(errno);
  const std::vector<std::string> folder = {root_ + "/in"}, below = {root_ + "/in/below"};
  auto check = [&](const std::string& output, const std::vector<std::string>& inputs) {
    OutputSpec spec = spec_;
    spec.folder = root_ + output;
    spec.overwrite = true;
    return CheckOutput(spec, inputs).tag();
  };
  EXPECT_EQ(check("/twin", folder), "OUT03") << "it is the input";
  EXPECT_EQ(check("/twin/out", folder), "OUT03") << "it lies in the input";
  EXPECT_EQ(check("/twin", below), "OUT03") << "it holds the input";
  EXPECT_EQ(check("/beside/out", folder), "");
  EXPECT_EQ(check("/twin/other", below), "");
  ASSERT_EQ(umount((root_ + "/twin").c_str()), 0);
  EXPECT_EQ(check("/twin", folder), "") << "another folder now";
}

TEST_F(Output, NoPartsGiveAFolderWithAManifestOnly) {
  ASSERT_TRUE(CommitOutput(spec_, {}).ok());
  bool manifest = false;
  EXPECT_TRUE(Final(&manifest).empty());
  EXPECT_TRUE(manifest);
}

TEST_F(Output, SuffixLongNamesAndOddKeys) {
  spec_.folder = root_ + "/" + std::string(240, 'n');
  spec_.key = "a/b\n" + std::string(300, 'k');
  spec_.suffix = ".txt";
  auto winners = Winners();
  Status status = CommitOutput(spec_, winners);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(ReadAll(spec_.folder + "/part-00001.txt"), "second\n");
}

TEST_F(Output, LargeAndOddWritesAreJoined) {
  auto writer = PartWriter::Open(spec_, 0, 1);
  ASSERT_TRUE(writer.ok());
  std::string expected;
  for (std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{2 << 20}, std::size_t{3}, std::size_t{(2 << 20) - 3},
                           std::size_t{5 << 20}, std::size_t{7}}) {
    std::string piece(size, static_cast<char>('a' + size % 26));
    expected += piece;
    ASSERT_TRUE((*writer)->Append(AsBytes(piece)).ok());
  }
  auto winner = (*writer)->Finish(7);
  ASSERT_TRUE(winner.ok());
  EXPECT_EQ((*writer)->content_hash(), Checksum64(expected));
  ASSERT_TRUE(CommitOutput(spec_, std::vector<std::string>{*winner}).ok());
  EXPECT_TRUE(ReadAll(spec_.folder + "/part-00000") == expected);
}

TEST_F(Output, BytesThatAreBuiltInTheBufferJoinTheOthers) {
  auto writer = PartWriter::Open(spec_, 0, 1);
  ASSERT_TRUE(writer.ok());
  std::string expected;
  for (std::size_t i = 0; i < 200; ++i) {
    std::string piece(i * 7919 % PartWriter::kRoomBytesMax, static_cast<char>('a' + i % 26));
    expected += piece;
    if (i % 5 == 0) {
      ASSERT_TRUE((*writer)->Append(AsBytes(piece)).ok());
      continue;
    }
    auto room = (*writer)->Room(piece.size());
    ASSERT_TRUE(room.ok());
    ASSERT_GE(room->size(), piece.size());
    std::copy(piece.begin(), piece.end(), room->begin());
    ASSERT_TRUE((*writer)->Commit(piece.size()).ok());
  }
  EXPECT_EQ((*writer)->Room(PartWriter::kRoomBytesMax + 1).status().tag(), "OUT05");
  ASSERT_TRUE((*writer)->Room(PartWriter::kRoomBytesMax).ok());  // room that is not committed leaves no trace
  auto winner = (*writer)->Finish(7);
  ASSERT_TRUE(winner.ok());
  EXPECT_EQ((*writer)->content_hash(), Checksum64(expected));
  ASSERT_TRUE(CommitOutput(spec_, std::vector<std::string>{*winner}).ok());
  EXPECT_TRUE(ReadAll(spec_.folder + "/part-00000") == expected);
}

TEST_F(Output, AnUnfinishedPartLeavesNoFile) {
  {
    auto writer = PartWriter::Open(spec_, 0, 1);
  }
  EXPECT_TRUE(fs::is_empty(root_ + "/.out.ropewalk-job-1-action-2/a"));
  DiscardOutput(spec_);
  EXPECT_EQ(Leftovers(), std::vector<std::string>{});
}

TEST_F(Output, RefusedBeforeAnyWork) {
  auto tag = [&](const OutputSpec& spec, std::vector<std::string> inputs = {}) { return CheckOutput(spec, inputs).tag(); };
  EXPECT_EQ(tag(spec_), "");
  fs::create_directories(root_ + "/out/sub");
  std::ofstream(root_ + "/out/sub/input.txt") << "x";
  std::ofstream(root_ + "/file") << "x";
  OutputSpec over = spec_;
  over.overwrite = true;
  EXPECT_EQ(tag(spec_), "OUT01");
  EXPECT_EQ(tag(over), "");
  EXPECT_EQ(tag({root_ + "/none/out", "k"}), "OUT02");
  EXPECT_EQ(tag({root_ + "/file/out", "k"}), "OUT02");
  EXPECT_EQ(tag({"", "k"}), "OUT02");
  EXPECT_EQ(tag({root_ + "/file", "k"}), "OUT04");
  EXPECT_EQ(tag({root_ + "/file", "k", true}), "OUT04");
  EXPECT_EQ(tag(over, {root_ + "/out"}), "OUT03");
  EXPECT_EQ(tag(over, {root_ + "/out/sub/input.txt"}), "OUT03") << "the output holds the input";
  EXPECT_EQ(tag(over, {root_}), "OUT03") << "the output lies in the input";
  EXPECT_EQ(tag(over, {root_ + "/file"}), "") << "a file beside the output";
  EXPECT_EQ(tag(over, {root_ + "/output2"}), "") << "names with a common prefix are not nested";
  for (bool overwrite : {false, true})
    for (const char* name : {"/out/.", "/out/..", "/out/sub/../."}) EXPECT_EQ(tag({root_ + name, "k", overwrite}), "OUT02") << name;
  fs::create_directory_symlink(root_ + "/out", root_ + "/link");
  EXPECT_EQ(tag(over, {root_ + "/link/sub"}), "OUT03") << "links are looked through";
  EXPECT_EQ(tag({root_ + "/link", "k", true}), "OUT04");
  EXPECT_EQ(tag({"/", "k", true}), "OUT03");
  EXPECT_EQ(tag({fs::current_path().string(), "k", true}), "OUT03");
  EXPECT_EQ(CheckOutput(spec_, {}).code(), Code::kUserError);
}

// On a cluster $HOME is an executor's scratch folder: whose home it is must be known without it.
TEST_F(Output, NobodysHomeIsOverwritten) {
  auto tag = [&](const std::string& folder) { return CheckOutput({folder, "k", true}, {}).tag(); };
  const char* set = getenv("HOME");
  const std::string before = set == nullptr ? "" : set;
  fs::create_directories(root_ + "/homes/mine");
  setenv("HOME", (root_ + "/homes/mine").c_str(), 1);
  EXPECT_EQ(tag(root_ + "/homes/mine"), "OUT03");
  EXPECT_EQ(tag(root_ + "/homes"), "OUT03") << "it holds a home";
  EXPECT_EQ(tag(root_ + "/homes/mine/out"), "") << "below a home is the usual place";
  std::vector<std::string> homes;
  if (const passwd* self = getpwuid(geteuid()); self != nullptr) homes.emplace_back(self->pw_dir);
  setpwent();
  while (const passwd* each = getpwent()) homes.emplace_back(each->pw_dir);
  endpwent();
  EXPECT_GT(homes.size(), 1u);
  for (const std::string& home : homes) EXPECT_TRUE(!fs::is_directory(home) || tag(home) == "OUT03") << home;
  set == nullptr ? unsetenv("HOME") : setenv("HOME", before.c_str(), 1);
}

// Each is first shown to be refused by rename(2) itself, which would come after all the work.
TEST_F(Output, WhatARenameWouldRefuseIsRefusedBeforeAnyWork) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make what another user owns, or mount";
  auto refused = [&](const std::string& folder, int error) {
    const std::string hidden = fs::path(folder).parent_path().string() + "/.hidden";
    ASSERT_EQ(access(hidden.c_str(), W_OK), 0);
    ASSERT_NE(rename(folder.c_str(), (hidden + "/old").c_str()), 0) << folder;
    ASSERT_EQ(errno, error) << folder << ": " << std::strerror(errno);
    Status status = CheckOutput({folder, "k", true}, {});
    EXPECT_EQ(status.tag(), "OUT02") << folder;
    EXPECT_NE(status.what().find(folder), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.why().empty() || status.fix().empty()) << status.ToString();
  };
  constexpr uid_t kNobody = 65534;
  chmod(root_.c_str(), 0755);
  for (const char* name : {"/sticky/roots", "/sticky/own", "/own/closed", "/own/open", "/own/roots"}) {
    const std::string folder = root_ + name, parent = fs::path(folder).parent_path();
    fs::create_directories(folder);
    fs::create_directories(parent + "/.hidden");
    chmod(folder.c_str(), folder.ends_with("closed") ? 0555 : 0777);
    chmod((parent + "/.hidden").c_str(), 0777);
    ASSERT_TRUE(folder.ends_with("roots") || chown(folder.c_str(), kNobody, kNobody) == 0);
  }
  chmod((root_ + "/sticky").c_str(), 01777);
  ASSERT_EQ(chown((root_ + "/own").c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(seteuid(kNobody), 0);
  refused(root_ + "/sticky/roots", EPERM);
  refused(root_ + "/own/closed", EACCES);
  for (const char* name : {"/sticky/own", "/own/open", "/own/roots"})
    EXPECT_EQ(CheckOutput({root_ + name, "k", true}, {}).tag(), "") << name;
  chmod((root_ + "/own").c_str(), 01777);
  EXPECT_EQ(CheckOutput({root_ + "/own/roots", "k", true}, {}).tag(), "") << "who owns the folder that holds it may move it";
  ASSERT_EQ(seteuid(0), 0);

  for (const char* name : {"/disk", "/bound", "/.hidden"}) fs::create_directories(root_ + name);
  if (mount("none", (root_ + "/disk").c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "lane tmpfs: mounting is not permitted";
  refused(root_ + "/disk", EBUSY);
  EXPECT_EQ(CheckOutput({root_ + "/disk/out", "k", true}, {}).tag(), "");
  umount((root_ + "/disk").c_str());
  // One device on both sides of the border.
  ASSERT_EQ(mount((root_ + "/own").c_str(), (root_ + "/bound").c_str(), nullptr, MS_BIND, nullptr), 0);
  refused(root_ + "/bound", EBUSY);
  umount((root_ + "/bound").c_str());
  EXPECT_EQ(CheckOutput({root_ + "/bound", "k", true}, {}).tag(), "");
}

TEST_F(Output, AStrangersFolderIsKept) {
  auto winners = Winners();
  Old();
  Status status = CommitOutput(spec_, winners);
  EXPECT_EQ(status.tag(), "OUT01");
  EXPECT_EQ(Final(), kOld);
}

TEST_F(Output, OverwriteReplacesEverything) {
  Old();
  spec_.overwrite = true;
  auto winners = Winners();
  EXPECT_EQ(Final(), kOld);
  ASSERT_TRUE(CommitOutput(spec_, winners).ok());
  EXPECT_EQ(Final(), kNew) << "no stale part";
  EXPECT_EQ(Leftovers(), std::vector<std::string>{});
}

TEST_F(Output, AMissingOrChangedWinnerIsDataLoss) {
  auto winners = Winners();
  std::string path = root_ + "/.out.ropewalk-job-1-action-2/a/1.3";
  std::ofstream(path, std::ios::app) << "more";
  EXPECT_EQ(CommitOutput(spec_, winners).code(), Code::kDataLoss);
  winners = Winners();
  fs::remove(path);
  fs::remove(root_ + "/.out.ropewalk-job-1-action-2/commit/0/p/part-00001");
  Status status = CommitOutput(spec_, winners);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.tag(), "OUT07");
  EXPECT_FALSE(fs::exists(spec_.folder));
  EXPECT_EQ(CommitOutput(spec_, std::vector<std::string>{"rubbish"}).code(), Code::kDataLoss);
}

// The heart of it: let the n-th operation of a commit fail, for every n; or crash there. The final name shows all of the old or all of the
// new at every moment, and the same call ends the work later.
class Faults : public Output, public testing::WithParamInterface<std::tuple<bool, bool, bool>> {};

TEST_P(Faults, AtEveryStepOfACommit) {
  auto [crash, overwrite, simple_renames] = GetParam();
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 200);
    fs::remove_all(root_);
    fs::create_directory(root_);
    if (overwrite) Old();
    spec_.overwrite = overwrite;
    spec_.files = nullptr;
    auto winners = Winners();
    FaultyFiles faulty;
    faulty.fail_at = n;
    faulty.crash = crash;
    faulty.simple_renames = simple_renames;
    spec_.files = &faulty;
    Status first = CommitOutput(spec_, winners);
    bool faulted = faulty.operations > n;
    bool manifest = false;
    auto seen = Final(&manifest);
    if (seen != kNew) {
      ASSERT_FALSE(first.ok()) << "success was reported without the output at step " << n;
      ASSERT_FALSE(manifest);
      // In two steps the name may be absent for a moment, never partial.
      ASSERT_TRUE(seen == (overwrite ? kOld : std::map<std::string, std::string>{}) || (simple_renames && seen.empty())) << "step " << n;
    } else {
      ASSERT_TRUE(manifest);
    }
    if (!first.ok()) {
      ASSERT_TRUE(faulted);
      ASSERT_EQ(first.code(), Code::kUserError) << first.ToString();
      ASSERT_NE(first.what().find(root_), std::string::npos) << "names the path: " << first.ToString();
    }
    faulty.fail_at = -1;
    Status again = CommitOutput(spec_, winners);
    ASSERT_TRUE(again.ok()) << "step " << n << ": " << again.ToString();
    ASSERT_EQ(Final(&manifest), kNew) << "step " << n;
    ASSERT_TRUE(manifest);
    ASSERT_EQ(Leftovers(), std::vector<std::string>{}) << "step " << n;
    if (!faulted) break;
  }
}

// A job that is given up at any step must leave an old output where it was, and nothing else.
TEST_P(Faults, GivingUpAtEveryStepKeepsTheOldOutput) {
  auto [crash, overwrite, simple_renames] = GetParam();
  for (int n = 0;; ++n) {
    fs::remove_all(root_);
    fs::create_directory(root_);
    if (overwrite) Old();
    spec_.overwrite = overwrite;
    spec_.files = nullptr;
    auto winners = Winners();
    FaultyFiles faulty;
    faulty.fail_at = n;
    faulty.crash = crash;
    faulty.simple_renames = simple_renames;
    spec_.files = &faulty;
    Status status = CommitOutput(spec_, winners);
    bool faulted = faulty.operations > n;
    faulty.fail_at = -1;
    DiscardOutput(spec_);
    auto seen = Final();
    ASSERT_TRUE(seen == kNew || (!status.ok() && seen == (overwrite ? kOld : std::map<std::string, std::string>{}))) << "step " << n;
    ASSERT_EQ(Leftovers(), std::vector<std::string>{}) << "step " << n;
    if (!faulted) break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Faults, testing::Combine(testing::Bool(), testing::Bool(), testing::Bool()));

TEST_F(Output, EveryFailedWriteOfAPartIsReported) {
  for (int error : {ENOSPC, EIO, EDQUOT}) {
    for (int n = 0;; ++n) {
      FaultyFiles faulty;
      faulty.fail_at = n;
      faulty.error = error;
      spec_.files = &faulty;
      Status status;
      {
        auto writer = PartWriter::Open(spec_, 0, 1);
        status = writer.ok() ? (*writer)->Append(AsBytes(std::string(3 << 20, 'x'))) : writer.status();
        for (int i = 0; i < 3 && status.ok(); ++i) {
          auto room = (*writer)->Room(PartWriter::kRoomBytesMax);
          status = room.ok() ? (*writer)->Commit(PartWriter::kRoomBytesMax) : room.status();
        }
        if (status.ok()) {
          auto winner = (*writer)->Finish(1);
          if (!winner.ok()) status = winner.status();
        }
        if (faulty.operations <= n) {
          ASSERT_TRUE(status.ok());
          break;
        }
      }
      ASSERT_FALSE(status.ok()) << "operation " << n;
      EXPECT_EQ(status.tag(), "OUT05");
      EXPECT_EQ(status.code(), Code::kUserError);
      EXPECT_NE(status.what().find(root_), std::string::npos) << status.ToString();
      EXPECT_TRUE(error != ENOSPC || status.ToString().find("No space left") != std::string::npos) << status.ToString();
    }
  }
  spec_.files = nullptr;
}

TEST_F(Output, AFullDiskIsReported) {
  fs::create_directory(root_ + "/small");
  if (mount("none", (root_ + "/small").c_str(), "tmpfs", 0, "size=256k") != 0) GTEST_SKIP() << "lane tmpfs: mounting is not permitted";
  OutputSpec spec{root_ + "/small/out", "k"};
  Status status;
  {
    auto writer = PartWriter::Open(spec, 0, 1);
    ASSERT_TRUE(writer.ok());
    status = (*writer)->Append(AsBytes(std::string(1 << 20, 'x')));
    if (status.ok()) status = (*writer)->Finish(1).status();
  }
  DiscardOutput(spec);
  EXPECT_TRUE(fs::is_empty(root_ + "/small"));
  umount((root_ + "/small").c_str());
  EXPECT_EQ(status.tag(), "OUT05");
  EXPECT_NE(status.why().find("No space left"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace ropewalk::storage
