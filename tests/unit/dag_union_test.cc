// Unions of every kind of input.
#include <gtest/gtest.h>

#include <map>

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

}  // namespace
}  // namespace ropewalk::dag
