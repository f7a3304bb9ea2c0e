// User code that does its worst: memory and fork bombs, leaked descriptors, crashes, a stopped process. The daemon's memory, descriptors
// and children are back where they were, another job on the same worker goes on, and the reason is said.
//
// This binary is also its jobs: started with "job NAME" it runs one of the mains below.
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cstring>

#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"

namespace ropewalk::cluster {
namespace {

std::vector<int> Numbers(int n) {
  std::vector<int> numbers(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) numbers[static_cast<std::size_t>(i)] = i;
  return numbers;
}

// Does `harm`, a lambda without captures, in each of two tasks. (A function's address differs between processes: it must not be in the
// plan.)
template <class Harm>
int HarmMain(Job& job, Harm harm) {
  std::uint64_t sum = job.FromVector(Numbers(2), {.partitions = 2})
                          .Map([harm](int n) {
                            harm();
                            return n;
                          })
                          .Sum();
  std::printf("%d\n", static_cast<int>(sum));
  return 0;
}

void EatMemory() {
  for (int i = 0;; ++i) {
    auto* piece = static_cast<char*>(std::malloc(1u << 20));
    if (piece == nullptr) throw std::bad_alloc();
    std::memset(piece, i, 1u << 20);
  }
}
void Fork() {
  for (int i = 0; i < 3000; ++i) {
    pid_t child = fork();
    if (child == 0) {
      setsid();  // out of the session that is killed with the executor
      for (;;) {
        if (fork() < 0) usleep(1000);
      }
    }
    if (child < 0) usleep(1000);
  }
  raise(SIGKILL);
}
void LeakDescriptors() {
  while (open("/dev/null", O_RDONLY) >= 0) {
  }
  throw std::runtime_error("no more descriptors");
}
void Crash() { raise(SIGSEGV); }
void StopSelf() { raise(SIGSTOP); }

int WhoMain(Job& job) {
  auto who = job.FromVector(Numbers(2), {.partitions = 2})
                 .Map([](int) {
                   std::ofstream scratch(std::string(std::getenv("TMPDIR")) + "/mine");
                   scratch << "x";
                   return std::string(scratch ? "writes " : "cannot write ") + std::to_string(getuid()) + "/" + std::to_string(getgid()) +
                          " " + std::to_string(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)) +
                          (access(std::getenv("ROPEWALK_TEST_SECRET_FILE"), R_OK) == 0 ? " reads secrets" : "");
                 })
                 .Distinct()
                 .Collect();
  for (const std::string& line : who) std::printf("%s\n", line.c_str());
  return 0;
}

struct Footprint {
  std::uint64_t rss = 0;
  std::size_t descriptors = 0, children = 0;
};

Footprint Of(Process& worker) {
  Footprint now;
  const std::string folder = "/proc/" + std::to_string(worker.pid());
  const std::string status = ReadFile(folder + "/status");
  std::size_t at = status.find("VmRSS:");
  now.rss = at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + 6, nullptr, 10) << 10;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder + "/fd", error)) now.descriptors += entry.path().empty() ? 0 : 1;
  now.children = Descendants(worker.pid()).size();
  return now;
}

std::vector<std::string> Self(const std::string& name) { return {fs::read_symlink("/proc/self/exe"), "job", name}; }

// A tenth of what is promised for each kind would be 10; those that take long are fewer in a row here, and each run has two tasks that are
// tried again: every job below ends several executors.
TEST(ClusterBombs, TheDaemonIsAsBeforeAndOthersGoOn) {
  Cluster cluster({.workers = 1, .slots = 3, .worker_arguments = {"--memory", "96M"}});
  auto ping = [&] {
    auto job = cluster.Submit(Self("ping"));
    EXPECT_EQ(job->Wait(), 0) << job->err();
    EXPECT_EQ(job->out(), "1\n");
  };
  for (int i = 0; i < 3; ++i) ping();                                            // warm: pools, threads, artifacts
  ASSERT_TRUE(Eventually([&] { return Of(cluster.worker(0)).children == 1; }));  // the spawner
  const Footprint before = Of(cluster.worker(0));

  struct Harm {
    std::string name;
    int runs;
    std::vector<const char*> says;  // one of them
  };
  const bool grouped = cluster.worker(0).err().find("no cgroups") == std::string::npos;
  for (const Harm& harm :
       {Harm{"memory", 3, {"WORKER35", "WORKER29", "WORKER37", "MEM01"}}, Harm{"descriptors", 3, {"no more descriptors"}},
        Harm{"crash", 10, {"TASK04"}}, Harm{"exit", 1, {"TASK04"}}, Harm{"fork", 1, {}}}) {
    if (harm.name == "fork" && !grouped) continue;  // nothing here could hold it
    for (int run = 0; run < harm.runs; ++run) {
      SCOPED_TRACE(harm.name + " " + std::to_string(run));
      auto [job, id] = cluster.SubmitAccepted(Self(harm.name));
      if (harm.name == "fork") {
        // Killed again and again it is a machine's fault for long: one that was seen to end suffices.
        ASSERT_TRUE(cluster.WaitForEvents(id, "executor_exited", 1, 120'000));
        wire::ClientRequest request;
        request.mutable_cancel_job()->set_job(id.value);
        EXPECT_TRUE(cluster.link().Call(&request).ok());
      }
      auto code = job->Wait(120'000);
      ASSERT_TRUE(code.has_value());
      EXPECT_NE(*code, 0);
      if (harm.name == "fork") continue;
      bool said = false;
      for (const char* words : harm.says) said |= job->err().find(words) != std::string::npos;
      EXPECT_TRUE(said) << job->err();
      if (harm.name == "memory" && grouped) {
        EXPECT_NE(job->err().find("WORKER35"), std::string::npos) << job->err();
      }
    }
    ping();
  }

  // A stopped executor keeps its slots until somebody ends its job; the daemon goes on.
  auto [stopped, still] = cluster.SubmitAccepted(Self("stop"));
  ASSERT_TRUE(cluster.WaitForEvents(still, "task_started", 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // for its tasks to come to their harm
  ping();                                                       // in the third slot
  wire::ClientRequest request;
  request.mutable_cancel_job()->set_job(still.value);
  ASSERT_TRUE(cluster.link().Call(&request).ok());
  EXPECT_TRUE(stopped->Wait().has_value());
  ping();

  ASSERT_TRUE(Eventually([&] { return Of(cluster.worker(0)).children == 1; })) << Descendants(cluster.worker(0).pid()).size();
  ASSERT_TRUE(Eventually([&] { return Of(cluster.worker(0)).descriptors <= before.descriptors + 2; })) << Of(cluster.worker(0)).descriptors;
  const Footprint after = Of(cluster.worker(0));
  std::printf("RSS %llu -> %llu KiB, descriptors %zu -> %zu\n", static_cast<unsigned long long>(before.rss >> 10),
              static_cast<unsigned long long>(after.rss >> 10), before.descriptors, after.descriptors);
  EXPECT_LE(after.rss, before.rss + (16u << 20));
}

// A job that eats memory beside one that does not: the second ends well, with no attempt of it lost.
TEST(ClusterBombs, AJobBesideABombLosesNothing) {
  Cluster cluster({.workers = 1, .slots = 2, .worker_arguments = {"--memory", "96M"}});
  auto [bomb, first] = cluster.SubmitAccepted(Self("memory"));
  auto [good, job] = cluster.SubmitAccepted(Self("slow"));
  EXPECT_GT(job, first);
  EXPECT_EQ(good->Wait(120'000), 0) << good->err();
  EXPECT_EQ(good->out(), "1225\n");
  EXPECT_EQ(cluster.CountEvents(job, "task_lost"), 0u);
  EXPECT_NE(bomb->Wait(120'000), 0);
}

TEST(ClusterBombs, JobsRunAsTheUserThatIsConfigured) {
  const passwd* nobody = getpwnam("nobody");
  if (geteuid() != 0 || nobody == nullptr) GTEST_SKIP() << "only root can change users";
  Cluster cluster({.workers = 1, .slots = 1, .worker_environment = {"ROPEWALK_WORKER__JOB_USER=nobody"}});
  auto job =
      cluster.Submit(Self("who"), {"ROPEWALK_ENV=ROPEWALK_TEST_SECRET_FILE", "ROPEWALK_TEST_SECRET_FILE=" + cluster.token_file().string()});
  EXPECT_EQ(job->Wait(), 0) << job->err() << cluster.Logs();
  EXPECT_EQ(job->out(), "writes " + std::to_string(nobody->pw_uid) + "/" + std::to_string(nobody->pw_gid) + " 1\n");
}

}  // namespace

int RunJob(int argc, char** argv) {
  auto job = Init(argc, argv);
  const std::string name = argc > 2 ? argv[2] : "";
  if (name == "memory") return HarmMain(job, [] { EatMemory(); });
  if (name == "fork") return HarmMain(job, [] { Fork(); });
  if (name == "descriptors") return HarmMain(job, [] { LeakDescriptors(); });
  if (name == "crash") return HarmMain(job, [] { Crash(); });
  if (name == "exit") return HarmMain(job, [] { std::exit(5); });
  if (name == "stop") return HarmMain(job, [] { StopSelf(); });
  if (name == "who") return WhoMain(job);
  if (name == "ping") return HarmMain(job, [] {});
  if (name == "slow") {
    auto sum = job.FromVector(Numbers(50), {.partitions = 10})
                   .Map([](int n) {
                     usleep(20'000);
                     return n;
                   })
                   .Sum();
    std::printf("%d\n", static_cast<int>(sum));
    return 0;
  }
  return 2;
}

}  // namespace ropewalk::cluster

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "job") return ropewalk::cluster::RunJob(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
