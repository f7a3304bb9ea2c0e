// An executor whose process is stopped keeps its socket: only its silence tells. It must give its slots back while its job lasts.
//
// This binary is also its job: started with "job" it runs the main below.
#include <signal.h>

#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/job_main.h"

namespace ropewalk::cluster {
namespace {

constexpr int kNumbers = 48;

int RunJob(int argc, char** argv) {
  Job job = Init(argc, argv);
  std::vector<int> numbers;
  for (int i = 0; i < kNumbers; ++i) numbers.push_back(i);
  const bool slow_main = std::getenv("SLOW_MAIN") != nullptr;
  if (slow_main) std::this_thread::sleep_for(std::chrono::seconds(12));
  std::uint64_t sum = 0;
  for (std::uint64_t n : job.FromVector(numbers, {.partitions = 16})
                             .Map([slow_main](int n) {
                               if (!slow_main) std::this_thread::sleep_for(std::chrono::milliseconds(100));
                               return static_cast<std::uint64_t>(n);
                             })
                             .Collect())
    sum += n;
  std::printf("%llu\n", static_cast<unsigned long long>(sum));
  return 0;
}

TEST(ClusterSilent, AStoppedExecutorIsEndedAndItsTasksAreRunAgain) {
  Cluster cluster({.workers = 2, .slots = 1, .worker_environment = {"ROPEWALK_WORKER__EXECUTOR_SILENCE=4"}});
  auto [client, job] = cluster.SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", "silent", "--verify=off"});
  ASSERT_TRUE(cluster.WaitForEvents(job, "task_finished", 2)) << client->err();
  std::vector<pid_t> stopped = cluster.Executors(1, "silent");
  ASSERT_EQ(stopped.size(), 1u);
  ASSERT_EQ(kill(stopped[0], SIGSTOP), 0);
  EXPECT_EQ(client->Wait(60'000), 0) << client->err() << cluster.Logs();
  EXPECT_EQ(client->out(), std::to_string(kNumbers * (kNumbers - 1) / 2) + "\n");
  EXPECT_GE(cluster.CountEvents(job, "task_lost"), 1u) << "it ran one when it was stopped";
  EXPECT_NE(kill(stopped[0], 0), 0) << "it is still there";
  EXPECT_NE(cluster.Logs().find("fell silent"), std::string::npos) << "the reason is told";
}

// Main is slow between its actions, and no task runs: that is not silence.
TEST(ClusterSilent, AnIdleExecutorIsNotTakenForASilentOne) {
  Cluster cluster({.workers = 1, .slots = 1, .worker_environment = {"ROPEWALK_WORKER__EXECUTOR_SILENCE=10"}});
  auto [client, job] =
      cluster.SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", "silent"}, {"ROPEWALK_ENV=SLOW_MAIN", "SLOW_MAIN=1"});
  EXPECT_EQ(client->Wait(60'000), 0) << client->err();
  EXPECT_EQ(cluster.CountEvents(job, "task_lost"), 0u);
  EXPECT_EQ(cluster.Logs().find("fell silent"), std::string::npos) << cluster.Logs();
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) { return ropewalk::cluster::TestOrJob(argc, argv, ropewalk::cluster::RunJob); }
