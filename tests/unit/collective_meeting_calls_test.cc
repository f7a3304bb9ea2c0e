// Calls by windows among other calls: ranks that call different things find out, whatever they call and whether or not they exchange
// messages by it, and ranks that call the same are left alone.
#include "base/random.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

class MeetingCalls : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, MeetingCalls, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

using Weights = std::vector<std::vector<double>>;
constexpr std::int64_t kCount = 2'000;

// A rank's window and vectors, and calls with them.
class Desk {
 public:
  explicit Desk(Communicator* all) : all_(*all) {
    auto made = all_.MakeWindow(kWindowBytes);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    if (made.ok()) window_ = *made;
  }
  CollectiveCall Mixing(const Weights& weights, std::string_view name) {
    return {.collective = Collective::kMix,
            .in = in_.data(),
            .out = out_.data(),
            .count = kCount,
            .name = name,
            .mixing = &weights,
            .window = &window_};
  }
  CollectiveCall Relaxed(const Weights& weights, std::string_view name) {
    CollectiveCall call = Mixing(weights, name);
    call.algorithm = "window_relaxed";
    return call;
  }
  CollectiveCall Other(std::string_view name) { return {.in = in_.data(), .out = out_.data(), .count = kCount, .name = name}; }
  const Window& window() const { return window_; }

 private:
  static constexpr std::size_t kWindowBytes = 4 * kCount * sizeof(double);
  Communicator& all_;
  Window window_;
  std::vector<double> in_ = std::vector<double>(kCount), out_ = std::vector<double>(kCount);
};

bool Names(const Status& status, std::string_view a, std::string_view b) {
  return status.what().find(a) != std::string::npos && status.what().find(b) != std::string::npos;
}

// What takes from whom, of two ranks: both, and either alone.
const std::vector<Weights> kMatricesOfTwo = {{{.5, .5}, {.5, .5}}, {{.5, .5}, {0, 1}}, {{1, 0}, {.5, .5}}};

// All that rank 1 may be at while rank 0 mixes: what takes messages of rank 0, what sends it some, what does both, what does neither.
TEST_P(MeetingCalls, AMixingCallBesideAnyOtherIsNamedOnBothRanks) {
  struct Beside {
    const char* shown;
    std::function<void(CollectiveCall*)> make;
  };
  const std::int64_t counts[] = {5, 6};
  const std::vector<Beside> others = {
      {"allreduce \"other\"", [](CollectiveCall*) {}},
      {"barrier \"other\"", [](CollectiveCall* call) { call->collective = Collective::kBarrier, call->count = 0; }},
      {"broadcast \"other\"", [](CollectiveCall* call) { call->collective = Collective::kBroadcast; }},
      {"broadcast \"other\"", [](CollectiveCall* call) { call->collective = Collective::kBroadcast, call->root = 1; }},
      {"send_recv \"other\"", [](CollectiveCall* call) { call->collective = Collective::kSendRecv, call->peer = 1; }},
      {"send_recv \"other\"", [](CollectiveCall* call) { call->collective = Collective::kSendRecv, call->root = 1; }},
      {"all_to_all_v \"other\"", [&](CollectiveCall* call) { call->collective = Collective::kAllToAllV, call->counts = counts; }},
  };
  for (const Beside& other : others)
    for (const Weights& weights : kMatricesOfTwo)
      WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
        Desk desk(&all);
        CollectiveCall call = desk.Mixing(weights, "mine");
        if (all.rank() == 1) {
          call = desk.Other("other");
          other.make(&call);
        }
        Status status = all.Run(call);
        // What only sends may be through before rank 0 has come to its call.
        if (status.ok() && all.rank() == 1) status = all.Barrier();
        EXPECT_EQ(status.tag(), "COLL21") << other.shown << ": " << status.ToString();
        EXPECT_TRUE(Names(status, "mix \"mine\"", other.shown)) << status.ToString();
        meeting.Barrier(all.rank());
      });
}

TEST_P(MeetingCalls, TheOneOfManyThatIsElsewhereIsFound) {
  for (std::int32_t elsewhere : {0, 1, 3})
    WithRanks(4, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      Desk desk(&all);
      const Weights weights = RingOfNeighbours(4);
      for (int round = 0; round < 3; ++round) ASSERT_TRUE(all.Mix(desk.Mixing(weights, "mine")).ok());
      meeting.Barrier(all.rank());  // or a rank is still at the last of these when it hears
      Status status = all.rank() == elsewhere ? all.Barrier() : all.Mix(desk.Mixing(weights, "mine"));
      EXPECT_EQ(status.tag(), "COLL21") << status.ToString();
      EXPECT_TRUE(Names(status, "mix \"mine\"", "barrier \"barrier\"")) << status.ToString();
      meeting.Barrier(all.rank());
    });
}

// Ranks 1 and 2 are through with a call that needs nothing of rank 0, and compute.
TEST_P(MeetingCalls, WhoIsThroughWithAnotherCallIsFound) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    Desk desk(&all);
    CollectiveCall between = desk.Other("between");
    between.root = 1;
    between.peer = 2;
    if (all.rank() != 0) {
      ASSERT_TRUE(all.SendRecv(between).ok());
    }
    meeting.Barrier(all.rank());
    const Weights weights = RingOfNeighbours(3);
    if (all.rank() == 0) {
      Status status = all.Mix(desk.Mixing(weights, "mine"));
      EXPECT_EQ(status.tag(), "COLL21") << status.ToString();
      EXPECT_TRUE(Names(status, "mix \"mine\"", "send_recv \"between\"")) << status.ToString();
    }
    meeting.Barrier(all.rank());
  });
}

TEST_P(MeetingCalls, EveryDifferenceOfMixingCallsIsFound) {
  using Differ = std::function<void(Desk*, CollectiveCall*)>;
  const Weights other_weights = {{.5, .5}, {.25, .75}};
  const std::vector<Differ> differences = {
      [](Desk*, CollectiveCall* call) { call->dtype = Dtype::kF64; },
      [](Desk*, CollectiveCall* call) { call->count = 999; },
      [&](Desk*, CollectiveCall* call) { call->mixing = &other_weights; },
      [](Desk* second, CollectiveCall* call) { call->window = &second->window(); },
  };
  for (bool relaxed : {false, true})
    for (std::size_t d = 0; d < differences.size(); ++d)
      WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
        Desk desk(&all), second(&all);
        CollectiveCall call = relaxed ? desk.Relaxed(kMatricesOfTwo[0], "mine") : desk.Mixing(kMatricesOfTwo[0], "mine");
        if (all.rank() == 1) differences[d](&second, &call);
        // Relaxed calls wait for nobody: the first may be over before the other rank has come.
        Status status;
        do status = all.Run(call);
        while (relaxed && status.ok());
        EXPECT_EQ(status.tag(), "COLL21") << "difference " << d << (relaxed ? " relaxed: " : ": ") << status.ToString();
        EXPECT_TRUE(Names(status, "rank 0", "rank 1")) << status.ToString();
        meeting.Barrier(all.rank());
      });
}

// Gossip in turns, one relaxed window for each pair: a matrix that leaves a rank alone counts as its use of that window, too.
TEST_P(MeetingCalls, PairsThatMixInTurnsAreLeftAlone) {
  const std::vector<Weights> pairs = {
      {{.5, .5, 0}, {.5, .5, 0}, {0, 0, 1}}, {{1, 0, 0}, {0, .5, .5}, {0, .5, .5}}, {{.5, 0, .5}, {0, 1, 0}, {.5, 0, .5}}};
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    Desk desks[] = {Desk(&all), Desk(&all), Desk(&all)};
    for (int round = 0; round < 20; ++round)
      for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
        Status status = all.Mix(desks[pair].Relaxed(pairs[pair], "pair"));
        ASSERT_TRUE(status.ok()) << "round " << round << ", pair " << pair << ": " << status.ToString();
      }
    EXPECT_TRUE(all.Barrier().ok());
  });
}

TEST_P(MeetingCalls, ARelaxedWindowIsForOneKindOfCall) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    Desk desk(&all);
    CollectiveCall call = desk.Relaxed(kMatricesOfTwo[0], "a");
    ASSERT_TRUE(all.Mix(call).ok());
    meeting.Barrier(all.rank());
    call.count = 7;
    EXPECT_EQ(all.Mix(call).tag(), "COLL21");
    meeting.Barrier(all.rank());
  });
}

// The control: ranks that call the same in the same order are never stopped, though some are far ahead, make more relaxed calls than
// others, and call these by other names.
TEST_P(MeetingCalls, WhoCallsTheSameIsLeftAlone) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(seed));
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    std::vector<Desk> desks;  // a window for each matrix
    for (int i = 0; i < 3; ++i) desks.emplace_back(&all);
    Desk relaxed(&all);
    Random shared(seed), own = Random::ForPurpose(seed, static_cast<std::uint64_t>(all.rank()));
    const std::vector<Weights> matrices = {RingOfNeighbours(3), {{.5, .5, 0}, {0, 1, 0}, {0, 0, 1}}, {{1, 0, 0}, {.5, .5, 0}, {0, .5, .5}}};
    for (int round = 0; round < 300; ++round) {
      Status status;
      CollectiveCall call = relaxed.Other("other");
      call.root = static_cast<std::int32_t>(shared.Below(3));
      call.peer = (call.root + 1) % 3;
      const std::uint64_t which = shared.Below(matrices.size());
      switch (shared.Below(7)) {
        case 0:
          call.root = 0;
          status = all.AllReduce(call);
          break;
        case 1:
          status = all.Broadcast(call);
          break;
        case 2:
          status = all.SendRecv(call);
          break;
        case 3:
          status = all.Barrier();
          break;
        case 4:
          for (std::uint64_t more = own.Below(6); more > 0 && status.ok(); --more)
            status = all.Mix(relaxed.Relaxed(matrices[0], "round " + std::to_string(round)));
          break;
        default:
          status = all.Mix(desks[which].Mixing(matrices[which], "mine"));
      }
      ASSERT_TRUE(status.ok()) << "round " << round << ": " << status.ToString();
    }
    ASSERT_TRUE(all.Barrier().ok());
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
