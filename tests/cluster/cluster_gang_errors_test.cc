// What a gang on real processes says when it cannot go on: too few slots, a program that fails.
//
// This binary is also its job (gang_job.h).
#include "tests/cluster/gang_job.h"

namespace ropewalk::cluster {
namespace {

TEST(ClusterGangErrors, TooFewSlotsAreSaidAfterTheTimeOut) {
  GangCluster cluster({.workers = 2, .slots = 1});
  auto [holder, first] = cluster.Start("hold", 1);
  ASSERT_TRUE(cluster.WaitForMark("hold", "ready", 0, 0)) << holder->err();
  auto [client, job] = cluster.Start("meet", 3, 2'000);
  EXPECT_EQ(client->Wait(60'000), ExitCode(Code::kUnplaceable)) << client->out();
  const std::string err = client->err();
  EXPECT_NE(err.find("error[GANG01]"), std::string::npos) << err;
  EXPECT_NE(err.find("of 3 ranks could not be placed within 2 s"), std::string::npos) << err;
  EXPECT_NE(err.find("it needs 3 slots at once; there are 2, 1 of them free"), std::string::npos) << err;
  EXPECT_NE(err.find("1 used by job " + JobName(first)), std::string::npos) << err;
  EXPECT_EQ(cluster.CountEvents(job, "gang_formed"), 0u);
  EXPECT_TRUE(holder->running()) << "the other job goes on";
}

TEST(ClusterGangErrors, AProgramThatFailsEndsTheJobAtTheThirdForming) {
  GangCluster cluster({.workers = 2, .slots = 1});
  for (const std::string mode : {"throw", "segv"}) {
    auto [client, job] = cluster.Start(mode, 2);
    EXPECT_EQ(client->Wait(60'000), ExitCode(Code::kUserError)) << client->out();
    const std::string err = client->err();
    EXPECT_NE(err.find("rank 1 of stage"), std::string::npos) << err;
    EXPECT_NE(err.find(mode == "throw" ? "loss is not a number" : "rank 1 crashed (signal 6)"), std::string::npos) << err;
    EXPECT_NE(err.find("the gang was formed 3 times and a rank failed each time"), std::string::npos) << err;
    EXPECT_EQ(cluster.Epochs(job), (std::vector<std::string>{"0", "1", "2"}));
  }
}

}  // namespace
}  // namespace ropewalk::cluster

ROPEWALK_GANG_MAIN
