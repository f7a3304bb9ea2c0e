// Ranks on real processes that neither die nor answer: one that does not end when its gang is lost, one whose process is stopped.
//
// This binary is also its job (gang_job.h).
#include "tests/cluster/gang_job.h"

namespace ropewalk::cluster {
namespace {

TEST(ClusterGangSilent, ARankThatDoesNotEndIsEndedWithItsExecutor) {
  GangCluster cluster({.workers = 2, .slots = 1});
  auto [client, job] = cluster.Start("stuck", 2);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(cluster.WaitForMark("stuck", "ready", 0, rank)) << client->err();
  ASSERT_EQ(kill(std::atoi(cluster.Mark("stuck", "ready", 0, 1).c_str()), SIGKILL), 0);
  EXPECT_EQ(client->Wait(60'000), 0) << client->err();
  EXPECT_EQ(client->out(), "epoch 1, 2 ranks, sum 1\n");
}

// A process that is stopped keeps its sockets: nothing but its silence tells.
TEST(ClusterGangSilent, ARankThatFallsSilentIsLost) {
  GangCluster cluster({.workers = 2, .slots = 1});
  auto [client, job] = cluster.Start("hold", 2);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(cluster.WaitForMark("hold", "ready", 0, rank)) << client->err();
  const auto stopped = std::chrono::steady_clock::now();
  const pid_t pid = std::atoi(cluster.Mark("hold", "ready", 0, 1).c_str());
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  ASSERT_TRUE(cluster.WaitForMark("hold", "lost", 0, 0, 15'000)) << "rank 0 was not told";
  std::printf(
      "  told after %lld ms\n",
      static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - stopped).count()));
  EXPECT_TRUE(cluster.Mark("hold", "lost", 0, 0).starts_with("rank 1 on machine w")) << cluster.Mark("hold", "lost", 0, 0);
  EXPECT_EQ(client->Wait(60'000), 0) << client->err();
  EXPECT_EQ(client->out(), "epoch 1, 2 ranks, sum 1\n");
  EXPECT_NE(kill(pid, 0), 0) << "it is still there";
}

}  // namespace
}  // namespace ropewalk::cluster

ROPEWALK_GANG_MAIN
