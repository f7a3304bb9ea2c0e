// Pipes: what a user chains on a dataset without a shuffle, fused at compile time.
//
// A pipe is a value: the user's callables in order. Bind(next) gives one function object that takes a source's item and calls `next` with
// each resulting item; everything between is inlined. Bind copies the callables, so each attempt of a task runs its own.
//
//   lines.FlatMap(Words).Filter(IsLong)   =   FilterPipe<FlatMapPipe<IdentityPipe<string_view>, ...>, ...>
//
// Thread rule: values; Bind() may be called from many threads.
#pragma once

#include <concepts>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dag/plan/records.h"

namespace ropewalk {

// What a FlatMap lambda of two parameters emits through: `[](std::string_view line, Emit<std::string_view> emit) { emit(word); }`.
// Copies of it are cheap; it must not outlive the call.
template <class U>
class Emit {
 public:
  using value_type = U;
  template <class Next>
  static Emit To(Next* next) {
    return Emit(next, [](void* object, const U& item) { (*static_cast<Next*>(object))(item); });
  }
  void operator()(const U& item) const { call_(object_, item); }
  // emit(key, value) for emit({key, value}).
  template <class A, class... B>
    requires(sizeof...(B) > 0 && std::is_constructible_v<U, A, B...>)
  void operator()(A&& a, B&&... b) const {
    call_(object_, U(std::forward<A>(a), std::forward<B>(b)...));
  }

 private:
  Emit(void* object, void (*call)(void*, const U&)) : object_(object), call_(call) {}
  void* object_;
  void (*call_)(void*, const U&);
};

}  // namespace ropewalk

namespace ropewalk::dag {

namespace pipe_internal {

// Type of the second parameter of a callable without templates; void when it cannot be seen.
template <class Fn>
struct SecondParameter {
  using type = void;
};
template <class R, class A, class B>
struct SecondParameter<R (*)(A, B)> {
  using type = std::remove_cvref_t<B>;
};
template <class C, class R, class A, class B>
struct SecondParameter<R (C::*)(A, B)> : SecondParameter<R (*)(A, B)> {};
template <class C, class R, class A, class B>
struct SecondParameter<R (C::*)(A, B) const> : SecondParameter<R (*)(A, B)> {};
template <class Fn>
  requires requires { &Fn::operator(); }
struct SecondParameter<Fn> : SecondParameter<decltype(&Fn::operator())> {};

template <class T>
inline constexpr bool kIsEmit = false;
template <class U>
inline constexpr bool kIsEmit<Emit<U>> = true;

template <class T>
concept Pairlike = codec_internal::kIs<T, std::pair>;

// The element type of what a FlatMap callable returns.
template <class Range>
struct ElementOf {
  using type = std::remove_cvref_t<decltype(*std::begin(std::declval<Range&>()))>;
};
template <class T>
struct ElementOf<std::optional<T>> {
  using type = T;
};
template <class R>
concept Iterates = codec_internal::kIs<std::remove_cvref_t<R>, std::optional> || requires(R& range) {
  std::begin(range);
  std::end(range);
};

}  // namespace pipe_internal

template <class F>
struct IdentityPipe {
  using Flow = F;
  template <class Next>
  auto Bind(Next next) const {
    return next;
  }
};

// One more callable behind `prev`. What it does with an item is the business of its Kind: Kind::In is what the callable takes, Kind::Step
// calls it and hands on to `next`.
template <class Prev, class Fn, class Kind>
struct ChainedPipe {
  using Flow = typename Prev::Flow;
  Prev prev;
  Fn fn;

  template <class Next>
  struct Bound {
    Fn fn;
    Next next;
    Scratch<typename Kind::In> scratch;
    template <class X>
    void operator()(X&& item) {
      Kind::Step(fn, scratch, item, next);
    }
  };
  template <class Next>
  auto Bind(Next next) const {
    return prev.Bind(Bound<Next>{fn, std::move(next), {}});
  }
};

namespace pipe_internal {

template <class T>
struct MapKind {
  using In = T;
  template <class Fn, class X, class Next>
  static void Step(Fn& fn, Scratch<T>& scratch, const X& item, Next& next) {
    next(std::invoke(fn, scratch.As(item)));
  }
};

template <class T>
struct FilterKind {
  using In = T;
  template <class Fn, class X, class Next>
  static void Step(Fn& fn, Scratch<T>& scratch, const X& item, Next& next) {
    const T& record = scratch.As(item);
    if (std::invoke(fn, record)) next(record);
  }
};

// The callable returns a range; each element becomes an item. Lazy ranges (Words) never materialise.
template <class T>
struct FlatMapKind {
  using In = T;
  template <class Fn, class X, class Next>
  static void Step(Fn& fn, Scratch<T>& scratch, const X& item, Next& next) {
    auto&& range = std::invoke(fn, scratch.As(item));
    if constexpr (codec_internal::kIs<std::remove_cvref_t<decltype(range)>, std::optional>) {
      if (range) next(*range);
    } else {
      for (auto&& element : range) next(element);
    }
  }
};

// The callable emits.
template <class T, class U>
struct EmitKind {
  using In = T;
  template <class Fn, class X, class Next>
  static void Step(Fn& fn, Scratch<T>& scratch, const X& item, Next& next) {
    fn(scratch.As(item), Emit<U>::To(&next));
  }
};

// (key, item): the item stays a reference, since most readers copy what they keep themselves.
template <class T>
struct KeyByKind {
  using In = T;
  template <class Fn, class X, class Next>
  static void Step(Fn& fn, Scratch<T>& scratch, const X& item, Next& next) {
    using Key = std::remove_cvref_t<std::invoke_result_t<Fn&, const T&>>;
    const T& record = scratch.As(item);
    next(std::pair<Key, const T&>(std::invoke(fn, record), record));
  }
};

// T is a pair; the callable sees its second.
template <class T>
struct MapValuesKind {
  using In = typename T::second_type;
  template <class Fn, class X, class Next>
  static void Step(Fn& fn, Scratch<In>& scratch, const X& item, Next& next) {
    using W = std::remove_cvref_t<std::invoke_result_t<Fn&, const In&>>;
    const auto& [key, value] = item;
    next(std::pair<const std::remove_cvref_t<decltype(key)>&, W>(key, std::invoke(fn, scratch.As(value))));
  }
};

}  // namespace pipe_internal

template <class Prev, class T, class Fn>
using MapPipe = ChainedPipe<Prev, Fn, pipe_internal::MapKind<T>>;
template <class Prev, class T, class Fn>
using FilterPipe = ChainedPipe<Prev, Fn, pipe_internal::FilterKind<T>>;
template <class Prev, class T, class Fn>
using FlatMapPipe = ChainedPipe<Prev, Fn, pipe_internal::FlatMapKind<T>>;
template <class Prev, class T, class U, class Fn>
using EmitPipe = ChainedPipe<Prev, Fn, pipe_internal::EmitKind<T, U>>;
template <class Prev, class T, class Fn>
using KeyByPipe = ChainedPipe<Prev, Fn, pipe_internal::KeyByKind<T>>;
template <class Prev, class T, class Fn>
using MapValuesPipe = ChainedPipe<Prev, Fn, pipe_internal::MapValuesKind<T>>;

namespace pipe_internal {
template <class Sink>
struct SinkRef {
  Sink* sink;
  template <class X>
  void operator()(X&& item) const {
    (*sink)(std::forward<X>(item));
  }
};
}  // namespace pipe_internal

// Runs one partition of `source` through `pipe` into `sink`, a callable of items; `after_batch` says after each input batch whether to go
// on. What it returns ends the run.
template <class F, class Pipe, class Sink, class AfterBatch>
Status RunPipe(const Stream<F>& source, const Pipe& pipe, TaskContext& context, std::uint32_t partition, Sink& sink,
               AfterBatch&& after_batch) {
  auto chain = pipe.Bind(pipe_internal::SinkRef<Sink>{&sink});
  return source.Run(context, partition, [&](std::span<const F> batch) -> Status {
    for (const F& item : batch) chain(item);
    return after_batch();
  });
}

// A pipe behind a stream of its own: where the type of the pipe is forgotten.
template <class T, class Pipe>
class PipeStream final : public Stream<View<T>> {
 public:
  PipeStream(StreamPtr<typename Pipe::Flow> source, Pipe pipe) : source_(std::move(source)), pipe_(std::move(pipe)) {}
  Status Run(TaskContext& context, std::uint32_t partition, BatchSink<View<T>> sink) const override {
    Batcher<T> batcher(sink);
    // A retry names the record: then nothing waits in the batch while the cursor moves on.
    RETURN_IF_ERROR(
        RunPipe(*source_, pipe_, context, partition, batcher, [&] { return context.precise_cursor ? batcher.Flush() : batcher.status(); }));
    return batcher.Flush();
  }

 private:
  StreamPtr<typename Pipe::Flow> source_;
  Pipe pipe_;
};

}  // namespace ropewalk::dag
