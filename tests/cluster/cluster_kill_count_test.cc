#include "tests/cluster/recovery.h"

namespace ropewalk::cluster {
namespace {

constexpr int kMaps = 12, kPerMap = 8, kKeys = 40, kReducers = 4;

void Count(Job& job, int delay_ms, const std::string& out) {
  std::vector<int> numbers(kMaps * kPerMap);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i);
  job.FromVector(numbers, {.partitions = kMaps})
      .Map([delay_ms](int n) {
        Dawdle(delay_ms);
        return "key" + std::to_string(n % kKeys);
      })
      .CountByKey({.partitions = kReducers})
      .Map([delay_ms](const std::pair<std::string, std::uint64_t>& count) {
        Dawdle(delay_ms);
        return count;
      })
      .WriteText(out);
  std::printf("main is done\n");
}

TEST(ClusterKillCount, OutputIsExactWhateverIsKilled) {
  KillAtPointsOfProgress({.delay_ms = 12, .executor_kills = {1, 6, 10, 13}, .worker_kills = {3, 8, 13}, .master_kills = {1, 8, 13}});
}

TEST(ClusterKillCount, CtrlCDetachesAndTheJobGoesOn) {
  Cluster cluster({.workers = 1, .slots = 1});
  auto [client, job] = cluster.SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", "10", "out"});
  ASSERT_TRUE(cluster.WaitForEvents(job, "task_finished", 1));
  client->Signal(SIGINT);
  EXPECT_EQ(client->Wait(), 0);
  std::string err = client->err();
  EXPECT_NE(err.find("ropewalk logs " + JobName(job)), std::string::npos) << err;
  EXPECT_NE(err.find("ropewalk job cancel " + JobName(job)), std::string::npos) << err;
  EXPECT_TRUE(Eventually([&] { return fs::exists(cluster.dir() / "out" / "_SUCCESS"); }));
}

}  // namespace
}  // namespace ropewalk::cluster

ROPEWALK_RECOVERY_MAIN(ropewalk::cluster::Count)
