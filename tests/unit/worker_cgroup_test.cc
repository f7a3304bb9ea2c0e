// Control groups with real processes: what a group stops, what is told of it, and that nothing of it stays.
#include "worker/daemon/cgroup.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace ropewalk::worker {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

void Enter(const ExecutorGroups::Entry& entry) {
  for (const std::string& procs : entry.procs) {
    std::ofstream file(procs);
    file << "0" << std::flush;
    if (!file) _exit(100);
  }
}

int WaitFor(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

class WorkerCgroup : public testing::Test {
 protected:
  void SetUp() override {
    groups_ = ExecutorGroups::Open();
    std::printf("%s\n", groups_->description().c_str());
    if (!groups_->limits_memory()) GTEST_SKIP() << groups_->description();
  }
  std::unique_ptr<ExecutorGroups> groups_;
};

TEST_F(WorkerCgroup, AMemoryBombEndsAndIsCalledWhatItIs) {
  auto entry = groups_->Make(1, {.memory_bytes = 32 * kMiB, .processes_max = 100});
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  EXPECT_EQ(groups_->MemoryKills(1), 0u);
  pid_t bomb = ::fork();
  if (bomb == 0) {
    Enter(*entry);
    for (int i = 0; i < 256; ++i) std::memset(std::malloc(kMiB), i, kMiB);
    _exit(0);
  }
  int status = WaitFor(bomb);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_GE(groups_->MemoryKills(1), 1u);
  EXPECT_TRUE(groups_->WasFull(1));

  auto other = groups_->Make(2, {.memory_bytes = 32 * kMiB, .processes_max = 100});
  ASSERT_TRUE(other.ok());
  pid_t modest = ::fork();
  if (modest == 0) {
    Enter(*other);
    std::memset(std::malloc(4 * kMiB), 1, 4 * kMiB);
    _exit(7);
  }
  EXPECT_EQ(WaitFor(modest), 7 << 8);
  EXPECT_EQ(groups_->MemoryKills(2), 0u) << "another group's kills are none of its own";
  EXPECT_FALSE(groups_->WasFull(2));
  EXPECT_EQ(groups_->MemoryKills(77), std::nullopt) << "a group that was never made counts nothing";
  for (std::uint64_t id : {1, 2}) groups_->Remove(id);
}

TEST_F(WorkerCgroup, AForkBombRunsIntoItsLimitAndCanBeStopped) {
  auto entry = groups_->Make(3, {.memory_bytes = 256 * kMiB, .processes_max = 12});
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  pid_t bomb = ::fork();
  if (bomb == 0) {
    Enter(*entry);
    int forked = 0;
    for (int i = 0; i < 50; ++i) {
      pid_t child = ::fork();
      if (child == 0) {
        ::pause();
        _exit(0);
      }
      forked += child > 0 ? 1 : 0;
    }
    (void)!::write(pipe[1], &forked, sizeof forked);
    ::pause();
  }
  int forked = 0;
  ASSERT_EQ(::read(pipe[0], &forked, sizeof forked), static_cast<ssize_t>(sizeof forked));
  EXPECT_EQ(forked, 11);
  ASSERT_FALSE(entry->processes_max.empty());
  std::ofstream(entry->processes_max) << "0";
  std::ifstream procs(entry->procs.back());
  int killed = 0;
  for (pid_t pid; procs >> pid;) killed += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
  EXPECT_EQ(killed, 12);
  WaitFor(bomb);
  ::close(pipe[0]);
  ::close(pipe[1]);
  // Its children are init's now, and end soon; then the folders go, and with them those of the daemon.
  std::string folder = std::filesystem::path(entry->procs.back()).parent_path().parent_path();
  bool gone = false;
  for (int i = 0; i < 500 && !gone; ++i) {
    groups_->Remove(3);
    gone = !std::filesystem::exists(folder + "/executor-3");
    if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(gone);
  groups_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(WorkerCgroup, GroupsOfADeadDaemonAreRemoved) {
  pid_t dead = ::fork();
  if (dead == 0) {
    auto groups = ExecutorGroups::Open();
    _exit(groups->Make(1, {.memory_bytes = 32 * kMiB, .processes_max = 10}).ok() ? 0 : 1);  // without a destructor, as kill -9
  }
  EXPECT_EQ(WaitFor(dead), 0);
  auto entry = groups_->Make(1, {.memory_bytes = 32 * kMiB, .processes_max = 10});
  ASSERT_TRUE(entry.ok());
  std::filesystem::path ours = std::filesystem::path(entry->procs.back()).parent_path().parent_path();
  std::filesystem::path theirs = ours.parent_path() / ("ropewalk-" + std::to_string(dead));
  EXPECT_TRUE(std::filesystem::exists(theirs / "executor-1"));
  auto next = ExecutorGroups::Open();
  EXPECT_FALSE(std::filesystem::exists(theirs));
  EXPECT_TRUE(std::filesystem::exists(ours)) << "a living daemon's stay";
}

}  // namespace
}  // namespace ropewalk::worker
