// Orders of all kinds of keys: sorted against std::stable_sort, prefixes against comparisons, and the bounded heap of Top.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "dag/operators/top.h"
#include "tests/unit/sort_model.h"

namespace ropewalk::dag {
namespace {

template <class K, class Order = NaturalOrder<K>>
void CheckKeys(const std::function<K()>& make) {
  std::vector<std::vector<std::pair<K, std::string>>> maps(3);
  std::uint32_t n = 0;
  for (auto& records : maps)
    for (int left = 300; left > 0; --left) records.emplace_back(make(), std::to_string(n++));
  CheckAll<K, std::string>(maps, Order());
}

struct Point {
  std::int16_t x;
  std::string name;
  bool operator==(const Point&) const = default;
};

TEST(Sort, NumbersPairsTuplesAndStructs) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  CheckKeys<std::int64_t>([&] { return static_cast<std::int64_t>(std::uint64_t(random()) << 32 | random()) >> (random() % 64); });
  CheckKeys<double, Descending<NaturalOrder<double>>>(
      [&] { return random() % 9 == 0 ? std::numeric_limits<double>::infinity() : (double(random()) - 2e9) / (random() % 3); });
  using Pair = std::pair<std::int32_t, std::int32_t>;
  CheckKeys<Pair, Descending<NaturalOrder<Pair>>>([&] { return Pair(static_cast<int>(random() % 5) - 2, static_cast<int>(random())); });
  using Deep = std::tuple<std::uint8_t, std::string, std::optional<std::int64_t>>;
  CheckKeys<Deep>([&] {
    return Deep(static_cast<std::uint8_t>(random() % 3), std::string(random() % 4, 'x'),
                random() % 2 ? std::optional<std::int64_t>(random()) : std::nullopt);
  });
}

TEST(Sort, StructsAndVectorsMemberByMemberAndUsersLess) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  CheckKeys<Point>([&] { return Point{static_cast<std::int16_t>(random() % 5 - 2), std::string(random() % 3, 'n')}; });
  std::vector<std::vector<std::pair<std::string, std::uint32_t>>> maps(2);
  for (std::uint32_t i = 0; i < 500; ++i) maps[i % 2].emplace_back(std::string(random() % 9, 'a' + random() % 3), i);
  auto by_length = [](const std::string& a, const std::string& b) { return a.size() < b.size(); };
  CheckAll<std::string, std::uint32_t>(maps, LessOrder<std::string, decltype(by_length)>{by_length});
}

TEST(Order, PrefixesNeverContradictTheComparison) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  auto check = [](auto order, const auto& a, const auto& b) {
    int c = order.Compare(a, b);
    EXPECT_EQ(c < 0, order.Compare(b, a) > 0);
    if (order.Prefix(a) != order.Prefix(b)) {
      EXPECT_EQ(order.Prefix(a) < order.Prefix(b), c < 0);
    } else if (decltype(order)::kExact) {
      EXPECT_EQ(c, 0);
    }
  };
  std::vector<double> odd = {0.0,
                             -0.0,
                             1,
                             -1,
                             1e308,
                             -1e308,
                             5e-324,
                             std::nan(""),
                             -std::nan(""),
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()};
  for (double a : odd)
    for (double b : odd) {
      check(NaturalOrder<double>(), a, b);
      check(Descending<NaturalOrder<double>>(), a, b);
      check(NaturalOrder<std::pair<float, float>>(), std::pair<float, float>(a, b), std::pair<float, float>(b, a));
    }
  using T = std::tuple<std::int8_t, std::uint16_t, std::int32_t, std::int16_t>;
  static_assert(!NaturalOrder<T>::kExact && NaturalOrder<std::pair<std::int32_t, float>>::kExact);
  for (int i = 0; i < 5000; ++i) {
    auto make = [&] { return T(random() % 4 - 2, random() % 3, random() % 5 - 2, random() % 3); };
    check(NaturalOrder<T>(), make(), make());
    using S = std::pair<std::int16_t, std::string>;
    S a(random() % 3 - 1, std::string(random() % 9, random() % 2)), b(random() % 3 - 1, std::string(random() % 9, random() % 2));
    check(NaturalOrder<S>(), View<S>(a), View<S>(b));
  }
}

TEST(Top, KeepsTheFirstInOrderAndMergesInTaskOrder) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  using T = std::pair<std::uint32_t, std::string>;
  struct BySecondLess {
    bool operator()(const View<T>& a, const View<T>& b) const { return a.first > b.first; }
  };
  using Order = LessOrder<T, BySecondLess>;
  for (std::size_t n : {0, 1, 10, 100000}) {
    std::vector<T> all;
    Top<T, Order> merged(n);
    for (int task = 0; task < 4; ++task) {
      Top<T, Order> top(n);
      for (int i = random() % 1000; i > 0; --i) {
        all.emplace_back(random() % 50, std::to_string(all.size()));
        top.Add(View<T>(all.back()));
      }
      ASSERT_TRUE(merged.Merge(top.TakeEncoded()).ok());
    }
    std::stable_sort(all.begin(), all.end(), [](const T& a, const T& b) { return a.first > b.first; });
    all.resize(std::min(all.size(), n));
    EXPECT_EQ(merged.Take(), all);
  }
  Top<std::string, NaturalOrder<std::string>> top(3);
  EXPECT_EQ(top.Merge("\x05garbage").code(), Code::kDataLoss);
}

}  // namespace
}  // namespace ropewalk::dag
