// Groups and joins as streams: GroupByKey, ReduceGroups, Join. The work is done by dag/operators.
//
// Thread rule: as Stream.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "dag/operators/group.h"
#include "dag/operators/join.h"
#include "dag/pipe.h"
#include "dag/plan/records.h"
#include "dag/plan/stream.h"

namespace ropewalk {
using dag::Values;  // what ReduceGroups and the reducer of a MapReduce read: `for (const auto& value : values)`, once
}

namespace ropewalk::dag {

namespace pipe_internal {

// Type of the third parameter of a callable without templates; void when it cannot be seen.
template <class Fn>
struct ThirdParameter {
  using type = void;
};
template <class R, class A, class B, class C>
struct ThirdParameter<R (*)(A, B, C)> {
  using type = std::remove_cvref_t<C>;
};
template <class O, class R, class A, class B, class C>
struct ThirdParameter<R (O::*)(A, B, C)> : ThirdParameter<R (*)(A, B, C)> {};
template <class O, class R, class A, class B, class C>
struct ThirdParameter<R (O::*)(A, B, C) const> : ThirdParameter<R (*)(A, B, C)> {};
template <class Fn>
  requires requires { &Fn::operator(); }
struct ThirdParameter<Fn> : ThirdParameter<decltype(&Fn::operator())> {};

// What a group function makes: fn(key, values) -> U, or fn(key, values, Emit<U>).
template <class Fn, class K, class V>
struct GroupResult {
  using Third = typename ThirdParameter<Fn>::type;
  static constexpr bool kReturns = std::is_invocable_v<Fn&, const K&, Values<V>&>;
  static constexpr bool kEmits = !kReturns && kIsEmit<Third>;
  static constexpr auto Compute() {
    if constexpr (kReturns) {
      return std::type_identity<std::remove_cvref_t<std::invoke_result_t<Fn&, const K&, Values<V>&>>>();
    } else if constexpr (kEmits) {
      return std::type_identity<typename Third::value_type>();
    } else {
      return std::type_identity<void>();
    }
  }
  using type = typename decltype(Compute())::type;
};

}  // namespace pipe_internal

// Each key with a vector of its values. A group must fit into memory; ReduceGroups has no such limit.
template <class K, class V>
class GroupStream final : public Stream<View<std::pair<K, std::vector<V>>>> {
 public:
  using Record = std::pair<K, std::vector<V>>;
  using F = View<Record>;
  explicit GroupStream(StageId stage) : stage_(stage) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<F> sink) const override {
    ASSIGN_OR_RETURN(const TaskInput* input, FindInput(context, stage_, partition));
    LeaveFiles(context, "the groups");
    std::uint64_t index = 0;
    auto hand_on = [&](std::span<const F> batch) -> Status { return HandOn<F>(context, batch, &index, sink); };
    Batcher<Record> batcher(hand_on);
    std::size_t values_kept = 0;
    std::uint64_t groups = 0;
    RETURN_IF_ERROR((MergeGroups<K, V>(context, *input, partition, [&](const View<K>& key, Values<V>& values) -> Status {
      if (context.cursor != nullptr) context.cursor->offset.store(groups, std::memory_order_relaxed);
      ++groups;
      std::vector<V> group;
      for (const View<V>& value : values) {
        V owned{};
        Codec<V>::Assign(&owned, value);
        group.push_back(std::move(owned));
      }
      RETURN_IF_ERROR(values.status());
      values_kept += group.size();
      batcher(std::pair<const View<K>&, std::vector<V>&&>(key, std::move(group)));
      if (values_kept < kValuesMax && !context.precise_cursor) return batcher.status();
      values_kept = 0;  // large groups are not gathered by the thousand
      return batcher.Flush();
    })));
    return batcher.Flush();
  }

 private:
  static constexpr std::size_t kValuesMax = 16 * kStreamBatchRecords;
  StageId stage_;
};

// Each group through a function that reads its values once, as a stream.
template <class K, class V, class U, class Fn>
class GroupFunctionStream final : public Stream<View<U>> {
 public:
  GroupFunctionStream(StageId stage, Fn fn) : stage_(stage), fn_(std::move(fn)) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<View<U>> sink) const override {
    ASSIGN_OR_RETURN(const TaskInput* input, FindInput(context, stage_, partition));
    LeaveFiles(context, "the groups");
    Fn fn = fn_;
    Scratch<K> scratch;
    std::uint64_t groups = 0;
    auto hand_on = [&](std::span<const View<U>> batch) -> Status {
      RETURN_IF_ERROR(BeforeBatch(context));
      return sink(batch);
    };
    Batcher<U> batcher(hand_on);
    RETURN_IF_ERROR((MergeGroups<K, V>(context, *input, partition, [&](const View<K>& view, Values<V>& values) -> Status {
      if (context.cursor != nullptr) context.cursor->offset.store(groups, std::memory_order_relaxed);
      ++groups;
      const K& key = scratch.As(view);
      if constexpr (pipe_internal::GroupResult<Fn, K, V>::kReturns) {
        batcher(fn(key, values));
      } else {
        fn(key, values, Emit<U>::To(&batcher));
      }
      RETURN_IF_ERROR(values.status());
      return context.precise_cursor ? batcher.Flush() : batcher.status();
    })));
    return batcher.Flush();
  }

 private:
  StageId stage_;
  Fn fn_;
};

template <class K, class A, class B>
class JoinStream final : public Stream<View<std::pair<K, std::pair<A, B>>>> {
 public:
  using F = View<std::pair<K, std::pair<A, B>>>;
  JoinStream(StageId left, StageId right) : left_(left), right_(right) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<F> sink) const override {
    ASSIGN_OR_RETURN(const TaskInput* left, FindInput(context, left_, partition));
    ASSIGN_OR_RETURN(const TaskInput* right, FindInput(context, right_, partition));
    LeaveFiles(context, "the joined pairs");
    std::uint64_t index = 0;
    return MergeJoin<K, A, B>(context, *left, *right, partition,
                              [&](std::span<const F> batch) -> Status { return HandOn<F>(context, batch, &index, sink); });
  }

 private:
  StageId left_, right_;
};

}  // namespace ropewalk::dag
