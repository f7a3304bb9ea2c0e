// A gang on real processes: an executor, a worker, the master is killed -9 under it. The ranks that live are told within 10 s who is gone,
// and the gang is formed anew under the next number.
//
// This binary is also its job (gang_job.h).
#include "tests/cluster/gang_job.h"

namespace ropewalk::cluster {
namespace {

constexpr int kToldMs = 10'000;

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TEST(ClusterGang, RanksMeetAndRankZeroAnswers) {
  GangCluster cluster({.workers = 2, .slots = 2});
  auto [client, job] = cluster.Start("meet", 4);
  EXPECT_EQ(client->Wait(60'000), 0) << client->err();
  EXPECT_EQ(client->out(), "epoch 0, 4 ranks, sum 6\n");
  EXPECT_EQ(cluster.CountEvents(job, "gang_formed"), 1u);
}

TEST(ClusterGang, AKilledExecutorFreesTheOthersAndTheGangIsFormedAnew) {
  GangCluster cluster({.workers = 3, .slots = 1});
  auto [client, job] = cluster.Start("hold", 3);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(cluster.WaitForMark("hold", "ready", 0, rank)) << client->err();
  const std::vector<std::string> machines = cluster.Machines(cluster.Events(job), "0");
  ASSERT_EQ(machines.size(), 3u);
  EXPECT_TRUE(Eventually([&, job = job] {
    wire::ClientRequest request;
    request.mutable_job_query()->set_job(job.value);
    auto state = cluster.link().Call(&request);
    return state.ok() && state->job_state().note() == "rank 0 holds";
  })) << "what rank 0 reports is not shown";

  const std::int64_t killed_ms = NowMs();
  ASSERT_EQ(kill(std::atoi(cluster.Mark("hold", "ready", 0, 1).c_str()), SIGKILL), 0);
  for (int rank : {0, 2}) {
    ASSERT_TRUE(cluster.WaitForMark("hold", "lost", 0, rank, kToldMs)) << "rank " << rank << " was not told";
    EXPECT_EQ(cluster.Mark("hold", "lost", 0, rank), "rank 1 on machine " + machines[1] + " was lost");
  }
  const std::int64_t told_ms = NowMs() - killed_ms;
  std::printf("  told after %lld ms\n", static_cast<long long>(told_ms));
  EXPECT_LT(told_ms, kToldMs);
  EXPECT_EQ(client->Wait(60'000), 0) << client->err();
  EXPECT_EQ(client->out(), "epoch 1, 3 ranks, sum 3\n");
}

TEST(ClusterGang, AKilledWorkerFreesTheOthersAndTheGangIsFormedAnew) {
  GangCluster cluster({.workers = 3, .slots = 1});
  auto [client, job] = cluster.Start("hold", 3);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(cluster.WaitForMark("hold", "ready", 0, rank)) << client->err();
  const std::string machine = cluster.Machines(cluster.Events(job), "0").at(2);
  const int victim = std::atoi(machine.c_str() + 1);
  const std::int64_t killed_ms = NowMs();
  cluster.KillWorker(victim);
  for (int rank : {0, 1}) {
    ASSERT_TRUE(cluster.WaitForMark("hold", "lost", 0, rank, kToldMs)) << "rank " << rank << " was not told";
    EXPECT_EQ(cluster.Mark("hold", "lost", 0, rank), "rank 2 on machine " + machine + " was lost");
  }
  std::printf("  told after %lld ms\n", static_cast<long long>(NowMs() - killed_ms));
  // Three ranks need a third worker: the gang waits for it.
  EXPECT_TRUE(client->running());
  cluster.StartWorker(victim);
  EXPECT_EQ(client->Wait(60'000), 0) << client->err();
  EXPECT_EQ(client->out(), "epoch 1, 3 ranks, sum 3\n");
}

// What a rank has reached comes to the master though it ends a moment later, else the second crash, kill or error were the end.
TEST(ClusterGang, AGangThatGetsFartherMayEndAgain) {
  GangCluster cluster({.workers = 2, .slots = 1});
  for (const char* mode : {"far_abort", "far_kill", "far_error"}) {
    auto [client, job] = cluster.Start(mode, 2);
    EXPECT_EQ(client->Wait(120'000), 0) << mode << ": " << client->err();
    EXPECT_EQ(client->out(), "epoch 3, 2 ranks, sum 1\n") << mode;
  }
}

TEST(ClusterGang, ARestartedMasterFormsItAnewUnderANumberOfItsOwn) {
  GangCluster cluster({.workers = 2, .slots = 1});
  auto [client, job] = cluster.Start("hold", 2);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(cluster.WaitForMark("hold", "ready", 0, rank)) << client->err();
  cluster.KillMaster();
  cluster.StartMaster();
  EXPECT_EQ(client->Wait(60'000), 0) << client->err();
  EXPECT_EQ(client->out(), "epoch 1, 2 ranks, sum 1\n");
  EXPECT_EQ(cluster.Epochs(job), (std::vector<std::string>{"0", "1"}));
}

}  // namespace
}  // namespace ropewalk::cluster

ROPEWALK_GANG_MAIN
