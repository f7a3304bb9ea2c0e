// The map side of a sort: see sort.h.
//
// Thread rule: one task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/huge_pages.h"
#include "dag/codec.h"
#include "dag/operators/order.h"
#include "dag/operators/place.h"
#include "dag/operators/sort_arena.h"
#include "dag/operators/sort_items.h"
#include "dag/operators/sort_runs.h"
#include "dag/task.h"

namespace ropewalk::dag {

// How a map side sorts. The numbers are plan constants.
struct SortOptions {
  std::uint64_t memory_bytes_max = 64ull << 20;  // records and what sorts them
  std::uint64_t block_bytes = 256ull << 10;      // a longer record has a block of its own
  std::uint32_t samples = 256;                   // for each run, and together no more than
  std::uint64_t sample_bytes_max = 1ull << 20;   // what a reducer needs for those of one map task
  HugePages* pages = &ProcessPages();
  RecordCursor* cursor = nullptr;  // of the task
  bool precise_cursor = false;     // as TaskContext's
};

// Runs as large as the operator's memory, but not above 64 MiB: gathering those misses the cache less than gathering 256 MiB, and a merge
// of more runs costs less than that (docs/performance.md). Blocks shrink with the memory, since a merge holds one of each run: where
// memory is little, runs are many. Every reducer holds the samples of all `map_tasks`: together they may take about a quarter of its
// memory. Each task may have 1 KiB of them and one of each run in any case, so that it is more where tasks are very many.
inline SortOptions SortOptionsFor(const TaskContext& context, std::uint32_t map_tasks) {
  const std::uint64_t operator_bytes = context.settings->operator_bytes;
  return {.memory_bytes_max = std::min<std::uint64_t>(operator_bytes, 64ull << 20),
          .block_bytes = std::clamp<std::uint64_t>(operator_bytes / 64, 16ull << 10, 256ull << 10),
          .sample_bytes_max = std::clamp<std::uint64_t>(operator_bytes / 4 / std::max(map_tasks, 1u), 1ull << 10, 1ull << 20),
          .cursor = context.cursor,
          .precise_cursor = context.precise_cursor};
}

template <class K, class P, class Order>
class SortWriter {
 public:
  // `out` has kSortParts parts, is not owned, and is sealed by the caller after Finish().
  SortWriter(const SortOptions& options, SegmentWriter* out, Order order = {})
      : options_(options),
        order_(std::move(order)),
        runs_(out, {options.block_bytes, options.samples, options.sample_bytes_max}, options.pages),
        records_(options.pages) {}

  // Key: K or View<K>; payload: P or View<P>. Both are copied. An error is kept: see status().
  template <class X, class Y = Nothing>
  void Add(const X& key, const Y& payload = {}) {
    std::size_t bytes = Codec<K>::Size(key) + Codec<P>::Size(payload);
    if ((count_ + 1) * sizeof(SortItem) > items_.bytes()) [[unlikely]]
      items_.Grow(items_.bytes() * 4 + 1, count_ * sizeof(SortItem), *options_.pages);
    std::uint64_t offset = 0;
    char* at = records_.Allocate(bytes, &offset);
    char* end = Codec<K>::Write(key, at);
    if constexpr (!std::is_same_v<P, Nothing>) end = Codec<P>::Write(payload, end);
    items()[count_++] = {order_.Prefix(ViewOf(key, at, end)), SortItem::Place(offset, bytes)};
    if constexpr (kUserOrder) {
      // Keys are compared when the run is sorted, and nobody knows then where they came from: a key that its operator< cannot bear is found
      // here.
      if (options_.precise_cursor) [[unlikely]]
        (void)order_.Compare(ViewOf(key, at, end), ViewOf(key, at, end));
    }
    if (records_.used() + count_ * 2 * sizeof(SortItem) >= options_.memory_bytes_max) WriteRun();
  }
  const Status& status() const { return runs_.status(); }
  // Writes the last run and part 0. Nothing may be added afterwards.
  Status Finish() {
    WriteRun();
    items_ = HugeBuffer();
    scratch_ = HugeBuffer();
    return runs_.Finish();
  }
  std::uint64_t records_out() const { return runs_.records(); }
  std::uint64_t bytes_out() const { return runs_.bytes(); }

 private:
  using Key = typename Order::Key;
  static constexpr bool kUserOrder = !Order::kExact && !Order::kBytes;  // sorting may call code of the user
  SortItem* items() const { return reinterpret_cast<SortItem*>(items_.data()); }

  // The key as a view: what came in where that is one already, else read back from what was just written.
  template <class X>
  Key ViewOf(const X& key, const char* at, const char* end) {
    if constexpr (std::is_convertible_v<const X&, Key>) {
      return key;
    } else {
      return KeyIn({at, static_cast<std::size_t>(end - at)});
    }
  }
  static Key KeyIn(std::string_view record) {
    ByteReader reader(record);
    Key key{};
    Codec<K>::Read(reader, &key);
    return key;
  }
  std::string_view Record(const SortItem& item) const {
    const char* at = records_.At(item.offset());
    if (item.size() < SortItem::kLong) [[likely]]
      return {at, item.size()};
    ByteReader reader({at, records_.used() - item.offset()});
    Codec<K>::Skip(reader);
    Codec<P>::Skip(reader);
    return {at, static_cast<std::size_t>(reader.position() - at)};
  }

  void WriteRun() {
    if (count_ == 0) return;
    std::optional<SavedPlace> place;
    if constexpr (kUserOrder) {
      place.emplace(options_.cursor);
      StandAt(options_.cursor, "the run that is sorted");
    }
    if (scratch_.bytes() < count_ * sizeof(SortItem)) scratch_ = options_.pages->Take(count_ * sizeof(SortItem));
    auto* scratch = reinterpret_cast<SortItem*>(scratch_.data());
    SortItems(items(), count_, scratch);
    if constexpr (Order::kBytes) {
      SortByteTies(items(), count_, scratch, records_, Order::kDescending);
    } else if constexpr (!Order::kExact) {
      SortTies();
    }
    runs_.Begin(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      if (i + kAhead < count_) {
        const SortItem& item = items()[i + kAhead];
        const char* ahead = records_.At(item.offset());
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        if (item.size() > 64) __builtin_prefetch(ahead + std::min<std::uint64_t>(item.size(), 192) - 1);
      }
      std::string_view record = Record(items()[i]);
      if (runs_.Put(record)) runs_.Mark(KeyBytes(record), i > 0 ? KeyBytes(Record(items()[i - 1])) : std::string_view(), Order::kBytes);
    }
    runs_.End(KeyBytes(Record(items()[count_ - 1])), Order::kBytes);
    count_ = 0;
    records_.Clear();
    if (place) place->GoBack();
  }
  static std::string_view KeyBytes(std::string_view record) {
    ByteReader reader(record);
    Codec<K>::Skip(reader);
    return {record.data(), static_cast<std::size_t>(reader.position() - record.data())};
  }

  void SortTies() {
    dag::SortTies(items(), count_, this, [](const void* self, const SortItem& a, const SortItem& b) {
      const auto* writer = static_cast<const SortWriter*>(self);
      return writer->order_.Compare(KeyIn(writer->Record(a)), KeyIn(writer->Record(b))) < 0;
    });
  }

  static constexpr std::size_t kAhead = 16;

  SortOptions options_;
  Order order_;
  RunWriter runs_;
  SortArena records_;
  HugeBuffer items_, scratch_;
  std::size_t count_ = 0;
};

}  // namespace ropewalk::dag
