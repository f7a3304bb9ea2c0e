// Ranks that connect, call and submit, over shared memory and TCP.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <numeric>
#include <set>

#include "base/random.h"
#include "mlrunner/collective/run/call_steps.h"
#include "mlrunner/collective/run/codecs.h"
#include "mlrunner/collective/run/submit_order.h"
#include "tests/unit/collective_either_way.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

class Communicators : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Communicators, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

// A vector of whole numbers, of which sums in any order are exact.
void Fill(float* data, std::int64_t count, std::int32_t rank, std::int64_t salt) {
  for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<float>((i * (rank + 1) + salt) % 1000);
}
void ExpectSum(const float* data, std::int64_t count, std::int32_t ranks, std::int64_t salt, const std::string& what) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t sum = 0;
    for (std::int32_t rank = 0; rank < ranks; ++rank) sum += (i * (rank + 1) + salt) % 1000;
    ASSERT_EQ(data[i], static_cast<float>(sum)) << what << " element " << i;
  }
}

// Runs `call`, which must take exactly the steps of its program: nothing moves beside the interpreter.
Status Counted(Communicator& all, const CollectiveCall& call, std::int64_t segment_bytes = 0) {
  auto steps = StepsOf(all, call, segment_bytes);
  if (!steps.ok()) return steps.status();
  const std::uint64_t before = all.steps();
  Status status = all.Run(call);
  EXPECT_EQ(all.steps() - before, *steps) << call.algorithm << " of " << call.count << ", rank " << all.rank();
  // Of one rank alone, and of who has no part in a message between two others, there is nothing to do.
  EXPECT_TRUE(*steps > 0 || all.ranks() == 1 || call.collective == Collective::kSendRecv);
  return status;
}

TEST_P(Communicators, ReduceWhatLiesInThePoolAndWhatDoesNot) {
  CommunicatorOptions options = Over(GetParam());
  options.segment_bytes = 8 << 10;
  for (std::int32_t ranks : {1, 2, 3, 4})
    WithRanks(ranks, options, [&](Communicator& all, Meeting&) {
      EXPECT_EQ(all.shares_memory(), GetParam() == Wire::kShared);
      for (const char* algorithm : {"", "direct", "ring", "recursive_doubling", "chain"})
        for (std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{5}, std::int64_t{1000}, std::int64_t{40'007}}) {
          const auto bytes = static_cast<std::size_t>(count) * 4;
          auto pooled = all.Allocate(bytes + 4);
          ASSERT_TRUE(pooled.ok()) << pooled.status().ToString();
          std::vector<float> mine(count + 1), out(count + 1);
          // Where a rank has its vectors is its own affair: they may differ.
          const bool is_pooled = (count + all.rank()) % 2 == 0;
          auto* in = is_pooled ? reinterpret_cast<float*>(*pooled) : mine.data();
          for (bool in_place : {true, false}) {
            Fill(in, count, all.rank(), count);
            float* result = in_place ? in : out.data();
            Status status =
                Counted(all, {.in = in, .out = result, .count = count, .name = "x", .algorithm = algorithm}, options.segment_bytes);
            ASSERT_TRUE(status.ok()) << status.ToString();
            ExpectSum(result, count, ranks, count, algorithm);
          }
          all.Free(*pooled);
        }
    });
}

TEST_P(Communicators, BroadcastSendAndMeet) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    for (std::int64_t count : {std::int64_t{10}, std::int64_t{100'000}})
      for (std::int32_t root : {0, 2}) {
        std::vector<std::int64_t> in(count, all.rank() + 7), out(count, -1);
        CollectiveCall call{.collective = Collective::kBroadcast,
                            .in = in.data(),
                            .out = out.data(),
                            .count = count,
                            .dtype = Dtype::kI64,
                            .root = root,
                            .name = "b"};
        Status status = Counted(all, call);
        ASSERT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(out, std::vector<std::int64_t>(count, root + 7));
        std::vector<std::int64_t> got(count, -1);
        call.collective = Collective::kSendRecv;
        call.out = got.data();
        call.peer = 1;
        status = Counted(all, call);
        ASSERT_TRUE(status.ok()) << status.ToString();
        if (all.rank() == 1) {
          EXPECT_EQ(got, out);
        }
      }
    for (int round = 0; round < 50; ++round) ASSERT_TRUE(Counted(all, {.collective = Collective::kBarrier, .name = "barrier"}).ok());
  });
}

TEST_P(Communicators, ReduceEncodedAndSendToAllWhatTheyHave) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    constexpr std::int64_t kCount = 5000;
    Codec sign = SignCodec(64);
    sign.error_feedback = true;
    const Codec min_max = MinMaxCodec(8, 512);
    std::vector<float> x(kCount), out(kCount), residual(2 * kCount);
    for (std::int64_t i = 0; i < kCount; ++i) x[i] = static_cast<float>((i * 37 + all.rank() * 11) % 200) / 100 - 1;
    std::vector<double> wanted(kCount), sent(kCount);
    for (std::int64_t i = 0; i < kCount; ++i)
      for (std::int32_t rank = 0; rank < 3; ++rank) wanted[i] += (static_cast<double>((i * 37 + rank * 11) % 200) / 100 - 1) / 3;
    CollectiveCall call{.in = x.data(), .out = out.data(), .count = kCount, .op = ReduceOp::kAvg, .name = "coded", .codec = &min_max};
    ASSERT_TRUE(Counted(all, call).ok());
    for (std::int64_t i = 0; i < kCount; ++i) ASSERT_NEAR(out[i], wanted[i], 0.02) << i;
    // One bit a number: right in the long run, because what is left out is sent later.
    constexpr int kRounds = 300;
    call.codec = &sign;
    call.residual = residual.data();
    for (int round = 0; round < kRounds; ++round) {
      Status status = all.AllReduce(call);
      ASSERT_TRUE(status.ok()) << status.ToString();
      for (std::int64_t i = 0; i < kCount; ++i) sent[i] += out[i];
    }
    for (std::int64_t i = 0; i < kCount; ++i) ASSERT_NEAR(sent[i] / kRounds, wanted[i], 0.1) << i;
    call.residual = nullptr;
    EXPECT_EQ(all.AllReduce(call).tag(), "COLL10");

    // Whatever sends numbers as they are takes no codec, and touches nothing.
    auto window = all.MakeWindow(2 * kCount * sizeof(float));
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    const MixingMatrix mean(3, std::vector<double>(3, 1.0 / 3));
    const std::vector<std::int64_t> each(3, 10);
    const Neighbors neighbors(3);
    residual.assign(2 * kCount, 7);
    out.assign(kCount, 7);
    for (const Codec* codec : std::array<const Codec*, 2>{&min_max, &sign})
      for (const Algorithm& algorithm : Algorithms()) {
        if (algorithm.name == "sra") continue;
        CollectiveCall coded{.collective = algorithm.collective,
                             .in = x.data(),
                             .out = out.data(),
                             .count = kCount,
                             .name = "coded",
                             .algorithm = algorithm.name,
                             .codec = codec,
                             .residual = codec->error_feedback ? residual.data() : nullptr};
        if (LearnsCounts(algorithm.collective)) coded.counts = each.data();
        if (algorithm.collective == Collective::kNeighborExchange) coded.neighbors = &neighbors;
        if (algorithm.collective == Collective::kMix) coded.mixing = &mean, coded.window = &*window;
        EXPECT_EQ(all.Run(coded).tag(), "COLL10") << algorithm.name;
        EXPECT_EQ(all.Submit(coded, {}).status().tag(), "COLL10") << algorithm.name;
        if (algorithm.collective == Collective::kAllreduce) continue;
        coded.algorithm = "";  // chosen
        EXPECT_EQ(all.Run(coded).tag(), "COLL10") << Name(algorithm.collective);
      }
    EXPECT_EQ(residual, std::vector<float>(2 * kCount, 7));
    EXPECT_EQ(out, std::vector<float>(kCount, 7));

    for (std::int64_t round = 1; round < 4; ++round) {
      const std::vector<std::int64_t> counts = {round * 10, all.rank() * 100 * round, 3};
      std::vector<float> in(static_cast<std::size_t>(counts[0] + counts[1] + counts[2]), static_cast<float>(all.rank())), got(1000, -1);
      std::vector<std::int64_t> received(3);
      Status status = Counted(all, {.collective = Collective::kAllToAllV,
                                    .in = in.data(),
                                    .out = got.data(),
                                    .count = 1000,
                                    .name = "v",
                                    .counts = counts.data(),
                                    .received = received.data()});
      ASSERT_TRUE(status.ok()) << status.ToString();
      std::size_t at = 0;
      for (std::int32_t from = 0; from < 3; ++from) {
        const std::int64_t expected = all.rank() == 0 ? round * 10 : all.rank() == 1 ? from * 100 * round : 3;
        EXPECT_EQ(received[from], expected);
        for (std::int64_t i = 0; i < expected; ++i) ASSERT_EQ(got[at++], static_cast<float>(from));
      }
    }
  });
}

// Many calls of many lengths and priorities, blocking ones between them, and ranks that wait in orders of their own.
TEST_P(Communicators, SubmittedCallsEndRightInWhateverOrderRanksWait) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (std::int32_t ranks : {1, 2, 4}) {
    CommunicatorOptions options = Over(GetParam());
    options.segment_bytes = 16 << 10;
    options.credit_bytes = 200'000;
    WithRanks(ranks, options, [&](Communicator& all, Meeting&) {
      Random shared(seed), own = Random::ForPurpose(seed, static_cast<std::uint64_t>(all.rank()));
      for (int round = 0; round < 4; ++round) {
        constexpr int kCalls = 24;
        std::vector<std::vector<float>> vectors(kCalls);
        std::vector<Handle> handles;
        for (int i = 0; i < kCalls; ++i) {
          vectors[i].resize(shared.OneIn(4) ? 40'000 + shared.Below(40'000) : shared.Below(3'000));
          const auto count = static_cast<std::int64_t>(vectors[i].size());
          Fill(vectors[i].data(), count, all.rank(), i);
          const std::string name = "v" + std::to_string(i);
          auto handle = all.Submit({.in = vectors[i].data(), .out = vectors[i].data(), .count = count, .name = name},
                                   {.priority = static_cast<std::int64_t>(shared.Below(5))});
          ASSERT_TRUE(handle.ok()) << handle.status().ToString();
          handles.push_back(*handle);
          if (shared.OneIn(6)) {
            std::vector<float> at_once(shared.Below(9'000));
            const auto length = static_cast<std::int64_t>(at_once.size());
            Fill(at_once.data(), length, all.rank(), 77);
            Status status = all.AllReduce({.in = at_once.data(), .out = at_once.data(), .count = length, .name = "now"});
            ASSERT_TRUE(status.ok()) << status.ToString();
            ExpectSum(at_once.data(), length, ranks, 77, "now");
          }
          if (own.OneIn(5)) {
            ASSERT_TRUE(all.Wait(handles[own.Below(handles.size())]).ok());
          }
        }
        std::vector<int> order(kCalls);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), own);
        for (int i : order) {
          Status status = all.Wait(handles[i]);
          ASSERT_TRUE(status.ok()) << status.ToString();
          EXPECT_TRUE(all.IsDone(handles[i]));
          ExpectSum(vectors[i].data(), static_cast<std::int64_t>(vectors[i].size()), ranks, i, "v" + std::to_string(i));
        }
      }
    });
  }
}

// Nobody waits: the communicator's own thread does all of it.
TEST_P(Communicators, SubmittedCallsGoOnWhileNobodyWaits) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting&) {
    std::vector<float> x(100'000);
    Fill(x.data(), 100'000, all.rank(), 1);
    auto handle = all.Submit({.in = x.data(), .out = x.data(), .count = 100'000, .name = "x"}, {});
    ASSERT_TRUE(handle.ok());
    while (!all.IsDone(*handle)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ExpectSum(x.data(), 100'000, 2, 1, "x");
  });
}

TEST_P(Communicators, AnUrgentCallOvertakesALongOne) {
  CommunicatorOptions options = Over(GetParam());
  options.segment_bytes = 64 << 10;
  WithRanks(2, options, [&](Communicator& all, Meeting&) {
    // Whether it overtakes is decided on rank 0, for all; that the long one is still under way then is likely at each try.
    bool overtook = false;
    std::vector<float> big(2 << 20), small(100);
    for (int round = 0; round < 10; ++round) {
      auto last = all.Submit({.in = big.data(), .out = big.data(), .count = 2 << 20, .op = ReduceOp::kMax, .name = "big"}, {.priority = 9});
      auto first = all.Submit({.in = small.data(), .out = small.data(), .count = 100, .op = ReduceOp::kMax, .name = "small"}, {});
      ASSERT_TRUE(last.ok() && first.ok());
      ASSERT_TRUE(all.Wait(*first).ok());
      overtook = overtook || !all.IsDone(*last);
      ASSERT_TRUE(all.Wait(*last).ok());
    }
    EXPECT_TRUE(overtook);
  });
}

TEST_P(Communicators, DifferentCallsFailOnAllRanksWithBothNames) {
  for (bool submitted : {false, true}) {
    WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      std::vector<float> x(1000);
      const char* name = all.rank() == 1 ? "bias" : "weight";
      CollectiveCall call{.in = x.data(), .out = x.data(), .count = all.rank() == 1 ? 10 : 1000, .name = name};
      Status status = SumEitherWay(all, call, submitted);
      EXPECT_EQ(status.tag(), "COLL21") << status.ToString();
      EXPECT_NE(status.what().find("\"bias\" (call 0: sum of 10 f32)"), std::string::npos) << status.ToString();
      EXPECT_NE(status.what().find("\"weight\" (call 0: sum of 1000 f32)"), std::string::npos) << status.ToString();
      // It is over for good.
      EXPECT_EQ(all.Barrier().tag(), "COLL21");
      EXPECT_FALSE(all.Submit(call, {}).ok());
      meeting.Barrier(all.rank());
    });
  }
}

// Each of the things that must agree, alone.
TEST_P(Communicators, EveryDifferenceIsFound) {
  const std::vector<std::function<void(CollectiveCall*)>> differences = {
      [](CollectiveCall* call) { call->dtype = Dtype::kI32; },
      [](CollectiveCall* call) { call->op = ReduceOp::kMax; },
      [](CollectiveCall* call) { call->count = 999; },
      [](CollectiveCall* call) { call->name = "y"; },
      [](CollectiveCall* call) { call->algorithm = "recursive_doubling"; },
      [](CollectiveCall* call) { call->collective = Collective::kBroadcast, call->algorithm = "broadcast_tree"; },
  };
  for (const auto& differ : differences)
    WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      std::vector<float> x(1000);
      CollectiveCall call{.in = x.data(), .out = x.data(), .count = 1000, .name = "x", .algorithm = "direct"};
      if (all.rank() == 1) differ(&call);
      EXPECT_EQ(all.Run(call).tag(), "COLL21");
      meeting.Barrier(all.rank());
    });
}

// Two roots: nobody takes a message, so over TCP it is the next call that finds out.
TEST_P(Communicators, TwoRootsAreFoundAlthoughBothOnlySend) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    std::vector<float> x(1000);
    Status status = all.Broadcast({.in = x.data(), .out = x.data(), .count = 1000, .root = all.rank(), .name = "x"});
    if (status.ok() && GetParam() == Wire::kTcp) status = all.Barrier();
    EXPECT_EQ(status.tag(), "COLL21") << status.ToString();
    meeting.Barrier(all.rank());
  });
}

TEST_P(Communicators, ARankThatLeavesIsNamedByWhoNeedsIt) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    std::vector<float> x(1000);
    ASSERT_TRUE(all.AllReduce({.in = x.data(), .out = x.data(), .count = 1000, .name = "x"}).ok());
    // A rank that is ahead finds out that one has left, fails, and tells those that are not done with the call yet.
    meeting.Barrier(all.rank());
    if (all.rank() == 2) return;
    Status status = all.Barrier();
    EXPECT_EQ(status.tag(), "COLL20");
    EXPECT_EQ(status.what(), "rank 2 is lost") << status.ToString();
  });
}

TEST_P(Communicators, AbortFreesAllWithItsReason) {
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    std::vector<float> x(1000);
    if (all.rank() == 1) {
      all.Abort(Status(Code::kCancelled, "TEST01", "enough"));
      meeting.Barrier(all.rank());
      return;
    }
    auto handle = all.Submit({.in = x.data(), .out = x.data(), .count = 1000, .name = "x"}, {});
    Status status = all.Barrier();
    EXPECT_EQ(status.tag(), "TEST01") << status.ToString();
    EXPECT_EQ(status.code(), Code::kCancelled);
    EXPECT_EQ(handle.ok() ? all.Wait(*handle).tag() : handle.status().tag(), "TEST01");
    meeting.Barrier(all.rank());
  });
}

TEST(Connecting, RefusesWhatMakesNoSense) {
  EXPECT_EQ(Communicator::Connect({.rank = 3, .ranks = 2}, {}).status().tag(), "COLL30");
  Meeting alone(1);
  Rendezvous bad = alone.Of(0);
  bad.address = "no address";
  EXPECT_EQ(Communicator::Connect(bad, {}).status().tag(), "COLL30");
  bad = alone.Of(0);
  bad.exchange = [](const std::string&) { return Result<std::vector<std::string>>(std::vector<std::string>{"what?"}); };
  EXPECT_EQ(Communicator::Connect(bad, {}).status().tag(), "COLL30");
}

// The addresses of this process's TCP sockets that listen, or else of the peers of those that are connected.
std::multiset<std::string> TcpAddresses(bool listening) {
  std::multiset<std::string> found;
  for (int fd = 3; fd < 4096; ++fd) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || (listens != 0) != listening) continue;
    sockaddr_in address{};
    bytes = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if ((listening ? getsockname(fd, any, &bytes) : getpeername(fd, any, &bytes)) != 0 || address.sin_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN];
    found.insert(inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)));
  }
  return found;
}

// A gang over several machines speaks TCP, all of it, and each rank listens and is found where it says that the others reach it.
TEST(Connecting, RanksOfSeveralMachinesSpeakTcpAtTheirAddresses) {
  constexpr std::int32_t kRanks = 3;
  const std::vector<std::string> addresses = {"127.0.0.2", "127.0.0.3", "127.0.0.4"};
  Meeting meeting(kRanks);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      Rendezvous rendezvous = meeting.Of(rank);
      rendezvous.machine = rank == 2 ? "there" : "here";
      rendezvous.address = addresses[rank];
      rendezvous.exchange = [&, rank](std::string mine) {
        auto all = meeting.Exchange(rank, std::move(mine));
        // All listen by now, and nobody has connected.
        if (rank == 0) {
          EXPECT_EQ(TcpAddresses(true), (std::multiset<std::string>{addresses.begin(), addresses.end()}));
        }
        meeting.Barrier(rank);
        return Result<std::vector<std::string>>(std::move(all));
      };
      auto all = Communicator::Connect(std::move(rendezvous), {});
      ASSERT_TRUE(all.ok()) << all.status().ToString();
      EXPECT_FALSE((*all)->shares_memory());
      EXPECT_TRUE((*all)->Barrier().ok());
      meeting.Barrier(rank);
      if (rank == 0) {
        // Ranks 1 and 2 have connected to rank 0, rank 2 to rank 1, and none to the highest.
        const auto peers = TcpAddresses(false);
        EXPECT_GT(peers.count(addresses[1]), 0u);
        EXPECT_EQ(peers.count(addresses[0]), 2 * peers.count(addresses[1]));
        EXPECT_EQ(peers.count(addresses[2]), 0u);
      }
      meeting.Barrier(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Connecting, ARankThatNeverComesIsNamed) {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) {
    Meeting meeting(2);
    std::thread silent([&] {
      // Says what rank 0 said, so that nothing listens for rank 1, and does not connect.
      Rendezvous other = meeting.Of(1);
      (void)other.exchange("");
    });
    Rendezvous rendezvous = meeting.Of(0);
    rendezvous.exchange = [&](std::string mine) {
      meeting.Exchange(0, mine);
      return Result<std::vector<std::string>>(std::vector<std::string>{mine, mine});
    };
    CommunicatorOptions options = Over(wire);
    options.connect_ms_max = 200;
    Status status = Communicator::Connect(std::move(rendezvous), options).status();
    EXPECT_EQ(status.tag(), "COLL31");
    EXPECT_NE(status.what().find("rank 1"), std::string::npos) << status.ToString();
    silent.join();
  }
}

TEST(Connecting, EndsWhenARankIsLostMeanwhile) {
  Meeting meeting(1);
  Rendezvous rendezvous = meeting.Of(0);
  rendezvous.ranks = 2;
  rendezvous.exchange = [](std::string mine) { return Result<std::vector<std::string>>(std::vector<std::string>{mine, mine}); };
  std::thread teller;
  rendezvous.on_lost = [&](std::function<void(const Status&)> lost) {
    if (lost)
      teller = std::thread([lost] { lost(Status(Code::kUnavailable, "GANG01", "rank 1 is lost")); });
    else
      teller.join();
  };
  EXPECT_EQ(Communicator::Connect(std::move(rendezvous), {}).status().tag(), "GANG01");
}

// ---- the order of submitted calls ------------------------------------------------------------------------------------------------------

std::vector<std::uint64_t> StartAll(SubmitOrder* order, std::vector<std::int32_t>* lanes = nullptr) {
  std::vector<std::uint64_t> started;
  while (auto start = order->Next()) {
    started.push_back(start->number);
    if (lanes != nullptr) lanes->push_back(start->lane);
  }
  return started;
}

TEST(SubmitOrder, GoesByPriorityThenByNumber) {
  SubmitOrder order(1, 1);
  order.Add(0, 5, 10);
  order.Add(1, 3, 10);
  order.Add(2, 3, 10);
  for (std::uint64_t expected : {1, 2, 0}) {
    EXPECT_EQ(StartAll(&order), std::vector<std::uint64_t>{expected});
    order.Finish(0);
  }
}

TEST(SubmitOrder, CreditHoldsEqualsBackAndTheLastLaneIsForTheUrgent) {
  SubmitOrder order(3, 100);
  for (std::uint64_t n = 0; n < 4; ++n) order.Add(n, 5, 60);
  EXPECT_EQ(StartAll(&order), (std::vector<std::uint64_t>{0, 1}));  // 100 - 60 > 0, then below zero; and two lanes
  order.Add(9, 1, 1000);
  EXPECT_EQ(StartAll(&order), (std::vector<std::uint64_t>{9}));  // pre-empts, whatever the credit
  order.Add(10, 0, 1);
  EXPECT_TRUE(StartAll(&order).empty());  // no lane
  order.Finish(0);
  EXPECT_EQ(StartAll(&order), (std::vector<std::uint64_t>{10}));
}

TEST(SubmitOrder, ACallAboveTheCreditBeginsWhenNothingRuns) {
  SubmitOrder order(3, 1);
  order.Add(0, 0, 1'000'000);
  order.Add(1, 0, 1);
  EXPECT_EQ(StartAll(&order), std::vector<std::uint64_t>{0});
  order.Finish(0);
  EXPECT_EQ(StartAll(&order), std::vector<std::uint64_t>{1});
}

}  // namespace
}  // namespace ropewalk::collective::testing
