// A gang (gang.h) whose ranks read what the job has computed: an action whose inputs are datasets.
//
//   dataset ─ Map... ─▶ segments, one a partition, where they were made ══▶ every rank may read all of them, in the order of partitions
//
//   GangData data(job.shared_context(), "Sum", 4, Site::Here(), 0);
//   StageId numbers = data.Add(job.FromVector<std::int64_t>({1, 2, 3}));
//   std::string sum = data.Run([numbers](GangContext& gang, TaskContext& task) -> Result<std::string> {
//     std::int64_t sum = 0;
//     RETURN_IF_ERROR(ForEachRecord<std::int64_t>(task, numbers, [&](std::int64_t x) { return sum += x, Status(); }));
//     return std::to_string(sum);
//   });
//
// What a rank reads can be lost like any block: then the lineage makes it again, and the gang is formed anew.
//
// Thread rule: GangData main's thread; programs as StageProgram.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "dag/dataset.h"
#include "dag/gang.h"
#include "dag/operators/extents.h"
#include "dag/plan/node.h"
#include "dag/plan/shuffles.h"
#include "dag/plan/stream.h"
#include "dag/run_gang.h"

namespace ropewalk::dag {

// Run once by every rank of each forming, as a GangProgram.
using GangDataProgram = std::function<Result<std::string>(GangContext&, TaskContext&)>;

class GangData {
 public:
  // `op` names the action; `fingerprint` is of what the program captures, which must be the same in every replica of main. 1 to
  // kGangRanksMax ranks, or the plan is refused.
  GangData(std::shared_ptr<PlanContext> context, std::string op, std::uint32_t ranks, Site site, std::uint64_t fingerprint);

  // One more dataset that the ranks read, of the four at most that one node can have.
  template <class T, class Pipe>
  StageId Add(const Dataset<T, Pipe>& data) {
    using Record = Owned<T>;
    static_assert(Storable<Record>, "a gang reads records of types that a dataset can store");
    StageSpec spec;
    spec.from = data.node();
    spec.operators = data.notes().operators;
    spec.fingerprint = HashCombine(data.notes().fingerprint, TypeHash<Record>());
    spec.program = MapSideProgram<AddRecord>(
        data.stream(), data.pipe(), 1, [](const TaskContext&, SegmentWriter* out) { return std::make_unique<CacheWriter<Record>>(out); });
    return AddInput(std::move(spec));
  }

  // Rank 0's bytes. A failure ends the program, as that of every action does. Once.
  std::string Run(GangDataProgram program, GangOptions options = {});

 private:
  StageId AddInput(StageSpec spec);

  std::string op_;
  PlanNodePtr node_;  // its stages are the inputs, its partitions the ranks
  std::uint64_t fingerprint_;
};

// Calls `body(record)` for all records of an input, in the order of its partitions; views are valid during the call only. `body` may take
// the number of the partition, too.
template <class T, class Body>
Status ForEachRecord(TaskContext& context, StageId stage, Body body) {
  ASSIGN_OR_RETURN(const TaskInput* input, FindInput(context, stage, context.id.task));
  ShuffleStream extents(context, *input, 0);
  return ForEachExtent(extents, [&](const Extent& extent) -> Status {
    ByteReader reader(AsView(extent.bytes));
    for (std::uint64_t left = extent.records; left > 0; --left) {
      View<T> record{};
      Codec<T>::Read(reader, &record);
      if (!reader.ok()) return DamagedExtent(extent);
      if constexpr (std::is_invocable_v<Body&, const View<T>&, std::size_t>) {
        RETURN_IF_ERROR(body(record, extents.segment()));
      } else {
        RETURN_IF_ERROR(body(record));
      }
    }
    return reader.empty() ? Status() : DamagedExtent(extent);
  });
}

}  // namespace ropewalk::dag
