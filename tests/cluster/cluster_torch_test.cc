// `ropewalk train torch` with real processes: programs that meet as torchrun's do, here and on a cluster; one that fails; one that is lost.
#include "tests/cluster/train_calls.h"

namespace ropewalk::cluster {
namespace {

// Rank 0 listens where all are told to meet, and sums what the others bring: what a program does that calls init_process_group().
constexpr const char* kMeet = R"(
import os, socket, sys, time
rank, size, restart = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if len(sys.argv) > 1 and sys.argv[1] == "fail" and rank == 1 and restart < int(sys.argv[2]):
    print("no number in step", restart)
    sys.exit(4)
if rank == 0:
    total, listener = 0, socket.create_server(where)
    for _ in range(size - 1):
        peer, _ = listener.accept()
        total += int(peer.makefile().readline())
    print("sum", total, "of", size, "ranks, restart", restart)
    open("sum", "w").write(f"{total} {size} {restart}")
else:
    for _ in range(600):
        try:
            socket.create_connection(where).sendall(b"%d\n" % (rank * rank))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
if len(sys.argv) > 1 and sys.argv[1] == "stay" and restart == 0:
    open(f"stays-{rank}", "w").write(str(os.getpid()))
    time.sleep(1000)
)";

class TorchRun : public TrainCalls {
 protected:
  TorchRun() : TrainCalls({.workers = 2, .slots = 2}) { std::ofstream(cluster_.dir() / "meet.py") << kMeet; }

  std::unique_ptr<Process> Start(std::vector<std::string> flags, const std::vector<std::string>& program, bool on_cluster) {
    flags.insert(flags.end(), {"--", "python3", "meet.py"});
    flags.insert(flags.end(), program.begin(), program.end());
    return Call({"torch"}, flags, on_cluster);
  }
  std::string Sum() {
    std::ifstream file(cluster_.dir() / "sum");
    std::string text;
    std::getline(file, text);
    return text;
  }
};

TEST_F(TorchRun, ProgramsMeetHereAndOnACluster) {
  for (bool on_cluster : {false, true}) {
    fs::remove(cluster_.dir() / "sum");
    auto run = Start({"--ranks", "4"}, {}, on_cluster);
    ASSERT_EQ(run->Wait(60'000), 0) << run->err();
    EXPECT_EQ(Sum(), "14 4 0") << "on a cluster: " << on_cluster;
    if (!on_cluster) {
      EXPECT_NE(run->err().find("[rank 0] sum 14 of 4 ranks, restart 0"), std::string::npos) << run->err();
    }
  }
}

TEST_F(TorchRun, AProgramThatFailsEndsTheJobOrIsStartedAnewWithAllOthers) {
  auto once = Start({"--ranks", "3"}, {"fail", "1"}, true);
  EXPECT_EQ(once->Wait(60'000), 1) << once->err();
  EXPECT_NE(once->err().find("LAUNCH03"), std::string::npos) << once->err();
  EXPECT_NE(once->err().find("no number in step 0"), std::string::npos) << "with what it printed last: " << once->err();
  auto again = Start({"--ranks", "3", "--restarts", "2"}, {"fail", "2"}, true);
  ASSERT_EQ(again->Wait(60'000), 0) << again->err();
  EXPECT_EQ(Sum(), "5 3 2");
}

TEST_F(TorchRun, AKilledExecutorStartsAllAnewAndLeavesNoProgramBehind) {
  auto run = Start({"--ranks", "4"}, {"stay"}, true);
  ASSERT_TRUE(Eventually([&] {
    for (int rank = 0; rank < 4; ++rank)
      if (!fs::exists(cluster_.dir() / ("stays-" + std::to_string(rank)))) return false;
    return true;
  })) << run->err();
  ASSERT_TRUE(cluster_.KillExecutor(1, "--ranks=4"));
  ASSERT_EQ(run->Wait(60'000), 0) << run->err();
  EXPECT_EQ(Sum().substr(0, 5), "14 4 ");
  EXPECT_NE(Sum(), "14 4 0");
  for (int rank = 0; rank < 4; ++rank) {
    std::ifstream file(cluster_.dir() / ("stays-" + std::to_string(rank)));
    pid_t pid = 0;
    file >> pid;
    EXPECT_TRUE(Eventually([&] { return pid > 0 && kill(pid, 0) != 0; })) << "rank " << rank << "'s first program is still there";
  }
}

}  // namespace
}  // namespace ropewalk::cluster
