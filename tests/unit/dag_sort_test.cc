// Sort and SortBy: the total order over partitions, for any number of them, any order of tasks, and runs of every size.
#include <gtest/gtest.h>

#include <cstring>

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

// Every reducer reads what map tasks say of all their runs, and holds their samples: that must not grow with the length of lines or the
// number of runs.
TEST(Sort, WhatIsSaidOfManyRunsOfLongLinesStaysSmall) {
  constexpr std::size_t kLines = 4000, kBytes = 4096;
  std::mt19937_64 random(7);
  for (bool one_line : {false, true}) {
    LocalBackend backend(2);
    backend.options.operator_bytes = 256u << 10;
    std::vector<std::string> lines(kLines, std::string(kBytes, 'z'));
    for (std::size_t i = 0; i < kLines && !one_line; ++i)
      for (std::size_t at = 0; at < kBytes; at += 8)
        std::memcpy(&lines[i][at], std::to_string(10'000'000 + random() % 90'000'000).data(), 8);
    Session job = backend.NewSession();
    auto sorted = job.FromVector(lines, {.partitions = 4}).Sort({.partitions = 3});
    auto got = sorted.Collect();
    std::sort(lines.begin(), lines.end());
    EXPECT_TRUE(got == lines);
    std::uint64_t samples = 0, marks = 0, blocks = 0, runs = 0;
    for (const auto& [id, segment] : backend.blocks.segments) {
      for (const auto& extent : segment) {
        if (extent.part == 0) {
          samples += extent.bytes.size();
          ByteReader reader(extent.bytes);
          runs += reader.Varint();
        } else if (extent.part == 1) {
          marks += extent.bytes.size();
        } else {
          ++blocks;
        }
      }
    }
    EXPECT_GT(runs, 40u);
    EXPECT_GT(blocks, 500u);
    // Of each run its first and last keys, half a kilobyte of each; of equal lines all are as long as they may be, so there are few.
    EXPECT_LT(samples, backend.options.operator_bytes / 4 + runs * (one_line ? 5000 : 1200)) << one_line;
    if (!one_line) {
      EXPECT_LT(marks, runs * 600 + blocks * 40);
    }
  }
}

}  // namespace
}  // namespace ropewalk::dag
