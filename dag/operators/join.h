// Inner join of two inputs by key: one pair for each left and right record whose keys are equal.
//
//   map side     ShuffleWriter<K, A> for the left input, ShuffleWriter<K, B> for the right one, with equal partitions
//   reduce side  MergeJoin: the input with fewer bytes is built into a table, the other one probes it. When the table has grown to
//                Settings::operator_bytes both go to spill files by further bits of the hash, and the pairs of files are joined one after
//                another, recursively. Where that cannot divide any more (few keys with very many records) the build side is taken in
//                pieces
//                that fit, each probed by all of the other side. So either side, and one key's records on both, may be larger than memory.
//
// Order of the output: by spill part; inside by probe record, for each the build records, both in map-task order. A function of the inputs
// and of operator_bytes only.
//
// Owner: a plan node's task program. Thread rule: one task.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dag/codec.h"
#include "dag/operators/extents.h"
#include "dag/operators/group.h"
#include "dag/task.h"

namespace ropewalk::dag {

namespace join_internal {

inline constexpr std::uint32_t kLevelsMax = 4;  // 65,536 pieces; then the build side is taken in pieces
inline constexpr std::size_t kFewKeys = 4;      // a table with no more keys than these is not worth dividing
inline constexpr std::size_t kProbes = 64;      // fetched from memory together

using OpenStream = std::function<std::unique_ptr<ExtentStream>()>;

// Reads one record of key and value over; false when damaged.
template <class K, class V>
bool SkipRecord(ByteReader& reader, std::string_view* key, std::string_view* value) {
  const char* begin = reader.position();
  Codec<K>::Skip(reader);
  const char* middle = reader.position();
  Codec<V>::Skip(reader);
  *key = {begin, static_cast<std::size_t>(middle - begin)};
  *value = {middle, static_cast<std::size_t>(reader.position() - middle)};
  return reader.ok();
}

}  // namespace join_internal

template <class K, class A, class B, class Sink>
class JoinMerger {
 public:
  JoinMerger(TaskContext& context, Sink& sink)
      : context_(context),
        sink_(sink),
        memory_bytes_max_(context.settings->operator_bytes),
        batch_max_(context.precise_cursor ? 1 : kBatchRecords),
        table_(std::make_unique<GroupTable>(&ProcessPages())),
        batch_(kBatchRecords) {}

  // `left` and `right` open the inputs, at level > 0 as often as asked.
  Status Join(const join_internal::OpenStream& left, const join_internal::OpenStream& right, bool build_left, std::uint32_t level) {
    return build_left ? JoinSides<true>(left, right, level) : JoinSides<false>(right, left, level);
  }

 private:
  template <bool kBuildLeft>
  using BuildValue = std::conditional_t<kBuildLeft, A, B>;
  template <bool kBuildLeft>
  using ProbeValue = std::conditional_t<kBuildLeft, B, A>;
  using Record = std::pair<typename Codec<K>::View, std::pair<typename Codec<A>::View, typename Codec<B>::View>>;

  template <bool kBuildLeft>
  Status JoinSides(const join_internal::OpenStream& build, const join_internal::OpenStream& probe, std::uint32_t level) {
    std::unique_ptr<ExtentStream> build_stream = build();
    Extent extent;
    ByteReader reader{std::string_view()};
    std::uint64_t left_in_extent = 0;
    bool more = true;
    table_->Clear();
    RETURN_IF_ERROR((Fill<kBuildLeft>(*build_stream, &extent, &reader, &left_in_extent, &more)));
    if (more && (level == 0 || (level < join_internal::kLevelsMax && table_->table().count() > join_internal::kFewKeys))) {
      return Divide<kBuildLeft>(*build_stream, extent, reader, left_in_extent, probe, level);
    }
    while (true) {
      std::unique_ptr<ExtentStream> probe_stream = probe();
      RETURN_IF_ERROR(Probe<kBuildLeft>(*probe_stream));
      if (!more) return {};
      table_->Clear();
      RETURN_IF_ERROR((Fill<kBuildLeft>(*build_stream, &extent, &reader, &left_in_extent, &more)));
    }
  }

  // Adds build records until memory is full (`more`) or the stream ends. The place inside the extent is kept for the next call.
  template <bool kBuildLeft>
  Status Fill(ExtentStream& stream, Extent* extent, ByteReader* reader, std::uint64_t* left, bool* more) {
    while (true) {
      for (; *left > 0; --*left) {
        std::string_view key, value;
        if (!join_internal::SkipRecord<K, BuildValue<kBuildLeft>>(*reader, &key, &value)) return DamagedExtent(*extent);
        if (table_->Add(key, value) && table_->bytes() >= memory_bytes_max_) {
          --*left;
          *more = true;
          return {};
        }
      }
      table_->Flush();  // staged values lie in this extent
      if (!reader->empty()) return DamagedExtent(*extent);
      if (table_->bytes() >= memory_bytes_max_) {
        *more = true;
        return {};
      }
      ASSIGN_OR_RETURN(std::optional<Extent> next, stream.Next());
      if (!next) {
        *more = false;
        return {};
      }
      *extent = std::move(*next);
      *reader = ByteReader(AsView(extent->bytes));
      *left = extent->records;
    }
  }

  template <class V>
  Status Scatter(const Extent& extent, ByteReader& reader, std::uint64_t records, std::uint32_t level, PartitionBuffers* out) {
    for (; records > 0; --records) {
      std::string_view key, value;
      if (!join_internal::SkipRecord<K, V>(reader, &key, &value)) return DamagedExtent(extent);
      PutRecord(key, value, level, out);
    }
    return reader.empty() ? out->status() : DamagedExtent(extent);
  }
  void PutRecord(std::string_view key, std::string_view value, std::uint32_t level, PartitionBuffers* out) {
    out->Put(SpillPartOf(KeyHash64(key), level), key.size() + value.size(), [&](char* at) {
      codec_internal::CopyShort(at, key.data(), key.size());
      codec_internal::CopyShort(at + key.size(), value.data(), value.size());
    });
  }

  // Memory is full: table, rest of the build side and all of the probe side go to spill files, which are joined part by part.
  template <bool kBuildLeft>
  Status Divide(ExtentStream& build_rest, const Extent& extent, ByteReader& reader, std::uint64_t left_in_extent,
                const join_internal::OpenStream& probe, std::uint32_t level) {
    SpillParts build_parts(context_.spill, context_.progress, kSpillFanout), probe_parts(context_.spill, context_.progress, kSpillFanout);
    {
      PartitionBuffers out(&build_parts, kSpillFanout, memory_bytes_max_ / 8, 64 << 10);
      table_->table().ForEach([&](GroupTable::Entry& entry) {
        std::uint32_t chunk = entry.payload.first;
        std::uint64_t n;
        for (std::string_view values = table_->chains().Next(&chunk, &n); n > 0; values = table_->chains().Next(&chunk, &n)) {
          ByteReader in(values);
          for (; n > 0; --n) {
            const char* begin = in.position();
            Codec<BuildValue<kBuildLeft>>::Skip(in);
            PutRecord(entry.key(), {begin, static_cast<std::size_t>(in.position() - begin)}, level, &out);
          }
        }
      });
      table_->Clear();
      RETURN_IF_ERROR((Scatter<BuildValue<kBuildLeft>>(extent, reader, left_in_extent, level, &out)));
      RETURN_IF_ERROR((ScatterAll<BuildValue<kBuildLeft>>(build_rest, level, &out)));
      RETURN_IF_ERROR(out.Flush());
      RETURN_IF_ERROR(build_parts.Seal().status());
    }
    {
      PartitionBuffers out(&probe_parts, kSpillFanout, memory_bytes_max_ / 8, 64 << 10);
      std::unique_ptr<ExtentStream> stream = probe();
      RETURN_IF_ERROR((ScatterAll<ProbeValue<kBuildLeft>>(*stream, level, &out)));
      RETURN_IF_ERROR(out.Flush());
      RETURN_IF_ERROR(probe_parts.Seal().status());
    }
    SpillParts& left = kBuildLeft ? build_parts : probe_parts;
    SpillParts& right = kBuildLeft ? probe_parts : build_parts;
    for (std::uint32_t part = 0; part < kSpillFanout; ++part) {
      if (context_.Cancelled()) return CancelledStatus(context_);
      if (left.part_records(part) > 0 && right.part_records(part) > 0) {
        RETURN_IF_ERROR(Join([&] { return left.Open(part); }, [&] { return right.Open(part); },
                             left.part_bytes(part) <= right.part_bytes(part), level + 1));
      }
      left.Drop(part);
      right.Drop(part);
    }
    return {};
  }
  template <class V>
  Status ScatterAll(ExtentStream& stream, std::uint32_t level, PartitionBuffers* out) {
    return ForEachExtent(stream, [&](const Extent& extent) {
      ByteReader reader(AsView(extent.bytes));
      return Scatter<V>(extent, reader, extent.records, level, out);
    });
  }

  template <bool kBuildLeft>
  Status Probe(ExtentStream& stream) {
    return ForEachExtent(stream, [&](const Extent& extent) -> Status {
      if (context_.Cancelled()) return CancelledStatus(context_);
      ByteReader reader(AsView(extent.bytes));
      std::uint64_t left = extent.records;
      std::string_view keys[join_internal::kProbes], values[join_internal::kProbes];
      std::uint64_t hashes[join_internal::kProbes];
      while (left > 0) {
        std::size_t n = 0;
        for (; n < join_internal::kProbes && left > 0; ++n, --left) {
          if (!join_internal::SkipRecord<K, ProbeValue<kBuildLeft>>(reader, &keys[n], &values[n])) return DamagedExtent(extent);
          hashes[n] = KeyHash64(keys[n]);
          table_->table().PrefetchSlot(hashes[n]);
        }
        for (std::size_t i = 0; i < n; ++i) (void)table_->table().Locate(hashes[i]);
        for (std::size_t i = 0; i < n; ++i) {
          GroupTable::Entry* entry = table_->table().Find(hashes[i], keys[i].data(), static_cast<std::uint32_t>(keys[i].size()));
          if (entry != nullptr) RETURN_IF_ERROR((EmitMatches<kBuildLeft>(keys[i], values[i], entry->payload)));
        }
      }
      if (!reader.empty()) return DamagedExtent(extent);
      return Flush();  // the batch has views into this extent
    });
  }

  template <bool kBuildLeft>
  Status EmitMatches(std::string_view key, std::string_view probe_value, const ValueChains::Chain& chain) {
    std::uint32_t chunk = chain.first;
    std::uint64_t n;
    for (std::string_view values = table_->chains().Next(&chunk, &n); n > 0; values = table_->chains().Next(&chunk, &n)) {
      ByteReader build(values);
      for (; n > 0; --n) {
        Record& record = batch_[batch_count_];
        ByteReader key_reader(key), probe(probe_value);
        Codec<K>::Read(key_reader, &record.first);
        Codec<A>::Read(kBuildLeft ? build : probe, &record.second.first);
        Codec<B>::Read(kBuildLeft ? probe : build, &record.second.second);
        if (++batch_count_ >= batch_max_) RETURN_IF_ERROR(Flush());
      }
    }
    return {};
  }
  Status Flush() {
    std::size_t n = std::exchange(batch_count_, 0);
    return n > 0 ? sink_(std::span<const Record>(batch_.data(), n)) : Status();
  }

  TaskContext& context_;
  Sink& sink_;
  const std::uint64_t memory_bytes_max_;
  const std::size_t batch_max_;
  std::unique_ptr<GroupTable> table_;
  std::vector<Record> batch_;
  std::size_t batch_count_ = 0;
};

// Joins partition `partition` of two shuffled inputs. Sink: Status(std::span<const std::pair<View<K>, std::pair<View<A>, View<B>>>>).
template <class K, class A, class B, class Sink>
Status MergeJoin(TaskContext& context, const TaskInput& left, const TaskInput& right, std::uint32_t partition, Sink&& sink) {
  auto bytes_of = [](const TaskInput& input) {
    std::uint64_t bytes = 0;
    for (const SegmentRef& segment : input.segments) bytes += segment.bytes;
    return bytes;
  };
  JoinMerger<K, A, B, std::remove_reference_t<Sink>> merger(context, sink);
  return merger.Join([&] { return std::make_unique<ShuffleStream>(context, left, partition); },
                     [&] { return std::make_unique<ShuffleStream>(context, right, partition); }, bytes_of(left) <= bytes_of(right), 0);
}

}  // namespace ropewalk::dag
