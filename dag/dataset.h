// Dataset<T>: a distributed collection of T, and what can be done with it.
//
//   auto job = ropewalk::Init(argc, argv);
//   job.ReadLines(job.args()[1]).FlatMap(ropewalk::Words).CountByKey().WriteText("counts");
//
// Calls only record a plan; an *action* (Collect, Count, WriteText...) runs it and blocks until its result is there. A failed action ends
// the program with the job's error.
//
// Lambdas are captured by value and copied for each attempt of a task; docs/api.md says which pointers in them are refused, and when. A
// lambda gets `const T&`, or std::string_view where T is that (lines, words): a view is valid during the call only; whatever is kept by a
// shuffle, cache or action is copied and owned (Owned<T>: string).
//
// What shuffles, caches, unions and Collect see must be of a type that Ropewalk can encode (dag/codec.h); between chained lambdas any
// copyable type will do. So operators that store say `auto`: their types are looked at when they are called, not when a dataset is named.
//
// Dataset<T, Pipe> carries the callables that were chained since the last shuffle in its type, so that they are fused; it converts to
// Dataset<T> wherever a name for the type is needed: `Dataset<std::pair<Page, double>> ranks = links.MapValues(...)`.
//
// Thread rule: main's thread.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dag/addresses.h"
#include "dag/codec.h"
#include "dag/format.h"
#include "dag/pipe.h"
#include "dag/plan/accumulators.h"
#include "dag/plan/actions.h"
#include "dag/plan/dataset_base.h"
#include "dag/plan/fingerprint.h"
#include "dag/plan/groups.h"
#include "dag/plan/node.h"
#include "dag/plan/shuffles.h"
#include "dag/plan/sorts.h"
#include "dag/plan/sources.h"

namespace ropewalk::dag {

struct PartitionOptions {
  std::uint32_t partitions = 0;  // of the result; 0: Settings::partitions, else two for each slot
};
struct SortByOptions {
  bool descending = false;
  std::uint32_t partitions = 0;  // as in PartitionOptions
};
struct WriteOptions {
  bool overwrite = false;  // replace a folder that exists, at once, when everything is written
};

template <class T>
class CollectHandle;

template <class T, class Pipe = IdentityPipe<View<T>>>
class Dataset : public DatasetBase {
 public:
  using value_type = T;

  // For Session and the operators below.
  Dataset(PlanNodePtr node, StreamPtr<typename Pipe::Flow> stream, Pipe pipe = {}, PipeNotes notes = {})
      : DatasetBase(std::move(node), std::move(notes)), stream_(std::move(stream)), pipe_(std::move(pipe)) {}

  // Forgets the pipe (and whether strings are views): Dataset<T> is then a type that can be named and assigned.
  template <class U, class OtherPipe>
    requires(!std::is_same_v<Dataset<U, OtherPipe>, Dataset> && std::is_same_v<View<U>, typename Pipe::Flow> &&
             std::is_same_v<Pipe, IdentityPipe<View<T>>>)
  Dataset(const Dataset<U, OtherPipe>& other, Site site = Site::Here())  // NOLINT: implicit by design
      : Dataset(other.Erase(site)) {}

  // ---- one record at a time ------------------------------------------------------------------------------------------------------

  // fn(record) -> U.
  template <class Fn>
  auto Map(Fn fn, Site site = Site::Here()) const {
    CheckCallable<Fn>();
    static_assert(std::is_invocable_v<Fn&, const T&>,
                  "Map: the function must take one record of the dataset (const T&, or std::string_view for text)");
    using R = std::invoke_result_t<Fn&, const T&>;
    static_assert(!std::is_void_v<R>, "Map: the function returns nothing; return the new record");
    using U = std::remove_cvref_t<R>;
    CheckRecord<U>();
    return Piped<U>(MapPipe<Pipe, T, Fn>{pipe_, fn}, "Map", site, CallableHash(fn));
  }

  // fn(record) -> any range: each element is a record. Or fn(record, Emit<U> emit), which emits as many as it likes.
  template <class Fn>
  auto FlatMap(Fn fn, Site site = Site::Here()) const {
    CheckCallable<Fn>();
    using Second = typename pipe_internal::SecondParameter<Fn>::type;
    if constexpr (std::is_invocable_v<Fn&, const T&>) {
      using Range = std::invoke_result_t<Fn&, const T&>;
      static_assert(pipe_internal::Iterates<Range>,
                    "FlatMap: the function must return a range of records (a vector, Words(line), an optional...)");
      using U = typename pipe_internal::ElementOf<std::remove_cvref_t<Range>>::type;
      CheckRecord<U>();
      return Piped<U>(FlatMapPipe<Pipe, T, Fn>{pipe_, fn}, "FlatMap", site, CallableHash(fn));
    } else if constexpr (pipe_internal::kIsEmit<Second>) {
      using U = typename Second::value_type;
      static_assert(std::is_invocable_v<Fn&, const T&, Emit<U>>, "FlatMap: the first parameter must take a record of the dataset");
      CheckRecord<U>();
      return Piped<U>(EmitPipe<Pipe, T, U, Fn>{pipe_, fn}, "FlatMap", site, CallableHash(fn));
    } else {
      static_assert(pipe_internal::kIsEmit<Second>,
                    "FlatMap: the function must be fn(record) that returns a range, or fn(record, Emit<U> emit) with U written out");
    }
  }

  // Keeps the records for which fn(record) is true.
  template <class Fn>
  auto Filter(Fn fn, Site site = Site::Here()) const {
    CheckCallable<Fn>();
    static_assert(std::is_invocable_r_v<bool, Fn&, const T&>, "Filter: the function must take one record and return bool");
    return Piped<T>(FilterPipe<Pipe, T, Fn>{pipe_, fn}, "Filter", site, CallableHash(fn));
  }

  // (fn(record), record).
  template <class Fn>
  auto KeyBy(Fn fn, Site site = Site::Here()) const {
    CheckCallable<Fn>();
    static_assert(std::is_invocable_v<Fn&, const T&>, "KeyBy: the function must take one record and return its key");
    using K = std::remove_cvref_t<std::invoke_result_t<Fn&, const T&>>;
    CheckRecord<K>();
    return Piped<std::pair<K, T>>(KeyByPipe<Pipe, T, Fn>{pipe_, fn}, "KeyBy", site, CallableHash(fn));
  }

  // (key, value) -> (key, fn(value)).
  template <class Fn>
  auto MapValues(Fn fn, Site site = Site::Here()) const {
    CheckPair();
    CheckCallable<Fn>();
    using V = typename T::second_type;
    static_assert(std::is_invocable_v<Fn&, const V&>, "MapValues: the function must take the second of the pair");
    using W = std::remove_cvref_t<std::invoke_result_t<Fn&, const V&>>;
    CheckRecord<W>();
    return Piped<std::pair<typename T::first_type, W>>(MapValuesPipe<Pipe, T, Fn>{pipe_, fn}, "MapValues", site, CallableHash(fn));
  }

  // ---- by key (shuffles) ---------------------------------------------------------------------------------------------------------

  // (key, value)... -> (key, combined value). combine(V, V) -> V, or void combine(V& accumulated, const V& value); associative. Combining
  // starts before the shuffle. Values are combined in the order of the input, so that sums of floats are the same each time.
  template <class Combine>
  auto ReduceByKey(Combine combine, PartitionOptions options = {}, Site site = Site::Here()) const {
    CheckPair();
    CheckCallable<Combine>();
    using K = Owned<typename T::first_type>;
    using V = Owned<typename T::second_type>;
    CheckStored<K>();
    CheckStored<V>();
    static_assert(kCombines<Combine, V>,
                  "ReduceByKey: the function must be V(V, V), or void(V& accumulated, const V& value), for the values' type V");
    return Aggregate<K, V, AddPair>("ReduceByKey", std::move(combine), options, site);
  }

  // How often each key occurs: of pairs the first is the key; other records are their own key. -> (key, uint64_t).
  auto CountByKey(PartitionOptions options = {}, Site site = Site::Here()) const {
    if constexpr (pipe_internal::Pairlike<T>) {
      CheckStored<Owned<typename T::first_type>>();
      return Aggregate<Owned<typename T::first_type>, std::uint64_t, AddCountOfKey>("CountByKey", std::plus<std::uint64_t>(), options,
                                                                                    site);
    } else {
      CheckStored<Owned<T>>();
      return Aggregate<Owned<T>, std::uint64_t, AddCountOfRecord>("CountByKey", std::plus<std::uint64_t>(), options, site);
    }
  }

  // How often each record occurs, also where records are pairs. -> (record, uint64_t).
  auto CountByValue(PartitionOptions options = {}, Site site = Site::Here()) const {
    CheckStored<Owned<T>>();
    return Aggregate<Owned<T>, std::uint64_t, AddCountOfRecord>("CountByValue", std::plus<std::uint64_t>(), options, site);
  }

  // Each different record once.
  auto Distinct(PartitionOptions options = {}, Site site = Site::Here()) const {
    CheckStored<Owned<T>>();
    CheckKey<Owned<T>>();
    PlanNodePtr node = NewNode("Distinct", site, Partitions(options.partitions), TypeHash<Owned<T>>());
    AddMapSide<AddRecord, AggregateWriter<Owned<T>, Nothing, KeepFirst>>(
        *node, 0, node->partitions(), [](const TaskContext& context, SegmentWriter* out, std::uint32_t parts) {
          return std::make_unique<AggregateWriter<Owned<T>, Nothing, KeepFirst>>(ShuffleOptionsOf(context, parts), out);
        });
    return Dataset<Owned<T>>(node, std::make_shared<DistinctStream<Owned<T>>>(node->stage_id()));
  }

  // (key, value)... -> (key, vector of all its values), in the order of the input. A group must fit into memory: see ReduceGroups.
  auto GroupByKey(PartitionOptions options = {}, Site site = Site::Here()) const {
    CheckPair();
    using K = Owned<typename T::first_type>;
    using V = Owned<typename T::second_type>;
    PlanNodePtr node = ShuffleNode<K, V>("GroupByKey", options, site, 0);
    return Dataset<std::pair<K, std::vector<V>>>(node, std::make_shared<GroupStream<K, V>>(node->stage_id()));
  }

  // Each group through fn(const Key&, Values<Value>&) -> U, or fn(const Key&, Values<Value>&, Emit<U>), which reads the values once from
  // front to back, in the order of the input: a group may be larger than memory. Strings among the values are string_views.
  template <class Fn>
  auto ReduceGroups(Fn fn, PartitionOptions options = {}, Site site = Site::Here()) const {
    CheckPair();
    CheckCallable<Fn>();
    using K = Owned<typename T::first_type>;
    using V = Owned<typename T::second_type>;
    PlanNodePtr node = ShuffleNode<K, V>("ReduceGroups", options, site, CallableHash(fn));
    return GroupsOf<K, V>(node, std::move(fn));
  }

  // ReduceGroups with a combiner that runs before the shuffle, as in ReduceByKey: fn sees values that are combined in part.
  template <class Combine, class Fn>
  auto CombineGroups(Combine combine, Fn fn, PartitionOptions options = {}, Site site = Site::Here()) const {
    CheckPair();
    CheckCallable<Combine>();
    CheckCallable<Fn>();
    using K = Owned<typename T::first_type>;
    using V = Owned<typename T::second_type>;
    CheckStored<K>();
    CheckStored<V>();
    static_assert(kCombines<Combine, V>, "the combiner must be V(V, V), or void(V& accumulated, const V& value), for the values' type V");
    PlanNodePtr node = NewNode("CombineGroups", site, Partitions(options.partitions),
                               HashCombine(TypeHash<K, V>(), HashCombine(CallableHash(combine), CallableHash(fn))));
    AddAggregateSide<K, V, AddPair>(*node, std::move(combine));
    return GroupsOf<K, V>(node, std::move(fn));
  }

  // (key, a) with (key, b) -> (key, (a, b)) for each two whose keys are equal.
  template <class U, class OtherPipe>
  auto Join(const Dataset<U, OtherPipe>& other, PartitionOptions options = {}, Site site = Site::Here()) const {
    CheckPair();
    static_assert(pipe_internal::Pairlike<U>,
                  "Join: the other dataset must hold std::pair<Key, Value>: use KeyBy, or Map to a pair, first");
    using K = Owned<typename T::first_type>;
    using A = Owned<typename T::second_type>;
    using B = Owned<typename U::second_type>;
    static_assert(std::is_same_v<K, Owned<typename U::first_type>>, "Join: the keys of both datasets must have the same type");
    PlanNodePtr node = ShuffleNode<K, A>("Join", options, site, TypeHash<B>());
    other.template AddShuffleSide<K, B>(*node, 1);
    return Dataset<std::pair<K, std::pair<A, B>>>(node, std::make_shared<JoinStream<K, A, B>>(node->stage_id(0), node->stage_id(1)));
  }

  // ---- order -------------------------------------------------------------------------------------------------------------------------

  // All records in the order of key(record), over all partitions: part 0 holds the first, the last part the last; equal keys stay in the
  // order of the input and may be divided over partitions. Text is ordered by its bytes (LC_ALL=C), floats with NaN last, pairs and tuples
  // member by member, other types by their operator<. `SortBy(&Visit::seconds, {.descending = true})`.
  template <class KeyFn>
  auto SortBy(KeyFn key, SortByOptions options = {}, Site site = Site::Here()) const {
    CheckCallable<KeyFn>();
    CheckStored<Owned<T>>();
    static_assert(std::is_invocable_v<KeyFn&, const T&>, "SortBy: the function must take one record and return what to order by");
    using K = Owned<std::invoke_result_t<KeyFn&, const T&>>;
    CheckRecord<K>();
    CheckStored<K>();
    using Adder = std::conditional_t<kKeyMayBeRecord<K, Owned<T>>, AddTextPair, AddSortPair>;
    auto keyed = KeyBy(key, site);
    return options.descending
               ? keyed.template SortInto<K, Owned<T>, SortPayload<K, Owned<T>>, Descending<NaturalOrder<K>>, Adder, true>("SortBy", options,
                                                                                                                          site)
               : keyed.template SortInto<K, Owned<T>, SortPayload<K, Owned<T>>, NaturalOrder<K>, Adder, true>("SortBy", options, site);
  }
  // All records in their own order.
  auto Sort(SortByOptions options = {}, Site site = Site::Here()) const {
    CheckStored<Owned<T>>();
    using K = Owned<T>;
    return options.descending ? SortInto<K, K, Nothing, Descending<NaturalOrder<K>>, AddSortKey, false>("Sort", options, site)
                              : SortInto<K, K, Nothing, NaturalOrder<K>, AddSortKey, false>("Sort", options, site);
  }

  // ---- other datasets --------------------------------------------------------------------------------------------------------------

  // All records of both, duplicates too: the partitions of this one, then of the other.
  template <class U, class OtherPipe>
  auto Union(const Dataset<U, OtherPipe>& other, Site site = Site::Here()) const {
    static_assert(std::is_same_v<Owned<T>, Owned<U>>, "Union: both datasets must hold the same type");
    CheckStored<Owned<T>>();
    Dataset<Owned<T>> a = Erase(site), b = other.Erase(site);
    PlanNodePtr node = NewUnionNode(a.node(), b.node(), site);
    using Members = std::vector<typename UnionStream<View<T>>::Member>;
    return Dataset<Owned<T>>(node, std::make_shared<UnionStream<View<T>>>(Members{{a.stream(), 0}, {b.stream(), a.node()->partitions()}}));
  }

  // Keeps the records once they are computed, until no dataset needs them; later actions read them instead of computing them again.
  auto Cache(Site site = Site::Here()) const {
    CheckStored<Owned<T>>();
    PlanNodePtr node = NewNode("Cache", site, this->node()->partitions(), TypeHash<Owned<T>>());
    AddMapSide<AddRecord, CacheWriter<Owned<T>>>(
        *node, 0, 1, [](const TaskContext&, SegmentWriter* out, std::uint32_t) { return std::make_unique<CacheWriter<Owned<T>>>(out); },
        InputPattern::kOneToOne);
    return Dataset<Owned<T>>(node, std::make_shared<CacheStream<Owned<T>>>(node->stage_id()));
  }

  // ---- actions -----------------------------------------------------------------------------------------------------------------------

  std::uint64_t Count(Site site = Site::Here()) const {
    std::uint64_t sum = 0;
    for (std::uint64_t part : RunResult<std::uint64_t>("Count", site, 0, [](const TaskContext&) { return CountAccumulator(); }))
      sum += part;
    return sum;
  }

  // All records, in the order of partitions. Above Settings::collect_bytes_max the job fails and names WriteText.
  std::vector<Owned<T>> Collect(Site site = Site::Here()) const { return StartCollect("Collect", site).Get(); }

  // Starts the action and goes on; several run at once. `auto handle = ds.CollectAsync(); ... handle.Get()`.
  CollectHandle<Owned<T>> CollectAsync(Site site = Site::Here()) const { return StartCollect("CollectAsync", site); }

  // The first n records in the order of partitions (fewer where there are fewer). Tasks stop reading early.
  std::vector<Owned<T>> Take(std::size_t n, Site site = Site::Here()) const {
    CheckStored<Owned<T>>();
    auto parts = RunResult<std::vector<Owned<T>>>(
        "Take", site, n, [n](const TaskContext& context) { return CollectAccumulator<Owned<T>>(context, "Take", n); },
        RecordsDecoder<Owned<T>>(context()->settings()));
    std::vector<Owned<T>> all = Concatenate(std::move(parts));
    if (all.size() > n) all.resize(n);
    return all;
  }

  // The n largest records, largest first, in SortBy's order of records (NaN is larger than all numbers); equal ones in the order of the
  // input.
  std::vector<Owned<T>> Top(std::size_t n, Site site = Site::Here()) const {
    static_assert(std::totally_ordered<Owned<T>>, "Top(n): the records have no operator<; use Top(n, key)");
    return Top(n, [](const Owned<T>& record) { return record; }, site);
  }
  // The n records with the largest key(record), largest first.
  template <class KeyFn>
    requires std::is_invocable_v<KeyFn&, const Owned<T>&>
  std::vector<Owned<T>> Top(std::size_t n, KeyFn key, Site site = Site::Here()) const {
    CheckStored<Owned<T>>();
    CheckCallable<KeyFn>();
    auto make = [n, key](const TaskContext& context) { return TopAccumulator<Owned<T>, T, KeyFn>(context, n, key); };
    auto parts = RunResult<std::vector<Owned<T>>>("Top", site, HashCombine(n, CallableHash(key)), make,
                                                  RecordsDecoder<Owned<T>>(context()->settings()));
    return MergeTop(Concatenate(std::move(parts)), n, key);
  }

  // Integers sum to int64_t or uint64_t, floats to double (long double to itself); others but text by operator+, from T{}.
  auto Sum(Site site = Site::Here()) const {
    using S = SumOf<Owned<T>>;
    static_assert(!std::is_same_v<Owned<T>, std::string>,
                  "Sum: the records are text; turn them into numbers first (Map with std::from_chars), or join them with Reduce");
    static_assert(
        requires(const S& a, const Owned<T>& b) {
          { a + b } -> std::convertible_to<S>;
        }, "Sum: the records have no operator+");
    S sum{};
    for (const S& part : RunResult<S>("Sum", site, 0, [](const TaskContext&) { return SumAccumulator<S, T>(); })) sum = sum + part;
    return sum;
  }

  // All records combined, in their order; nothing when there are none. combine as in ReduceByKey.
  template <class Combine>
  std::optional<Owned<T>> Reduce(Combine combine, Site site = Site::Here()) const {
    CheckStored<Owned<T>>();
    CheckCallable<Combine>();
    static_assert(kCombines<Combine, Owned<T>>, "Reduce: the function must be T(T, T), or void(T& accumulated, const T& value)");
    using Part = std::optional<Owned<T>>;
    auto make = [combine](const TaskContext&) { return ReduceAccumulator<Owned<T>, T, Combine>(combine); };
    Part all;
    for (Part& part : RunResult<Part>("Reduce", site, CallableHash(combine), make)) {
      if (!part) continue;
      if (!all) {
        all = std::move(part);
      } else {
        CombineInto(combine, *all, std::as_const(*part));
      }
    }
    return all;
  }

  // Writes each record as a line (dag/format.h) to folder/part-00000, part-00001...; the folder appears whole or not at all. A folder that
  // exists is refused unless `overwrite`. Gives what was written, also where another job has overwritten it since.
  Written WriteText(const std::string& folder, WriteOptions options = {}, Site site = Site::Here()) const {
    return Write<TextSink>("WriteText", folder, options, site);
  }

  // Writes the bytes of each record with nothing between them: text as it is, other types as they lie in memory (so they are trivially
  // copyable and hold no padding). The reverse of ReadRecords where all records have one size. Otherwise as WriteText.
  Written WriteRecords(const std::string& folder, WriteOptions options = {}, Site site = Site::Here()) const {
    return Write<BytesSink<Owned<T>>>("WriteRecords", folder, options, site);
  }

  // What a loop over a dataset asks for: the records are not here.
  template <class Never = T>
  auto begin() const {
    static_assert(
        !std::is_same_v<Never, T>,
        "a dataset cannot be looped over: its records are not in this process; `for (const auto& x : data.Collect())`, or Take(n)");
    return static_cast<const Never*>(nullptr);
  }
  template <class Never = T>
  const Never* end() const {
    return nullptr;
  }

  // ---- for operators ---------------------------------------------------------------------------------------------------------------
  const StreamPtr<typename Pipe::Flow>& stream() const { return stream_; }
  const Pipe& pipe() const { return pipe_; }
  auto Erase(Site site) const {
    CheckStored<Owned<T>>();
    if constexpr (std::is_same_v<Pipe, IdentityPipe<View<T>>>) {
      return Dataset<Owned<T>>(node(), stream_);
    } else {
      PlanNodePtr node = NewPipeNode(site);
      return Dataset<Owned<T>>(node, std::make_shared<PipeStream<T, Pipe>>(stream_, pipe_));
    }
  }

 private:
  template <class U, class OtherPipe>
  friend class Dataset;

  template <class Fn>
  static constexpr void CheckCallable() {
    static_assert(
        std::is_copy_constructible_v<Fn>,
        "Ropewalk copies this function for each attempt of a task: capture values that can be copied (a shared_ptr, not a unique_ptr)");
    static_assert(!std::is_reference_v<Fn>, "pass the function by value");
    static_assert(
        !HoldsAddress<Fn>() || std::is_function_v<std::remove_pointer_t<Fn>>,
        "this function carries an address into tasks (a pointer, a reference, std::ref, std::string_view or std::span): in another "
        "process it means nothing, and each task copies the function but not what it points at; carry the value itself, a "
        "std::string, or job.Broadcast(value)");
  }
  template <class U>
  static constexpr void CheckRecord() {
    static_assert(!std::is_pointer_v<U>,
                  "a record must not be a pointer: it means nothing in another process; return a std::string or a value");
  }
  template <class U>
  static constexpr void CheckStored() {
    static_assert(
        Storable<U>,
        "this operation stores or sends records, and Ropewalk cannot encode their type: use arithmetic types, enums, std::string, "
        "pair, tuple, array, vector, optional, map, set, structs of such (those with a C array, a base class or bit-fields only when they "
        "are trivially copyable), or give the type RopewalkEncode and RopewalkDecode; pointers and views are refused: keep a std::string; "
        "unions and std::variant are refused, since nobody can see which member is in use: write RopewalkEncode and RopewalkDecode for a "
        "struct that holds it");
    static_assert(!Storable<U> || codec_internal::kHasDefaults<U>,
                  "a record that is stored or sent needs a default constructor: it is made empty, and then read into; give the class one "
                  "(Point() = default;)");
  }
  template <class K>
  static constexpr void CheckKey() {
    static_assert(
        !Storable<K> || kKey<K>,
        "this operation compares keys as bytes, and Ropewalk cannot look into the type of these: a C array, a base class, a union, "
        "bit-fields or private members may hold padding or -0.0, so that equal keys have different bytes; use std::array and public "
        "members, or give the type RopewalkEncode and RopewalkDecode");
  }
  static constexpr void CheckPair() {
    static_assert(pipe_internal::Pairlike<T>,
                  "this operation needs a dataset of std::pair<Key, Value>: use KeyBy, or Map to a pair, first");
  }
  template <class Combine, class V>
  static constexpr bool kCombines = std::is_invocable_r_v<V, Combine&, const V&, const V&> || std::is_invocable_v<Combine&, V&, const V&>;

  template <class U, class NewPipe>
  Dataset<U, NewPipe> Piped(NewPipe pipe, const char* op, Site site, std::uint64_t hash) const {
    return Dataset<U, NewPipe>(node(), stream_, std::move(pipe), Noted(op, site, HashCombine(TypeHash<U>(), hash)));
  }
  template <class Adder, class Writer, class Make>
  void AddMapSide(PlanNode& node, std::uint32_t side, std::uint32_t parts, Make make,
                  InputPattern read_as = InputPattern::kAllToAll) const {
    AddStage(node, side, read_as, parts,
             MapSideProgram<Adder>(stream_, pipe_, parts,
                                   [make, parts](const TaskContext& context, SegmentWriter* out) -> std::unique_ptr<Writer> {
                                     return make(context, out, parts);
                                   }));
  }

  // A map side that combines, and one that does not.
  template <class K, class V, class Adder, class Combine>
  void AddAggregateSide(PlanNode& node, Combine combine) const {
    CheckKey<K>();
    using Writer = AggregateWriter<K, V, Combine>;
    AddMapSide<Adder, Writer>(node, 0, node.partitions(), [combine](const TaskContext& context, SegmentWriter* out, std::uint32_t parts) {
      return std::make_unique<Writer>(ShuffleOptionsOf(context, parts), out, combine);
    });
  }
  template <class K, class V>
  void AddShuffleSide(PlanNode& node, std::uint32_t side) const {
    CheckStored<K>();
    CheckStored<V>();
    CheckKey<K>();
    using Writer = ShuffleWriter<K, V>;
    AddMapSide<AddPair, Writer>(node, side, node.partitions(), [](const TaskContext& context, SegmentWriter* out, std::uint32_t parts) {
      return std::make_unique<Writer>(ShuffleOptionsOf(context, parts), out);
    });
  }
  template <class K, class V>
  PlanNodePtr ShuffleNode(const char* op, PartitionOptions options, Site site, std::uint64_t fingerprint) const {
    PlanNodePtr node = NewNode(op, site, Partitions(options.partitions), HashCombine(TypeHash<K, V>(), fingerprint));
    AddShuffleSide<K, V>(*node, 0);
    return node;
  }
  template <class K, class V, class Fn>
  static auto GroupsOf(const PlanNodePtr& node, Fn fn) {
    using Groups = pipe_internal::GroupResult<Fn, K, V>;
    static_assert(
        Groups::kReturns || Groups::kEmits,
        "the group function must be fn(const Key&, Values<Value>&) -> U, or fn(const Key&, Values<Value>&, Emit<U>), types written out");
    using U = Owned<typename Groups::type>;
    CheckRecord<U>();
    CheckStored<U>();
    return Dataset<U>(node, std::make_shared<GroupFunctionStream<K, V, typename Groups::type, Fn>>(node->stage_id(), std::move(fn)));
  }

  template <class K, class R, class P, class Order, class Adder, bool kByKey>
  Dataset<R> SortInto(const char* op, const SortByOptions& options, Site site) const {
    using Writer = SortWriter<K, P, Order>;
    PlanNodePtr node = NewNode(op, site, Partitions(options.partitions), HashCombine(TypeHash<K, R>(), options.descending));
    AddMapSide<Adder, Writer>(*node, 0, kSortParts,
                              [tasks = this->node()->partitions()](const TaskContext& context, SegmentWriter* out, std::uint32_t) {
                                return std::make_unique<Writer>(SortOptionsFor(context, tasks), out);
                              });
    return {node, std::make_shared<SortStream<K, R, Order, kByKey>>(node->stage_id(), node->partitions())};
  }

  template <class K, class V, class Adder, class Combine>
  Dataset<std::pair<K, V>> Aggregate(const char* op, Combine combine, PartitionOptions options, Site site) const {
    PlanNodePtr node = NewNode(op, site, Partitions(options.partitions), HashCombine(TypeHash<K, V>(), CallableHash(combine)));
    AddAggregateSide<K, V, Adder>(*node, combine);
    return {node, std::make_shared<AggregateStream<K, V, Combine>>(node->stage_id(), combine)};
  }

  // Runs a result stage and decodes the value of each task.
  template <class R, class Make, class DecodeFn = Result<R> (*)(std::string_view)>
  std::vector<R> RunResult(const char* op, Site site, std::uint64_t fingerprint, Make make, DecodeFn decode = Decode<R>) const {
    RunningAction running = StartResult(op, site, HashCombine(fingerprint, TypeHash<R>()), std::move(make));
    std::vector<R> parts;
    for (const std::string& value : running.Wait()) {
      Result<R> part = decode(value);
      if (!part.ok()) context()->Fail(part.status());
      parts.push_back(*std::move(part));
    }
    return parts;
  }
  template <class Make>
  RunningAction StartResult(const char* op, Site site, std::uint64_t fingerprint, Make make) const {
    return DatasetBase::StartResult(op, site, fingerprint, ResultProgram(stream_, pipe_, std::move(make)));
  }
  template <class Sink>
  Written Write(const char* op, const std::string& folder, const WriteOptions& options, Site site) const {
    return WriteParts(op, folder, options.overwrite, site,
                      [&](const storage::OutputSpec& spec) { return PartProgram<Sink>(stream_, pipe_, spec); });
  }
  CollectHandle<Owned<T>> StartCollect(const char* op, Site site) const {
    CheckStored<Owned<T>>();
    std::string name = op;
    return CollectHandle<Owned<T>>(context(), name, StartResult(op, site, TypeHash<T>(), [name](const TaskContext& context) {
                                     return CollectAccumulator<Owned<T>>(context, name, SIZE_MAX);
                                   }));
  }

  StreamPtr<typename Pipe::Flow> stream_;
  Pipe pipe_;
};

// The result of CollectAsync. Get() blocks, once. One that is dropped waits in its destructor: every replica sees the same order.
template <class T>
class CollectHandle {
 public:
  CollectHandle(std::shared_ptr<PlanContext> context, std::string op, RunningAction running)
      : context_(std::move(context)), op_(std::move(op)), running_(std::move(running)) {}
  std::vector<T> Get() {
    std::vector<std::string> values = running_.Wait();
    std::uint64_t bytes = 0;
    for (const std::string& value : values) bytes += value.size();
    if (bytes > context_->settings().collect_bytes_max) context_->Fail(CollectTooLarge(context_->settings(), op_));
    std::vector<T> all;
    for (std::string& value : values) {
      if (Status status = DecodeRecordsInto(value, context_->settings().collect_bytes_max, &all); !status.ok()) context_->Fail(status);
      std::string().swap(value);
    }
    return all;
  }

 private:
  std::shared_ptr<PlanContext> context_;
  std::string op_;
  RunningAction running_;
};

}  // namespace ropewalk::dag

namespace ropewalk {
using dag::Dataset;
using dag::PartitionOptions;
using dag::SortByOptions;
using dag::WriteOptions;
using dag::Written;
}  // namespace ropewalk
