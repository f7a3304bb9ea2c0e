// The running side of a dataset: records of one partition, pushed in batches.
//
// A batch has 1,024 records or more where there are that many, less where code is slow; its views are valid during the call only. A virtual
// call is paid once a batch; what a user chains (Map, Filter, FlatMap) is fused behind it at compile time (dag/pipe.h).
//
// Thread rule: a Stream is const and shared by all tasks; Run() keeps what it needs on its own stack.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/status.h"
#include "dag/operators/place.h"
#include "dag/task.h"

namespace ropewalk::dag {

inline constexpr std::size_t kStreamBatchRecords = 1024;
inline constexpr std::size_t kStreamBatchBytes = 256u << 10;  // a batch of long strings is handed on earlier

// A reference to a callable that outlives the call it is passed to.
template <class F>
class BatchSink {
 public:
  template <class Fn>
    requires(!std::is_same_v<std::remove_cvref_t<Fn>, BatchSink> && std::is_invocable_r_v<Status, Fn&, std::span<const F>>)
  BatchSink(Fn&& fn)  // NOLINT: implicit by design
      : object_(const_cast<void*>(static_cast<const void*>(&fn))), call_([](void* object, std::span<const F> batch) -> Status {
          return (*static_cast<std::remove_reference_t<Fn>*>(object))(batch);
        }) {}
  // An error ends the stream, which returns it; StopEarly() likewise.
  Status operator()(std::span<const F> batch) const { return call_(object_, batch); }

 private:
  void* object_;
  Status (*call_)(void*, std::span<const F>);
};

template <class F>
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Status Run(TaskContext& context, std::uint32_t partition, BatchSink<F> sink) const = 0;
};
template <class F>
using StreamPtr = std::shared_ptr<const Stream<F>>;

// "I have all I need": travels like an error and is turned into success where the stage ends.
Status StopEarly();
bool IsStopEarly(const Status& status);
inline Status ForgiveStop(Status status) { return IsStopEarly(status) ? Status() : status; }

// Counts what a task has read. Each record of an input counts once, where it is read and not where its operator hands something on: what a
// stage reads is then what the stages before it wrote. ShuffleStream and the merge of a sort count by themselves.
inline void CountRead(TaskContext& context, std::uint64_t records, std::uint64_t bytes) {
  if (context.progress == nullptr) return;
  context.progress->records_in.fetch_add(records, std::memory_order_relaxed);
  context.progress->bytes_in.fetch_add(bytes, std::memory_order_relaxed);
}
// What every source does before it hands on a batch: looks whether the task was cancelled.
inline Status BeforeBatch(const TaskContext& context) {
  if (context.Cancelled()) return Status(Code::kCancelled, "TASK01", "the task was cancelled");
  return {};
}

// Hands a batch of records that come from no file on to `sink`; `*index` counts them for the cursor. A retry goes record by record.
template <class F>
Status HandOn(const TaskContext& context, std::span<const F> batch, std::uint64_t* index, const BatchSink<F>& sink) {
  RETURN_IF_ERROR(BeforeBatch(context));
  std::size_t step = context.precise_cursor ? 1 : batch.size();
  for (std::size_t at = 0; at < batch.size(); at += step) {
    if (context.cursor != nullptr) context.cursor->offset.store(*index, std::memory_order_relaxed);
    *index += step;
    RETURN_IF_ERROR(sink(batch.subspan(at, step)));
  }
  return {};
}
// Tells the cursor that no file is being read, and what its offset counts from now on (as StandAt() takes it).
inline void LeaveFiles(TaskContext& context, std::string_view what) {
  if (context.cursor == nullptr) return;
  context.cursor->split.store(context.id.task, std::memory_order_relaxed);
  StandAt(context.cursor, what);
}

// The input of this task that reads `stage`, whose `partition` the task is streaming; kInternal when the plan has none.
Result<const TaskInput*> FindInput(const TaskContext& context, StageId stage, std::uint32_t partition);

// Seals `segment` and reports it as the task's result.
Status SealInto(TaskContext& context, SegmentWriter& segment, TaskResult* result);

}  // namespace ropewalk::dag
