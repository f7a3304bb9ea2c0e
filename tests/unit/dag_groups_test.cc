// Groups, joins and MapReduce against plain loops.
#include <gtest/gtest.h>

#include <map>

#include "dag/map_reduce.h"
#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

TEST(Groups, GroupsAndGroupFunctions) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::map<std::string, std::vector<std::int64_t>> groups;
    for (const auto& [k, v] : data) groups[k].push_back(v);
    using Group = std::pair<std::string, std::vector<std::int64_t>>;
    auto in = job.FromVector(data);
    EXPECT_EQ(Sorted(in.GroupByKey().Collect()), std::vector<Group>(groups.begin(), groups.end()));
    std::vector<std::string> expected;
    for (const auto& [k, vs] : groups) expected.push_back(k + ":" + std::to_string(vs.size()) + ":" + std::to_string(vs.front()));
    auto described = in.ReduceGroups([](const std::string& key, Values<std::int64_t>& values) {
      std::uint64_t n = values.count();
      return key + ":" + std::to_string(n) + ":" + std::to_string(*values.begin());  // need not read all
    });
    EXPECT_EQ(Sorted(described.Collect()), Sorted(expected));
    std::int64_t positive = std::count_if(data.begin(), data.end(), [](const Pair& p) { return p.second > 0; });
    auto emitted = in.ReduceGroups([](const std::string& key, Values<std::int64_t>& values, Emit<Pair> emit) {
      for (std::int64_t v : values)
        if (v > 0) emit(key, v);
    });
    EXPECT_EQ(emitted.Count(), static_cast<std::uint64_t>(positive));
  });
}

TEST(Groups, Join) {
  ForPartitions([](Session& job, Pairs data, std::mt19937_64& random) {
    if (data.size() > 600) data.resize(600);
    std::vector<std::pair<std::string, std::string>> right;
    for (std::size_t i = 0; i < data.size() / 3; ++i) right.push_back({data[random() % data.size()].first, std::to_string(i)});
    right.push_back({"nobody", "x"});
    using Joined = std::pair<std::string, std::pair<std::int64_t, std::string>>;
    std::vector<Joined> expected;
    for (const auto& [k, v] : data)
      for (const auto& [k2, w] : right)
        if (k == k2) expected.push_back({k, {v, w}});
    auto joined = job.FromVector(data).Join(job.FromVector(right));
    EXPECT_EQ(Sorted(joined.Collect()), Sorted(expected));
    auto self = job.FromVector(data);
    std::map<std::string, std::uint64_t> count;
    for (const auto& [k, v] : data) ++count[k];
    std::uint64_t pairs = 0;
    for (const auto& [k, n] : count) pairs += n * n;
    EXPECT_EQ(self.Join(self).Count(), pairs);
  });
}

TEST(Groups, MapReduceChainsWithoutStorage) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::map<std::string, std::uint64_t> counts;
    for (const auto& [k, v] : data) ++counts[k];
    std::map<std::uint64_t, std::uint64_t> histogram;
    for (const auto& [k, n] : counts) ++histogram[n];
    auto sum = [](const auto& key, Values<std::uint64_t>& values) {
      std::uint64_t n = 0;
      for (std::uint64_t v : values) n += v;
      return std::pair(key, n);
    };
    auto counted = MapReduce(
        job.FromVector(data), [](const Pair& p, Emit<std::pair<std::string_view, std::uint64_t>> emit) { emit(p.first, 1u); },
        std::plus<std::uint64_t>(), sum);
    auto result = MapReduce(
        counted, [](const std::pair<std::string, std::uint64_t>& kv) { return std::vector{std::pair(kv.second, std::uint64_t{1})}; },
        NoCombiner(), sum);
    EXPECT_EQ(Sorted(result.Collect()), (std::vector<std::pair<std::uint64_t, std::uint64_t>>(histogram.begin(), histogram.end())));
  });
}

}  // namespace
}  // namespace ropewalk::dag
