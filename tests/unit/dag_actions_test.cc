// Actions: what comes back to main.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "tests/unit/dag_model.h"

namespace ropewalk::dag {
namespace {

// No number, but it has a plus.
struct Totals {
  std::uint64_t records = 0, bytes = 0;
};
Totals operator+(const Totals& a, const Totals& b) { return {a.records + b.records, a.bytes + b.bytes}; }

TEST(Actions, TakeTopCountSumReduce) {
  ForPartitions([](Session& job, const Pairs& data, std::mt19937_64&) {
    auto in = job.FromVector(data);
    auto values = in.Map([](const Pair& p) { return p.second; });
    std::vector<std::int64_t> plain;
    for (const Pair& p : data) plain.push_back(p.second);
    for (std::size_t n : {std::size_t(0), std::size_t(1), std::size_t(10), data.size(), data.size() + 5}) {
      std::vector<std::int64_t> first(plain.begin(), plain.begin() + std::min(n, plain.size()));
      EXPECT_EQ(values.Take(n), first);
      std::vector<std::int64_t> top = plain;
      std::sort(top.rbegin(), top.rend());
      if (top.size() > n) top.resize(n);
      EXPECT_EQ(values.Top(n), top);
      // Equal keys: in the order of the input.
      Pairs by_value = data;
      std::stable_sort(by_value.begin(), by_value.end(), [](const Pair& a, const Pair& b) { return b.second % 7 < a.second % 7; });
      if (by_value.size() > n) by_value.resize(n);
      EXPECT_EQ(in.Top(n, [](const Pair& p) { return p.second % 7; }), by_value);
    }
    // A key that views the record, and one with NaN among the numbers.
    Pairs by_text = data;
    std::stable_sort(by_text.begin(), by_text.end(), [](const Pair& a, const Pair& b) { return b.first < a.first; });
    if (by_text.size() > 9) by_text.resize(9);
    EXPECT_EQ(in.Top(9, [](const Pair& p) -> std::string_view { return p.first; }), by_text);
    auto half = [](std::int64_t v) { return v % 5 == 0 ? std::nan("") : v * 0.5; };
    auto order = [](double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; };
    std::vector<double> halves;
    for (std::int64_t v : plain) halves.push_back(half(v));
    std::stable_sort(halves.begin(), halves.end(), order);
    auto doubles = values.Map(half);
    auto bits = [](const std::vector<double>& v) {
      std::vector<std::string> text;
      for (double d : v) text.push_back(std::to_string(std::abs(d)) + (d < 0 ? "-" : ""));
      return text;
    };
    EXPECT_EQ(bits(doubles.SortBy([](double d) { return d; }, {.descending = true}).Collect()), bits(halves));
    for (std::size_t n : {std::size_t(2), data.size() / 2}) {
      std::vector<double> expected(halves.begin(), halves.begin() + std::min(n, halves.size()));
      EXPECT_EQ(bits(doubles.Top(n)), bits(expected));
      auto pairs = doubles.Map([](double d) { return std::pair(d, 1); }).Top(n);
      std::vector<double> firsts;
      for (const auto& [d, one] : pairs) firsts.push_back(d);
      EXPECT_EQ(bits(firsts), bits(expected));
    }
    EXPECT_EQ(values.Count(), data.size());
    EXPECT_EQ(values.Sum(), std::accumulate(plain.begin(), plain.end(), std::int64_t{0}));
    EXPECT_EQ(values.Map([](std::int64_t v) { return v * 0.5; }).Sum(), 0.5 * std::accumulate(plain.begin(), plain.end(), std::int64_t{0}));
    auto least = values.Reduce([](std::int64_t a, std::int64_t b) { return std::min(a, b); });
    EXPECT_EQ(least.has_value(), !plain.empty());
    if (least) {
      EXPECT_EQ(*least, *std::min_element(plain.begin(), plain.end()));
    }
    std::string all;
    for (const Pair& p : data) all += p.first;
    EXPECT_EQ(in.Map([](const Pair& p) { return p.first; }).Reduce([](std::string& a, const std::string& b) { a += b; }).value_or(""), all);
    Totals totals = in.Map([](const Pair& p) { return Totals{1, p.first.size()}; }).Sum();
    EXPECT_EQ(totals.records, data.size());
    EXPECT_EQ(totals.bytes, all.size());
  });
}

TEST(Actions, TopOrdersNanAsSortByDoes) {
  LocalBackend backend(2);
  Session job = backend.NewSession();
  auto top = job.FromVector(std::vector<double>{3, std::nan(""), 5, 4}).Top(2);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_TRUE(std::isnan(top[0]));
  EXPECT_EQ(top[1], 5);
}

TEST(Actions, CollectAboveTheLimitFailsAndNamesWriteText) {
  LocalBackend backend(2);
  backend.options.collect_bytes_max = 1000;
  Session job = backend.NewSession();
  auto in = job.FromVector(std::vector<std::string>(200, "0123456789"));
  for (bool one_task : {true, false}) {
    auto data = one_task ? in : in.Union(job.FromVector(std::vector<std::string>(20, "0123456789")));
    try {
      data.Collect();
      FAIL();
    } catch (const ActionFailed& failed) {
      EXPECT_EQ(failed.status.tag(), "DAG04");
      EXPECT_NE(failed.status.fix().find("WriteText"), std::string::npos);
    }
  }
  EXPECT_EQ(in.Take(10).size(), 10u);
  // 60 tasks below the limit each, above it together.
  backend.options.collect_bytes_max = 1500;
  EXPECT_THROW(job.FromVector(std::vector<std::string>(300, "0123456789"), {.partitions = 60}).Collect(), ActionFailed);
}

// The bytes of a result, with a number that is not what follows it.
template <class T>
std::string DecodedAs(std::size_t records, std::uint64_t said) {
  EncodedRecords<T> encoded;
  for (std::size_t i = 0; i < records; ++i) encoded.Add(T{});
  std::string bytes = encoded.Take();
  std::memcpy(bytes.data(), &said, sizeof(said));
  Settings settings;
  settings.collect_bytes_max = 1000;
  auto decoded = RecordsDecoder<T>(settings)(bytes);
  return decoded.ok() ? std::to_string(decoded->size()) : decoded.status().tag();
}

TEST(Actions, ADamagedNumberOfRecordsIsNoticed) {
  EXPECT_EQ(DecodedAs<int>(3, 3), "3");
  for (std::uint64_t said : {std::uint64_t(2), std::uint64_t(4), std::uint64_t(UINT64_MAX)}) EXPECT_EQ(DecodedAs<int>(3, said), "DAG05");
  // Records without bytes are nothing but their number: as many as the writer may have collected.
  EXPECT_EQ(DecodedAs<Nothing>(1000, 1000), "1000");
  EXPECT_EQ(DecodedAs<std::tuple<>>(7, 7), "7");
  for (std::uint64_t said : {std::uint64_t(1001), std::uint64_t(1) << 40, std::uint64_t(UINT64_MAX)}) {
    EXPECT_EQ(DecodedAs<Nothing>(7, said), "DAG05");
    EXPECT_EQ((DecodedAs<std::array<Nothing, 3>>(7, said)), "DAG05");
  }
}

TEST(Actions, TakeStopsReadingEarly) {
  LocalBackend backend(1);
  Session job = backend.NewSession();
  auto seen = std::make_shared<std::size_t>(0);
  auto in = job.FromVector(std::vector<int>(100000, 1)).Map([seen](int x) {
    ++*seen;
    return x;
  });
  EXPECT_EQ(in.Take(3).size(), 3u);
  EXPECT_LT(*seen, 5000u);
}

}  // namespace
}  // namespace ropewalk::dag
