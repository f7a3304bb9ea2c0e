// Plans: what is cut into stages, cached and retired.
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
    // The stage is named again, not what it is made from.
    EXPECT_TRUE(backend.plans[1].stages[0].earlier);
    EXPECT_TRUE(backend.plans[1].stages[0].inputs.empty());
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
