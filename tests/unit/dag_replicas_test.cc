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

}  // namespace
}  // namespace ropewalk::dag
