// Grouping and joining against std::map models, with memory so small that everything spills.
#include "dag/operators/group.h"

#include <gtest/gtest.h>

#include <map>

#include "dag/operators/join.h"
#include "tests/unit/operator_inputs.h"

namespace ropewalk::dag {
namespace {

using Group = Operators;
using Join = Operators;

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
      random_, [&] { return std::string(random_() % 70, 'k') + std::to_string(random_() % 30); },
      [&] { return std::string(random_() % 200, 'v'); });
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
    Status status =
        MergeGroups<std::string, std::string>(task.context, input, 0, [&](std::string_view, Values<std::string>& values) -> Status {
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
  right_input.segments.erase(right_input.segments.begin(),
                             right_input.segments.begin() + static_cast<std::ptrdiff_t>(left_input.segments.size()));
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
    for (int i = 0; i < records; ++i)
      maps[random_() % 2].emplace_back(std::to_string(random_() % keys), std::string(random_() % 30, 'v') + std::to_string(i));
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

}  // namespace
}  // namespace ropewalk::dag
