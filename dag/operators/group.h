// GroupByKey: each key once, with all its values in map-task order.
//
//   map side     ShuffleWriter<K, V>
//   reduce side  MergeGroups: keeps encoded values in chains of chunks behind each key. When that has grown to Settings::operator_bytes it
//                goes to spill files by further bits of the hash, which are grouped one after another, recursively. A key that alone holds
//                a
//                quarter of the memory gets a file of its own and is streamed from it: a group may be larger than memory.
//
// Owner: a plan node's task program. Thread rule: one task.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dag/codec.h"
#include "dag/operators/byte_table.h"
#include "dag/operators/extents.h"
#include "dag/operators/hash_aggregate.h"
#include "dag/task.h"

namespace ropewalk::dag {

// Encoded values behind each key of a ByteTable.
class ValueChains {
 public:
  struct Chain {
    std::uint32_t first = 0, last = 0;  // chunks, in words of 8 bytes; 0: none
    std::uint64_t bytes = 0;
    std::uint64_t values = 0;
  };
  explicit ValueChains(HugePages* pages) : arena_(*pages) { Clear(); }
  void Clear() {
    arena_.Clear();
    arena_.Allocate(8);
  }
  void Release() {
    arena_.Release();
    arena_.Allocate(8);
  }
  std::size_t bytes() const { return arena_.used(); }

  void Append(Chain& chain, std::string_view value) {
    Chunk* last = chain.last != 0 ? At(chain.last) : nullptr;
    if (last == nullptr || last->capacity - last->used < value.size()) {
      // Chunks double, so that a long chain is read in long runs and a short one wastes little.
      std::size_t doubled = last == nullptr ? 16 : std::min<std::size_t>(last->capacity * std::size_t(2), 4096 - sizeof(Chunk));
      std::size_t capacity = PadTo8(std::max(doubled, value.size()));
      char* at = arena_.Allocate(sizeof(Chunk) + capacity);
      auto word = static_cast<std::uint32_t>(arena_.OffsetOf(at) / 8);
      *reinterpret_cast<Chunk*>(at) = {0, static_cast<std::uint32_t>(capacity), 0, 0};
      if (chain.last != 0) At(chain.last)->next = word;
      if (chain.first == 0) chain.first = word;
      chain.last = word;
      last = At(word);
    }
    codec_internal::CopyShort(reinterpret_cast<char*>(last + 1) + last->used, value.data(), value.size());
    last->used += static_cast<std::uint32_t>(value.size());
    ++last->values;
    chain.bytes += value.size();
    ++chain.values;
  }

  // The values of one chunk back to back; moves `chunk` on. Empty, with 0 values, at the end.
  std::string_view Next(std::uint32_t* chunk, std::uint64_t* values) const {
    *values = 0;
    if (*chunk == 0) return {};
    const Chunk* c = At(*chunk);
    *chunk = c->next;
    *values = c->values;
    return {reinterpret_cast<const char*>(c + 1), c->used};
  }

 private:
  struct Chunk {
    std::uint32_t next, capacity, used, values;
  };
  Chunk* At(std::uint32_t word) const { return reinterpret_cast<Chunk*>(arena_.data() + std::size_t(word) * 8); }
  Arena arena_;
};

// The values of one group, read once from front to back: `for (const View<V>& v : values)` or Next(). A view lives until the next value is
// asked for.
template <class V>
class Values {
 public:
  using View = typename Codec<V>::View;
  Values(const ValueChains* chains, const ValueChains::Chain& chain) : chains_(chains), chunk_(chain.first), count_(chain.values) {}
  // `records`: key then value, of one key only.
  Values(ExtentStream* records, std::size_t key_bytes, std::uint64_t count) : records_(records), key_bytes_(key_bytes), count_(count) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  std::uint64_t count() const { return count_; }  // of all values, also those read already

  // The next value, or nullptr at the end and after an error.
  const View* Next() {
    while (left_ == 0)
      if (!Refill()) return nullptr;
    --left_;
    if (records_ != nullptr) reader_.Raw(key_bytes_);
    Codec<V>::Read(reader_, &value_);
    if (!reader_.ok()) {
      status_ = Status(Code::kDataLoss, "SHUF02", "the values of a group do not decode",
                       "the bytes that their producer wrote are not of this type", "the producer is run again");
      return nullptr;
    }
    return &value_;
  }
  const Status& status() const { return status_; }  // of reading; the operator looks at it when the consumer returns

  class Iterator {
   public:
    using value_type = View;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;
    explicit Iterator(Values* values) : values_(values), value_(values->Next()) {}
    const View& operator*() const { return *value_; }
    const View* operator->() const { return value_; }
    Iterator& operator++() {
      value_ = values_->Next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return value_ == nullptr; }

   private:
    Values* values_;
    const View* value_;
  };
  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  bool Refill() {
    if (!status_.ok()) return false;
    if (records_ == nullptr) {
      reader_ = ByteReader(chains_->Next(&chunk_, &left_));
      return left_ > 0;
    }
    auto extent = records_->Next();
    if (!extent.ok()) {
      status_ = extent.status();
      return false;
    }
    if (!*extent) return false;
    extent_ = **extent;
    reader_ = ByteReader(AsView(extent_.bytes));
    left_ = extent_.records;
    return true;
  }

  const ValueChains* chains_ = nullptr;
  std::uint32_t chunk_ = 0;
  ExtentStream* records_ = nullptr;
  std::size_t key_bytes_ = 0;
  std::uint64_t count_;
  Extent extent_;
  ByteReader reader_{std::string_view()};
  std::uint64_t left_ = 0;
  View value_{};
  Status status_;
};

// Keys with their encoded values, in the order in which keys were first seen. Shared by group and join; knows no user type.
class GroupTable {
 public:
  using Table = ByteTable<ValueChains::Chain>;
  using Entry = Table::Entry;
  explicit GroupTable(HugePages* pages) : table_(pages), chains_(pages), long_key_(pages) {}

  // Key and value are copied (the value once its batch is full: it must live until Flush()). True once every 64 records or so.
  bool Add(std::string_view key, std::string_view value);
  void Flush();
  Entry* Find(std::string_view key) { return table_.Find(KeyHash64(key), key.data(), static_cast<std::uint32_t>(key.size())); }
  std::size_t bytes() const { return table_.bytes() + chains_.bytes(); }
  Table& table() { return table_; }
  const ValueChains& chains() const { return chains_; }
  void Clear();
  void Release();

 private:
  Table table_;
  ValueChains chains_;
  KeyBatch batch_;
  LongKey long_key_;
  std::string_view staged_[KeyBatch::kKeys];
};

namespace group_internal {

inline constexpr std::uint32_t kHeavyKeysMax = 4;

// What is left when a group operator's memory is full: ordinary keys by hash, heavy ones on their own.
struct Spill {
  struct Heavy {
    std::string key;
    std::uint32_t part;
  };
  SpillParts parts;
  PartitionBuffers buffers;
  std::vector<Heavy> heavy;

  Spill(TaskContext& context, std::uint64_t memory_bytes_max)
      : parts(context.spill, context.progress, kSpillFanout + kHeavyKeysMax),
        buffers(&parts, kSpillFanout + kHeavyKeysMax, memory_bytes_max / 8, 64 << 10) {}
  // The part that an entry's records go to.
  std::uint32_t PartOf(std::string_view key, std::uint32_t level) const {
    for (const Heavy& h : heavy)
      if (h.key == key) return h.part;
    return SpillPartOf(KeyHash64(key), level);
  }
};

}  // namespace group_internal

template <class K, class V, class Sink>
class GroupMerger {
 public:
  GroupMerger(TaskContext& context, Sink& sink) : context_(context), sink_(sink), table_(std::make_unique<GroupTable>(&ProcessPages())) {}

  Status Merge(ExtentStream& in, std::uint32_t level) {
    const std::uint64_t memory_bytes_max = context_.settings->operator_bytes;
    table_->Clear();
    std::unique_ptr<group_internal::Spill> spill;
    RETURN_IF_ERROR(ForEachExtent(in, [&](const Extent& extent) -> Status {
      ByteReader reader(AsView(extent.bytes));
      for (std::uint64_t i = 0; i < extent.records; ++i) {
        const char* begin = reader.position();
        Codec<K>::Skip(reader);
        const char* middle = reader.position();
        Codec<V>::Skip(reader);
        if (!reader.ok()) return DamagedExtent(extent);
        std::string_view key(begin, static_cast<std::size_t>(middle - begin));
        std::string_view value(middle, static_cast<std::size_t>(reader.position() - middle));
        if (table_->Add(key, value) && table_->bytes() >= memory_bytes_max && level < kSpillLevelsMax) {
          RETURN_IF_ERROR(SpillTable(&spill, level));
        }
      }
      table_->Flush();  // staged values lie in this extent
      if (!reader.empty()) return DamagedExtent(extent);
      return table_->bytes() >= memory_bytes_max && level < kSpillLevelsMax ? SpillTable(&spill, level) : Status();
    }));
    if (spill == nullptr) return Emit();
    RETURN_IF_ERROR(SpillTable(&spill, level));
    RETURN_IF_ERROR(spill->buffers.Flush());
    RETURN_IF_ERROR(spill->parts.Seal().status());
    table_->Release();
    for (const auto& heavy : spill->heavy) {
      std::unique_ptr<ExtentStream> records = spill->parts.Open(heavy.part);
      Values<V> values(records.get(), heavy.key.size(), spill->parts.part_records(heavy.part));
      RETURN_IF_ERROR(EmitOne(heavy.key, values));
      records.reset();
      spill->parts.Drop(heavy.part);
    }
    for (std::uint32_t part = 0; part < kSpillFanout; ++part) {
      if (context_.Cancelled()) return CancelledStatus(context_);
      if (spill->parts.part_records(part) == 0) continue;
      RETURN_IF_ERROR(Merge(*spill->parts.Open(part), level + 1));
      spill->parts.Drop(part);
    }
    return {};
  }

 private:
  Status SpillTable(std::unique_ptr<group_internal::Spill>* spill, std::uint32_t level) {
    const std::uint64_t memory_bytes_max = context_.settings->operator_bytes;
    if (*spill == nullptr) {
      *spill = std::make_unique<group_internal::Spill>(context_, memory_bytes_max);
      // Heavy keys are named at the first spill only: later, earlier values of theirs would lie elsewhere already.
      table_->table().ForEach([&](GroupTable::Entry& entry) {
        auto& heavy = (*spill)->heavy;
        if (entry.payload.bytes >= memory_bytes_max / 4 && heavy.size() < group_internal::kHeavyKeysMax) {
          heavy.push_back({std::string(entry.key()), kSpillFanout + static_cast<std::uint32_t>(heavy.size())});
        }
      });
    }
    table_->table().ForEach([&](GroupTable::Entry& entry) {
      std::string_view key = entry.key();
      std::uint32_t part = (*spill)->PartOf(key, level);
      std::uint32_t chunk = entry.payload.first;
      std::uint64_t n;
      for (std::string_view values = table_->chains().Next(&chunk, &n); n > 0; values = table_->chains().Next(&chunk, &n)) {
        ByteReader reader(values);
        for (; n > 0; --n) {
          const char* begin = reader.position();
          Codec<V>::Skip(reader);
          std::size_t bytes = static_cast<std::size_t>(reader.position() - begin);
          (*spill)->buffers.Put(part, key.size() + bytes, [&](char* at) {
            codec_internal::CopyShort(at, key.data(), key.size());
            codec_internal::CopyShort(at + key.size(), begin, bytes);
          });
        }
      }
    });
    table_->Clear();
    return (*spill)->buffers.status();
  }

  Status Emit() {
    std::size_t walk = 0;
    while (GroupTable::Entry* entry = table_->table().Next(&walk)) {
      if (context_.Cancelled()) return CancelledStatus(context_);
      Values<V> values(&table_->chains(), entry->payload);
      RETURN_IF_ERROR(EmitOne(entry->key(), values));
    }
    return {};
  }

  Status EmitOne(std::string_view key, Values<V>& values) {
    ByteReader reader(key);
    Codec<K>::Read(reader, &key_);
    RETURN_IF_ERROR(sink_(std::as_const(key_), values));
    return values.status();
  }

  TaskContext& context_;
  Sink& sink_;
  std::unique_ptr<GroupTable> table_;
  typename Codec<K>::View key_{};
};

// Groups partition `partition` of all segments of `input`. Sink: Status(const View<K>&, Values<V>&); it need not read all values.
template <class K, class V, class Sink>
Status MergeGroups(TaskContext& context, const TaskInput& input, std::uint32_t partition, Sink&& sink) {
  ShuffleStream stream(context, input, partition);
  GroupMerger<K, V, std::remove_reference_t<Sink>> merger(context, sink);
  return merger.Merge(stream, 0);
}

}  // namespace ropewalk::dag
