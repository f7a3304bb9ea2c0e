// The dataflow plan of one action as data: stages joined by shuffles. It is built by `dag`, proven legal by Check(),
// travels to the master as a message, and is scheduled by code that knows nothing of user types.
//
//   Dataset calls ──build──▶ PlanNodes ──cut at shuffles──▶ ActionPlan{Stage...} ──▶ Backend ──▶ scheduler core
//                                          └──▶ StageProgram for each stage (stays in the process: it holds the lambdas)
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace ropewalk::dag {

// How the tasks of a stage read the output of an earlier one. In a union each input is read by its own range of the tasks only.
enum class InputPattern : std::uint8_t {
  kAllToAll = 0,  // every reading task reads a part of every segment: a shuffle
  kOneToOne = 1,  // task t reads the whole segment of task t - first_task (when that is in range): cache, union
  kGather = 2,    // every task gets the small result values of all tasks, in task order: commit
};

struct StageInput {
  StageId stage;
  InputPattern pattern = InputPattern::kAllToAll;
  std::uint32_t first_task = 0;  // the first of this stage's tasks that reads it; kOneToOne: that reads task 0 of the input
  std::uint32_t tasks = 0;       // how many read it, from `first_task` on; 0: all of them
  bool ReadBy(std::uint32_t task) const { return task >= first_task && (tasks == 0 || task - first_task < tasks); }
  // One past the last of a stage's `stage_tasks` tasks that read it.
  std::uint32_t LastTask(std::uint32_t stage_tasks) const { return tasks == 0 ? stage_tasks : first_task + tasks; }
  friend bool operator==(const StageInput&, const StageInput&) = default;
};

enum class StageOutput : std::uint8_t {
  kSegment = 0,  // one sealed segment for each task, kept by the worker until the stage is retired
  kResult = 1,   // a value that main gets (Count, Collect, Top...), in task order
  kFiles = 2,    // attempts write under temporary names; the value says what was written; the winner is journalled
  kCommit = 3,   // publishes a kFiles stage; exactly one task; idempotent, may be re-run after a master restart
};

// What makes a stage a gang (gang.h): its tasks are ranks, task t is rank t, and all of them start together or none does.
struct GangStage {
  std::uint64_t placement_ms = 0;  // how long it may wait for its slots before the job fails; 0: as long as it takes
  bool spread = false;             // over as many machines as there are, else on as few as have room
  std::uint32_t attempts_max = 3;  // formings that end by an error of the program before the job fails with it, and
  std::uint32_t restarts_max = 0;  // that may be lost for reasons that are not the program's: both since the gang got farther than ever
  std::uint32_t ranks_min = 0;     // it is formed with fewer ranks than tasks where there is room for these at least; 0: with all or not
  std::uint64_t shrink_ms = 0;     // how long it waits for room for all of them before that
  friend bool operator==(const GangStage&, const GangStage&) = default;
};
inline constexpr std::uint32_t kGangRanksMax = 256;

struct Stage {
  StageId id;
  std::string name;         // "ReadLines > FlatMap > CountByKey (word_count.cc:9)"
  std::uint32_t tasks = 0;  // 0 is legal: empty input
  StageOutput output = StageOutput::kSegment;
  std::vector<StageInput> inputs;          // of stages that are earlier in the plan
  std::vector<std::uint64_t> input_bytes;  // size hint for each task (0: unknown); empty or `tasks` long
  std::uint64_t fingerprint = 0;           // operators, types, parents, source lines, padding-free captures
  std::uint32_t parts = 0;                 // kSegment: of each of its segments (so that a copy can be made by who knows no operators)
  bool earlier = false;                    // an earlier action of the job has listed it: inputs and hints are not repeated
  std::optional<GangStage> gang;           // the last stage of its action; rank 0's value is the action's result
  friend bool operator==(const Stage&, const Stage&) = default;
};

// Where an action's output folder will appear, and what names the hidden folder beside it in which attempts write. Whoever ends a failed
// job discards the hidden one (storage::DiscardOutput): the processes that wrote there may be dead.
struct OutputPlace {
  std::string folder;  // absolute
  std::string key;     // OutputKeyOf(job)-<action>
  friend bool operator==(const OutputPlace&, const OutputPlace&) = default;
};

// What one action adds to the job's graph of stages. A stage that an earlier action has listed is listed again only where a new stage
// reads it, and then without its inputs (`earlier`): what crosses the wire for an action is bounded by what is new, however long the job's
// lineage is. The master keeps the graph, so that lost blocks can be made again; it runs only what is missing.
struct ActionPlan {
  std::uint64_t sequence = 0;     // 1, 2, 3... in program order of main
  std::string name;               // "WriteText (word_count.cc:9)"
  std::vector<Stage> stages;      // topological: inputs come first; the last one is the action's own
  std::vector<StageId> retired;   // no dataset handle can need these any more: blocks may be freed
  std::uint64_t fingerprint = 0;  // of all above but `retired`, which depends on checkpoints; equal in every replica or the job stops
  std::optional<OutputPlace> output;
  friend bool operator==(const ActionPlan&, const ActionPlan&) = default;
};

// The part of an output's key that is the job's own: no other job's folder has it.
std::string OutputKeyOf(JobId job, std::int64_t now_us);

// Proves that the plan is legal: ids unique, inputs earlier in the list, of smaller ids and of a fitting output kind, kGather only of
// kResult/kFiles, kCommit with one task, a gang of 1 to kGangRanksMax ranks that is the action's own stage, an output's key harmless in a
// path, hint lengths right. kInternal with the offending stage otherwise.
Status Check(const ActionPlan& plan);

// The plan for people: one line a stage, indented by depth, with task counts and inputs.
std::string Explain(const ActionPlan& plan);

// The first difference between two replicas' plans, naming the first operator that differs; empty when equal.
std::string FirstDifference(const ActionPlan& a, const ActionPlan& b);

}  // namespace ropewalk::dag
