// Ranks whose programs end in order while others still want something of them: what they owe is given, and what they will never take is
// said to who waits for it.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>

#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

// This thread, and those that it starts.
class OnOneCore {
 public:
  OnOneCore() {
    EXPECT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &before_)) {
        CPU_SET(core, &one);
        break;
      }
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }
  ~OnOneCore() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

class Leaving : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Leaving, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

// A sender waits until its memory is its own again; nobody tells it so who has gone. Over TCP a short message has left the sender's memory
// before anybody has read it, a long one has not.
TEST_P(Leaving, WithoutTakingWhatIsSentFailsTheSender) {
  const std::int64_t count = GetParam() == Wire::kShared ? 100 : std::int64_t{16} << 20;
  for (Collective collective : {Collective::kSendRecv, Collective::kBroadcast})
    for (bool submitted : {false, true})
      WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
        std::vector<float> x(100, 1);
        ASSERT_TRUE(all.AllReduce({.in = x.data(), .out = x.data(), .count = 100}).ok());
        meeting.Barrier(all.rank());
        if (all.rank() == 1) return;
        std::vector<float> sent(count, 2);
        CollectiveCall call{.collective = collective, .in = sent.data(), .out = sent.data(), .count = count, .peer = 1, .name = "late"};
        Status status;
        if (submitted) {
          auto handle = all.Submit(call, {});
          status = handle.ok() ? all.Wait(*handle) : handle.status();
        } else {
          status = all.Run(call);
        }
        EXPECT_EQ(status.tag(), "COLL20") << status.ToString();
        EXPECT_NE(status.what().find("rank 1"), std::string::npos) << status.ToString();
        EXPECT_NE(status.why().find("its program has ended"), std::string::npos) << status.ToString();
      });
}

// The control: what has been taken is nobody's loss, however early the one who took it leaves.
TEST_P(Leaving, AfterTakingWhatIsSentFailsNobody) {
  for (int round = 0; round < 20; ++round)
    WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
      std::vector<float> x(5000);
      if (all.rank() == 0) std::iota(x.begin(), x.end(), 0.f);
      Status status = all.Broadcast({.in = x.data(), .out = x.data(), .count = 5000, .name = "last"});
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(x[4999], 4999.f);
    });
}

// A child that a rank's program forks, and that comes out of the function which holds the communicator, tells nobody that the rank leaves.
TEST_P(Leaving, AForkedChildSpeaksForNoRank) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    std::vector<float> x(100, 1);
    ASSERT_TRUE(all.AllReduce({.in = x.data(), .out = x.data(), .count = 100}).ok());
    if (all.rank() == 1) {
      const pid_t child = fork();
      if (child == 0) return;
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status)) << status;
      EXPECT_EQ(WEXITSTATUS(status), ExitCode(Code::kUserError));
    }
    meeting.Barrier(all.rank());
    Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = 100});
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(x[0], 4.f);
  });
}

// Rank 0 orders all submitted calls, also those in which it moves nothing: these end on it as soon as they are ordered, while its orders
// still wait for room on their way to ranks that have begun none. Whether it comes to that hangs on which thread runs when: so all run on
// one core, and often.
TEST_P(Leaving, Rank0SaysTheOrdersThatItOwes) {
  constexpr int kCalls = 300, kRounds = 30;
  const OnOneCore pinned;
  for (int round = 0; round < kRounds && !HasFailure(); ++round)
    WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      std::vector<std::vector<float>> in(kCalls, std::vector<float>(8)), out = in;
      std::vector<Handle> handles;
      for (int i = 0; i < kCalls; ++i) {
        in[i].assign(8, static_cast<float>(i));
        auto handle = all.Submit(
            {.collective = Collective::kSendRecv, .in = in[i].data(), .out = out[i].data(), .count = 8, .root = 1, .peer = 2}, {});
        ASSERT_TRUE(handle.ok()) << handle.status().ToString();
        handles.push_back(*handle);
      }
      for (const Handle& handle : handles) {
        Status status = all.Wait(handle);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      if (all.rank() == 2) {
        EXPECT_EQ(out, in);
      }
      const bool leaves = round % 2 == 0;
      if (!leaves) meeting.Barrier(all.rank());
    });
}

}  // namespace
}  // namespace ropewalk::collective::testing
