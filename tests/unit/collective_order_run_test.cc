// Communicators whose rings and chains go by an order: one that is given, or one that shows when links are measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "mlrunner/collective/calibrate.h"
#include "mlrunner/collective/run/call_steps.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

const Orders kGiven{{2, 4, 0, 3, 1}, {3, 0, 4, 1, 2}};

class OrderedRuns : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, OrderedRuns, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

// The plan that the call should have, the steps of that plan, and the sum.
void ExpectSum(Communicator& all, CollectiveCall call, const Order& order) {
  std::vector<float> in(static_cast<std::size_t>(call.count), static_cast<float>(all.rank() + 1)), out(in.size());
  call.in = in.data();
  call.out = out.data();
  auto plan = PlanOf(all, call);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->header.request.order, order) << call.algorithm;
  auto steps = StepsOf(all, call);
  ASSERT_TRUE(steps.ok()) << steps.status().ToString();
  const std::uint64_t before = all.steps();
  const Status status = all.Run(call);
  ASSERT_TRUE(status.ok()) << call.algorithm << ": " << status.ToString();
  EXPECT_EQ(all.steps() - before, *steps) << call.algorithm;
  const auto sum = static_cast<float>(all.ranks() * (all.ranks() + 1) / 2);
  EXPECT_EQ(std::count(out.begin(), out.end(), sum), call.count) << call.algorithm;
}

TEST_P(OrderedRuns, GoByTheOrdersThatAreGiven) {
  CommunicatorOptions options = Over(GetParam());
  options.orders = kGiven;
  WithRanks(5, options, [&](Communicator& all, Meeting&) {
    EXPECT_EQ(all.orders(), kGiven);
    for (std::int64_t count : {3, 20'000}) {
      ExpectSum(all, {.count = count, .name = "x", .algorithm = "ring"}, kGiven.ring);
      ExpectSum(all, {.count = count, .name = "x", .algorithm = "chain"}, kGiven.chain);
      ExpectSum(all, {.count = count, .name = "x", .algorithm = "hierarchical_ring_ring"}, kGiven.ring);
      ExpectSum(all, {.count = count, .name = "x", .deterministic = true, .algorithm = "chain"}, {});
      ExpectSum(all, {.count = count, .name = "x", .algorithm = "direct"}, {});

      const std::int64_t mine = count / 5 + (all.rank() < count % 5 ? 1 : 0);
      std::vector<std::int64_t> whole(static_cast<std::size_t>(count)), part(static_cast<std::size_t>(mine));
      for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::int64_t>(i) + all.rank();
      ASSERT_TRUE(all.ReduceScatter({.in = whole.data(),
                                     .out = part.data(),
                                     .count = count,
                                     .dtype = Dtype::kI64,
                                     .name = "x",
                                     .algorithm = "reduce_scatter_ring"})
                      .ok());
      ASSERT_TRUE(
          all.AllGather(
                 {.in = part.data(), .out = whole.data(), .count = count, .dtype = Dtype::kI64, .name = "x", .algorithm = "allgather_ring"})
              .ok());
      for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(whole[static_cast<std::size_t>(i)], 5 * i + 10) << i;
      std::fill(whole.begin(), whole.end(), all.rank() == 3 ? 7 : 0);
      ASSERT_TRUE(all.Broadcast({.in = whole.data(),
                                 .out = whole.data(),
                                 .count = count,
                                 .dtype = Dtype::kI64,
                                 .root = 3,
                                 .name = "x",
                                 .algorithm = "broadcast_chain"})
                      .ok());
      EXPECT_EQ(std::count(whole.begin(), whole.end(), 7), count);
    }
    // They are orders of all ranks: a group has none of them.
    auto group = all.Split({.color = all.rank() < 3 ? 0 : kNoGroup, .key = all.rank()});
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    if (*group == nullptr) return;
    EXPECT_EQ((*group)->orders(), Orders());
    ExpectSum(**group, {.count = 100, .name = "x", .algorithm = "ring"}, {});
  });
}

TEST_P(OrderedRuns, RefuseAnOrderThatIsNone) {
  CommunicatorOptions options = Over(GetParam());
  options.orders.ring = {0, 1, 1};
  WithRanks(3, options, [](Communicator& all, Meeting&) {
    float one = 1;
    CollectiveCall call{.in = &one, .out = &one, .count = 1, .name = "x", .algorithm = "ring"};
    const Status status = all.AllReduce(call);
    EXPECT_EQ(status.tag(), "COLL10") << status.ToString();
    call.algorithm = "chain";
    EXPECT_TRUE(all.AllReduce(call).ok());
    EXPECT_EQ(one, 3);
  });
}

TEST(MeasuredOrders, AreTheSameOnAllRanks) {
  CommunicatorOptions options = Over(Wire::kTcp);
  options.measures_links = true;
  std::mutex mutex;
  std::set<std::tuple<Order, Order, Nodes>> found;
  WithRanks(4, options, [&](Communicator& all, Meeting&) {
    for (const char* algorithm : {"ring", "chain", "hierarchical_direct_ring"})
      for (std::int64_t count : {1, 30'000}) {
        const Order& order = std::string(algorithm) == "chain" ? all.orders().chain : all.orders().ring;
        ExpectSum(all, {.count = count, .name = "x", .algorithm = algorithm}, order);
      }
    std::lock_guard lock(mutex);
    found.insert({all.orders().ring, all.orders().chain, all.nodes()});
  });
  EXPECT_EQ(found.size(), 1u);
  // All are on one machine, whatever the links say.
  EXPECT_EQ(std::get<2>(*found.begin()), Nodes(4));
}

// Who comes in later measures with the others, and goes by what they go by.
TEST(MeasuredOrders, AreAlsoThoseOfANewcomer) {
  CommunicatorOptions options = Over(Wire::kTcp);
  options.measures_links = true;
  std::mutex mutex;
  std::set<std::tuple<Order, Order, Nodes>> found;
  auto take_part = [&](Communicator& all) {
    ASSERT_EQ(all.ranks(), 4);
    ExpectSum(all, {.count = 5'000, .name = "x", .algorithm = "ring"}, all.orders().ring);
    ExpectSum(all, {.count = 5'000, .name = "x", .algorithm = "chain"}, all.orders().chain);
    std::lock_guard lock(mutex);
    found.insert({all.orders().ring, all.orders().chain, all.nodes()});
  };
  std::thread newcomer;
  WithRanks(3, options, [&](Communicator& all, Meeting&) {
    if (all.rank() == 0) {
      auto ticket = all.Invite();
      ASSERT_TRUE(ticket.ok()) << ticket.status().ToString();
      newcomer = std::thread([&take_part, ticket = *ticket] {
        auto joined = Communicator::Join(ticket, {.machine = "here", .timeout_ms = 60'000});
        ASSERT_TRUE(joined.ok()) << joined.status().ToString();
        take_part(**joined);
      });
      while (!all.HasNewcomers()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(all.Barrier().ok());
    auto more = all.Reform({});
    ASSERT_TRUE(more.ok()) << more.status().ToString();
    take_part(**more);
  });
  newcomer.join();
  EXPECT_EQ(found.size(), 1u);
}

TEST_P(OrderedRuns, PairsHaveTheSameLinesOnAllRanks) {
  for (std::int32_t ranks : {1, 3}) {
    std::mutex mutex;
    std::set<std::vector<double>> measured;
    WithRanks(ranks, Over(GetParam()), [&](Communicator& all, Meeting&) {
      auto pairs = CalibratePairs(&all);
      ASSERT_TRUE(pairs.ok()) << pairs.status().ToString();
      ASSERT_EQ(pairs->size(), static_cast<std::size_t>(ranks));
      std::vector<double> numbers;
      for (std::int32_t a = 0; a < ranks; ++a)
        for (std::int32_t b = 0; b < ranks; ++b) {
          const Line& line = (*pairs)[a][b];
          EXPECT_EQ(line.ns_per_byte > 0, a != b) << a << " to " << b;
          numbers.insert(numbers.end(), {line.ns, line.ns_per_byte});
        }
      std::lock_guard lock(mutex);
      measured.insert(numbers);
    });
    EXPECT_EQ(measured.size(), 1u);
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
