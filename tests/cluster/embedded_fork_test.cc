// What a job's code does to the process that it runs in, without a cluster: children that it forks, threads that it ends.
//
// The binary is also the job: `embedded_fork_test job WHERE HOW OUT`, where WHERE is task, main or sort.
#include <pthread.h>

#include <cstdio>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "job/ropewalk.h"
#include "tests/cluster/forked_leaks.h"
#include "tests/cluster/job_main.h"
#include "tests/cluster/process.h"

namespace ropewalk::cluster {
namespace {

constexpr int kSorted = 24'000;

std::string SortedLine(int n, char fill) { return std::to_string(100'000 + n) + std::string(1'000, fill); }

class EmbeddedFork : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("embedded_fork_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "tmp");
  }
  void TearDown() override { RemoveTree(dir_); }
  std::unique_ptr<Process> Run(const std::string& where, const std::string& how, std::vector<std::string> environment = {}) {
    environment.push_back("TMPDIR=" + (dir_ / "tmp").string());
    return std::make_unique<Process>(Process::Options{{fs::read_symlink("/proc/self/exe"), "job", where, how, "out"},
                                                      std::move(environment),
                                                      dir_,
                                                      dir_ / ("log" + std::to_string(runs_++))});
  }
  // Output folders, hidden ones too.
  std::vector<std::string> Outputs() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_))
      if (entry.is_directory() && entry.path().filename() != "tmp") names.push_back(entry.path().filename());
    return names;
  }
  fs::path dir_;
  int runs_ = 0;
};

// A child has its parent's handlers, files, sockets and pipes. However it ends, they are the parent's.
TEST_F(EmbeddedFork, AChildTakesNothingOfItsParentAlong) {
  struct Case {
    const char *where, *how, *ends;
  };
  for (const Case& c :
       {Case{"task", "exit", "exit 127"}, Case{"task", "throw", "exit 1"}, Case{"task", "return", "exit 1"}, Case{"task", "act", "exit 1"},
        Case{"task", "signal", "signal 15"}, Case{"main", "exit", "exit 127"}, Case{"main", "throw", "signal 6"},
        Case{"main", "return", "exit 0"}, Case{"main", "act", "exit 1"}, Case{"main", "signal", "signal 15"}}) {
    // ThreadSanitizer hands a signal on to a handler from within calls that it watches, and watches none in the child of several threads.
    if (kHasThreadSanitizer && std::string(c.how) == "signal") continue;
    SCOPED_TRACE(std::string(c.where) + ", " + c.how);
    auto run = Run(c.where, c.how);
    EXPECT_EQ(run->Wait(), 0) << run->err();
    EXPECT_EQ(run->out(), std::string("child: ") + c.ends + "\nspill folders: 1\n") << run->err();
    EXPECT_EQ(run->err().find("interrupted"), std::string::npos) << run->err();
    EXPECT_EQ(run->err().find("error[DAG01]") != std::string::npos, std::string(c.how) == "act") << run->err();
    EXPECT_EQ(Outputs(), std::vector<std::string>{"out"}) << run->err();
    EXPECT_EQ(ReadFile(dir_ / "out/part-00000"), "1\n2\n3\n");
    fs::remove_all(dir_ / "out");
  }
}

// It goes on with its parent's records: the sort spills them, at the offsets where its parent has spilled others, and makes blocks of them.
TEST_F(EmbeddedFork, AChildThatComesBackBeforeASortSpillsNothingOverItsParentsRecords) {
  auto run = Run("sort", "return", {"ROPEWALK_MEMORY=16M", "ROPEWALK_OPERATOR_MEMORY=64K", "ROPEWALK_THREADS=1"});
  EXPECT_EQ(run->Wait(60'000), 0) << run->err();
  EXPECT_EQ(ReadFile(dir_ / "child").find_first_not_of("exit 1\n"), std::string::npos) << ReadFile(dir_ / "child");
  EXPECT_NE(ReadFile(dir_ / "child"), "");
  EXPECT_EQ(Outputs(), std::vector<std::string>{"out"}) << run->err();
  std::string all;
  std::set<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(dir_ / "out"))
    if (entry.path().filename().string().starts_with("part-")) parts.insert(entry.path());
  for (const fs::path& part : parts) all += ReadFile(part);
  std::string expected;
  for (int n = 0; n < kSorted; ++n) expected += SortedLine(n, 'p') + "\n";
  EXPECT_TRUE(all == expected) << all.size() << " bytes, not " << expected.size();
}

// The child's exit() ended the thread that waits for Ctrl-C.
TEST_F(EmbeddedFork, CtrlCReachesAJobWhoseMainHasForked) {
  auto run = Run("main", "exit_then_sleep");
  ASSERT_TRUE(Eventually([&] { return fs::exists(dir_ / "asleep") || !run->running(); })) << run->err();
  run->Signal(SIGINT);
  EXPECT_TRUE(Eventually([&] { return run->err().find("waiting for 1 running task ") != std::string::npos; })) << run->err();
  run->Signal(SIGINT);
  EXPECT_EQ(run->Wait(20'000), 130) << run->err();
  EXPECT_EQ(Outputs(), std::vector<std::string>()) << run->err();
}

TEST_F(EmbeddedFork, ATaskThatEndsItsThreadFailsTheJob) {
  auto run = Run("task", "pthread_exit");
  EXPECT_EQ(run->Wait(20'000), 1) << run->err();
  EXPECT_NE(run->err().find("error[TASK06]"), std::string::npos) << run->err();
  EXPECT_NE(run->err().find("   fix: return from the function"), std::string::npos) << run->err();
  EXPECT_EQ(Outputs(), std::vector<std::string>()) << run->err();
}

// How the child that this makes has ended; "" in a child that comes back.
std::string ForkAndWait(const std::string& how, Job& job) {
  const pid_t child = fork();
  if (child == 0) {
    if (how.starts_with("exit")) {
      execl("/nonexistent/program", "program", nullptr);
      std::exit(127);
    }
    if (how == "throw") throw std::runtime_error("there is no such program");
    if (how == "act") (void)job.FromVector(std::vector<int>{1}).Count();
    while (how == "signal") pause();
    return "";
  }
  if (how == "signal") kill(child, SIGTERM);
  int status = 0;
  if (waitpid(child, &status, 0) != child) return "never";
  return WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status)) : "signal " + std::to_string(WTERMSIG(status));
}

// A child is made half way through the records and comes back when its parent has been through all of them.
int SortMain(Job& job, const char* out) {
  static int held[2];
  static pid_t child = -1;
  static char fill = 'p';
  std::vector<int> numbers(kSorted);
  std::iota(numbers.begin(), numbers.end(), 0);
  job.FromVector(std::move(numbers), {.partitions = 1})
      .Map([](int n) {
        if (n == kSorted / 2) {
          if (pipe(held) != 0) throw std::runtime_error("no pipe");
          child = fork();
          if (child == 0) {
            char byte;
            close(held[1]);
            (void)!read(held[0], &byte, 1);
            fill = 'c';
          }
        }
        if (n == kSorted - 1 && child > 0) {
          close(held[0]);
          close(held[1]);
          int status = 0;
          const bool ended = waitpid(child, &status, 0) == child && WIFEXITED(status);
          std::ofstream("child", std::ios::app) << (ended ? "exit " + std::to_string(WEXITSTATUS(status)) : "never") << "\n";
        }
        return SortedLine(static_cast<int>(n * 7919ll % kSorted), fill);
      })
      .Sort()
      .WriteText(out);
  return 0;
}

int RunJob(int argc, char** argv) {
  Job job = Init(argc, argv);
  static Job* const from_tasks = &job;
  const std::string where = argv[2], how = argv[3];
  if (where == "sort") return SortMain(job, argv[4]);
  if (where == "main") {
    const std::string ended = ForkAndWait(how, job);
    if (ended.empty()) return 0;
    std::ofstream("child") << ended;
  }
  job.FromVector(std::vector<int>{1, 2, 3}, {.partitions = 1})
      .Map([where, how](int n) {
        if (how == "exit_then_sleep") {
          std::ofstream("asleep") << "";
          std::this_thread::sleep_for(std::chrono::seconds(120));
        }
        if (how == "pthread_exit" && n == 3) pthread_exit(nullptr);
        if (where == "task" && n == 3)
          if (const std::string ended = ForkAndWait(how, *from_tasks); !ended.empty()) std::ofstream("child") << ended;
        return n;
      })
      .WriteText(argv[4]);
  const fs::path spill = fs::path(std::getenv("TMPDIR")) / ("ropewalk-" + std::to_string(getuid()));
  std::printf("child: %s\nspill folders: %td\n", ReadFile("child").c_str(),
              std::distance(fs::directory_iterator(spill), fs::directory_iterator()));
  return 0;
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) { return ropewalk::cluster::TestOrJob(argc, argv, ropewalk::cluster::RunJob, 3); }
