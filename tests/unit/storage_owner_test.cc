// Whose hidden output folder is it, and what may be removed: what killed jobs left, and nothing else.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "storage/output_folder.h"
#include "storage/output_owner.h"

namespace ropewalk::storage {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Parts(const std::string& owner) {
  std::vector<std::string> parts(1);
  for (char c : owner) {
    if (c == '-')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}
std::string With(const std::string& owner, std::size_t part, const std::string& text) {
  std::vector<std::string> parts = Parts(owner);
  parts.at(part) = text;
  std::string all;
  for (const std::string& each : parts) all += (all.empty() ? "" : "-") + each;
  return all;
}

TEST(Owner, IsDeadOnlyWhenThatIsCertain) {
  const std::string own = ProcessOwner();
  ASSERT_EQ(Parts(own).size(), 5u) << own;
  EXPECT_EQ(Parts(own)[3], std::to_string(getpid()));
  EXPECT_FALSE(OwnerIsDead(own));
  EXPECT_TRUE(OwnerIsDead(With(own, 4, "1"))) << "the number was given to another process since";
  EXPECT_TRUE(OwnerIsDead(With(own, 1, "00000000"))) << "this machine was started anew since";
  EXPECT_FALSE(OwnerIsDead(With(With(own, 0, "00000000"), 4, "1"))) << "another machine's, over NFS";
  EXPECT_FALSE(OwnerIsDead(With(With(own, 2, "00000000"), 4, "1"))) << "another container's";
  for (const char* nonsense : {"", "x", "----", "a-b-c-d-e", "a-b-c-1-2-3"}) EXPECT_FALSE(OwnerIsDead(nonsense)) << nonsense;

  // A child, which lives, is waited for (a zombie), and is gone.
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  pid_t child = fork();
  if (child == 0) {
    std::string owner = ProcessOwner();
    [[maybe_unused]] ssize_t written = write(ready[1], owner.data(), owner.size());
    char byte;
    [[maybe_unused]] ssize_t n = read(go[0], &byte, 1);
    _exit(0);
  }
  char text[256];
  ssize_t n = read(ready[0], text, sizeof text);
  ASSERT_GT(n, 0);
  const std::string theirs(text, static_cast<std::size_t>(n));
  EXPECT_FALSE(OwnerIsDead(theirs));
  ASSERT_EQ(write(go[1], "x", 1), 1);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(OwnerIsDead(theirs)) << "it does nothing any more";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(OwnerIsDead(theirs));
  for (int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
}

class Stale : public testing::Test {
 protected:
  Stale() {
    std::string name = "/tmp/ropewalk-owner-XXXXXX";
    root_ = mkdtemp(name.data());
    spec_ = {root_ + "/out", OwnedKey("new-1", ProcessOwner()), false, ""};
    dead_ = With(ProcessOwner(), 4, "1");
  }
  ~Stale() override { fs::remove_all(root_); }
  void MakeSibling(const std::string& name) {
    fs::create_directories(root_ + "/" + name + "/a");
    std::ofstream(root_ + "/" + name + "/a/0.1") << "half a part";
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string root_, dead_;
  OutputSpec spec_;
};

TEST_F(Stale, OnlyWhatDeadOwnersLeftInTheFolderGoes) {
  MakeSibling(".out.ropewalk-old-1-" + dead_);
  MakeSibling(".out.ropewalk-old-2-" + dead_ + kGoneSuffix);
  MakeSibling(".another.ropewalk-old-1-" + dead_);
  MakeSibling(".od.d.ropewalk-x.ropewalk-old-1-" + dead_);
  const std::vector<std::string> kept = {".another.ropewalk-live-1-" + ProcessOwner(), ".another.ropewalk-old-1-" + dead_ + "-9",
                                         ".out.ropewalk-0123456789abcdef-5", ".out.ropewalk-live-1-" + ProcessOwner(),
                                         "another.ropewalk-old-1-" + dead_};
  for (const std::string& name : kept) MakeSibling(name);
  RemoveStaleOutputs(spec_);
  EXPECT_EQ(Names(), kept);
}

TEST_F(Stale, AFormerOutputThatAKilledCommitHadMovedAwayComesBack) {
  const std::string commit = "/.out.ropewalk-old-1-" + dead_ + "/commit/7";
  for (const char* name : {"/old", "/ready"}) fs::create_directories(root_ + commit + name);
  std::ofstream(root_ + commit + "/old/part-00000") << "precious";
  RemoveStaleOutputs(spec_);
  EXPECT_EQ(Names(), std::vector<std::string>{"out"});
  EXPECT_TRUE(fs::exists(root_ + "/out/part-00000"));
  for (const char* name : {"/old", "/ready"}) fs::create_directories(root_ + "/.another.ropewalk-old-1-" + dead_ + "/commit/0" + name);
  RemoveStaleOutputs(spec_);
  EXPECT_EQ(Names(), (std::vector<std::string>{"another", "out"})) << "another output's too";
  EXPECT_EQ(CheckOutput(spec_, {}).tag(), "OUT01") << "it is there again, and not overwritten unasked";
}

TEST_F(Stale, AnAbandonedOutputCannotBePublishedAnyMore) {
  auto writer = PartWriter::Open(spec_, 0, 1);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(AsBytes(std::string("whole\n"))).ok());
  auto winner = (*writer)->Finish(1);
  ASSERT_TRUE(winner.ok());
  auto open = PartWriter::Open(spec_, 1, 1);  // still writing
  ASSERT_TRUE(open.ok());
  AbandonOutput(spec_);
  EXPECT_EQ(Names(), std::vector<std::string>());
  Status status = CommitOutput(spec_, std::vector<std::string>{*winner});
  EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
  EXPECT_FALSE(fs::exists(root_ + "/out"));
  AbandonOutput(spec_);
  EXPECT_EQ(Names(), std::vector<std::string>());
  AbandonOutput(spec_);  // nothing there: nothing to do
}

}  // namespace
}  // namespace ropewalk::storage
