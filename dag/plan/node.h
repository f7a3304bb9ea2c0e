// Plan nodes: what building a dataset records. Nothing runs here; the planner (planner.h) cuts the nodes that an action needs into stages.
//
//   PlanNode   the logical side: id, names, fingerprint, parents. Owned by dataset handles and by child nodes, on main's thread only, so
//              that the moment at which a node dies, and with it what the next action retires, is the same in every replica.
//   Stream<F>  the running side (stream.h): const, shared with stage programs, which may outlive the node in any thread. It never
//              owns a PlanNode.
//
// A node is *narrow* (source, pipe, union: it streams inside the stage of whoever reads it) or a *border* (shuffle, cache: it defines
// one stage or more whose segments others read).
//
// Thread rule: main's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "dag/stage_graph.h"
#include "dag/task.h"

namespace ropewalk::dag {

class PlanContext;
class PlanNode;
using PlanNodePtr = std::shared_ptr<PlanNode>;

// Where the user wrote the call. Made by default arguments: `Site site = Site::Here()` is evaluated at the caller.
struct Site {
  const char* file = "";
  int line = 0;
  static constexpr Site Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
  std::string ToString() const;  // "word_count.cc:9" (no folders: they differ between machines that build)
};

// A stage that a border node, or an action, defines.
struct StageSpec {
  std::uint32_t side = 0;  // 0..3; StageId = node id * 4 + side
  StageOutput output = StageOutput::kSegment;
  PlanNodePtr from;                                // whose stream each task consumes, one task a partition; null: no stream
  std::uint32_t tasks = 0;                         // used when `from` is null
  std::uint32_t parts = 0;                         // kSegment: of each segment
  std::string operators;                           // what is fused between `from` and this stage: " > Map > Filter"; for the stage's name
  std::uint64_t fingerprint = 0;                   // of those operators
  InputPattern read_as = InputPattern::kAllToAll;  // how readers of the node read this stage
  std::vector<StageInput> gathers;                 // stages of the same node that this one reads besides `from`
  std::optional<GangStage> gang;
  StageProgram program;
};

class PlanNode : public std::enable_shared_from_this<PlanNode> {
 public:
  struct Options {
    std::string op;  // "ReduceByKey"
    Site site;
    std::uint32_t partitions = 0;
    std::uint64_t fingerprint = 0;     // of the operator itself: types, options, captures (fingerprint.h); parents are mixed in here
    std::string label;                 // how the name of a stage that reads this node begins; empty: `op`
    std::vector<PlanNodePtr> parents;  // of a narrow node; partitions of several parents are concatenated
    std::vector<std::uint64_t> partition_bytes;  // size hints of a source: empty, or one for each partition
  };

  PlanNode(std::shared_ptr<PlanContext> context, Options options);
  ~PlanNode();
  PlanNode(const PlanNode&) = delete;
  PlanNode& operator=(const PlanNode&) = delete;

  std::uint64_t id() const { return id_; }
  std::uint32_t partitions() const { return options_.partitions; }
  std::uint64_t fingerprint() const { return fingerprint_; }
  const std::string& op() const { return options_.op; }
  const Site& site() const { return options_.site; }
  const std::string& label() const { return options_.label; }
  const std::vector<PlanNodePtr>& parents() const { return options_.parents; }
  const std::vector<std::uint64_t>& partition_bytes() const { return options_.partition_bytes; }
  const std::shared_ptr<PlanContext>& context() const { return context_; }
  StageId stage_id(std::uint32_t side = 0) const { return StageId{id_ * 4 + side}; }

  bool is_border() const { return !stages_.empty(); }
  const std::vector<StageSpec>& stages() const { return stages_; }
  void AddStage(StageSpec spec);
  const std::optional<OutputPlace>& output() const { return output_; }
  void SetOutput(OutputPlace output) { output_ = std::move(output); }

  // The planner's notes: that the node's stages were part of an action (later actions only name them; they are retired when the node
  // dies), and, once the output of one is computed and can no longer be lost, that the ancestors are let go.
  bool planned() const { return planned_; }
  void MarkPlanned() { planned_ = true; }
  void DropLineage(StageId stage);

 private:
  std::shared_ptr<PlanContext> context_;
  Options options_;
  std::uint64_t id_;
  std::uint64_t fingerprint_;
  std::vector<StageSpec> stages_;
  std::optional<OutputPlace> output_;
  bool planned_ = false;
};

}  // namespace ropewalk::dag
