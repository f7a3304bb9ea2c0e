// Replayed main on a real cluster: what may differ between executors is handed over, what differs all the same is caught, and what user
// code does wrong is told with its place.
//
// This binary is also its jobs: started with "job NAME" it runs one of the mains below.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include <set>
#include <stdexcept>

#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/forked_leaks.h"
#include "tests/cluster/job_main.h"

namespace ropewalk::cluster {
namespace {

void Dawdle(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::vector<int> Numbers(int n) {
  std::vector<int> numbers(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) numbers[static_cast<std::size_t>(i)] = i;
  return numbers;
}

// Once and Broadcast give every executor the driver's value.
int OnceMain(Job& job) {
  int pid = job.Once("pid", [] { return static_cast<int>(getpid()); });
  auto everywhere = job.Broadcast(pid);
  auto seen = job.FromVector(Numbers(40), {.partitions = 8})
                  .Map([everywhere, pid](int) {
                    Dawdle(3);
                    return std::pair(*everywhere, pid);
                  })
                  .Distinct()
                  .Collect();
  std::printf("%zu %d\n", seen.size(), seen.size() == 1 && seen[0] == std::pair(pid, pid) ? 1 : 0);
  return 0;
}

// What tasks print is no part of what main says, wherever they run.
int PrintMain(Job& job) {
  std::printf("main begins\n");
  auto count = job.FromVector(Numbers(8), {.partitions = 4})
                   .Map([](int n) {
                     std::printf("task prints %d\n", n);
                     return n;
                   })
                   .Count();
  std::printf("main counted %llu\n", static_cast<unsigned long long>(count));
  return 0;
}

int SlowMain(Job& job) {
  auto count = job.FromVector(Numbers(40), {.partitions = 8})
                   .Map([](int n) {
                     Dawdle(50);
                     return n;
                   })
                   .Count();
  std::printf("main counted %llu\n", static_cast<unsigned long long>(count));
  return 0;
}

// What daemons do, and what no job may: an executor speaks to its worker through a descriptor that main did not open.
int CloseMain(Job& job, bool reopen, bool in_task) {
  if (in_task)
    job.FromVector(Numbers(8), {.partitions = 2})
        .Map([](int n) {
          closefrom(3);
          Dawdle(3'000);
          return n;
        })
        .Count();
  job.FromVector(Numbers(8)).Count();
  closefrom(3);
  for (int i = 0; reopen && i < 20; ++i)
    if (open("/dev/null", O_RDWR) < 0) return 1;  // the number is in use again
  job.FromVector(Numbers(8)).Count();
  return 0;
}

// A captured vector that differs: its content is in no fingerprint, so the plans are equal and only the sampled second run can tell.
int CaptureMain(Job& job) {
  std::vector<int> own{static_cast<int>(getpid())};
  job.FromVector(Numbers(40), {.partitions = 8})
      .Map([own](int n) {
        Dawdle(3);
        return std::pair(n, own[0]);
      })
      .GroupByKey()
      .WriteText("capture_out");
  return 0;
}

// A branch on something that differs between executors: whoever comes first makes the file.
int BranchMain(Job& job) {
  bool first = open("branch_marker", O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0;
  auto numbers = job.FromVector(Numbers(40), {.partitions = 8}).Map([](int n) {
    Dawdle(10);
    return n;
  });
  if (first) {
    numbers.Count();
  } else {
    numbers.Distinct().Count();
  }
  return 0;
}

int CrashMain(Job& job) {
  job.ReadLines("crash_in")
      .Map([](std::string_view line) {
        if (line == "poison") raise(SIGSEGV);
        return line.size();
      })
      .Sum();
  return 0;
}

int ThrowMain(Job& job) {
  job.ReadLines("crash_in")
      .Map([](std::string_view line) {
        if (line == "poison") throw std::invalid_argument("cannot digest poison");
        return line.size();
      })
      .Sum();
  return 0;
}

// Combiners run when many records are staged: the one that is named must be the one that kills all the same.
int CombineMain(Job& job, bool crash) {
  job.ReadLines("crash_in")
      .Map([](std::string_view line) { return std::pair(line.size() % 3, std::string(line)); })
      .ReduceByKey([crash](std::string& last, const std::string& line) {
        if (line == "poison" && crash) raise(SIGSEGV);
        if (line == "poison") throw std::invalid_argument("cannot digest poison");
        last = line;
      })
      .Count();
  return 0;
}

// The poison is made where what two tasks have combined comes together.
int ReduceMain(Job& job) {
  job.FromVector(Numbers(40), {.partitions = 2})
      .Map([](int n) { return std::pair(n % 39, n); })
      .ReduceByKey(
          [](int a, int b) {
            if (b == 39) raise(SIGSEGV);
            return a + b;
          },
          {.partitions = 1})
      .Count();
  return 0;
}

// Actions over a cached dataset, with a branch and a loop on results; slow enough to lose the cache in the middle.
int CacheMain(Job& job) {
  auto squares = job.FromVector(Numbers(48), {.partitions = 6})
                     .Map([](int n) {
                       Dawdle(6);
                       return std::int64_t(n) * n;
                     })
                     .Cache();
  std::int64_t sum = 0;
  for (int round = 0; round < 6; ++round) {
    std::int64_t part = squares
                            .Filter([round](std::int64_t n) {
                              Dawdle(2);
                              return n % 6 == round;
                            })
                            .Sum();
    if (part % 2 == 0) sum += part;
    std::printf("round %d: %lld\n", round, static_cast<long long>(part));
  }
  std::printf("sum %lld\n", static_cast<long long>(sum));
  return 0;
}

// Writes one folder twice and then waits for a file: what each action wrote is the same in every replica, and no matter of the folder.
int WrittenMain(Job& job) {
  auto numbers = job.FromVector(Numbers(40), {.partitions = 4});
  const Written first = numbers.WriteText("written_out", {.overwrite = true});
  const Written second = numbers.Filter([](int n) { return n < 10; }).WriteText("written_out", {.overwrite = true});
  job.Once("wait", [] {
    while (access("written_go", F_OK) != 0) Dawdle(20);
  });
  for (const Written& w : {first, second})
    std::printf("%llu records, %llu bytes, %u parts\n", static_cast<unsigned long long>(w.records),
                static_cast<unsigned long long>(w.bytes), w.parts);
  return 0;
}

// Shuffles 24 MB of distinct text.
int ShuffleMain(Job& job) {
  std::uint64_t n = job.FromVector(Numbers(24), {.partitions = 6})
                        .FlatMap([](int block, Emit<std::string> emit) {
                          for (int i = 0; i < 1000; ++i) emit(std::to_string(block * 1000 + i) + std::string(1000, 'x'));
                        })
                        .Distinct({.partitions = 4})
                        .Count();
  std::printf("%llu\n", static_cast<unsigned long long>(n));
  return 0;
}

// An action inside of an operator, in tasks of one executor: the driver or the other one. Which task that is shows only when it runs, so a
// task of the other executor waits until one has tried, and what has tried does so again wherever it is run next.
int NestedMain(Job& job, bool in_driver) {
  static Job* const from_tasks = &job;
  const int driver = job.Once("pid", [] { return static_cast<int>(getpid()); });
  const std::string marks = in_driver ? "nested_in_driver_" : "nested_elsewhere_";
  job.FromVector(Numbers(2), {.partitions = 2})
      .Map([driver, in_driver, marks](int n) {
        auto tried = [&marks](int which) { return fs::exists(marks + std::to_string(which)); };
        if ((getpid() == driver) == in_driver) std::ofstream(marks + std::to_string(n)) << "";
        if (tried(n)) return static_cast<int>(from_tasks->FromVector(Numbers(3)).Count());
        Eventually([&] { return tried(0) || tried(1); });
        return n;
      })
      .Count();
  return 0;
}

// A child whose exec() fails has its parent's sockets, and is no executor.
void ForkInVain() {
  const pid_t child = fork();
  if (child == 0) {
    execl("/nonexistent/program", "program", nullptr);
    std::exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 127)
    throw std::runtime_error("the child ended with " + std::to_string(status));
}

int ForkMain(Job& job, bool in_tasks) {
  if (!in_tasks) ForkInVain();
  auto count = job.FromVector(Numbers(8), {.partitions = 4})
                   .Map([in_tasks](int n) {
                     if (in_tasks && n % 2 == 0) ForkInVain();
                     Dawdle(5);
                     return n;
                   })
                   .Count();
  std::printf("main counted %llu\n", static_cast<unsigned long long>(count));
  return 0;
}

int ThreadMain(Job& job) {
  job.FromVector(Numbers(8), {.partitions = 4})
      .Map([](int n) {
        if (n == 3) pthread_exit(nullptr);
        return n;
      })
      .Count();
  return 0;
}

int RunJob(int argc, char** argv) {
  Job job = Init(argc, argv);
  std::string name = argv[2];
  if (name == "once") return OnceMain(job);
  if (name == "close") return CloseMain(job, false, false);
  if (name == "close_and_open") return CloseMain(job, true, false);
  if (name == "close_in_task") return CloseMain(job, false, true);
  if (name == "print") return PrintMain(job);
  if (name == "slow") return SlowMain(job);
  if (name == "capture") return CaptureMain(job);
  if (name == "branch") return BranchMain(job);
  if (name == "crash") return CrashMain(job);
  if (name == "throw") return ThrowMain(job);
  if (name == "combine_crash") return CombineMain(job, true);
  if (name == "combine_throw") return CombineMain(job, false);
  if (name == "reduce_crash") return ReduceMain(job);
  if (name == "cache") return CacheMain(job);
  if (name == "written") return WrittenMain(job);
  if (name == "shuffle") return ShuffleMain(job);
  if (name == "nested_in_driver") return NestedMain(job, true);
  if (name == "nested_elsewhere") return NestedMain(job, false);
  if (name == "fork_in_main") return ForkMain(job, false);
  if (name == "fork_in_tasks") return ForkMain(job, true);
  if (name == "thread") return ThreadMain(job);
  if (name == "main_throws") throw std::logic_error("main gives up");
  if (name == "main_exits") std::exit(3);
  return 9;
}

class ClusterReplay : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = std::make_unique<Cluster>(Cluster::Options{.workers = 2, .slots = 1});
    std::ofstream in(cluster_->dir() / "crash_in");
    for (int i = 0; i < 100; ++i) in << "line " << i << "\n";
    poison_offset_ = in.tellp();
    in << "poison\nend\n";
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  static std::unique_ptr<Process> Submit(const std::string& name) {
    return cluster_->Submit({fs::read_symlink("/proc/self/exe"), "job", name});
  }

  static std::unique_ptr<Cluster> cluster_;
  static std::int64_t poison_offset_;
};
std::unique_ptr<Cluster> ClusterReplay::cluster_;
std::int64_t ClusterReplay::poison_offset_ = 0;

TEST_F(ClusterReplay, OnceAndBroadcastGiveTheDriversValue) {
  auto client = Submit("once");
  ASSERT_EQ(client->Wait(), 0) << client->err();
  EXPECT_EQ(client->out(), "1 1\n");
}

TEST_F(ClusterReplay, WhatTasksPrintStaysOutOfMainsOutput) {
  auto [client, job] = cluster_->SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", "print"});
  ASSERT_EQ(client->Wait(), 0) << client->err();
  EXPECT_EQ(client->out(), "main begins\nmain counted 8\n");
  std::string logs = client->err();  // with the driver's own tasks; those of the other executor are in its log
  wire::ClientRequest request;
  request.mutable_read_log()->set_job(job.value);
  request.mutable_read_log()->set_stream("executor");
  auto executor = cluster_->link().Call(&request);
  ASSERT_TRUE(executor.ok()) << executor.status().ToString();
  logs += executor->log_chunk().data();
  for (int n = 0; n < 8; ++n) EXPECT_NE(logs.find("task prints " + std::to_string(n) + "\n"), std::string::npos) << n << "\n" << logs;
  EXPECT_NE(client->err().find("job " + JobName(job) + " accepted by "), std::string::npos) << client->err();
  EXPECT_NE(client->err().find("job " + JobName(job) + " succeeded in "), std::string::npos) << "the end is told off a terminal too";
  auto quiet = cluster_->Submit({fs::read_symlink("/proc/self/exe"), "job", "print"}, {"ROPEWALK_QUIET=1"});
  ASSERT_EQ(quiet->Wait(), 0) << quiet->err();
  EXPECT_EQ(quiet->out(), "main begins\nmain counted 8\n");
  for (const char* talk : {" accepted by ", " succeeded in "}) EXPECT_EQ(quiet->err().find(talk), std::string::npos) << quiet->err();
}

TEST_F(ClusterReplay, ATerminalHasABarUnlessNothingIsToBeSaid) {
  const std::string command = fs::read_symlink("/proc/self/exe").string() + " job slow";
  for (const std::string variable : {"ROPEWALK_QUIET=0", "ROPEWALK_QUIET=1", "ROPEWALK_JOB__QUIET=on", "ROPEWALK_OUTPUT=json"}) {
    auto client = cluster_->Submit({"/usr/bin/script", "-qec", command, "/dev/null"}, {"TERM=xterm", variable});
    ASSERT_EQ(client->Wait(), 0) << client->out();
    EXPECT_NE(client->out().find("main counted 40"), std::string::npos) << client->out();
    EXPECT_EQ(client->out().find("\x1b[K") != std::string::npos, variable == "ROPEWALK_QUIET=0") << variable << ": " << client->out();
  }
}

TEST_F(ClusterReplay, AMainThatClosesItsExecutorsSocketIsNamed) {
  for (const char* name : {"close", "close_and_open", "close_in_task"}) {
    auto client = Submit(name);
    EXPECT_EQ(client->Wait(60'000), 1) << client->err();
    EXPECT_NE(client->err().find("most likely the job's code closed descriptors that it did not open (closefrom"), std::string::npos)
        << client->err();
    EXPECT_NE(client->err().find("fix: close only what the job opened"), std::string::npos) << client->err();
  }
  auto good = Submit("once");
  EXPECT_EQ(good->Wait(), 0) << "the workers serve others: " << good->err();
}

TEST_F(ClusterReplay, ACapturedVectorThatDiffersIsCaught) {
  auto client = Submit("capture");
  EXPECT_EQ(client->Wait(), 1) << client->err();
  EXPECT_NE(client->err().find("error[DET"), std::string::npos) << client->err();
  EXPECT_FALSE(fs::exists(cluster_->dir() / "capture_out"));
}

TEST_F(ClusterReplay, AMainThatBranchesDifferentlyIsStoppedAndTheOperatorNamed) {
  auto client = Submit("branch");
  EXPECT_EQ(client->Wait(), 1) << client->err();
  EXPECT_NE(client->err().find("cluster_replay_test.cc:"), std::string::npos) << client->err();
}

TEST_F(ClusterReplay, ARecordThatKillsItsTaskIsNamed) {
  auto client = Submit("crash");
  EXPECT_EQ(client->Wait(), 1) << client->err();
  std::string err = client->err();
  for (const std::string& part : {std::string("crash_in"), "offset " + std::to_string(poison_offset_)})
    EXPECT_NE(err.find(part), std::string::npos) << err;
  EXPECT_TRUE(err.find("SIGSEGV") != std::string::npos || err.find("signal 11") != std::string::npos) << err;
}

TEST_F(ClusterReplay, AnExceptionIsToldWithItsRecord) {
  auto client = Submit("throw");
  EXPECT_EQ(client->Wait(), 1) << client->err();
  std::string err = client->err();
  for (const std::string& part : {std::string("std::invalid_argument"), std::string("cannot digest poison"), std::string("crash_in"),
                                  "offset " + std::to_string(poison_offset_)})
    EXPECT_NE(err.find(part), std::string::npos) << err;
}

TEST_F(ClusterReplay, AnActionInsideOfAnOperatorIsNamedWhereverItRuns) {
  for (const char* name : {"nested_in_driver", "nested_elsewhere"}) {
    SCOPED_TRACE(name);
    auto client = cluster_->Submit({fs::read_symlink("/proc/self/exe"), "job", name}, {"ROPEWALK_VERIFY=off"});
    EXPECT_EQ(client->Wait(), 1) << client->err();
    EXPECT_NE(client->err().find("error[DAG01]"), std::string::npos) << client->err();
    EXPECT_NE(client->err().find("tried 4 times"), std::string::npos) << client->err();
    EXPECT_NE(client->err().find("fix: move the call to main's thread"), std::string::npos) << client->err();
  }
}

TEST_F(ClusterReplay, AForkedChildSpeaksForNoExecutor) {
  for (const char* name : {"fork_in_main", "fork_in_tasks"}) {
    SCOPED_TRACE(name);
    auto [client, job] = cluster_->SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", name});
    EXPECT_EQ(client->Wait(), 0) << client->err();
    EXPECT_EQ(client->out(), "main counted 8\n");
    EXPECT_EQ(cluster_->CountEvents(job, "task_failed"), 0u);
    EXPECT_EQ(cluster_->CountEvents(job, "task_lost"), 0u);
  }
}

TEST_F(ClusterReplay, ATaskThatEndsItsThreadIsNamed) {
  auto client = Submit("thread");
  EXPECT_EQ(client->Wait(), 1) << client->err();
  EXPECT_NE(client->err().find("error[TASK06]"), std::string::npos) << client->err();
  auto good = Submit("once");
  EXPECT_EQ(good->Wait(), 0) << good->err();
}

TEST_F(ClusterReplay, ARecordThatKillsItsCombinerIsNamed) {
  for (const char* name : {"combine_crash", "combine_throw"}) {
    auto client = Submit(name);
    EXPECT_EQ(client->Wait(), 1) << client->err();
    const std::string err = client->err();
    for (const std::string& part : {std::string("crash_in"), "offset " + std::to_string(poison_offset_)})
      EXPECT_NE(err.find(part), std::string::npos) << err;
  }
  auto behind = Submit("reduce_crash");
  EXPECT_EQ(behind->Wait(), 1) << behind->err();
  EXPECT_NE(behind->err().find("every time at input split 0, record 39 of the shuffled records"), std::string::npos) << behind->err();
}

TEST_F(ClusterReplay, MainsOwnEndIsTheJobs) {
  auto thrown = Submit("main_throws");
  EXPECT_EQ(thrown->Wait(), 1) << thrown->err();
  EXPECT_NE(thrown->err().find("main gives up"), std::string::npos) << thrown->err();
  auto exited = Submit("main_exits");
  EXPECT_EQ(exited->Wait(), 1) << exited->err();
  EXPECT_NE(exited->err().find("3"), std::string::npos) << exited->err();
}

TEST_F(ClusterReplay, ACacheLostActionsLaterIsMadeAgain) {
  auto peace = Submit("cache");
  ASSERT_EQ(peace->Wait(), 0) << peace->err();
  auto [client, job] = cluster_->SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", "cache"});
  ASSERT_TRUE(cluster_->WaitForEvents(job, "action_published", 5));
  cluster_->KillWorker(1);
  cluster_->StartWorker(1);
  ASSERT_EQ(client->Wait(), 0) << client->err();
  EXPECT_EQ(client->out(), peace->out());
  EXPECT_GE(cluster_->CountEvents(job, "segments_lost"), 1u);
  EXPECT_GE(cluster_->CountEvents(job, "rerun"), 1u);
  ASSERT_TRUE(cluster_->WaitForWorkers(2));
}

// A replacement of main's process learns it from the journal: the folder holds something else by then.
TEST_F(ClusterReplay, WhatAnActionWroteIsKnownAfterAKill) {
  auto [client, job] = cluster_->SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", "written"});
  ASSERT_TRUE(cluster_->WaitForEvents(job, "action_published", 2));
  cluster_->KillWorker(1);
  cluster_->StartWorker(1);
  ASSERT_TRUE(cluster_->WaitForWorkers(2));
  const std::string manifest = ReadFile(cluster_->dir() / "written_out" / "_SUCCESS");
  EXPECT_NE(manifest.find("\"writer\": \"job " + JobName(job) + "\""), std::string::npos) << manifest;
  std::ofstream(cluster_->dir() / "written_go") << "";
  ASSERT_EQ(client->Wait(), 0) << client->err();
  EXPECT_EQ(client->out(), "40 records, 110 bytes, 4 parts\n10 records, 20 bytes, 4 parts\n");
}

// Bytes that crossed the master's sockets, both ways, as the kernel counts them.
std::uint64_t MasterBytes(const std::string& address) {
  std::string command = "ss -Htin sport = :" + address.substr(address.rfind(':') + 1);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe.get())) > 0;) text.append(buffer, n);
  std::uint64_t bytes = 0;
  for (const char* key : {"bytes_acked:", "bytes_received:"})
    for (std::size_t at = 0; (at = text.find(key, at)) != std::string::npos; ++at)
      bytes += std::strtoull(text.c_str() + at + std::strlen(key), nullptr, 10);
  return bytes;
}

TEST_F(ClusterReplay, ShuffledBytesDoNotPassThroughTheMaster) {
  auto first = Submit("shuffle");  // carries the executable over
  ASSERT_EQ(first->Wait(), 0) << first->err();
  EXPECT_EQ(first->out(), "24000\n");
  std::uint64_t before = MasterBytes(cluster_->address());
  auto second = Submit("shuffle");
  ASSERT_EQ(second->Wait(), 0) << second->err();
  std::uint64_t crossed = MasterBytes(cluster_->address()) - before;
  constexpr std::uint64_t kShuffledBytes = 24'000'000;
  std::cout << crossed << " bytes crossed the workers' connections to the master\n";
  EXPECT_GT(crossed, 0u) << "nothing was measured";
  EXPECT_LT(crossed, kShuffledBytes / 100);
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) { return ropewalk::cluster::TestOrJob(argc, argv, ropewalk::cluster::RunJob, 1); }
