// Aggregation by key against a std::map model: many shapes of input, with memory so small that everything flushes and spills.
#include "dag/operators/hash_aggregate.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/unit/operator_inputs.h"

namespace ropewalk::dag {
namespace {

struct Plus {
  template <class V>
  V operator()(const V& a, const V& b) const {
    return a + b;
  }
};

template <class K, class V, class Combine>
std::vector<std::uint64_t> WriteAggregates(FakeTask& task, const Maps<K, V>& maps, const Shape& shape, Combine combine,
                                           bool precise_cursor = false) {
  std::vector<std::uint64_t> hashes;
  for (const auto& records : maps) {
    auto segment = task.blocks.NewSegment({}, shape.partitions);
    AggregateWriter<K, V, Combine> writer(
        {.partitions = shape.partitions, .memory_bytes_max = shape.operator_bytes, .precise_cursor = precise_cursor}, segment->get(),
        combine);
    for (const auto& [key, value] : records) writer.Add(key, value);
    EXPECT_TRUE(writer.Finish().ok());
    EXPECT_EQ(writer.records_in(), records.size());
    auto info = (*segment)->Seal();
    EXPECT_EQ(info->records, writer.records_out());
    hashes.push_back(info->content_hash);
  }
  return hashes;
}

// The records of all partitions in the order in which they come, encoded, and the bytes spilled.
template <class K, class V, class Combine>
std::pair<std::vector<std::string>, std::uint64_t> Merged(const testing::FakeBlocks& blocks, const Shape& shape, Combine combine,
                                                          bool precise_cursor) {
  FakeTask task;
  task.blocks.segments = blocks.segments;
  task.settings.operator_bytes = shape.operator_bytes;
  task.context.precise_cursor = precise_cursor;
  TaskInput input = task.blocks.Input();
  std::vector<std::string> records;
  for (std::uint32_t p = 0; p < shape.partitions; ++p) {
    Status status =
        MergeAggregates<K, V>(task.context, input, p, combine, [&](std::span<const std::pair<View<K>, View<V>>> batch) -> Status {
          for (const auto& [key, value] : batch) records.push_back(Encode<K>(key) + Encode<V>(value));
          return {};
        });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return {std::move(records), task.spill.bytes};
}

// Every key in exactly one partition, with what the model says, and the same from a retry; returns the bytes spilled.
template <class K, class V, class Combine>
std::uint64_t CheckAggregate(const Maps<K, V>& maps, const Shape& shape, Combine combine,
                             std::vector<std::pair<K, V>>* in_order = nullptr) {
  FakeTask task;
  task.settings.operator_bytes = shape.operator_bytes;
  auto hashes = WriteAggregates(task, maps, shape, combine);
  FakeTask again;
  EXPECT_EQ(hashes, WriteAggregates(again, maps, shape, combine)) << "block bytes must be a function of the records";
  FakeTask retried;
  EXPECT_EQ(hashes, WriteAggregates(retried, maps, shape, combine, true)) << "also where a retry combines one by one";
  task.context.precise_cursor = maps.size() % 2 == 1;
  std::map<std::string, V> model, got;  // by encoded key: equal keys are equal bytes
  for (const auto& records : maps)
    for (const auto& [key, value] : records) {
      auto [it, fresh] = model.emplace(EncodeKey<K>(key), value);
      if (!fresh) CombineInto(combine, it->second, value);
    }
  TaskInput input = task.blocks.Input();
  for (std::uint32_t p = 0; p < shape.partitions; ++p) {
    Status status =
        MergeAggregates<K, V>(task.context, input, p, combine, [&](std::span<const std::pair<View<K>, View<V>>> batch) -> Status {
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
  EXPECT_TRUE((Merged<K, V>(task.blocks, shape, combine, false) == Merged<K, V>(task.blocks, shape, combine, true)))
      << "a retry, which combines one by one, must hand on the same records in the same order and spill as much";
  return task.spill.bytes;
}

template <class K, class V, class Combine>
void CheckShapes(const Maps<K, V>& maps, Combine combine) {
  std::uint64_t spilled = 0;
  for (const Shape& shape : kShapes) spilled += CheckAggregate<K, V>(maps, shape, combine);
  EXPECT_GT(spilled, 0u);
}

using Aggregate = Operators;

TEST_F(Aggregate, StringKeysOfEveryLength) {
  CheckShapes(
      Make<std::string, std::uint64_t>(
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
  CheckShapes(
      Make<Place, std::uint32_t>(
          random_, [&] { return Place{static_cast<std::uint8_t>(random_() % 9), (int(random_() % 100) - 50) * 0.0 + random_() % 40}; },
          [&] { return 1; }),
      Plus());
}

TEST_F(Aggregate, ValuesThatOwnMemory) {
  CheckShapes(Make<std::string, std::string>(
                  random_, [&] { return std::to_string(random_() % 400); }, [&] { return std::to_string(random_() % 10); }),
              [](std::string a, std::string_view b) { return std::move(a) + std::string(b); });
  CheckShapes(
      Make<std::uint32_t, std::vector<std::uint32_t>>(
          random_, [&] { return random_() % 300; }, [&] { return std::vector<std::uint32_t>{static_cast<std::uint32_t>(random_())}; }),
      [](std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) { a.insert(a.end(), b.begin(), b.end()); });
}

TEST_F(Aggregate, DistinctIsAnAggregationOfNothing) {
  CheckShapes(
      Make<std::string, Nothing>(random_, [&] { return std::to_string(random_() % 1000); }, [&] { return Nothing(); }), KeepFirst());
}

TEST_F(Aggregate, FloatsAreAddedInMapOrderEachTime) {
  auto maps = Make<std::uint32_t, float>(random_, [&] { return random_() % 200; }, [&] { return static_cast<float>(random_()) / 7; });
  std::vector<std::pair<std::uint32_t, float>> first, second;
  CheckAggregate<std::uint32_t, float>({maps[0]}, {2, 256 << 20}, Plus(), &first);
  CheckAggregate<std::uint32_t, float>({maps[0]}, {2, 256 << 20}, Plus(), &second);
  EXPECT_EQ(first, second);
}

// Where merges nest, what a table held when it was spilled decides how floats are added.
TEST_F(Aggregate, ARetryAddsFloatsAlikeWhereMergesNest) {
  CheckShapes(Make<std::string, float>(
                  random_, [&] { return std::string(random_() % 60, static_cast<char>('a' + random_() % 26)); }, [&] { return 0.5f; }),
              Plus());
  auto maps = Make<std::uint32_t, float>(random_, [&] { return random_() % 5000; }, [&] { return static_cast<float>(random_()) / 7; });
  auto ordered = [](float a, float b) { return a / 3 + b; };
  FakeTask task;
  for (const Shape& shape : kShapes) {
    task.blocks.segments.clear();
    task.settings.operator_bytes = shape.operator_bytes;
    WriteAggregates(task, maps, shape, ordered);
    EXPECT_TRUE((Merged<std::uint32_t, float>(task.blocks, shape, ordered, false) ==
                 Merged<std::uint32_t, float>(task.blocks, shape, ordered, true)))
        << shape.partitions << " partitions, " << shape.operator_bytes << " bytes";
  }
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

}  // namespace
}  // namespace ropewalk::dag
