// Operators by key against std::map.
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

TEST(ByKey, ReduceByKeyBothFormsOfCombiner) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::map<std::string, std::int64_t> sum;
    std::map<std::string, std::string> text;
    for (const auto& [k, v] : data) {
      sum[k] += v;
      text[k] += std::to_string(v) + ",";
    }
    auto in = job.FromVector(data);
    EXPECT_EQ(Sorted(in.ReduceByKey(std::plus<>()).Collect()), Pairs(sum.begin(), sum.end()));
    EXPECT_EQ(Sorted(in.ReduceByKey([](std::int64_t& a, const std::int64_t& b) { a += b; }).Collect()), Pairs(sum.begin(), sum.end()));
    // Not commutative: values come in the order of the input.
    auto texts = in.MapValues([](std::int64_t v) {
                     return std::to_string(v) + ",";
                   }).ReduceByKey([](const std::string& a, const std::string& b) { return a + b; });
    EXPECT_EQ(Sorted(texts.Collect()), (std::vector<std::pair<std::string, std::string>>(text.begin(), text.end())));
  });
}

TEST(ByKey, CountsAndDistinct) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::map<std::string, std::uint64_t> keys;
    std::map<Pair, std::uint64_t> records;
    std::map<std::int64_t, std::uint64_t> numbers;
    for (const Pair& p : data) {
      ++keys[p.first];
      ++records[p];
      ++numbers[p.second];
    }
    auto in = job.FromVector(data);
    EXPECT_EQ(Sorted(in.CountByKey().Collect()), (std::vector<std::pair<std::string, std::uint64_t>>(keys.begin(), keys.end())));
    EXPECT_EQ(Sorted(in.CountByValue().Collect()), (std::vector<std::pair<Pair, std::uint64_t>>(records.begin(), records.end())));
    EXPECT_EQ(Sorted(in.Map([](const Pair& p) { return p.second; }).CountByKey().Collect()),
              (std::vector<std::pair<std::int64_t, std::uint64_t>>(numbers.begin(), numbers.end())));
    std::vector<Pair> distinct;
    for (const auto& [p, n] : records) distinct.push_back(p);
    EXPECT_EQ(Sorted(in.Distinct().Collect()), distinct);
  });
}

}  // namespace
}  // namespace ropewalk::dag
