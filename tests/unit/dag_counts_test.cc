// CountByKey, CountByValue and Distinct against std::map.
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

TEST(Counts, ByKeyByValueAndDistinct) {
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
