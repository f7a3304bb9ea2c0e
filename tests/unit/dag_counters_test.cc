// What `explain` shows of a stage: it reads each record of its inputs once, so as many as the stages before it wrote.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

struct Sums {
  std::uint64_t in = 0, out = 0;
};
Sums SumsOf(const LocalBackend& backend, StageId stage) {
  Sums sums;
  if (auto tasks = backend.counted.find(stage); tasks != backend.counted.end())
    for (const auto& [task, counted] : tasks->second) sums.in += counted.records_in, sums.out += counted.records_out;
  return sums;
}

// Every stage of every action; returns how many read another stage.
std::size_t ExpectReadOnce(const LocalBackend& backend) {
  std::size_t readers = 0;
  for (const ActionPlan& plan : backend.plans) {
    for (const Stage& stage : plan.stages) {
      std::uint64_t written = 0;
      bool reads = false;
      for (const StageInput& input : stage.inputs) {
        if (input.pattern == InputPattern::kGather) continue;
        written += SumsOf(backend, input.stage).out;
        reads = true;
      }
      if (stage.earlier || !reads) continue;
      ++readers;
      EXPECT_EQ(SumsOf(backend, stage.id).in, written) << stage.name;
    }
  }
  return readers;
}

Pairs SomePairs(std::size_t n) {
  Pairs pairs;
  for (std::size_t i = 0; i < n; ++i) pairs.emplace_back("key" + std::to_string(i * 7919 % 700), static_cast<std::int64_t>(i % 50));
  return pairs;
}

TEST(Counters, EachRecordOfAnInputCountsOnce) {
  using Chain = std::function<void(Session&, const Dataset<Pair>&)>;
  const std::map<std::string, Chain> chains = {
      {"word count, then sort",
       [](Session&, const Dataset<Pair>& in) { in.CountByKey().SortBy([](const auto& c) { return c.second; }).Collect(); }},
      {"sort of records", [](Session&, const Dataset<Pair>& in) { in.Sort().Collect(); }},
      {"combine", [](Session&, const Dataset<Pair>& in) { in.ReduceByKey(std::plus<>()).Collect(); }},
      {"distinct", [](Session&, const Dataset<Pair>& in) { in.Distinct().Collect(); }},
      {"groups", [](Session&, const Dataset<Pair>& in) { in.GroupByKey().Collect(); }},
      {"groups that are read in part",
       [](Session&, const Dataset<Pair>& in) {
         in.ReduceGroups([](const std::string& key, Values<std::int64_t>& values) { return std::pair(key, *values.Next()); }).Collect();
       }},
      {"join", [](Session&, const Dataset<Pair>& in) { in.Join(in.CountByKey()).Count(); }},
      {"cache and union",
       [](Session&, const Dataset<Pair>& in) {
         auto kept = in.Cache();
         kept.Count();
         kept.Union(in.Distinct()).Distinct().Count();
       }},
  };
  for (const auto& [name, chain] : chains) {
    for (std::uint32_t partitions : {1, 3}) {
      for (std::uint64_t memory : {std::uint64_t{256} << 20, std::uint64_t{16} << 10}) {  // the small one spills
        SCOPED_TRACE(name + ", partitions " + std::to_string(partitions) + ", memory " + std::to_string(memory));
        LocalBackend backend(partitions);
        backend.durable = false;
        backend.options.operator_bytes = memory;
        Session job = backend.NewSession();
        chain(job, job.FromVector(SomePairs(6'000)));
        EXPECT_GE(ExpectReadOnce(backend), 1u);
        EXPECT_EQ(SumsOf(backend, backend.plans[0].stages[0].id).in, 6'000u) << "of main's vector";
      }
    }
  }
}

}  // namespace
}  // namespace ropewalk::dag
