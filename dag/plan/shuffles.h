// The two halves of each shuffle as plan nodes use them: the program of a map task, and the stream that a reader of the shuffle runs.
// The work itself is done by dag/operators.
//
// Thread rule: as Stream; programs may be run from many threads at once.
#pragma once

#include <memory>
#include <utility>

#include "dag/operators/extents.h"
#include "dag/operators/hash_aggregate.h"
#include "dag/operators/shuffle_writer.h"
#include "dag/pipe.h"
#include "dag/plan/stream.h"

namespace ropewalk::dag {

inline ShuffleOptions ShuffleOptionsOf(const TaskContext& context, std::uint32_t partitions) {
  return {.partitions = partitions,
          .memory_bytes_max = context.settings->operator_bytes,
          .cursor = context.cursor,
          .precise_cursor = context.precise_cursor};
}

// How an item becomes what a writer adds.
struct AddPair {  // (key, value)
  template <class Writer, class X>
  static void Add(Writer& writer, X&& item) {
    writer.Add(item.first, item.second);
  }
};
struct AddCountOfKey {  // (key, anything)
  template <class Writer, class X>
  static void Add(Writer& writer, X&& item) {
    writer.Add(item.first, std::uint64_t{1});
  }
};
struct AddCountOfRecord {
  template <class Writer, class X>
  static void Add(Writer& writer, X&& item) {
    writer.Add(item, std::uint64_t{1});
  }
};
struct AddRecord {  // Distinct
  template <class Writer, class X>
  static void Add(Writer& writer, X&& item) {
    writer.Add(item, Nothing{});
  }
};

// A map task: streams its partition through `pipe` into a writer that `make(context, segment)` makes, one segment of `parts` parts.
template <class Adder, class Pipe, class Make>
StageProgram MapSideProgram(StreamPtr<typename Pipe::Flow> source, Pipe pipe, std::uint32_t parts, Make make) {
  return [source = std::move(source), pipe = std::move(pipe), parts, make = std::move(make)](TaskContext& context,
                                                                                             TaskResult* result) -> Status {
    ASSIGN_OR_RETURN(std::unique_ptr<SegmentWriter> segment, context.segments->NewSegment(context.id, parts));
    auto writer = make(context, segment.get());
    auto add = [&]<class X>(X&& item) { Adder::Add(*writer, std::forward<X>(item)); };
    RETURN_IF_ERROR(ForgiveStop(RunPipe(*source, pipe, context, context.id.task, add, [&] { return writer->status(); })));
    RETURN_IF_ERROR(writer->Finish());
    return SealInto(context, *segment, result);
  };
}

template <class K, class V, class Combine>
class AggregateStream final : public Stream<View<std::pair<K, V>>> {
 public:
  using F = View<std::pair<K, V>>;
  AggregateStream(StageId stage, Combine combine) : stage_(stage), combine_(std::move(combine)) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<F> sink) const override {
    ASSIGN_OR_RETURN(const TaskInput* input, FindInput(context, stage_, partition));
    LeaveFiles(context, "the shuffled records");
    std::uint64_t index = 0;
    return MergeAggregates<K, V>(context, *input, partition, combine_,
                                 [&](std::span<const F> batch) -> Status { return HandOn<F>(context, batch, &index, sink); });
  }

 private:
  StageId stage_;
  Combine combine_;
};

template <class T>
class DistinctStream final : public Stream<View<T>> {
 public:
  explicit DistinctStream(StageId stage) : stage_(stage) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<View<T>> sink) const override {
    ASSIGN_OR_RETURN(const TaskInput* input, FindInput(context, stage_, partition));
    LeaveFiles(context, "the shuffled records");
    std::uint64_t index = 0;
    std::unique_ptr<View<T>[]> records;
    std::size_t room = 0;
    return MergeAggregates<T, Nothing>(context, *input, partition, KeepFirst(),
                                       [&](std::span<const std::pair<View<T>, Nothing>> batch) -> Status {
                                         if (room < batch.size()) {
                                           records = std::make_unique<View<T>[]>(batch.size());
                                           room = batch.size();
                                         }
                                         for (std::size_t i = 0; i < batch.size(); ++i) records[i] = batch[i].first;
                                         return HandOn<View<T>>(context, {records.get(), batch.size()}, &index, sink);
                                       });
  }

 private:
  StageId stage_;
};

// ---- cache: one part, encoded records --------------------------------------------------------------------------------------------

template <class T>
class CacheWriter {
 public:
  explicit CacheWriter(SegmentWriter* out) : buffers_(out, 1, kExtentBytes, kExtentBytes) {}
  template <class X>
  void Add(const X& record, Nothing) {
    buffers_.Put(0, Codec<T>::Size(record), [&](char* at) { Codec<T>::Write(record, at); });
  }
  const Status& status() const { return buffers_.status(); }
  Status Finish() { return buffers_.Flush(); }

 private:
  static constexpr std::size_t kExtentBytes = 256u << 10;
  PartitionBuffers buffers_;
};

template <class T>
class CacheStream final : public Stream<View<T>> {
 public:
  explicit CacheStream(StageId stage) : stage_(stage) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<View<T>> sink) const override {
    ASSIGN_OR_RETURN(const TaskInput* input, FindInput(context, stage_, partition));
    LeaveFiles(context, "the cached records");
    std::uint64_t index = 0;
    const std::uint64_t batch_max = context.precise_cursor ? 1 : kStreamBatchRecords;
    auto batch = std::make_unique<View<T>[]>(kStreamBatchRecords);
    for (const SegmentRef& segment : input->segments) {
      ASSIGN_OR_RETURN(std::unique_ptr<ExtentStream> extents, context.blocks->Open(segment, 0, 1));
      RETURN_IF_ERROR(ForEachExtent(*extents, [&](const Extent& extent) -> Status {
        CountRead(context, extent.records, extent.bytes.size());
        ByteReader reader(AsView(extent.bytes));
        for (std::uint64_t left = extent.records; left > 0;) {
          std::size_t n = std::min(left, batch_max);
          if (context.cursor != nullptr) context.cursor->offset.store(index, std::memory_order_relaxed);
          for (std::size_t i = 0; i < n; ++i) Codec<T>::Read(reader, &batch[i]);
          if (!reader.ok()) return DamagedExtent(extent);
          RETURN_IF_ERROR(HandOn<View<T>>(context, {batch.get(), n}, &index, sink));
          left -= n;
        }
        return reader.empty() ? Status() : DamagedExtent(extent);
      }));
    }
    return {};
  }

 private:
  StageId stage_;
};

}  // namespace ropewalk::dag
