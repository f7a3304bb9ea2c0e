// MapReduce for those who think in it, as a thin name for what Dataset does. The result is a dataset: chained jobs touch no storage
// between.
//
//   mapper    fn(record, Emit<std::pair<Key, Value>> emit), or fn(record) that returns a range of pairs
//   combiner  Value(Value, Value), or void(Value&, const Value&); NoCombiner where there is none
//   reducer   fn(const Key&, Values<Value>&) -> Out, or fn(const Key&, Values<Value>&, Emit<Out> emit); values come once, as a stream
//
//   MapReduce(job.ReadLines("in"), mapper, combiner, reducer, "out");
//   auto second = MapReduce(MapReduce(job.ReadLines("in"), m1, c1, r1), m2, NoCombiner(), r2);
//
// Thread rule: main's thread.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "dag/dataset.h"

namespace ropewalk {

struct NoCombiner {};

// -> Dataset<Out>.
template <class T, class Pipe, class Mapper, class Combiner, class Reducer>
auto MapReduce(const dag::Dataset<T, Pipe>& in, Mapper mapper, Combiner combiner, Reducer reducer, PartitionOptions options = {},
               dag::Site site = dag::Site::Here()) {
  auto mapped = in.FlatMap(std::move(mapper), site);
  static_assert(dag::pipe_internal::Pairlike<typename decltype(mapped)::value_type>,
                "MapReduce: the mapper must emit std::pair<Key, Value>");
  if constexpr (std::is_same_v<Combiner, NoCombiner>) {
    return mapped.ReduceGroups(std::move(reducer), options, site);
  } else {
    return mapped.CombineGroups(std::move(combiner), std::move(reducer), options, site);
  }
}

// The same, written to a folder as WriteText does.
template <class T, class Pipe, class Mapper, class Combiner, class Reducer>
dag::Written MapReduce(const dag::Dataset<T, Pipe>& in, Mapper mapper, Combiner combiner, Reducer reducer, const std::string& out,
                       WriteOptions write = {}, dag::Site site = dag::Site::Here()) {
  return MapReduce(in, std::move(mapper), std::move(combiner), std::move(reducer), PartitionOptions(), site).WriteText(out, write, site);
}

}  // namespace ropewalk
