// Two replicas of main: differences between what they build are found and named, and both get the same values.
#include <gtest/gtest.h>

#include "tests/unit/local_backend.h"

namespace ropewalk::dag {
namespace {

using Pair = std::pair<std::string, std::int64_t>;

// Two replicas that build the same main; `twist` changes one thing in the second.
template <class Build>
std::string Difference(Build build) {
  ActionPlan plans[2];
  for (int replica : {0, 1}) {
    LocalBackend backend(2);
    Session job = backend.NewSession();
    build(job, replica);
    plans[replica] = backend.plans.back();
  }
  EXPECT_EQ(plans[0].fingerprint == plans[1].fingerprint, FirstDifference(plans[0], plans[1]).empty());
  return FirstDifference(plans[0], plans[1]);
}

TEST(Replicas, FingerprintsOfEqualReplicasAreEqualAndDifferencesAreNamed) {
  auto in = [](Session& job) { return job.FromVector(std::vector<Pair>{{"a", 1}, {"b", 2}}); };
  EXPECT_EQ(Difference([&](Session& job, int) {
              double weight = 0.5;
              in(job).Map([weight](const Pair& p) { return p.second * weight; }).Filter([](double x) { return x > 0; }).Sum();
            }),
            "");
  // A captured value.
  EXPECT_NE(Difference([&](Session& job, int replica) {
              double weight = replica;
              in(job).Map([weight](const Pair& p) { return p.second * weight; }).Sum();
            }).find("FromVector > Map > Sum"),
            std::string::npos);
  // Padding between captures is no difference.
  EXPECT_EQ(Difference([&](Session& job, int replica) {
              alignas(8) volatile char dirt[64];
              for (volatile char& c : dirt) c = static_cast<char>(replica + 1);
              char flag = 'x';
              std::int64_t n = 3;
              in(job).Map([flag, n](const Pair& p) { return p.second + n + flag; }).Sum();
            }),
            "");
  // A captured reference is an address.
  int here[2] = {1, 1};
  EXPECT_NE(Difference([&](Session& job, int replica) {
              int& value = here[replica];
              in(job).Map([&value](const Pair& p) { return p.second + value; }).Sum();
            }).find("captured pointer or reference"),
            std::string::npos);
  // Another operator, another order of building, other data.
  EXPECT_NE(Difference([&](Session& job, int replica) {
              auto data = in(job);
              if (replica)
                data.Distinct().Count();
              else
                data.CountByKey().Count();
            }).find("is CountByKey"),
            std::string::npos);
  EXPECT_NE(Difference([&](Session& job, int replica) {
              auto data = in(job);
              if (replica) (void)data.CountByKey();
              data.Cache().Count();
            }).find("more or fewer datasets"),
            std::string::npos);
  EXPECT_NE(Difference([&](Session& job, int replica) { job.FromVector(std::vector<int>{1, replica}).Count(); }).find("FromVector > Count"),
            std::string::npos);
  EXPECT_NE(Difference([&](Session& job, int replica) {
              auto data = in(job);
              if (replica) data.Count();
              data.Count();
            }).find("the other at 2"),
            std::string::npos);
}

TEST(Replicas, BroadcastAndOnceGiveTheDriversValue) {
  LocalBackend backend(2);
  int computed = 0;
  for (int replica : {0, 1}) {
    Session job = backend.NewSession();
    auto value = job.Once("config", [&] {
      ++computed;
      return std::vector<std::string>{"x", "y"};
    });
    EXPECT_EQ(value, (std::vector<std::string>{"x", "y"}));
    auto factor = job.Broadcast(replica + 1);  // the second replica would disagree; it gets the first one's
    EXPECT_EQ(job.FromVector(std::vector<int>{1, 2}).Map([factor](int x) { return x * *factor; }).Sum(), 3);
    job.Once("effect", [&] { ++computed; });
  }
  EXPECT_EQ(computed, 2);
  Session job = backend.NewSession();
  try {
    job.Once("bad", []() -> int { throw std::runtime_error("no network"); });
    FAIL();
  } catch (const ActionFailed& failed) {
    EXPECT_EQ(failed.status.code(), Code::kUserError);
    EXPECT_NE(failed.status.what().find("no network"), std::string::npos);
  }
  EXPECT_EQ(job.Seed(), backend.options.seed);
}

// One replica runs the function of a Once. What it numbered there would be numbered in no other: the driver's next Broadcast took the name
// of another one's second, and tasks computed with other values.
TEST(Replicas, AFunctionOfOnceNumbersNothing) {
  struct Case {
    const char* doing;
    std::function<int(Session&, Dataset<int>&, CollectHandle<int>&)> act;
  };
  const std::vector<Case> cases = {
      {"make a broadcast", [](Session& job, Dataset<int>&, CollectHandle<int>&) { return *job.Broadcast(7); }},
      {"make a listing", [](Session& job, Dataset<int>&, CollectHandle<int>&) { return job.ReadLines("missing"), 0; }},
      {"build a dataset", [](Session& job, Dataset<int>&, CollectHandle<int>&) { return job.FromVector(std::vector<int>{1}), 0; }},
      {"build a dataset", [](Session&, Dataset<int>& numbers, CollectHandle<int>&) { return numbers.Sum(); }},
      {"wait for an action", [](Session&, Dataset<int>&, CollectHandle<int>& later) { return later.Get()[0]; }},
      {"call Once", [](Session& job, Dataset<int>&, CollectHandle<int>&) { return job.Once("inner", [] { return 1; }); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.doing);
    LocalBackend backend(2);
    Session job = backend.NewSession();
    Dataset<int> numbers = job.FromVector(std::vector<int>{1, 2});
    CollectHandle<int> later = numbers.CollectAsync();
    EXPECT_EQ(*job.Broadcast(5), 5);
    try {
      job.Once("out\nside", [&] { return c.act(job, numbers, later); });
      ADD_FAILURE() << "it was done";
    } catch (const ActionFailed& failed) {
      const std::string said = failed.status.ToString();
      EXPECT_NE(said.find(std::string("error[DAG07] cannot ") + c.doing + " in the function of Once("), std::string::npos) << said;
      for (const char* part : {"why: one replica", "fix: do it before"}) EXPECT_NE(said.find(part), std::string::npos) << said;
      EXPECT_EQ(said.find('\n' + std::string("side")), std::string::npos) << said;
    }
    EXPECT_EQ(*job.Broadcast(6), 6) << "main itself goes on";
    EXPECT_EQ(backend.once_values.count("broadcast:2"), 1u);
    EXPECT_EQ(backend.once_values.count("broadcast:3"), 0u);
  }
}

}  // namespace
}  // namespace ropewalk::dag
