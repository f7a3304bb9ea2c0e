// What runs at the end of a pipe in the tasks of an action: counts, sums, collects, writes files.
//
// Thread rule: one task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dag/codec.h"
#include "dag/format.h"
#include "dag/operators/hash_aggregate.h"
#include "dag/operators/order.h"
#include "dag/operators/place.h"
#include "dag/plan/actions.h"
#include "dag/plan/records.h"

namespace ropewalk::dag {

class CountAccumulator {
 public:
  template <class X>
  void operator()(X&&) {
    ++count_;
  }
  Status status() const { return {}; }
  Result<std::string> Finish() { return Encode<std::uint64_t>(count_); }

 private:
  std::uint64_t count_ = 0;
};

template <class T>
using SumOf =
    std::conditional_t<std::is_floating_point_v<T>, std::conditional_t<std::is_same_v<T, long double>, long double, double>,
                       std::conditional_t<std::is_integral_v<T>, std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>, T>>;

template <class S, class T>
class SumAccumulator {
 public:
  template <class X>
  void operator()(X&& item) {
    sum_ = sum_ + scratch_.As(item);
  }
  Status status() const { return {}; }
  Result<std::string> Finish() { return Encode<S>(sum_); }

 private:
  S sum_{};
  Scratch<T> scratch_;
};

template <class O, class T, class Combine>
class ReduceAccumulator {
 public:
  explicit ReduceAccumulator(Combine combine) : combine_(std::move(combine)) {}
  template <class X>
  void operator()(X&& item) {
    if (!all_) {
      AssignRecord(&all_.emplace(), item);
    } else {
      AssignRecord(&next_, item);
      CombineInto(combine_, *all_, std::as_const(next_));
    }
  }
  Status status() const { return {}; }
  Result<std::string> Finish() { return Encode<std::optional<O>>(all_); }

 private:
  Combine combine_;
  std::optional<O> all_;
  O next_{};
};

// Records one after another behind their number, encoded; T is owned. The number says how many there are of those that take no bytes.
template <class T>
class EncodedRecords {
 public:
  template <class X>
  void Add(const X& record) {
    EncodeTo<T>(record, &bytes_);
    ++count_;
  }
  // Of the records, or their number, which is what those without bytes cost.
  std::uint64_t size() const { return std::max<std::uint64_t>(bytes_.size() - sizeof(count_), count_); }
  void Drop() { std::string().swap(bytes_); }
  std::string Take() {
    std::memcpy(bytes_.data(), &count_, sizeof(count_));
    return std::move(bytes_);
  }

 private:
  std::uint64_t count_ = 0;
  std::string bytes_ = std::string(sizeof(count_), '\0');
};

template <class T>
class CollectAccumulator {
 public:
  CollectAccumulator(const TaskContext& context, std::string op, std::size_t records_max)
      : settings_(context.settings), op_(std::move(op)), left_(records_max) {}
  template <class X>
  void operator()(X&& item) {
    if (left_ == 0 || too_large_) return;
    --left_;
    records_.Add(item);
    if (records_.size() > settings_->collect_bytes_max) {
      too_large_ = true;
      records_.Drop();
    }
  }
  Status status() const {
    if (too_large_) return CollectTooLarge(*settings_, op_);
    return left_ == 0 ? StopEarly() : Status();
  }
  Result<std::string> Finish() {
    if (too_large_) return CollectTooLarge(*settings_, op_);
    return records_.Take();
  }

 private:
  const Settings* settings_;
  std::string op_;
  std::size_t left_;
  bool too_large_ = false;
  EncodedRecords<T> records_;
};

// As EncodedRecords made it. Records that take no bytes cost what they are many: `collect_bytes_max` bounds their number, as it did there.
template <class T>
Status DecodeRecordsInto(std::string_view bytes, std::uint64_t collect_bytes_max, std::vector<T>* out) {
  ByteReader in(bytes);
  std::uint64_t left = in.Fixed<std::uint64_t>();
  if (left > (Codec<T>::kBytesMin > 0 ? in.remaining() : collect_bytes_max)) return DamagedResult("Collect");
  for (; left > 0; --left) {
    T record{};  // not in place: vector<bool> has no address to read to
    Codec<T>::ReadOwned(in, &record);
    if (!in.ok()) return DamagedResult("Collect");
    out->push_back(std::move(record));
  }
  return in.ok() && in.empty() ? Status() : DamagedResult("Collect");
}
// What decodes the result of one task.
template <class T>
auto RecordsDecoder(const Settings& settings) {
  return [collect_bytes_max = settings.collect_bytes_max](std::string_view bytes) -> Result<std::vector<T>> {
    std::vector<T> records;
    RETURN_IF_ERROR(DecodeRecordsInto(bytes, collect_bytes_max, &records));
    return records;
  };
}
template <class T>
std::vector<T> Concatenate(std::vector<std::vector<T>> parts) {
  std::vector<T> all;
  for (std::vector<T>& part : parts) std::move(part.begin(), part.end(), std::back_inserter(all));
  return all;
}

// The n largest by key, largest first, equal ones in the order in which they came. Keys are ordered as SortBy orders them.
template <class T, class KeyFn>
std::vector<T> MergeTop(std::vector<T> records, std::size_t n, KeyFn key) {
  using Key = std::remove_cvref_t<std::invoke_result_t<KeyFn&, const T&>>;
  std::stable_sort(records.begin(), records.end(),
                   [&](const T& a, const T& b) { return order_internal::Compare<Key>(std::invoke(key, b), std::invoke(key, a)) < 0; });
  if (records.size() > n) records.resize(n);
  return records;
}

// O owned, T what the pipe's items are. Keeps at most 2n + 1,024 records and cuts back to n: amortised O(log n) a record, and an item that
// cannot make it costs one comparison and no copy.
template <class O, class T, class KeyFn>
class TopAccumulator {
 public:
  using Given = std::remove_cvref_t<std::invoke_result_t<KeyFn&, const O&>>;
  using Key = Owned<Given>;  // it outlives the record
  static_assert(std::is_invocable_v<std::less<>, const Given&, const Given&>, "Top: the key needs an operator<");

  TopAccumulator(const TaskContext& context, std::size_t n, KeyFn key)
      : settings_(context.settings), cursor_(context.cursor), precise_cursor_(context.precise_cursor), n_(n), key_(std::move(key)) {}
  template <class X>
  void operator()(X&& item) {
    if (n_ == 0) return;
    const O& record = scratch_.As(item);
    Key key = KeyOf(record);
    // A key that its operator< cannot bear is found here, and not when many are sorted.
    if (precise_cursor_) [[unlikely]]
      (void)order_internal::Compare<Key>(key, key);
    if (floor_ && order_internal::Compare<Key>(*floor_, key) >= 0) return;  // as small as the n-th so far, and later
    kept_.push_back({std::move(key), record});
    if (kept_.size() >= 2 * n_ + 1024) Cut();
  }
  Status status() const { return n_ == 0 ? StopEarly() : Status(); }
  Result<std::string> Finish() {
    Cut();
    EncodedRecords<O> records;
    for (const Kept& kept : kept_) {
      records.Add(kept.record);
      if (records.size() > settings_->collect_bytes_max) return CollectTooLarge(*settings_, "Top");
    }
    return records.Take();
  }

 private:
  struct Kept {
    Key key;
    O record;
  };
  Key KeyOf(const O& record) {
    if constexpr (std::is_same_v<Given, Key>) {
      return std::invoke(key_, record);
    } else {
      Key key{};
      AssignRecord(&key, std::invoke(key_, record));
      return key;
    }
  }
  void Cut() {
    if (n_ == 0) return;
    const SavedPlace place(cursor_);
    StandAt(cursor_, "the largest records so far");
    std::stable_sort(kept_.begin(), kept_.end(),
                     [](const Kept& a, const Kept& b) { return order_internal::Compare<Key>(b.key, a.key) < 0; });
    if (kept_.size() >= n_) {
      kept_.erase(kept_.begin() + n_, kept_.end());
      floor_ = kept_.back().key;
    }
    place.GoBack();
  }

  const Settings* settings_;
  RecordCursor* cursor_;
  const bool precise_cursor_;
  std::size_t n_;
  KeyFn key_;
  Scratch<O> scratch_;
  std::vector<Kept> kept_;
  std::optional<Key> floor_;
};

// Lines of a part file, made in the file's own buffer where their length is known beforehand.
class TextSink {
 public:
  TextSink(storage::PartWriter* out, TaskContext* context) : out_(out), context_(context) {}
  template <class X>
  void operator()(const X& item) {
    ++records_;
    if constexpr (std::is_convertible_v<const X&, std::string_view>) {
      std::string_view line = item;
      if (line.size() >= static_cast<std::size_t>(end_ - at_)) [[unlikely]] {
        if (!NewRoom(line)) return;
      }
      codec_internal::CopyLine(at_, line.data(), line.size());
      at_ += line.size();
      *at_++ = '\n';
    } else {
      FormatTo(&buffer_, item);
      buffer_.push_back('\n');
      if (buffer_.size() >= kBufferBytes) (void)Flush();  // status() keeps it
    }
  }
  Status Flush();
  const Status& status() const { return status_; }
  std::uint64_t records() const { return records_; }

 protected:
  static constexpr std::size_t kBufferBytes = 256u << 10;
  std::string buffer_;  // what is not made in the file's buffer
  std::uint64_t records_ = 0;

 private:
  // Room for `line` and its end. False: there is none, and the line was written another way, or an error is kept.
  bool NewRoom(std::string_view line);

  storage::PartWriter* out_;
  TaskContext* context_;
  char *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;  // the file's buffer
  std::uint64_t reported_ = 0;
  Status status_;
};

// Records of a part file with nothing between them, as dag/format.h writes their bytes. T is owned.
template <class T>
class BytesSink : public TextSink {
 public:
  using TextSink::TextSink;
  template <class X>
  void operator()(const X& item) {
    AppendBytes<T>(&buffer_, item);
    ++records_;
    if (buffer_.size() >= kBufferBytes) (void)Flush();  // status() keeps it
  }
};

// A task that writes a part through a Sink.
template <class Sink, class Pipe>
StageProgram PartProgram(StreamPtr<typename Pipe::Flow> source, Pipe pipe, storage::OutputSpec spec) {
  return [source = std::move(source), pipe = std::move(pipe), spec = std::move(spec)](TaskContext& context, TaskResult* result) -> Status {
    ASSIGN_OR_RETURN(std::unique_ptr<storage::PartWriter> part, storage::PartWriter::Open(spec, context.id.task, context.id.attempt));
    Sink sink(part.get(), &context);
    RETURN_IF_ERROR(ForgiveStop(RunPipe(*source, pipe, context, context.id.task, sink, [&] { return sink.status(); })));
    RETURN_IF_ERROR(sink.Flush());
    ASSIGN_OR_RETURN(result->value, part->Finish(sink.records()));
    result->content_hash = part->content_hash();
    return {};
  };
}

}  // namespace ropewalk::dag
