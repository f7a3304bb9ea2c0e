// Sort and SortBy: the total order over partitions, for any number of them, any order of tasks, and runs of every size.
#include <gtest/gtest.h>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

std::vector<std::string> Keys(const Pairs& data) {
  std::vector<std::string> keys;
  for (const Pair& p : data) keys.push_back(p.first);
  return keys;
}

TEST(Sort, RecordsInTheirOwnOrderOverAllPartitions) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::vector<std::string> keys = Keys(data);
    auto in = job.FromVector(keys);
    std::sort(keys.begin(), keys.end());
    EXPECT_EQ(in.Sort().Collect(), keys);
    EXPECT_EQ(in.SortBy([](const std::string& s) -> std::string_view { return s; }).Collect(), keys);  // the key is the record itself
    std::reverse(keys.begin(), keys.end());
    EXPECT_EQ(in.Sort({.descending = true}).Collect(), keys);
  });
}

TEST(Sort, EqualKeysKeepTheOrderOfTheInputAlsoAcrossPartitions) {
  ForPartitions([](Session& job, Pairs data, std::mt19937_64&) {
    auto in = job.FromVector(data);
    auto by_value = [](const Pair& a, const Pair& b) { return a.second % 5 < b.second % 5; };
    std::stable_sort(data.begin(), data.end(), by_value);
    auto sorted = in.SortBy([](const Pair& p) { return p.second % 5; }, {.partitions = 7});
    EXPECT_EQ(sorted.node()->partitions(), 7u);
    EXPECT_EQ(sorted.Collect(), data);
    EXPECT_EQ(sorted.Take(9), Pairs(data.begin(), data.begin() + std::min<std::size_t>(9, data.size())));
    std::stable_sort(data.begin(), data.end(), [&](const Pair& a, const Pair& b) { return by_value(b, a); });
    EXPECT_EQ(in.SortBy([](const Pair& p) { return p.second % 5; }, {.descending = true}).Collect(), data);
  });
}

TEST(Sort, ByPartOfTheTextAndBySeveralMembers) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    std::vector<std::string> lines;
    for (const Pair& p : data) lines.push_back(std::to_string(p.second) + " " + p.first);
    auto word = [](std::string_view s) { return s.substr(s.find(' ') + 1); };
    std::vector<std::string> expected = lines;
    std::stable_sort(expected.begin(), expected.end(), [&](const std::string& a, const std::string& b) { return word(a) < word(b); });
    EXPECT_EQ(job.FromVector(lines).SortBy(word).Collect(), expected);
    Pairs pairs = data;
    std::sort(pairs.begin(), pairs.end(),
              [](const Pair& a, const Pair& b) { return std::pair(-a.second, a.first) < std::pair(-b.second, b.first); });
    EXPECT_EQ(job.FromVector(data).SortBy([](const Pair& p) { return std::pair(-p.second, p.first); }).Collect(), pairs);
  });
}

}  // namespace
}  // namespace ropewalk::dag
