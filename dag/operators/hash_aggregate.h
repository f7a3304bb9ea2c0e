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
template <class K, class V, class Combine>
class AggregateTable {
 public:
  static constexpr bool kInline = std::is_trivially_copy_constructible_v<V> && std::is_trivially_destructible_v<V> && alignof(V) <= 8;
  using Payload = std::conditional_t<kInline, V, std::uint32_t>;
  using Table = ByteTable<Payload>;
  using Entry = typename Table::Entry;

  AggregateTable(Combine combine, HugePages* pages) : combine_(std::move(combine)), table_(pages), long_key_(pages) {}

  // True once every 64 records or so: then is the time to look at bytes().
  template <class X, class Y>
  bool Add(const X& key, Y&& value) {
    return AddWritten(Codec<K>::Size(key), [&](char* at) { Codec<K>::WriteKey(key, at); }, std::forward<Y>(value));
  }
  template <class Y>
  bool AddEncoded(std::string_view key, Y&& value) {
    return AddWritten(key.size(), [&](char* at) { codec_internal::CopyShort(at, key.data(), key.size()); }, std::forward<Y>(value));
  }
  // Combines what is staged. Everything below sees only what has been flushed.
  void Flush() {
    const std::size_t n = batch_.count();
    if (n == 0) return;
    table_.Reserve(n, n * KeyBatch::kKeyBytesMax);
    std::size_t slots[KeyBatch::kKeys];
    for (std::size_t i = 0; i < n; ++i) slots[i] = table_.Locate(batch_.hash(i));
    for (std::size_t i = 0; i < n; ++i) CombineOne(slots[i], batch_.hash(i), batch_.key(i), batch_.key_bytes(i), staged_[i]);
    batch_.Clear();
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
  void Clear() {
    table_.Clear();
    values_.clear();
    heap_bytes_ = 0;
  }
  void Release() {
    table_.Release();
    values_ = {};
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
    if (!batch_.full()) return false;
    Flush();
    return true;
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
        heap_bytes_ += sizeof(V) + Codec<V>::HeapBytes(values_.back());
      } else {
        V& acc = values_[entry->payload];
        heap_bytes_ -= Codec<V>::HeapBytes(acc);
        CombineInto(combine_, acc, std::as_const(value));
        heap_bytes_ += Codec<V>::HeapBytes(acc);
      }
    }
  }

  Combine combine_;
  Table table_;
  std::vector<V> values_;
  std::size_t heap_bytes_ = 0;
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
        buffers_(out, options.partitions, options.memory_bytes_max / 4, options.extent_bytes_max, options.pages) {}

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
      : context_(context), sink_(sink), table_(std::make_unique<Table>(std::move(combine), &ProcessPages())) {}

  Status Merge(ExtentStream& in, std::uint32_t level) {
    const std::uint64_t memory_bytes_max = context_.settings->operator_bytes;
    table_->Clear();
    std::unique_ptr<SpillParts> spill;
    std::optional<PartitionBuffers> buffers;
    auto spill_table = [&] {
      if (spill == nullptr) {
        spill = std::make_unique<SpillParts>(context_.spill, context_.progress, kSpillFanout);
        buffers.emplace(spill.get(), kSpillFanout, memory_bytes_max / 8, 64 << 10);
      }
      SpillTable(*buffers, level);
      return buffers->status();
    };
    RETURN_IF_ERROR(ForEachExtent(in, [&](const Extent& extent) -> Status {
      ByteReader reader(AsView(extent.bytes));
      std::string_view key;
      for (std::uint64_t i = 0; i < extent.records; ++i) {
        if (!ReadRecord<K, V>(reader, &key, &value_)) return DamagedExtent(extent);
        if (table_->AddEncoded(key, value_) && table_->bytes() >= memory_bytes_max && table_->count() > 1 && level < kSpillLevelsMax) {
          RETURN_IF_ERROR(spill_table());
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
    batch_.resize(kBatchRecords);
    std::size_t n = 0;
    std::size_t walk = 0;
    while (typename Table::Entry* entry = table_->table().Next(&walk)) {
      ByteReader key(entry->key());
      Codec<K>::Read(key, &batch_[n].first);
      batch_[n].second = typename Codec<V>::View(std::move(table_->value(*entry)));  // a string keeps its place: its view does not move it
      if (++n == kBatchRecords) {
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
