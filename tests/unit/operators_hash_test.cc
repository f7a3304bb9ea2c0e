// Aggregation, grouping and joining against std::map models: many shapes of input, with memory so small that everything flushes and spills.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "dag/operators/hash_aggregate.h"
#include "dag/operators/join.h"
#include "dag/operators/shuffle_writer.h"
#include "tests/unit/fake_blocks.h"

namespace ropewalk::dag {
namespace {

using testing::FakeTask;

struct Plus {
  template <class V>
  V operator()(const V& a, const V& b) const {
    return a + b;
  }
};

template <class K, class V>
using Maps = std::vector<std::vector<std::pair<K, V>>>;

struct Shape {
  std::uint32_t partitions;
  std::uint64_t operator_bytes;
};
const Shape kShapes[] = {{1, 256 << 20}, {4, 256 << 20}, {3, 20000}, {7, 1500}, {1, 200}};

template <class K, class V, class Combine>
std::vector<std::uint64_t> WriteAggregates(FakeTask& task, const Maps<K, V>& maps, const Shape& shape, Combine combine) {
  std::vector<std::uint64_t> hashes;
  for (const auto& records : maps) {
    auto segment = task.blocks.NewSegment({}, shape.partitions);
    AggregateWriter<K, V, Combine> writer({.partitions = shape.partitions, .memory_bytes_max = shape.operator_bytes}, segment->get(), combine);
    for (const auto& [key, value] : records) writer.Add(key, value);
    EXPECT_TRUE(writer.Finish().ok());
    EXPECT_EQ(writer.records_in(), records.size());
    auto info = (*segment)->Seal();
    EXPECT_EQ(info->records, writer.records_out());
    hashes.push_back(info->content_hash);
  }
  return hashes;
}

template <class K, class V>
void WriteRecords(testing::FakeBlocks& blocks, const Maps<K, V>& maps, const Shape& shape) {
  for (const auto& records : maps) {
    auto segment = blocks.NewSegment({}, shape.partitions);
    ShuffleWriter<K, V> writer({.partitions = shape.partitions, .memory_bytes_max = shape.operator_bytes}, segment->get());
    for (const auto& [key, value] : records) writer.Add(key, value);
    EXPECT_TRUE(writer.Finish().ok());
    EXPECT_EQ((*segment)->Seal()->records, records.size());
  }
}

// Every key in exactly one partition, with what the model says; returns the bytes spilled.
template <class K, class V, class Combine>
std::uint64_t CheckAggregate(const Maps<K, V>& maps, const Shape& shape, Combine combine, std::vector<std::pair<K, V>>* in_order = nullptr) {
  FakeTask task;
  task.settings.operator_bytes = shape.operator_bytes;
  auto hashes = WriteAggregates(task, maps, shape, combine);
  FakeTask again;
  EXPECT_EQ(hashes, WriteAggregates(again, maps, shape, combine)) << "block bytes must be a function of the records";
  std::map<std::string, V> model, got;  // by encoded key: equal keys are equal bytes
  for (const auto& records : maps)
    for (const auto& [key, value] : records) {
      auto [it, fresh] = model.emplace(EncodeKey<K>(key), value);
      if (!fresh) CombineInto(combine, it->second, value);
    }
  TaskInput input = task.blocks.Input();
  for (std::uint32_t p = 0; p < shape.partitions; ++p) {
    Status status = MergeAggregates<K, V>(task.context, input, p, combine, [&](std::span<const std::pair<View<K>, View<V>>> batch) -> Status {
      for (const auto& [key, value] : batch) {
        K k{};
        V v{};
        Codec<K>::Assign(&k, key);
        Codec<V>::Assign(&v, value);
        EXPECT_TRUE(got.emplace(EncodeKey<K>(k), v).second) << "a key came twice";
        if (in_order != nullptr) in_order->emplace_back(k, v);
      }
      return {};
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_TRUE(got == model);
  return task.spill.bytes;
}

template <class K, class V, class Combine>
void CheckShapes(const Maps<K, V>& maps, Combine combine) {
  std::uint64_t spilled = 0;
  for (const Shape& shape : kShapes) spilled += CheckAggregate<K, V>(maps, shape, combine);
  EXPECT_GT(spilled, 0u);
}

template <class K, class V>
Maps<K, V> Make(std::mt19937& random, const std::function<K()>& key, const std::function<V()>& value) {
  Maps<K, V> maps(random() % 4 + 1);
  for (auto& records : maps)
    for (int left = 1500; left > 0; --left) records.emplace_back(key(), value());
  return maps;
}

class Operators : public ::testing::Test {
 protected:
  std::uint32_t seed_ = std::random_device()();
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
  std::mt19937 random_{seed_};
};
using Aggregate = Operators;
using Group = Operators;
using Join = Operators;

TEST_F(Aggregate, StringKeysOfEveryLength) {
  CheckShapes(Make<std::string, std::uint64_t>(
                  random_, [&] { return std::string(random_() % 80, static_cast<char>('a' + random_() % 9)) + std::string(random_() % 3, '\0'); },
                  [&] { return random_(); }),
              Plus());
}

struct Place {
  std::uint8_t country;
  double x;
};

TEST_F(Aggregate, IntegersPairsAndPaddedStructsAsKeys) {
  CheckShapes(Make<std::int64_t, std::pair<double, std::uint64_t>>(
                  random_, [&] { return random_() % 700; }, [&] { return std::pair<double, std::uint64_t>(random_() % 100, 1); }),
              [](auto& a, const auto& b) {
                a.first += b.first;
                a.second += b.second;
              });
  CheckShapes(Make<std::pair<std::string, std::string>, std::uint32_t>(
                  random_, [&] { return std::pair(std::string(random_() % 4, 'x'), std::to_string(random_() % 200)); }, [&] { return 1; }),
              Plus());
  CheckShapes(Make<Place, std::uint32_t>(
                  random_, [&] { return Place{static_cast<std::uint8_t>(random_() % 9), (int(random_() % 100) - 50) * 0.0 + random_() % 40}; }, [&] { return 1; }),
              Plus());
}

TEST_F(Aggregate, ValuesThatOwnMemory) {
  CheckShapes(Make<std::string, std::string>(
                  random_, [&] { return std::to_string(random_() % 400); }, [&] { return std::to_string(random_() % 10); }),
              [](std::string a, std::string_view b) { return std::move(a) + std::string(b); });
  CheckShapes(Make<std::uint32_t, std::vector<std::uint32_t>>(
                  random_, [&] { return random_() % 300; }, [&] { return std::vector<std::uint32_t>{static_cast<std::uint32_t>(random_())}; }),
              [](std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) { a.insert(a.end(), b.begin(), b.end()); });
}

TEST_F(Aggregate, DistinctIsAnAggregationOfNothing) {
  CheckShapes(Make<std::string, Nothing>(random_, [&] { return std::to_string(random_() % 1000); }, [&] { return Nothing(); }), KeepFirst());
}

TEST_F(Aggregate, FloatsAreAddedInMapOrderEachTime) {
  auto maps = Make<std::uint32_t, float>(random_, [&] { return random_() % 200; }, [&] { return static_cast<float>(random_()) / 7; });
  std::vector<std::pair<std::uint32_t, float>> first, second;
  CheckAggregate<std::uint32_t, float>({maps[0]}, {2, 256 << 20}, Plus(), &first);
  CheckAggregate<std::uint32_t, float>({maps[0]}, {2, 256 << 20}, Plus(), &second);
  EXPECT_EQ(first, second);
}

TEST_F(Aggregate, NoRecordsOneRecordOneKeyMorePartitionsThanKeys) {
  CheckAggregate<std::string, std::uint64_t>({}, {3, 1000}, Plus());
  CheckAggregate<std::string, std::uint64_t>({{}, {}}, {3, 1000}, Plus());
  CheckAggregate<std::string, std::uint64_t>({{}, {{"only", 7}}}, {50, 1000}, Plus());
  Maps<std::string, std::uint64_t> same(3, std::vector<std::pair<std::string, std::uint64_t>>(5000, {"same", 1ull << 40}));
  EXPECT_EQ((CheckAggregate<std::string, std::uint64_t>(same, {4, 100}, Plus())), 0u) << "one key never needs to spill";
  CheckAggregate<Nothing, std::uint64_t>({{{Nothing(), 1}, {Nothing(), 2}}}, {4, 100}, Plus());
  CheckAggregate<Nothing, Nothing>({{{Nothing(), {}}, {Nothing(), {}}}}, {4, 100}, KeepFirst());
}

TEST_F(Aggregate, KeysAndValuesLongerThanAnExtent) {
  Maps<std::string, std::string> maps(2);
  for (auto& records : maps)
    for (int i = 0; i < 8; ++i) records.emplace_back(std::string(700'000 + i % 3, 'k'), std::string(300'000, static_cast<char>('a' + i)));
  auto longest = [](const std::string& a, const std::string& b) { return std::max(a, b); };
  CheckAggregate<std::string, std::string>(maps, {3, 256 << 20}, longest);
  EXPECT_GT((CheckAggregate<std::string, std::string>(maps, {1, 1 << 20}, longest)), 0u);
}

TEST_F(Aggregate, ManyKeysGrowTheTable) {
  Maps<std::uint64_t, std::uint64_t> maps(2);
  for (std::uint64_t i = 0; i < 100'000; ++i) maps[i % 2].emplace_back(i * 0x9e3779b97f4a7c15ull % 50'021, i);
  CheckAggregate<std::uint64_t, std::uint64_t>(maps, {2, 256 << 20}, Plus());
}

TEST_F(Aggregate, DamageIsDataLossAndErrorsComeThrough) {
  FakeTask task;
  task.settings.operator_bytes = 500;
  Maps<std::string, std::string> maps(2);
  for (int i = 0; i < 200; ++i) maps[i % 2].emplace_back(std::to_string(i), std::to_string(i * i));
  WriteAggregates(task, maps, {1, 256 << 20}, Plus());
  TaskInput input = task.blocks.Input();
  using Sink = std::function<Status(std::span<const std::pair<std::string_view, std::string_view>>)>;
  Sink sink = [](auto) -> Status { return {}; };
  auto merge = [&](Sink s) { return MergeAggregates<std::string, std::string>(task.context, input, 0, Plus(), s); };
  ASSERT_TRUE(merge(sink).ok());
  EXPECT_GT(task.spill.bytes, 0u);
  const auto good = task.blocks.segments;
  int noticed = 0;
  for (int round = 0; round < 1000; ++round) {
    task.blocks.segments = good;
    std::string& bytes = task.blocks.segments[1 + random_() % 2][0].bytes;
    if (random_() % 3 == 0) {
      bytes.resize(random_() % bytes.size());
    } else {
      bytes[random_() % bytes.size()] = static_cast<char>(random_());
    }
    noticed += merge(sink).code() == Code::kDataLoss;
  }
  EXPECT_GT(noticed, 200);
  task.blocks.segments = good;
  EXPECT_EQ(merge([](auto) { return Status(Code::kUserError, "X", "sink"); }).tag(), "X");
  task.spill.bytes_left = 1000;
  EXPECT_EQ(merge(sink).code(), Code::kResourceExhausted);
  task.spill.bytes_left = INT64_MAX;
  std::atomic<bool> cancelled = true;
  task.context.cancelled = &cancelled;
  EXPECT_EQ(merge(sink).code(), Code::kCancelled);
  task.context.cancelled = nullptr;
  task.blocks.segments.erase(1);
  EXPECT_EQ(merge(sink).code(), Code::kDataLoss);
}

TEST_F(Aggregate, ASegmentThatRefusesBytesIsReportedOnceAndByFinish) {
  FakeTask task;
  auto segment = task.blocks.NewSegment({}, 1);  // too few parts
  AggregateWriter<std::uint32_t, std::uint32_t, Plus> writer({.partitions = 4, .memory_bytes_max = 2000}, segment->get());
  for (std::uint32_t i = 0; i < 5000; ++i) writer.Add(i, 1);
  EXPECT_EQ(writer.status().tag(), "FAKE02");
  EXPECT_EQ(writer.Finish().tag(), "FAKE02");
}

template <class K, class V>
std::uint64_t CheckGroups(const Maps<K, V>& maps, const Shape& shape, std::size_t read_max = SIZE_MAX) {
  FakeTask task;
  task.settings.operator_bytes = shape.operator_bytes;
  WriteRecords(task.blocks, maps, shape);
  std::map<std::string, std::vector<V>> model, got;
  for (const auto& records : maps)
    for (const auto& [key, value] : records) model[EncodeKey<K>(key)].push_back(value);
  TaskInput input = task.blocks.Input();
  for (std::uint32_t p = 0; p < shape.partitions; ++p) {
    Status status = MergeGroups<K, V>(task.context, input, p, [&](const View<K>& key, Values<V>& values) -> Status {
      K k{};
      Codec<K>::Assign(&k, key);
      std::string bytes = EncodeKey<K>(k);
      EXPECT_EQ(got.count(bytes), 0u) << "a key came twice";
      std::vector<V>& to = got[bytes];
      EXPECT_EQ(values.count(), model[bytes].size());
      for (const View<V>& value : values) {
        if (to.size() == read_max) break;
        to.emplace_back();
        Codec<V>::Assign(&to.back(), value);
      }
      return {};
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  for (auto& [key, values] : model) values.resize(std::min(values.size(), read_max));
  EXPECT_TRUE(got == model);
  return task.spill.bytes;
}

TEST_F(Group, AllValuesInMapOrder) {
  std::uint64_t spilled = 0;
  auto words = Make<std::string, std::string>(
      random_, [&] { return std::string(random_() % 70, 'k') + std::to_string(random_() % 30); }, [&] { return std::string(random_() % 200, 'v'); });
  auto numbers = Make<std::uint64_t, std::uint32_t>(random_, [&] { return random_() % 999; }, [&] { return random_(); });
  for (const Shape& shape : kShapes) {
    spilled += CheckGroups(words, shape);
    spilled += CheckGroups(numbers, shape);
    spilled += CheckGroups(words, shape, 2);  // a consumer that does not read everything
  }
  EXPECT_GT(spilled, 0u);
  CheckGroups<std::string, Nothing>({{{"a", {}}, {"b", {}}, {"a", {}}}}, {2, 1});
  CheckGroups<std::string, std::string>({{}, {{"a", "x"}}}, {9, 1});
}

TEST_F(Group, AGiantGroupAmongSmallOnesIsStreamed) {
  Maps<std::string, std::string> maps(3);
  std::uint64_t bytes = 0;
  for (auto& records : maps)
    for (int i = 0; i < 20000; ++i) {
      records.emplace_back(random_() % 10 ? "giant" : std::to_string(random_() % 1000), std::string(random_() % 40, 'v'));
      bytes += records.back().second.size() + 8;
    }
  std::uint64_t spilled = CheckGroups(maps, {1, 50000});
  EXPECT_GT(spilled, bytes / 2);
  EXPECT_LT(spilled, 3 * bytes) << "the giant must not be written again at each level";
}

TEST_F(Group, DamageIsDataLoss) {
  FakeTask task;
  task.settings.operator_bytes = 500;
  Maps<std::string, std::string> maps(1);
  for (int i = 0; i < 200; ++i) maps[0].emplace_back(std::to_string(i % 20), std::to_string(i * i));
  WriteRecords(task.blocks, maps, {1, 1 << 20});
  TaskInput input = task.blocks.Input();
  const auto good = task.blocks.segments;
  int noticed = 0;
  for (int round = 0; round < 500; ++round) {
    task.blocks.segments = good;
    std::string& bytes = task.blocks.segments[1][0].bytes;
    bytes[random_() % bytes.size()] = static_cast<char>(random_());
    Status status = MergeGroups<std::string, std::string>(task.context, input, 0, [&](std::string_view, Values<std::string>& values) -> Status {
      for (auto& value : values) (void)value.size();
      return {};
    });
    noticed += status.code() == Code::kDataLoss;
  }
  EXPECT_GT(noticed, 50);
}

template <class K, class A, class B>
std::uint64_t CheckJoin(const Maps<K, A>& left, const Maps<K, B>& right, const Shape& shape) {
  FakeTask task;
  task.settings.operator_bytes = shape.operator_bytes;
  WriteRecords(task.blocks, left, shape);
  TaskInput left_input = task.blocks.Input();
  WriteRecords(task.blocks, right, shape);
  TaskInput right_input = task.blocks.Input();
  right_input.segments.erase(right_input.segments.begin(), right_input.segments.begin() + static_cast<std::ptrdiff_t>(left_input.segments.size()));
  using Row = std::tuple<K, A, B>;
  auto run = [&] {
    std::vector<Row> rows;
    for (std::uint32_t p = 0; p < shape.partitions; ++p) {
      Status status = MergeJoin<K, A, B>(task.context, left_input, right_input, p,
                                         [&](std::span<const std::pair<View<K>, std::pair<View<A>, View<B>>>> batch) -> Status {
                                           for (const auto& [key, values] : batch) {
                                             rows.emplace_back();
                                             Codec<K>::Assign(&std::get<0>(rows.back()), key);
                                             Codec<A>::Assign(&std::get<1>(rows.back()), values.first);
                                             Codec<B>::Assign(&std::get<2>(rows.back()), values.second);
                                           }
                                           return {};
                                         });
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    return rows;
  };
  std::vector<Row> got = run();
  EXPECT_TRUE(got == run()) << "the order must be the same each time";
  std::vector<Row> model;
  std::multimap<K, A> table;
  for (const auto& records : left) table.insert(records.begin(), records.end());
  for (const auto& records : right)
    for (const auto& [key, value] : records)
      for (auto [it, end] = table.equal_range(key); it != end; ++it) model.emplace_back(key, it->second, value);
  std::sort(got.begin(), got.end());
  std::sort(model.begin(), model.end());
  EXPECT_TRUE(got == model) << got.size() << " rows, " << model.size() << " expected";
  return task.spill.bytes;
}

TEST_F(Join, EitherSideMayBeLarger) {
  auto make = [&](int keys, int records) {
    Maps<std::string, std::string> maps(2);
    for (int i = 0; i < records; ++i) maps[random_() % 2].emplace_back(std::to_string(random_() % keys), std::string(random_() % 30, 'v') + std::to_string(i));
    return maps;
  };
  std::uint64_t spilled = 0;
  for (const Shape& shape : kShapes) {
    spilled += CheckJoin<std::string, std::string, std::string>(make(500, 2000), make(700, 300), shape);
    spilled += CheckJoin<std::string, std::string, std::string>(make(500, 300), make(700, 2000), shape);
    CheckJoin<std::string, std::string, std::string>(make(5, 10), {}, shape);
    CheckJoin<std::string, std::string, std::string>({}, make(5, 10), shape);
  }
  EXPECT_GT(spilled, 0u);
}

TEST_F(Join, OneHotKeyOnBothSides) {
  Maps<std::uint64_t, std::uint32_t> left(1), right(2);
  for (std::uint32_t i = 0; i < 300; ++i) left[0].emplace_back(random_() % 8 ? 42 : random_() % 50, i);
  for (std::uint32_t i = 0; i < 200; ++i) right[i % 2].emplace_back(random_() % 8 ? 42 : random_() % 50, i);
  EXPECT_GT((CheckJoin<std::uint64_t, std::uint32_t, std::uint32_t>(left, right, {2, 500})), 0u);
  CheckJoin<std::uint64_t, std::uint32_t, std::uint32_t>(left, right, {2, 256 << 20});
}

TEST(HugePages, BuffersComeBackAndAreBounded) {
  HugePages pages(8 << 20);
  char* first;
  {
    HugeBuffer buffer = pages.Take(3 << 20);
    EXPECT_EQ(buffer.bytes(), 4u << 20);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % (2 << 20), 0u);
    EXPECT_EQ(pages.used_bytes(), 4u << 20);
    first = buffer.data();
    std::memset(first, 1, buffer.bytes());
  }
  EXPECT_EQ(pages.kept_bytes(), 4u << 20);
  HugeBuffer again = pages.Take(4 << 20);
  EXPECT_EQ(again.data(), first);
  std::memcpy(again.data(), "keep", 4);
  again.Grow(16 << 20, 4, pages);
  EXPECT_EQ(std::string_view(again.data(), 4), "keep");
  again = HugeBuffer();
  EXPECT_EQ(pages.used_bytes(), 0u);
  EXPECT_LE(pages.kept_bytes(), 8u << 20);  // 16 MiB went back to the system
  EXPECT_THROW((void)pages.Take(std::size_t(1) << 60), std::bad_alloc);
}

}  // namespace
}  // namespace ropewalk::dag
