// Plans: what is cut into stages, cached, retired and compared. Loops stay flat; differences between replicas are found and named.
#include <gtest/gtest.h>

#include <thread>

#include "dag/text.h"
#include "tests/unit/local_backend.h"

namespace ropewalk::dag {
namespace {

using Pair = std::pair<std::string, std::int64_t>;

TEST(Plan, StagesAreCutAtShufflesAndNarrowOperatorsAreFused) {
  LocalBackend backend(3);
  Session job = backend.NewSession();
  auto lines = job.FromVector(std::vector<std::string>{"a b", "c"}, {.partitions = 2});
  lines.FlatMap(Words)
      .Filter([](std::string_view w) { return w != "x"; })
      .CountByKey()
      .MapValues([](std::uint64_t n) { return n * 2; })
      .Count();
  const ActionPlan& plan = backend.plans.back();
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_TRUE(plan.stages[0].name.starts_with("FromVector > FlatMap > Filter > CountByKey (dag_plan_test.cc:"));
  EXPECT_TRUE(plan.stages[1].name.starts_with("CountByKey > MapValues > Count (dag_plan_test.cc:"));
  EXPECT_EQ(plan.stages[0].tasks, 2u);
  EXPECT_EQ(plan.stages[1].tasks, 3u);
  EXPECT_EQ(plan.stages[1].inputs, (std::vector<StageInput>{{plan.stages[0].id, InputPattern::kAllToAll, 0}}));
  EXPECT_TRUE(plan.name.starts_with("Count (dag_plan_test.cc:"));
}

TEST(Plan, ShufflesAndCachesAreComputedOnceForManyActions) {
  for (bool durable : {true, false}) {
    LocalBackend backend(2);
    backend.durable = durable;
    Session job = backend.NewSession();
    auto runs = std::make_shared<int>(0);
    auto cached = job.FromVector(std::vector<int>{1, 2, 3}, {.partitions = 3})
                      .Map([runs](int x) {
                        ++*runs;
                        return x;
                      })
                      .Cache();
    EXPECT_EQ(*runs, 0);  // lazy
    EXPECT_EQ(cached.Count(), 3u);
    EXPECT_EQ(cached.Sum(), 6);
    auto counts = cached.CountByKey();
    EXPECT_EQ(counts.Count(), 3u);
    EXPECT_EQ(counts.Count(), 3u);
    EXPECT_EQ(*runs, 3) << "durable " << durable;
    // The stage is listed again, with its inputs where it may have to be made again.
    EXPECT_EQ(backend.plans[1].stages[0].id, backend.plans[0].stages[0].id);
    EXPECT_EQ(backend.plans[1].stages[0].fingerprint, backend.plans[0].stages[0].fingerprint);
  }
}

TEST(Plan, ACacheLostFiveActionsLaterIsMadeAgainFromItsLineage) {
  LocalBackend backend(2);
  backend.durable = false;
  Session job = backend.NewSession();
  auto cached = job.FromVector(std::vector<Pair>{{"a", 1}, {"b", 2}, {"a", 3}}).ReduceByKey(std::plus<>()).Cache();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(cached.Count(), 2u);
  for (const Stage& stage : backend.plans.back().stages) backend.Lose(stage.id);
  auto result = cached.Collect();
  std::sort(result.begin(), result.end());
  EXPECT_EQ(result, (std::vector<Pair>{{"a", 4}, {"b", 2}}));
}

TEST(Plan, WhatNobodyCanReadIsRetiredByTheNextAction) {
  LocalBackend backend(2);
  Session job = backend.NewSession();
  auto in = job.FromVector(std::vector<Pair>{{"a", 1}});
  StageId stage;
  {
    auto counts = in.CountByKey();
    counts.Count();
    stage = backend.plans.back().stages[0].id;
    counts.Count();
    EXPECT_EQ(std::count(backend.plans.back().retired.begin(), backend.plans.back().retired.end(), stage), 0);
  }
  in.Count();
  EXPECT_EQ(std::count(backend.plans.back().retired.begin(), backend.plans.back().retired.end(), stage), 1);
  EXPECT_EQ(backend.stages_held(), 0u);
  in.Count();
  EXPECT_EQ(std::count(backend.plans.back().retired.begin(), backend.plans.back().retired.end(), stage), 0);
}

struct Point {
  double x = 0, y = 0;
};

// k-means over 10,000 rounds: the same points, new nodes in each round.
TEST(Plan, TenThousandIterationsOverACacheKeepMemoryFlat) {
  for (bool durable : {true, false}) {
    LocalBackend backend(2);
    backend.durable = durable;
    backend.keep_plans = false;
    Session job = backend.NewSession();
    std::vector<Point> data;
    for (int i = 0; i < 8; ++i) data.push_back({double(i % 4), double(i % 4)});
    auto points = job.FromVector(data, {.partitions = 2}).Cache();
    double centre = 10;
    std::int64_t nodes_after_ten = 0;
    for (int round = 0; round < 10000; ++round) {
      auto moved = points.Map([centre](const Point& p) { return std::pair(p.x > centre, p.x); }).ReduceByKey(std::plus<>()).Collect();
      double sum = 0;
      for (const auto& [side, x] : moved) sum += x;
      centre = sum / 8;
      if (round == 10) nodes_after_ten = job.context().live_nodes();
    }
    EXPECT_DOUBLE_EQ(centre, 1.5);
    EXPECT_EQ(job.context().live_nodes(), nodes_after_ten);
    EXPECT_LE(backend.stages_held(), 3u);
    EXPECT_LE(backend.blocks.segments.size(), 6u);
    EXPECT_EQ(backend.tasks_run, 2u + 10000u * 4u);  // the cache once
  }
}

// PageRank: each round's dataset is made of the last one's.
TEST(Plan, TenThousandRoundsOfALineageStayFlatWhereOutputIsDurable) {
  LocalBackend backend(1);
  backend.keep_plans = false;
  Session job = backend.NewSession();
  using Rank = std::pair<std::uint32_t, double>;
  auto links = job.FromVector(std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {1, 2}, {2, 0}, {2, 1}}).GroupByKey().Cache();
  Dataset<Rank> ranks = links.MapValues([](const std::vector<std::uint32_t>&) { return 1.0; });
  for (int round = 0; round < 10000; ++round) {
    ranks = links.Join(ranks)
                .FlatMap([](const std::pair<std::uint32_t, std::pair<std::vector<std::uint32_t>, double>>& page, Emit<Rank> emit) {
                  for (std::uint32_t to : page.second.first) emit(to, page.second.second / double(page.second.first.size()));
                })
                .ReduceByKey(std::plus<>())
                .MapValues([](double sum) { return 0.15 + 0.85 * sum; })
                .Cache();
    ranks.Count();
    ASSERT_LT(job.context().live_nodes(), 20);
    ASSERT_LT(backend.blocks.segments.size(), 20u);
  }
  EXPECT_NEAR(ranks.Map([](const Rank& r) { return r.second; }).Sum(), 3.0, 1e-9);
}

TEST(Plan, DeepLineageIsPlannedRunAndReleasedWithoutRecursion) {
  LocalBackend backend(1);
  backend.durable = false;
  backend.keep_plans = false;
  Session job = backend.NewSession();
  Dataset<int> data = job.FromVector(std::vector<int>{1, 2, 3});
  for (int i = 0; i < 3000; ++i) data = data.Map([](int x) { return x + 1; }).Cache();
  EXPECT_EQ(data.Sum(), 6 + 3 * 3000);
  data = job.FromVector(std::vector<int>{7});
  EXPECT_EQ(data.Sum(), 7);
  EXPECT_EQ(backend.stages_held(), 0u);
  EXPECT_LE(job.context().live_nodes(), 2);
}

TEST(Plan, BytesAreTheSameInAnyOrderOfTasksAndAttempts) {
  std::vector<std::vector<std::string>> all;
  for (std::uint64_t seed : {0, 1, 2, 3}) {
    LocalBackend backend(5);
    backend.shuffle_seed = seed;
    backend.options.operator_bytes = 8u << 10;
    Session job = backend.NewSession();
    std::vector<std::pair<std::uint32_t, double>> data;
    for (std::uint32_t i = 0; i < 5000; ++i) data.push_back({i * 7919 % 301, 1.0 / (i + 1)});
    auto sums = job.FromVector(data, {.partitions = 9}).ReduceByKey(std::plus<>());
    sums.Cache().Count();
    std::vector<std::string> bytes;  // of all segments, in stage and task order: floats are summed in one order only
    for (const auto& record : sums.Collect()) bytes.push_back(Encode<std::pair<std::uint32_t, double>>(record));
    all.push_back(bytes);
    EXPECT_EQ(all.back(), all.front()) << "seed " << seed;
  }
}

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

TEST(Plan, FingerprintsOfEqualReplicasAreEqualAndDifferencesAreNamed) {
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

TEST(Plan, BroadcastAndOnceGiveTheDriversValue) {
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

TEST(Plan, AsyncActionsRunInProgramOrderAndKeepWhatTheyRead) {
  LocalBackend backend(2);
  Session job = backend.NewSession();
  auto a = job.FromVector(std::vector<Pair>{{"a", 1}, {"a", 2}}).ReduceByKey(std::plus<>()).CollectAsync();
  auto b = job.FromVector(std::vector<int>{5}).CollectAsync();
  EXPECT_EQ(b.Get(), std::vector<int>{5});
  EXPECT_EQ(a.Get(), (std::vector<Pair>{{"a", 3}}));
  EXPECT_EQ(backend.plans[0].sequence, 1u);
  EXPECT_EQ(backend.plans[1].sequence, 2u);
  {
    auto dropped = job.FromVector(std::vector<int>{5}).CollectAsync();
  }
  EXPECT_EQ(backend.tasks_run, 4u + 1u + 1u);
}

TEST(Plan, BuildingInAnotherThreadOrAfterTheJobIsTheUsersError) {
  LocalBackend backend(2);
  auto job = std::make_unique<Session>(backend.NewSession());
  auto data = job->FromVector(std::vector<int>{1});
  std::string tag;
  std::thread([&] {
    try {
      data.Count();
    } catch (const ActionFailed& failed) {
      tag = failed.status.tag();
    }
  }).join();
  EXPECT_EQ(tag, "DAG01");
  job.reset();
  try {
    data.Count();
    FAIL();
  } catch (const ActionFailed& failed) {
    EXPECT_EQ(failed.status.tag(), "DAG02");
  }
}

}  // namespace
}  // namespace ropewalk::dag
