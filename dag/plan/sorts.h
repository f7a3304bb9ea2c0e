// Sorting as a plan node uses it: how records are given to the writer, and the stream of one range of the sorted whole.
//
// A record travels as (key, payload). Sort() needs no payload: the key is the record. SortBy of text sends the record only where it is not
// the very bytes of its key, so that sorting lines by themselves costs what Sort() does.
//
// Thread rule: as Stream.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dag/operators/sort.h"
#include "dag/pipe.h"
#include "dag/plan/stream.h"

namespace ropewalk::dag {

template <class K, class T>
inline constexpr bool kKeyMayBeRecord = std::is_same_v<K, std::string> && std::is_same_v<T, std::string>;

// What travels beside the key; K and T are owned.
template <class K, class T>
using SortPayload = std::conditional_t<kKeyMayBeRecord<K, T>, std::optional<std::string>, T>;

struct AddSortKey {  // the item is the key
  template <class Writer, class X>
  static void Add(Writer& writer, X&& item) {
    writer.Add(item);
  }
};
struct AddSortPair {  // (key, record)
  template <class Writer, class X>
  static void Add(Writer& writer, X&& item) {
    writer.Add(item.first, item.second);
  }
};
struct AddTextPair {  // (key, record), both text
  template <class Writer, class X>
  static void Add(Writer& writer, X&& item) {
    std::string_view key = item.first, record = item.second;
    bool same = key.size() == record.size() && key.data() == record.data();
    writer.Add(key, same ? std::optional<std::string_view>() : std::optional<std::string_view>(record));
  }
};

// Range `partition` of `partitions` of the sorted records, in order.
template <class K, class T, class Order, bool kByKey>
class SortStream final : public Stream<View<T>> {
 public:
  SortStream(StageId stage, std::uint32_t partitions) : stage_(stage), partitions_(partitions) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<View<T>> sink) const override {
    ASSIGN_OR_RETURN(const TaskInput* input, FindInput(context, stage_, partition));
    LeaveFiles(context, "the sorted records");
    std::uint64_t index = 0;
    if constexpr (!kByKey) {
      return MergeSorted<K, Nothing, Order>(
          context, *input, partition, partitions_, Order(),
          [&](std::span<const View<T>> batch) -> Status { return HandOn<View<T>>(context, batch, &index, sink); });
    } else {
      using P = SortPayload<K, T>;
      std::unique_ptr<View<T>[]> records;
      std::size_t room = 0;
      return MergeSorted<K, P, Order>(context, *input, partition, partitions_, Order(),
                                      [&](std::span<const std::pair<View<K>, View<P>>> batch) -> Status {
                                        if (room < batch.size()) {
                                          records = std::make_unique<View<T>[]>(batch.size());
                                          room = batch.size();
                                        }
                                        for (std::size_t i = 0; i < batch.size(); ++i) {
                                          if constexpr (kKeyMayBeRecord<K, T>) {
                                            records[i] = batch[i].second ? *batch[i].second : batch[i].first;
                                          } else {
                                            records[i] = batch[i].second;
                                          }
                                        }
                                        return HandOn<View<T>>(context, {records.get(), batch.size()}, &index, sink);
                                      });
    }
  }

 private:
  StageId stage_;
  std::uint32_t partitions_;
};

}  // namespace ropewalk::dag
