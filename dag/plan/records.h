// Moving a record between its faces (dag/codec.h): what a user's lambda takes, what flows, and what must be copied because it outlives
// the bytes that it views.
//
// Inside a fused pipe an item may also be *mixed*: a pair whose first is owned and whose second is a reference to what came in (KeyBy makes
// such pairs, so that nothing is copied that nobody keeps). All functions here take mixed items.
//
// Thread rule: values.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dag/codec.h"
#include "dag/plan/stream.h"

namespace ropewalk::dag {

namespace records_internal {
template <class T>
inline constexpr bool kIsPair = codec_internal::kIs<T, std::pair>;
template <class T>
inline constexpr bool kIsTuple = codec_internal::kIs<T, std::tuple>;
template <class T>
inline constexpr bool kIsOptional = codec_internal::kIs<T, std::optional>;
}  // namespace records_internal

// *to = from, member by member where the types differ; reuses the room that *to has.
template <class T, class X>
void AssignRecord(T* to, const X& from) {
  if constexpr (std::is_same_v<T, X>) {
    *to = from;
  } else if constexpr (std::is_same_v<T, std::string>) {
    to->assign(std::string_view(from));
  } else if constexpr (records_internal::kIsPair<T>) {
    AssignRecord(&to->first, from.first);
    AssignRecord(&to->second, from.second);
  } else if constexpr (records_internal::kIsTuple<T>) {
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (AssignRecord(&std::get<i>(*to), std::get<i>(from)), ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (records_internal::kIsOptional<T>) {
    if (!from) return to->reset();
    if (!*to) to->emplace();
    AssignRecord(&**to, *from);
  } else {
    *to = T(from);
  }
}

// `item` as the `const T&` that a user's lambda takes: itself when it is one, else copied into a scratch object.
template <class T>
struct Scratch {  // T cannot be made empty: then items are T already
  const T& As(const T& item) { return item; }
};
template <class T>
  requires std::is_default_constructible_v<T>
struct Scratch<T> {
  T value{};
  template <class X>
  const T& As(const X& item) {
    AssignRecord(&value, item);
    return value;
  }
  const T& As(const T& item) { return item; }
};

// Bytes of the strings of one batch; Clear() keeps the room.
class StringArena {
 public:
  std::string_view Copy(std::string_view bytes) {
    if (bytes.size() > left_) Grow(bytes.size());
    char* at = at_;
    codec_internal::CopyShort(at, bytes.data(), bytes.size());
    at_ += bytes.size();
    left_ -= bytes.size();
    used_ += bytes.size();
    return {at, bytes.size()};
  }
  void Clear() {
    if (chunks_.size() > 1) chunks_.erase(chunks_.begin() + 1, chunks_.end());
    at_ = chunks_.empty() ? nullptr : chunks_[0].bytes.get();
    left_ = chunks_.empty() ? 0 : chunks_[0].size;
    used_ = 0;
  }
  std::size_t used() const { return used_; }

 private:
  struct Chunk {
    std::unique_ptr<char[]> bytes;
    std::size_t size;
  };
  void Grow(std::size_t need) {
    std::size_t size = std::max(need, 2 * kStreamBatchBytes);
    chunks_.push_back({std::unique_ptr<char[]>(new char[size]), size});
    at_ = chunks_.back().bytes.get();
    left_ = size;
  }
  std::vector<Chunk> chunks_;
  char* at_ = nullptr;
  std::size_t left_ = 0, used_ = 0;
};

// The flow type of `item`, its strings copied into `arena`. T is owned.
template <class T, class X>
View<T> StashRecord(StringArena& arena, X&& item) {
  if constexpr (std::is_same_v<T, std::string>) {
    return arena.Copy(std::string_view(item));
  } else if constexpr (records_internal::kIsPair<T>) {
    return View<T>(StashRecord<typename T::first_type>(arena, std::get<0>(std::forward<X>(item))),
                   StashRecord<typename T::second_type>(arena, std::get<1>(std::forward<X>(item))));
  } else if constexpr (records_internal::kIsTuple<T>) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return View<T>(StashRecord<std::tuple_element_t<i, T>>(arena, std::get<i>(std::forward<X>(item)))...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (records_internal::kIsOptional<T>) {
    if (!item) return std::nullopt;
    return StashRecord<typename T::value_type>(arena, *std::forward<X>(item));
  } else if constexpr (std::is_same_v<std::remove_cvref_t<X>, View<T>>) {
    return std::forward<X>(item);
  } else {
    View<T> value{};
    AssignRecord(&value, item);
    return value;
  }
}

// Collects single items into batches of the flow type: the end of a pipe that hands on to a stream whose type it does not know.
template <class T>
class Batcher {
 public:
  explicit Batcher(BatchSink<View<T>> sink) : sink_(sink) {}

  template <class X>
  void operator()(X&& item) {
    if (batch_ == nullptr) batch_ = std::make_unique<View<T>[]>(kRecords);
    batch_[size_++] = StashRecord<Owned<T>>(arena_, std::forward<X>(item));
    if (size_ >= kRecords || arena_.used() >= kStreamBatchBytes) (void)Flush();  // status() keeps it; looked at once a batch of the input
  }
  Status Flush() {
    if (size_ > 0 && status_.ok()) status_ = sink_(std::span<const View<T>>(batch_.get(), size_));
    size_ = 0;
    arena_.Clear();
    return status_;
  }
  const Status& status() const { return status_; }

 private:
  // Large records travel in smaller batches, so that a batch stays in the cache.
  static constexpr std::size_t kRecords = std::max<std::size_t>(1, std::min(kStreamBatchRecords, 4 * kStreamBatchBytes / sizeof(View<T>)));

  BatchSink<View<T>> sink_;
  std::unique_ptr<View<T>[]> batch_;  // not a vector: that of bool has no span
  std::size_t size_ = 0;
  StringArena arena_;
  Status status_;
};

}  // namespace ropewalk::dag
