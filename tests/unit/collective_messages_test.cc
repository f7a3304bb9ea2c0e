// What a failure says, of whatever kind it is: the operation, the name and the number of the call, this rank, who is at fault or missing,
// and on which machine. Ranks that are killed or stopped are in collective_kill_test, which looks for the same.
#include <chrono>
#include <functional>
#include <numeric>

#include "mlrunner/collective/run/hosts.h"
#include "tests/unit/collective_either_way.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

constexpr std::int32_t kRanks = 3, kAtFault = 2;

struct Kind {
  std::string name, tag;
  std::int64_t timeout_ms;
  // What the rank at fault does instead of the sums of the others.
  std::function<void(Communicator&)> does;
  // What is said beside what is said of all kinds.
  std::string more;
};

std::vector<float> Ones() { return std::vector<float>(1'000, 1); }

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {"leaves", "COLL20", 0, nullptr, "its program has ended"},
      {"does_not_come", "COLL28", 200, [](Communicator&) { std::this_thread::sleep_for(std::chrono::milliseconds(1'500)); },
       "rank 2 is waited for"},
      {"sums_another_tensor", "COLL21", 0,
       [](Communicator& all) {
         std::vector<float> x = Ones();
         EXPECT_EQ(all.AllReduce({.in = x.data(), .out = x.data(), .count = 1'000, .name = "other"}).tag(), "COLL21");
       },
       "allreduce \"other\" (call 3: sum of 1000 f32)"},
      {"sums_fewer", "COLL21", 0,
       [](Communicator& all) {
         std::vector<float> x = Ones();
         EXPECT_EQ(all.AllReduce({.in = x.data(), .out = x.data(), .count = 999, .name = "grad"}).tag(), "COLL21");
       },
       "allreduce \"grad\" (call 3: sum of 999 f32)"},
      {"calls_something_else", "COLL21", 0, [](Communicator& all) { EXPECT_EQ(all.Barrier().tag(), "COLL21"); },
       "barrier \"barrier\" (call 3: "},
      {"aborts", "TEST01", 0, [](Communicator& all) { all.Abort(Status(Code::kCancelled, "TEST01", "enough", "it says so")); },
       "rank 2, which is on \"host-2\" (127.0.0.1), has aborted it"},
  };
  return kinds;
}

class Messages : public ::testing::TestWithParam<std::tuple<Wire, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(Wires, Messages,
                         ::testing::Combine(::testing::Values(Wire::kShared, Wire::kTcp), ::testing::Range(std::size_t{0}, Kinds().size())),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Wire::kShared ? "shared_" : "tcp_") +
                                  Kinds()[std::get<1>(info.param)].name;
                         });

TEST_P(Messages, SayWhoWhereAndAtWhat) {
  const Kind& kind = Kinds()[std::get<1>(GetParam())];
  const bool is_shared = std::get<0>(GetParam()) == Wire::kShared;
  Meeting meeting(kRanks);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      Rendezvous rendezvous = meeting.Of(rank);
      // Those who share memory are on one machine.
      rendezvous.machine = is_shared ? "host-2" : "host-" + std::to_string(rank);
      CommunicatorOptions options = Over(std::get<0>(GetParam()));
      options.timeout_ms = kind.timeout_ms;
      auto connected = Communicator::Connect(std::move(rendezvous), options);
      ASSERT_TRUE(connected.ok()) << connected.status().ToString();
      Communicator& all = **connected;
      std::vector<float> x = Ones();
      const CollectiveCall call{.in = x.data(), .out = x.data(), .count = 1'000, .name = "grad"};
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(all.AllReduce(call).ok());
      meeting.Barrier(rank);
      if (rank == kAtFault) {
        if (kind.does == nullptr)
          connected->reset();
        else
          kind.does(all);
      } else {
        const Status status = all.AllReduce(call);
        EXPECT_EQ(status.tag(), kind.tag) << status.ToString();
        const std::string said = status.ToString(), me = "rank " + std::to_string(rank);
        const bool names_this_one = said.find(me + " was at allreduce \"grad\" (call 3: sum of 1000 f32)") != std::string::npos ||
                                    said.find(me + " at allreduce \"grad\" (call 3: sum of 1000 f32)") != std::string::npos ||
                                    said.find(me + " is at allreduce \"grad\" (call 3: sum of 1000 f32)") != std::string::npos ||
                                    said.find(me + " has been at allreduce \"grad\" (call 3: sum of 1000 f32)") != std::string::npos;
        EXPECT_TRUE(names_this_one) << said;
        EXPECT_NE(said.find("rank 2"), std::string::npos) << said;
        EXPECT_NE(said.find("on \"host-2\" (127.0.0.1)"), std::string::npos) << said;
        EXPECT_NE(said.find(kind.more), std::string::npos) << said;
        // Later calls, too, with numbers of their own.
        const std::string later = all.Barrier().ToString();
        EXPECT_NE(later.find(me + " was at barrier \"barrier\" (call 4: "), std::string::npos) << later;
      }
      meeting.Barrier(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Message, OfARankThatCannotBeReachedSaysWhere) {
  Meeting meeting(2);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Rendezvous rendezvous = meeting.Of(rank);
      rendezvous.machine = "host-" + std::to_string(rank);
      if (rank == 1) {
        auto exchange = rendezvous.exchange;
        rendezvous.exchange = [exchange](std::string mine) -> Result<std::vector<std::string>> {
          (void)exchange(std::move(mine));
          return Status(Code::kCancelled, "TEST01", "it changes its mind");
        };
      }
      CommunicatorOptions options = Over(Wire::kTcp);
      options.connect_ms_max = 500;
      const Status status = Communicator::Connect(std::move(rendezvous), options).status();
      EXPECT_EQ(status.tag(), rank == 0 ? "COLL31" : "TEST01") << status.ToString();
      if (rank == 0) {
        EXPECT_EQ(status.what(), "rank 1 cannot be reached");
        EXPECT_NE(status.why().find("rank 1 is on \"host-1\" (127.0.0.1)"), std::string::npos) << status.ToString();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Hosts, AreSaidOnceOfEachRankThatAStatusNames) {
  Hosts hosts;
  for (int rank = 0; rank < 20; ++rank) hosts.push_back(HostOf("m" + std::to_string(rank), "::1"));
  const Status one =
      WithHosts(Status(Code::kUnavailable, "COLL20", "rank 3 is lost, says rank 11, and so is rank 3", "it has ended"), hosts);
  EXPECT_EQ(one.why(), "it has ended; rank 3 is on \"m3\" (::1), rank 11 is on \"m11\" (::1)");
  EXPECT_EQ(WithHosts(one, hosts).why(), one.why());
  // None of these is a rank of them.
  for (const char* text : {"rank 20 is lost", "a rank is lost", "rank", "rank x", "rank 99999999999999999999"})
    EXPECT_EQ(WithHosts(Status(Code::kUnavailable, "COLL20", text, "so"), hosts).why(), "so") << text;
  // Of many only some are said, also when it is said again.
  std::string many = "rank 0";
  for (int rank = 1; rank < 20; ++rank) many += ", rank " + std::to_string(rank);
  const Status some = WithHosts(Status(Code::kUnavailable, "COLL28", many), hosts);
  EXPECT_EQ(some.why().find("m8"), std::string::npos) << some.why();
  EXPECT_EQ(WithHosts(some, hosts).why(), some.why());
  EXPECT_EQ(HostOf("", "10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(HostOf("evil\n\"name", "10.0.0.1"), "\"evil\\n\"name\" (10.0.0.1)");
}

}  // namespace
}  // namespace ropewalk::collective::testing
