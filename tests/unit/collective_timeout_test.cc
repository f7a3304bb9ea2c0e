// Calls to which not all ranks come end when their time is over, on all ranks, with a status that says who was waited for and at what.
#include <chrono>

#include "tests/unit/collective_either_way.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

class Timeouts : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Timeouts, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

CommunicatorOptions Within(Wire wire, std::int64_t timeout_ms) {
  CommunicatorOptions options = Over(wire);
  options.timeout_ms = timeout_ms;
  return options;
}

TEST_P(Timeouts, AreHalfAnHourUnlessSomebodySaysOtherwise) { EXPECT_EQ(CommunicatorOptions().timeout_ms, 30 * 60 * 1000); }

// Of a ring, rank 0 takes from rank 3, and rank 1 from rank 0: whoever finds out first names the one that is in no call.
TEST_P(Timeouts, ARankThatDoesNotComeIsNamedOnAllRanksWithTheCall) {
  for (const char* algorithm : {"ring", "direct", "recursive_doubling", "chain"})
    for (bool submitted : {false, true})
      WithRanks(4, Within(GetParam(), 150), [&](Communicator& all, Meeting& meeting) {
        std::vector<float> x(5000, 1);
        CollectiveCall call{.in = x.data(), .out = x.data(), .count = 5000, .name = "grad", .algorithm = algorithm};
        ASSERT_TRUE(all.AllReduce(call).ok());
        meeting.Barrier(all.rank());
        if (all.rank() != 2) {
          Status status = SumEitherWay(all, call, submitted);
          EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
          EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
          EXPECT_TRUE(status.what().starts_with("rank 2 is waited for: rank ")) << status.ToString();
          const std::string shown =
              submitted ? "allreduce \"grad\" (call 0: sum of 5000 f32)" : "allreduce \"grad\" (call 1: sum of 5000 f32)";
          EXPECT_NE(status.what().find(shown), std::string::npos) << status.ToString();
          EXPECT_NE(status.why().find("its program is in no call"), std::string::npos) << status.ToString();
        }
        meeting.Barrier(all.rank());
        // The one that was late finds the others gone, with the same reason.
        EXPECT_EQ(all.AllReduce(call).tag(), "COLL28");
        meeting.Barrier(all.rank());
      });
}

TEST_P(Timeouts, HoldForCallsByWindowsAndForMakingThem) {
  WithRanks(3, Within(GetParam(), 150), [&](Communicator& all, Meeting& meeting) {
    auto window = all.MakeWindow(1000);
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    meeting.Barrier(all.rank());
    const auto weights = RingOfNeighbours(3);
    std::vector<float> in(10), out(10);
    if (all.rank() != 1) {
      Status status = all.Mix({.in = in.data(), .out = out.data(), .count = 10, .name = "mine", .mixing = &weights, .window = &*window});
      EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
      EXPECT_TRUE(status.what().starts_with("rank 1 is waited for: ")) << status.ToString();
      EXPECT_NE(status.what().find("mix \"mine\""), std::string::npos) << status.ToString();
    }
    meeting.Barrier(all.rank());
  });
  WithRanks(2, Within(GetParam(), 150), [&](Communicator& all, Meeting& meeting) {
    if (all.rank() == 0) {
      Status status = all.MakeWindow(1000).status();
      EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
      EXPECT_NE(status.what().find("\"window\""), std::string::npos) << status.ToString();
    }
    meeting.Barrier(all.rank());
  });
}

// The controls: without an end the same wait goes on until the rank comes, and what is waited for in vain is time without any progress, not
// the length of a call.
TEST_P(Timeouts, OfZeroAreNone) {
  WithRanks(3, Within(GetParam(), 0), [&](Communicator& all, Meeting&) {
    std::vector<float> x(5000, 1);
    if (all.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = 5000, .name = "grad"});
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(x, std::vector<float>(5000, 3));
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
