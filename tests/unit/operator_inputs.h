// What the tests of hash operators share: shapes of a shuffle, random inputs, and their map side.
//
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dag/operators/shuffle_writer.h"
#include "tests/unit/fake_blocks.h"

namespace ropewalk::dag {

using testing::FakeTask;

template <class K, class V>
using Maps = std::vector<std::vector<std::pair<K, V>>>;

struct Shape {
  std::uint32_t partitions;
  std::uint64_t operator_bytes;
};
inline const Shape kShapes[] = {{1, 256 << 20}, {4, 256 << 20}, {3, 20000}, {7, 1500}, {1, 200}};

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
}  // namespace ropewalk::dag
