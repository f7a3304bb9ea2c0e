// Aggregation by key: ReduceByKey, CountByKey, Distinct (of Nothing), and the combiner of a MapReduce.
//
//   map side     AggregateWriter: combines in a table, writes it to the partitions of a segment when it has grown to memory_bytes_max
//   reduce side  MergeAggregates: combines what all segments hold for one partition, in map-task order. When its table has grown to
//                Settings::operator_bytes it goes to spill files by further bits of the hash, which are merged one after another,
//                recursively; so memory is bounded by distinct keys nowhere, only by the size of one key's value.
//
// Shuffle record: key as Codec<K>::WriteKey wrote it, then the value. A reducer compares keys without decoding them.
//
// Owner: a plan node's task program. Thread rule: one task.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "dag/codec.h"
#include "dag/operators/byte_table.h"
#include "dag/operators/extents.h"
#include "dag/operators/place.h"
#include "dag/task.h"

namespace ropewalk::dag {

// acc = acc ⊕ value, for both forms of a combiner: V(V, V) and void(V&, V).
template <class Combine, class V>
void CombineInto(Combine& combine, V& acc, const V& value) {
  if constexpr (std::is_invocable_v<Combine&, V&, const V&>) {
    if constexpr (std::is_void_v<std::invoke_result_t<Combine&, V&, const V&>>) {
      combine(acc, value);
    } else if constexpr (std::is_invocable_v<Combine&, V&&, const V&>) {
      acc = combine(std::move(acc), value);  // a combiner that takes its first operand by value appends without a copy
    } else {
      acc = combine(acc, value);
    }
  } else {
    V copy = value;
    acc = combine(std::move(acc), copy);
  }
}

// Distinct's combiner.
struct KeepFirst {
  template <class V>
  void operator()(V&, const V&) const {}
};

// A table of K → V with staged keys. V lies in the entry where it may be moved as bytes, else in a vector beside it.
//
// What a value holds besides itself is counted exactly where that costs nothing. Where every element of a container must be asked, it is
// counted anew only when about as many elements were combined into it as it had, or when what they held would double it: until then all of
// that is added. So the count costs no more than the combiner has touched, and is a function of the values.
template <class K, class V, class Combine>
class AggregateTable {
 public:
  static constexpr bool kInline = std::is_trivially_copy_constructible_v<V> && std::is_trivially_destructible_v<V> && alignof(V) <= 8;
  using Payload = std::conditional_t<kInline, V, std::uint32_t>;
  using Table = ByteTable<Payload>;
  using Entry = typename Table::Entry;

  AggregateTable(Combine combine, HugePages* pages) : combine_(std::move(combine)), table_(pages), long_key_(pages) {}

  // From now on each record is combined when it is added, so that a crash finds the cursor there. When Add() gives true stays the same.
  void CombineAtOnce() { staged_max_ = 1; }

  // True once every 64 records or so: then is the time to look at bytes().
  template <class X, class Y>
  bool Add(const X& key, Y&& value) {
    return AddWritten(Codec<K>::Size(key), [&](char* at) { Codec<K>::WriteKey(key, at); }, std::forward<Y>(value));
  }
  template <class Y>
  bool AddEncoded(std::string_view key, Y&& value) {
    return AddWritten(key.size(), [&](char* at) { codec_internal::CopyShort(at, key.data(), key.size()); }, std::forward<Y>(value));
  }
  // Combines what is staged, so that a new batch begins. Everything below sees only what has been flushed.
  void Flush() {
    CombineStaged();
    added_alone_ = 0;
  }
  std::size_t bytes() const { return table_.bytes() + heap_bytes_; }
  std::size_t count() const { return table_.count(); }
  Table& table() { return table_; }
  V& value(Entry& entry) {
    if constexpr (kInline) {
      return entry.payload;
    } else {
      return values_[entry.payload];
    }
  }
  // Both empty the table after Flush(), or when Add() gave true: nothing is staged then.
  void Clear() {
    table_.Clear();
    values_.clear();
    held_.clear();
    heap_bytes_ = 0;
  }
  void Release() {
    table_.Release();
    values_ = {};
    held_ = {};
    heap_bytes_ = 0;
  }

 private:
  template <class Write, class Y>
  bool AddWritten(std::size_t key_bytes, Write write, Y&& value) {
    if (key_bytes > KeyBatch::kKeyBytesMax) [[unlikely]] {
      Flush();  // records are combined in their order
      std::uint64_t hash = long_key_.Set(key_bytes, write);
      table_.Reserve(1, PadTo8(key_bytes));
      Stage(0, std::forward<Y>(value));
      CombineOne(table_.Locate(hash), hash, long_key_.data(), static_cast<std::uint32_t>(key_bytes), staged_[0]);
      return true;
    }
    Stage(batch_.count(), std::forward<Y>(value));
    table_.PrefetchSlot(batch_.Push(key_bytes, write));
    if (batch_.count() < staged_max_) return false;
    CombineStaged();
    return staged_max_ == KeyBatch::kKeys || ++added_alone_ % KeyBatch::kKeys == 0;
  }

  void CombineStaged() {
    const std::size_t n = batch_.count();
    if (n == 0) return;
    table_.Reserve(n, n * KeyBatch::kKeyBytesMax);
    std::size_t slots[KeyBatch::kKeys];
    for (std::size_t i = 0; i < n; ++i) slots[i] = table_.Locate(batch_.hash(i));
    for (std::size_t i = 0; i < n; ++i) CombineOne(slots[i], batch_.hash(i), batch_.key(i), batch_.key_bytes(i), staged_[i]);
    batch_.Clear();
  }

  template <class Y>
  void Stage(std::size_t i, Y&& value) {
    if constexpr (std::is_assignable_v<V&, Y&&>) {
      staged_[i] = std::forward<Y>(value);
    } else {
      Codec<V>::Assign(&staged_[i], value);
    }
  }

  void CombineOne(std::size_t slot, std::uint64_t hash, const char* key, std::uint32_t key_bytes, V& value) {
    bool inserted;
    Entry* entry = table_.FindOrInsert(slot, hash, key, key_bytes, &inserted);
    if constexpr (kInline) {
      if (inserted) {
        new (&entry->payload) V(value);
      } else {
        CombineInto(combine_, entry->payload, std::as_const(value));
      }
    } else {
      if (inserted) {
        entry->payload = static_cast<std::uint32_t>(values_.size());
        values_.push_back(std::move(value));
        const Heap heap = HeapOf(values_.back());
        heap_bytes_ += sizeof(V) + heap.bytes;
        if constexpr (kDeep) {
          heap_bytes_ += sizeof(Held);
          held_.push_back({heap, heap.bytes, 0});
        }
      } else if constexpr (!kDeep) {
        V& acc = values_[entry->payload];
        heap_bytes_ -= HeapOf(acc).bytes;
        CombineInto(combine_, acc, std::as_const(value));
        heap_bytes_ += HeapOf(acc).bytes;
      } else {
        V& acc = values_[entry->payload];
        Held& held = held_[entry->payload];
        const Heap more = HeapOf(value);
        CombineInto(combine_, acc, std::as_const(value));
        held.bytes += more.bytes;
        heap_bytes_ += more.bytes;
        held.visits += more.visits + 1;
        if (held.visits > held.counted.visits || held.bytes > 2 * held.counted.bytes) {
          heap_bytes_ -= held.bytes;
          const Heap heap = HeapOf(acc);
          held = {heap, heap.bytes, 0};
          heap_bytes_ += heap.bytes;
        }
      }
    }
  }

  static constexpr bool kDeep = !kInline && Codec<V>::kHeapDeep;
  struct Held {
    Heap counted;        // when it was counted last
    std::size_t bytes;   // with what was combined into it since
    std::size_t visits;  // of elements since
  };
  static Heap HeapOf(const V& value) {
    Heap heap;
    Codec<V>::AddHeap(value, &heap);
    return heap;
  }

  Combine combine_;
  Table table_;
  std::vector<V> values_;
  std::vector<Held> held_;  // of each of them, where kDeep
  std::size_t heap_bytes_ = 0;
  std::size_t staged_max_ = KeyBatch::kKeys;
  std::uint64_t added_alone_ = 0;  // records since a batch would have begun
  KeyBatch batch_;
  LongKey long_key_;
  V staged_[KeyBatch::kKeys] = {};
};

template <class K, class V, class Combine>
class AggregateWriter {
 public:
  // `out` has options.partitions parts, is not owned, and is sealed by the caller after Finish().
  AggregateWriter(const ShuffleOptions& options, SegmentWriter* out, Combine combine = {})
      : options_(options),
        table_(std::make_unique<Table>(std::move(combine), options.pages)),
        buffers_(out, options.partitions, options.memory_bytes_max / 4, options.extent_bytes_max, options.pages) {
    if (options.precise_cursor) table_->CombineAtOnce();
  }

  // Key: K or View<K>; value: V or View<V>. Both are copied. An error is kept: see status().
  template <class X, class Y>
  void Add(const X& key, Y&& value) {
    ++records_;
    if (table_->Add(key, std::forward<Y>(value)) && table_->bytes() >= options_.memory_bytes_max) WriteTable();
  }
  const Status& status() const { return buffers_.status(); }
  // Writes what is left. Nothing may be added afterwards.
  Status Finish() {
    table_->Flush();
    WriteTable();
    table_->Release();
    return buffers_.Flush();
  }
  std::uint64_t records_in() const { return records_; }
  std::uint64_t records_out() const { return buffers_.records(); }
  std::uint64_t bytes_out() const { return buffers_.bytes(); }

 private:
  using Table = AggregateTable<K, V, Combine>;
  void WriteTable() {
    const SavedPlace place(options_.cursor);
    StandAt(options_.cursor, "the values combined so far");
    table_->table().ForEach([&](typename Table::Entry& entry) {
      const V& value = table_->value(entry);
      std::string_view key = entry.key();
      std::uint32_t part = PartitionOf(std::uint64_t(entry.hash_high) << 32, options_.partitions);
      buffers_.Put(part, key.size() + Codec<V>::Size(value), [&](char* at) {
        codec_internal::CopyShort(at, key.data(), key.size());
        Codec<V>::Write(value, at + key.size());
      });
    });
    table_->Clear();
    place.GoBack();
  }

  ShuffleOptions options_;
  std::unique_ptr<Table> table_;
  PartitionBuffers buffers_;
  std::uint64_t records_ = 0;
};

inline constexpr std::size_t kBatchRecords = 1024;  // handed to a sink at once
inline constexpr std::uint32_t kSpillFanout = 16;
inline constexpr std::uint32_t kSpillLevelsMax = 8;  // 2^32 pieces: what is still too big then is a few keys

// Which spill part a key goes to: bits that neither the partition nor the table's slots were taken from.
inline std::uint32_t SpillPartOf(std::uint64_t hash, std::uint32_t level) {
  return static_cast<std::uint32_t>(HashCombine(hash, level) >> 60);
}

// K and V, in this order, as they are in every shuffle record.
template <class K, class V>
bool ReadRecord(ByteReader& in, std::string_view* key, typename Codec<V>::View* value) {
  const char* begin = in.position();
  Codec<K>::Skip(in);
  *key = {begin, static_cast<std::size_t>(in.position() - begin)};
  Codec<V>::Read(in, value);
  return in.ok();
}

template <class K, class V, class Combine, class Sink>
class AggregateMerger {
 public:
  AggregateMerger(TaskContext& context, Combine combine, Sink& sink)
      : context_(context), sink_(sink), table_(std::make_unique<Table>(std::move(combine), &ProcessPages())) {
    if (context.precise_cursor) table_->CombineAtOnce();
  }

  Status Merge(ExtentStream& in, std::uint32_t level) {
    const std::uint64_t memory_bytes_max = context_.settings->operator_bytes;
    table_->Clear();
    StandAtRecord();
    std::unique_ptr<SpillParts> spill;
    std::optional<PartitionBuffers> buffers;
    auto spill_table = [&] {
      if (spill == nullptr) {
        spill = std::make_unique<SpillParts>(context_.spill, context_.progress, kSpillFanout);
        buffers.emplace(spill.get(), kSpillFanout, memory_bytes_max / 8, 64 << 10);
      }
      StandAt(context_.cursor, "the values combined so far");
      SpillTable(*buffers, level);
      StandAtRecord();
      return buffers->status();
    };
    RETURN_IF_ERROR(ForEachExtent(in, [&](const Extent& extent) -> Status {
      ByteReader reader(AsView(extent.bytes));
      std::string_view key;
      const std::uint64_t step = context_.precise_cursor ? 1 : extent.records;
      for (std::uint64_t left = extent.records; left > 0; left -= step) {
        if (context_.cursor != nullptr) context_.cursor->offset.store(records_, std::memory_order_relaxed);
        records_ += step;
        for (std::uint64_t i = 0; i < step; ++i) {
          if (!ReadRecord<K, V>(reader, &key, &value_)) return DamagedExtent(extent);
          if (table_->AddEncoded(key, value_) && table_->bytes() >= memory_bytes_max && table_->count() > 1 && level < kSpillLevelsMax) {
            RETURN_IF_ERROR(spill_table());
          }
        }
      }
      return reader.empty() ? Status() : DamagedExtent(extent);
    }));
    table_->Flush();
    if (spill == nullptr) return Emit();
    RETURN_IF_ERROR(spill_table());
    RETURN_IF_ERROR(buffers->Flush());
    RETURN_IF_ERROR(spill->Seal().status());
    buffers.reset();
    for (std::uint32_t part = 0; part < kSpillFanout; ++part) {
      if (context_.Cancelled()) return CancelledStatus(context_);
      if (spill->part_records(part) == 0) continue;
      RETURN_IF_ERROR(Merge(*spill->Open(part), level + 1));
      spill->Drop(part);
    }
    return {};
  }

 private:
  using Table = AggregateTable<K, V, Combine>;
  using Record = std::pair<typename Codec<K>::View, typename Codec<V>::View>;

  void StandAtRecord() const { StandAt(context_.cursor, "the shuffled records", records_); }

  void SpillTable(PartitionBuffers& buffers, std::uint32_t level) {
    table_->table().ForEach([&](typename Table::Entry& entry) {
      const V& value = table_->value(entry);
      std::string_view key = entry.key();
      buffers.Put(SpillPartOf(KeyHash64(key), level), key.size() + Codec<V>::Size(value), [&](char* at) {
        codec_internal::CopyShort(at, key.data(), key.size());
        Codec<V>::Write(value, at + key.size());
      });
    });
    table_->Clear();
  }

  Status Emit() {
    StandAt(context_.cursor, "the combined keys", emitted_);
    const std::size_t batch_max = context_.precise_cursor ? 1 : kBatchRecords;
    batch_.resize(batch_max);
    std::size_t n = 0;
    std::size_t walk = 0;
    while (typename Table::Entry* entry = table_->table().Next(&walk)) {
      if (n == 0 && context_.cursor != nullptr) context_.cursor->offset.store(emitted_, std::memory_order_relaxed);
      ++emitted_;
      ByteReader key(entry->key());
      Codec<K>::Read(key, &batch_[n].first);
      batch_[n].second = typename Codec<V>::View(std::move(table_->value(*entry)));  // a string keeps its place: its view does not move it
      if (++n == batch_max) {
        if (context_.Cancelled()) return CancelledStatus(context_);
        RETURN_IF_ERROR(sink_(std::span<const Record>(batch_.data(), n)));
        n = 0;
      }
    }
    return n > 0 ? sink_(std::span<const Record>(batch_.data(), n)) : Status();
  }

  TaskContext& context_;
  Sink& sink_;
  std::unique_ptr<Table> table_;
  typename Codec<V>::View value_{};
  std::vector<Record> batch_;
  std::uint64_t records_ = 0;  // read so far, those twice that a spill has held
  std::uint64_t emitted_ = 0;
};

// Merges partition `partition` of all segments of `input`. Sink: Status(std::span<const std::pair<View<K>, View<V>>>), in the order in
// which keys were first seen (spilled: by spill part). Errors: the sink's, kDataLoss, kUnavailable, kCancelled, and those of the spill.
template <class K, class V, class Combine, class Sink>
Status MergeAggregates(TaskContext& context, const TaskInput& input, std::uint32_t partition, Combine combine, Sink&& sink) {
  ShuffleStream stream(context, input, partition);
  AggregateMerger<K, V, Combine, std::remove_reference_t<Sink>> merger(context, std::move(combine), sink);
  return merger.Merge(stream, 0);
}

}  // namespace ropewalk::dag
