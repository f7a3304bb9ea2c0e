// SortWriter and MergeSorted against std::stable_sort, over many shapes of input, runs, blocks and partitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "dag/operators/sort.h"
#include "dag/operators/top.h"
#include "tests/unit/fake_blocks.h"

namespace ropewalk::dag {
namespace {

using testing::FakeTask;

template <class Order, class P>
using Sink = std::function<Status(std::span<const std::pair<typename Order::Key, typename Codec<P>::View>>)>;

template <class K, class P>
struct Sorted {
  std::vector<std::pair<K, P>> records;
  std::vector<std::size_t> partition_sizes;
  std::vector<std::uint64_t> content_hashes;
};

// Sorts maps[m] = the records of map task m, and hands back what the reducers give, one after another.
template <class K, class P, class Order>
Sorted<K, P> RunSort(const std::vector<std::vector<std::pair<K, P>>>& maps, std::uint32_t partitions, Order order, SortOptions options) {
  FakeTask task;
  Sorted<K, P> out;
  for (const auto& records : maps) {
    auto segment = task.blocks.NewSegment({}, kSortParts);
    SortWriter<K, P, Order> writer(options, segment->get(), order);
    for (const auto& [key, payload] : records) writer.Add(key, payload);
    EXPECT_TRUE(writer.Finish().ok()) << writer.status().ToString();
    EXPECT_EQ(writer.records_out(), records.size());
    auto info = (*segment)->Seal();
    EXPECT_EQ(info->records, records.size());
    out.content_hashes.push_back(info->content_hash);
  }
  TaskInput input = task.blocks.Input();
  for (std::uint32_t p = 0; p < partitions; ++p) {
    std::size_t before = out.records.size();
    Status status = MergeSorted<K, P>(task.context, input, p, partitions, order,
                                      Sink<Order, P>([&](auto batch) -> Status {
                                        for (const auto& [key, payload] : batch) {
                                          out.records.emplace_back();
                                          Codec<K>::Assign(&out.records.back().first, key);
                                          Codec<P>::Assign(&out.records.back().second, payload);
                                        }
                                        return {};
                                      }));
    EXPECT_TRUE(status.ok()) << status.ToString();
    out.partition_sizes.push_back(out.records.size() - before);
  }
  return out;
}

template <class K, class P, class Order>
std::vector<std::pair<K, P>> Model(const std::vector<std::vector<std::pair<K, P>>>& maps, Order order) {
  std::vector<std::pair<K, P>> all;
  for (const auto& records : maps) all.insert(all.end(), records.begin(), records.end());
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return order.Compare(typename Order::Key(a.first), typename Order::Key(b.first)) < 0;
  });
  return all;
}

std::vector<SortOptions> Shapes() {
  return {{}, {.memory_bytes_max = 3000, .block_bytes = 200, .samples = 7}, {.memory_bytes_max = 1, .block_bytes = 1, .samples = 1},
          {.memory_bytes_max = 20000, .block_bytes = 100000, .samples = 1000}};
}

template <class K, class P, class Order>
void CheckAll(const std::vector<std::vector<std::pair<K, P>>>& maps, Order order) {
  auto model = Model<K, P>(maps, order);
  for (const SortOptions& options : Shapes()) {
    for (std::uint32_t partitions : {1u, 2u, 4u, 13u}) {
      auto got = RunSort<K, P>(maps, partitions, order, options);
      // A run ends at a plan constant, so records with equal keys stay in the order of arrival over runs and tasks.
      ASSERT_EQ(got.records.size(), model.size());
      for (std::size_t i = 0; i < model.size(); ++i) ASSERT_TRUE(got.records[i] == model[i]) << "record " << i << " of " << partitions << " partitions";
      EXPECT_EQ(got.content_hashes, (RunSort<K, P>(maps, partitions, order, options).content_hashes));
    }
  }
}

using Lines = std::vector<std::vector<std::pair<std::string, std::uint32_t>>>;

Lines MakeLines(std::mt19937& random, const std::function<std::string()>& make) {
  Lines maps(random() % 5 + 1);
  std::uint32_t n = 0;
  for (auto& records : maps)
    for (std::size_t left = random() % 4 == 0 ? 0 : random() % 600; left > 0; --left) records.emplace_back(make(), n++);
  return maps;
}

TEST(Sort, StringsOfManyShapesInByteOrder) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  auto bytes = [&](std::size_t n, int values) {
    std::string s;
    while (s.size() < n) s += static_cast<char>(random() % values);
    return s;
  };
  std::vector<std::pair<const char*, std::function<std::string()>>> kinds = {
      {"any bytes", [&] { return bytes(random() % 40, 256); }},
      {"few keys", [&] { return bytes(random() % 2, 3); }},
      {"zeros and prefixes of each other", [&] { return bytes(random() % 30, 2); }},
      {"one key", [&] { return std::string("same key that is longer than a prefix"); }},
      {"common prefix", [&] { return std::string(40, 'p') + std::to_string(random() % 500); }},
      {"long", [&] { return bytes(random() % 3 == 0 ? 5000 : 10, 2); }},
      {"long common prefix, cut marks", [&] { return std::string(4100, 'p') + std::to_string(random() % 50); }},
      {"a's", [&] { return std::string(random() % 300, 'a'); }},
  };
  for (auto& [name, make] : kinds) {
    SCOPED_TRACE(name);
    Lines maps = MakeLines(random, make);
    CheckAll<std::string, std::uint32_t>(maps, NaturalOrder<std::string>());
    if (::testing::Test::HasFatalFailure()) return;
    CheckAll<std::string, std::uint32_t>(maps, Descending<NaturalOrder<std::string>>());
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Sort, ManyEqualPrefixesGoThroughTheByteTies) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Lines maps(1);
  for (std::uint32_t i = 0; i < 20000; ++i) {
    std::string key(random() % 64, random() % 8 ? 'a' : '\0');
    if (random() % 3 == 0) key += static_cast<char>(random());
    maps[0].emplace_back(key, i);
  }
  for (bool descending : {false, true}) {
    auto check = [&](auto order) {
      auto got = RunSort<std::string, std::uint32_t>(maps, 3, order, {});
      EXPECT_TRUE(got.records == (Model<std::string, std::uint32_t>(maps, order)));
    };
    descending ? check(Descending<NaturalOrder<std::string>>()) : check(NaturalOrder<std::string>());
  }
}

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
    CheckKeys<double, Descending<NaturalOrder<double>>>([&] { return random() % 9 == 0 ? std::numeric_limits<double>::infinity() : (double(random()) - 2e9) / (random() % 3); });
  using Pair = std::pair<std::int32_t, std::int32_t>;
  CheckKeys<Pair, Descending<NaturalOrder<Pair>>>([&] { return Pair(static_cast<int>(random() % 5) - 2, static_cast<int>(random())); });
  using Deep = std::tuple<std::uint8_t, std::string, std::optional<std::int64_t>>;
  CheckKeys<Deep>([&] {
    return Deep(static_cast<std::uint8_t>(random() % 3), std::string(random() % 4, 'x'), random() % 2 ? std::optional<std::int64_t>(random()) : std::nullopt);
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

TEST(Sort, PartitionsAreEvenAndEqualKeysAreDivided) {
  Lines maps(4);
  for (std::uint32_t i = 0; i < 8000; ++i) maps[i % 4].emplace_back("hot", i);
  auto got = RunSort<std::string, std::uint32_t>(maps, 8, NaturalOrder<std::string>(), {.block_bytes = 1000});
  for (std::size_t n : got.partition_sizes) EXPECT_NEAR(n, 1000, 100);
}

TEST(Sort, FewRecordsOverManyPartitionsAndNone) {
  Lines maps = {{{"b", 0}}, {}, {{"a", 1}}};
  auto got = RunSort<std::string, std::uint32_t>(maps, 4, NaturalOrder<std::string>(), {});
  ASSERT_EQ(got.records.size(), 2u);
  EXPECT_EQ(got.records[0].first, "a");
  EXPECT_TRUE((RunSort<std::string, std::uint32_t>({{}, {}}, 4, NaturalOrder<std::string>(), {}).records.empty()));
  EXPECT_TRUE((RunSort<std::string, std::uint32_t>({}, 2, NaturalOrder<std::string>(), {}).records.empty()));
}

TEST(Sort, KeysWithoutPayloadAreHandedOutAloneAndLongerThanABlock) {
  FakeTask task;
  for (int m = 0; m < 3; ++m) {
    auto segment = task.blocks.NewSegment({}, kSortParts);
    SortWriter<std::string, Nothing, NaturalOrder<std::string>> writer({.memory_bytes_max = 8 << 20, .block_bytes = 1000}, segment->get());
    writer.Add(std::string(5'000'000, static_cast<char>('z' - m)));
    writer.Add("");
    writer.Add("short");
    ASSERT_TRUE(writer.Finish().ok());
    ASSERT_TRUE((*segment)->Seal().ok());
  }
  TaskInput input = task.blocks.Input();
  std::vector<std::string> got;
  for (std::uint32_t p = 0; p < 3; ++p) {
    ASSERT_TRUE((MergeSorted<std::string, Nothing>(task.context, input, p, 3, NaturalOrder<std::string>(), [&](std::span<const std::string_view> batch) -> Status {
                   got.insert(got.end(), batch.begin(), batch.end());
                   return {};
                 }).ok()));
  }
  std::vector<std::size_t> sizes;
  for (auto& s : got) sizes.push_back(s.size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{0, 0, 0, 5, 5, 5, 5'000'000, 5'000'000, 5'000'000}));
  EXPECT_EQ(got[6][0], 'x');
  EXPECT_EQ(got[8][0], 'z');
}

TEST(Sort, MoreRunsThanAreOpenedWhole) {
  std::mt19937 random(1);
  Lines maps(50);
  for (std::uint32_t i = 0; i < 20000; ++i) maps[i % 50].emplace_back(std::to_string(random()), i);
  auto got = RunSort<std::string, std::uint32_t>(maps, 2, NaturalOrder<std::string>(), {.memory_bytes_max = 4000, .block_bytes = 300});
  EXPECT_TRUE(got.records == (Model<std::string, std::uint32_t>(maps, NaturalOrder<std::string>())));
}

TEST(Sort, DamageIsDataLossAndErrorsOfSegmentAndSinkComeThrough) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  FakeTask task;
  for (int m = 0; m < 2; ++m) {
    auto segment = task.blocks.NewSegment({}, kSortParts);
    SortWriter<std::string, std::uint32_t, NaturalOrder<std::string>> writer({.block_bytes = 100}, segment->get());
    for (std::uint32_t i = 0; i < 100; ++i) writer.Add(std::to_string(random()), i);
    ASSERT_TRUE(writer.Finish().ok());
    ASSERT_TRUE((*segment)->Seal().ok());
  }
  TaskInput input = task.blocks.Input();
  using LineSink = Sink<NaturalOrder<std::string>, std::uint32_t>;
  LineSink sink = [](auto) -> Status { return {}; };
  auto merge = [&](LineSink s) { return MergeSorted<std::string, std::uint32_t>(task.context, input, 1, 3, NaturalOrder<std::string>(), s); };
  ASSERT_TRUE(merge(sink).ok());
  const auto good = task.blocks.segments;
  int noticed = 0;
  for (int round = 0; round < 2000; ++round) {
    task.blocks.segments = good;
    auto& extent = task.blocks.segments[1 + random() % 2][random() % 15];
    extent.bytes[random() % extent.bytes.size()] = static_cast<char>(random());
    Status status = merge(sink);  // must return; ASan watches
    noticed += status.code() == Code::kDataLoss;
  }
  EXPECT_GT(noticed, 50);
  task.blocks.segments = good;
  EXPECT_EQ(merge([](auto) { return Status(Code::kUserError, "X", "sink"); }).tag(), "X");
  std::atomic<bool> cancelled = true;
  task.context.cancelled = &cancelled;
  EXPECT_EQ(merge(sink).code(), Code::kCancelled);
  task.context.cancelled = nullptr;
  task.blocks.segments.erase(2);
  EXPECT_EQ(merge(sink).code(), Code::kDataLoss);
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
  std::vector<double> odd = {0.0, -0.0, 1, -1, 1e308, -1e308, 5e-324, std::nan(""), -std::nan(""), std::numeric_limits<double>::infinity(),
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
