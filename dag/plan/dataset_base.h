// The part of a dataset that does not depend on types: its place in the plan, and how stages and actions are added to it. Kept out of the
// templates, because each operator of each user's program would compile it again.
//
// Thread rule: main's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dag/plan/context.h"
#include "dag/plan/node.h"
#include "dag/plan/planner.h"
#include "dag/written.h"
#include "storage/output_folder.h"

namespace ropewalk::dag {

// The callables that a pipe holds, for stage names and fingerprints.
struct PipeNotes {
  std::string operators;  // " > FlatMap > Filter"
  std::uint64_t fingerprint = 0;
};

class DatasetBase {
 public:
  // For Session and the operators.
  const PlanNodePtr& node() const { return node_; }
  const PipeNotes& notes() const { return notes_; }

 protected:
  DatasetBase(PlanNodePtr node, PipeNotes notes);
  ~DatasetBase();
  DatasetBase(const DatasetBase&);
  DatasetBase(DatasetBase&&) noexcept;
  DatasetBase& operator=(const DatasetBase&);
  DatasetBase& operator=(DatasetBase&&) noexcept;

  const std::shared_ptr<PlanContext>& context() const { return node_->context(); }
  // `wanted`, or the job's default when it is 0.
  std::uint32_t Partitions(std::uint32_t wanted) const;
  // The notes with one more callable.
  PipeNotes Noted(const char* op, Site site, std::uint64_t hash) const;
  // A border: its stages are added by AddStage.
  PlanNodePtr NewNode(const char* op, Site site, std::uint32_t partitions, std::uint64_t fingerprint) const;
  // A narrow node for what the notes name, so that the type of the pipe can be forgotten.
  PlanNodePtr NewPipeNode(Site site) const;
  static PlanNodePtr NewUnionNode(const PlanNodePtr& a, const PlanNodePtr& b, Site site);
  // A stage of `node` that streams this dataset and makes segments of `parts` parts.
  void AddStage(PlanNode& node, std::uint32_t side, InputPattern read_as, std::uint32_t parts, StageProgram program) const;
  // Starts an action of one result stage.
  RunningAction StartResult(const char* op, Site site, std::uint64_t fingerprint, StageProgram program) const;
  // Runs an action that writes an output folder; `program` makes the tasks that write its parts.
  Written WriteParts(const char* op, const std::string& folder, bool overwrite, Site site,
                     const std::function<StageProgram(const storage::OutputSpec&)>& program) const;

 private:
  StageSpec SpecOf(std::uint32_t side) const;

  PlanNodePtr node_;
  PipeNotes notes_;
};

}  // namespace ropewalk::dag
