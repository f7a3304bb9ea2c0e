// What the tests of sorting share: a whole sort over fakes, and the model it is held against.
//
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dag/operators/sort.h"
#include "tests/unit/fake_blocks.h"

namespace ropewalk::dag {

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
    Status status = MergeSorted<K, P>(task.context, input, p, partitions, order, Sink<Order, P>([&](auto batch) -> Status {
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
  // Of numbers and through std::function, so that one sort is compiled for all types.
  std::vector<std::size_t> ranks(all.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = i;
  std::function<bool(std::size_t, std::size_t)> less = [&](std::size_t a, std::size_t b) {
    return order.Compare(typename Order::Key(all[a].first), typename Order::Key(all[b].first)) < 0;
  };
  std::stable_sort(ranks.begin(), ranks.end(), less);
  std::vector<std::pair<K, P>> sorted;
  for (std::size_t i : ranks) sorted.push_back(all[i]);
  return sorted;
}

inline std::vector<SortOptions> Shapes() {
  return {{},
          {.memory_bytes_max = 3000, .block_bytes = 200, .samples = 7},
          {.memory_bytes_max = 2000, .block_bytes = 100, .samples = 50, .sample_bytes_max = 3000},
          {.memory_bytes_max = 1000, .block_bytes = 1, .samples = 1},
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
      for (std::size_t i = 0; i < model.size(); ++i)
        ASSERT_TRUE(got.records[i] == model[i]) << "record " << i << " of " << partitions << " partitions";
      EXPECT_EQ(got.content_hashes, (RunSort<K, P>(maps, partitions, order, options).content_hashes));
    }
  }
}

}  // namespace ropewalk::dag
