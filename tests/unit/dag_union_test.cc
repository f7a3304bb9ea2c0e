// Unions of every kind of input, and records of many types.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

TEST(Union, UnionKeepsAllAndMixesKindsOfInput) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    auto in = job.FromVector(data);
    Dataset<Pair> cached = in.Map([](const Pair& p) { return Pair(p.first, p.second + 1); }).Cache();
    Dataset<Pair> shuffled = in.ReduceByKey(std::plus<>());
    // The same cache twice, a shuffle, and a plain source in one stage.
    Dataset<Pair> all = cached.Union(shuffled).Union(in).Union(cached);
    Pairs expected = data;
    std::map<std::string, std::int64_t> sum;
    for (const auto& [k, v] : data) {
      sum[k] += v;
      expected.push_back({k, v + 1});
      expected.push_back({k, v + 1});
    }
    expected.insert(expected.end(), sum.begin(), sum.end());
    EXPECT_EQ(Sorted(all.Collect()), Sorted(expected));
    EXPECT_EQ(all.CountByKey().Count(), sum.size());  // behind a shuffle of its own
    EXPECT_EQ(all.Cache().Union(all).Count(), 2 * expected.size());
  });
}

// 60 members of three kinds in one stage: each task is given the one that it reads, also where members are the same dataset.
TEST(Union, EachTaskReadsItsOwnMember) {
  LocalBackend backend(3);
  Session job = backend.NewSession();
  auto in = job.FromVector(std::vector<Pair>{{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}}, {.partitions = 2});
  Dataset<Pair> cached = in.Cache(), shuffled = in.ReduceByKey(std::plus<>()), all = shuffled;
  Dataset<Pair> other = in.Map([](const Pair& p) { return Pair(p.first, -p.second); }).ReduceByKey(std::plus<>(), {.partitions = 4});
  for (int i = 0; i < 20; ++i) all = all.Union(cached).Union(i % 2 ? shuffled : other).Union(in);
  EXPECT_EQ(all.Count(), 4u * 61);
  EXPECT_EQ(all.Map([](const Pair& p) { return p.second; }).Sum(), 10 * (1 + 20 + 10 - 10 + 20));
  const Stage& stage = backend.plans.back().stages.back();
  ASSERT_EQ(stage.tasks, 3u + 20 * 2 + 10 * 3 + 10 * 4 + 20 * 2);
  for (std::uint32_t task = 0; task < stage.tasks; ++task) {
    std::size_t read = 0;
    for (const StageInput& input : stage.inputs) read += input.ReadBy(task);
    EXPECT_LE(read, 1u) << task;
  }
}

struct Visit {
  std::string page;
  std::uint32_t day;
  double seconds;
  friend bool operator==(const Visit&, const Visit&) = default;
};

TEST(Union, RecordsOfManyTypes) {
  LocalBackend backend(3);
  Session job = backend.NewSession();
  std::vector<Visit> visits = {{"a", 1, .5}, {"b", 1, 2}, {"a", 2, .25}};
  auto in = job.FromVector(visits);
  EXPECT_EQ(in.Cache().Collect(), visits);
  auto seconds = in.Map([](const Visit& v) { return std::pair(v.page, v.seconds); }).ReduceByKey(std::plus<>());
  EXPECT_EQ(Sorted(seconds.Collect()), (std::vector<std::pair<std::string, double>>{{"a", .75}, {"b", 2}}));
  EXPECT_EQ(in.Map(&Visit::day).Distinct().Count(), 2u);
  auto tuples = job.FromVector(std::vector<std::tuple<int, std::string, std::optional<std::string>>>{{1, "x", "y"}, {2, "", std::nullopt}});
  EXPECT_EQ(tuples.Cache().Map([](const auto& t) { return std::get<2>(t).value_or("none"); }).Collect(),
            (std::vector<std::string>{"y", "none"}));
  auto flags = job.FromVector(std::vector<bool>{true, false, true});
  EXPECT_EQ(flags.Map([](bool b) { return !b; }).Cache().Collect(), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(flags.CountByKey().Count(), 2u);
  auto maps = job.FromVector(std::vector<std::map<std::string, std::vector<int>>>{{{"k", {1, 2}}}, {}});
  EXPECT_EQ(maps.Cache().Map([](const auto& m) { return m.size(); }).Sum(), 1u);
  auto arrays = job.FromVector(std::vector<std::array<char, 4>>{{'a', 'b', 'c', 'd'}});
  EXPECT_EQ(arrays.Distinct().Collect().size(), 1u);
}

}  // namespace
}  // namespace ropewalk::dag
