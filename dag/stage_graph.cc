#include "dag/stage_graph.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>

#include "base/hash.h"

namespace ropewalk::dag {
namespace {

// Far above any real job; keeps a wrong partition count from becoming a master without memory.
constexpr std::uint32_t kTasksMax = 1u << 20;

std::string NameOf(const Stage& stage) { return "stage " + std::to_string(stage.id.value) + " (" + stage.name + ")"; }

Status Illegal(const Stage& stage, std::string why) {
  return Status(Code::kInternal, "PLAN01", "illegal plan: " + NameOf(stage), std::move(why), "report this with the program that built it");
}

std::string_view PatternName(InputPattern pattern) {
  switch (pattern) {
    case InputPattern::kAllToAll:
      return "all-to-all";
    case InputPattern::kOneToOne:
      return "one-to-one";
    case InputPattern::kGather:
      return "gather";
  }
  return "?";
}

std::string_view OutputName(StageOutput output) {
  switch (output) {
    case StageOutput::kSegment:
      return "segments";
    case StageOutput::kResult:
      return "result";
    case StageOutput::kFiles:
      return "files";
    case StageOutput::kCommit:
      return "commit";
  }
  return "?";
}

using Index = std::unordered_map<StageId, const Stage*>;

Status CheckInput(const Stage& stage, const StageInput& input, const Index& earlier) {
  auto found = earlier.find(input.stage);
  if (found == earlier.end())
    return Illegal(stage, "it reads stage " + std::to_string(input.stage.value) + ", which is not earlier in the plan");
  const Stage& source = *found->second;
  // Whoever walks the graph from the end to its sources goes by descending ids.
  if (source.id.value >= stage.id.value) return Illegal(stage, "it reads stage " + std::to_string(input.stage.value) + " of a larger id");
  switch (input.pattern) {
    case InputPattern::kAllToAll:
    case InputPattern::kOneToOne:
      if (source.output != StageOutput::kSegment)
        return Illegal(stage, "it reads records of " + NameOf(source) + ", which makes no segments");
      break;
    case InputPattern::kGather:
      if (source.output != StageOutput::kResult && source.output != StageOutput::kFiles) {
        return Illegal(stage, "it gathers values of " + NameOf(source) + ", which makes none");
      }
      break;
    default:
      return Illegal(stage, "unknown input pattern " + std::to_string(static_cast<int>(input.pattern)));
  }
  if (input.pattern == InputPattern::kOneToOne && std::uint64_t{input.first_task} + source.tasks > stage.tasks) {
    return Illegal(stage, "some tasks of " + NameOf(source) + " have no reader in a one-to-one input");
  }
  if (std::uint64_t{input.first_task} + input.tasks > stage.tasks) return Illegal(stage, "an input is read by tasks beyond its last one");
  if (input.pattern == InputPattern::kGather && (input.first_task != 0 || input.tasks != 0))
    return Illegal(stage, "what is gathered is read by all tasks");
  return {};
}

Status CheckStage(const Stage& stage, const Index& earlier) {
  if (!stage.id) return Illegal(stage, "its id is 0");
  if (earlier.contains(stage.id)) return Illegal(stage, "its id is used twice");
  if (stage.tasks > kTasksMax)
    return Illegal(stage, "it has " + std::to_string(stage.tasks) + " tasks; the limit is " + std::to_string(kTasksMax));
  if (static_cast<int>(stage.output) > static_cast<int>(StageOutput::kCommit)) return Illegal(stage, "unknown kind of output");
  if (stage.earlier && (stage.output != StageOutput::kSegment || !stage.inputs.empty()))
    return Illegal(stage, "a stage of an earlier action makes segments and its inputs are not repeated");
  if (!stage.input_bytes.empty() && stage.input_bytes.size() != stage.tasks) return Illegal(stage, "size hints do not match its tasks");
  for (std::size_t i = 0; i < stage.inputs.size(); ++i) {
    RETURN_IF_ERROR(CheckInput(stage, stage.inputs[i], earlier));
    if (std::find(stage.inputs.begin(), stage.inputs.begin() + i, stage.inputs[i]) != stage.inputs.begin() + i) {
      return Illegal(stage, "an input is listed twice");
    }
  }
  if (stage.gang) {
    if (stage.output != StageOutput::kResult) return Illegal(stage, "a gang gives a result");
    if (stage.tasks == 0 || stage.tasks > kGangRanksMax)
      return Illegal(stage, "a gang of " + std::to_string(stage.tasks) + " ranks; there are 1 to " + std::to_string(kGangRanksMax));
    if (stage.gang->ranks_min > stage.tasks)
      return Illegal(stage,
                     "a gang of " + std::to_string(stage.tasks) + " ranks with " + std::to_string(stage.gang->ranks_min) + " at least");
    if (stage.gang->ranks_min > 0 && std::any_of(stage.inputs.begin(), stage.inputs.end(),
                                                 [](const StageInput& input) { return input.pattern == InputPattern::kOneToOne; }))
      return Illegal(stage, "a gang that may have fewer ranks than tasks, of which each task reads its own input");
    if (stage.gang->attempts_max == 0) return Illegal(stage, "a gang that may not even be tried once");
  }
  if (stage.output == StageOutput::kCommit) {
    if (stage.tasks != 1) return Illegal(stage, "a commit has exactly one task");
    bool reads_files = std::any_of(stage.inputs.begin(), stage.inputs.end(), [&](const StageInput& input) {
      return input.pattern == InputPattern::kGather && earlier.at(input.stage)->output == StageOutput::kFiles;
    });
    if (!reads_files) return Illegal(stage, "a commit gathers a stage of files");
  }
  return {};
}

// Operators of a stage name: "A > B > C (file:9)" gives A, B, "C (file:9)".
std::vector<std::string> OperatorsOf(const std::string& name) {
  std::vector<std::string> operators;
  std::size_t begin = 0;
  while (true) {
    std::size_t end = name.find(" > ", begin);
    operators.push_back(name.substr(begin, end == std::string::npos ? end : end - begin));
    if (end == std::string::npos) return operators;
    begin = end + 3;
  }
}

std::string StageDifference(const Stage& a, const Stage& b) {
  if (a.name != b.name) {
    std::vector<std::string> left = OperatorsOf(a.name), right = OperatorsOf(b.name);
    for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
      std::string x = i < left.size() ? left[i] : "nothing", y = i < right.size() ? right[i] : "nothing";
      if (x != y) return NameOf(a) + ": operator " + std::to_string(i + 1) + " is " + x + " in one replica and " + y + " in the other";
    }
  }
  std::string at = NameOf(a) + ": ";
  if (a.id != b.id)
    return at + "its id is " + std::to_string(b.id.value) + " in the other replica: more or fewer datasets were built before it";
  if (a.tasks != b.tasks) return at + std::to_string(a.tasks) + " tasks in one replica and " + std::to_string(b.tasks) + " in the other";
  if (a.output != b.output) return at + "makes " + std::string(OutputName(a.output)) + " and " + std::string(OutputName(b.output));
  if (a.earlier != b.earlier) return at + "an earlier action has listed it in one replica only";
  if (a.gang != b.gang) return at + "is placed as a gang in another way";
  if (a.parts != b.parts) return at + "its segments have " + std::to_string(a.parts) + " parts and " + std::to_string(b.parts);
  if (a.inputs != b.inputs) return at + "reads different stages";
  if (a.input_bytes != b.input_bytes) return at + "sizes of its input differ";
  if (a.fingerprint != b.fingerprint) {
    return at +
           "same operators, but types, source lines or captured values differ (a captured pointer or reference, or a value that is not "
           "the same in every replica)";
  }
  return "";
}

}  // namespace

std::string OutputKeyOf(JobId job, std::int64_t now_us) {
  char key[24];
  std::snprintf(key, sizeof(key), "%016llx", static_cast<unsigned long long>(HashCombine(job.value, static_cast<std::uint64_t>(now_us))));
  return key;
}

Status Check(const ActionPlan& plan) {
  if (plan.stages.empty())
    return Status(Code::kInternal, "PLAN01", "illegal plan: action " + std::to_string(plan.sequence) + " has no stage");
  if (plan.sequence == 0) return Status(Code::kInternal, "PLAN01", "illegal plan: sequence 0 (" + plan.name + ")", "actions count from 1");
  Index earlier;
  for (const Stage& stage : plan.stages) {
    RETURN_IF_ERROR(CheckStage(stage, earlier));
    earlier.emplace(stage.id, &stage);
  }
  const Stage& last = plan.stages.back();
  if (last.earlier) return Illegal(last, "an action whose own stage is an earlier one's");
  if (last.output == StageOutput::kFiles) return Illegal(last, "files without a commit would never appear");
  for (const Stage& stage : plan.stages) {
    if (&stage != &last && stage.output == StageOutput::kCommit) return Illegal(stage, "a commit is the last stage");
    if (&stage != &last && stage.gang) return Illegal(stage, "a gang is the last stage");
  }
  for (const Stage& stage : plan.stages) {
    if (&stage == &last) continue;
    if (stage.output == StageOutput::kResult || stage.output == StageOutput::kFiles) {
      bool read = std::any_of(last.inputs.begin(), last.inputs.end(), [&](const StageInput& input) { return input.stage == stage.id; });
      if (!read) return Illegal(stage, "nobody reads its values");
    }
  }
  if (plan.output) {
    const std::string& key = plan.output->key;
    // The worker that discards it builds a path from it.
    bool harmless = !key.empty() && key.find_first_not_of("0123456789abcdef-") == std::string::npos && plan.output->folder.starts_with('/');
    if (!harmless || last.output != StageOutput::kCommit) return Illegal(last, "the place of its output is wrong");
  }
  std::unordered_set<StageId> retired;
  for (StageId id : plan.retired) {
    if (!id || !retired.insert(id).second)
      return Status(Code::kInternal, "PLAN01", "illegal plan: retired id " + std::to_string(id.value) + " is 0 or listed twice");
    if (auto used = earlier.find(id); used != earlier.end()) return Illegal(*used->second, "it is retired and used in one plan");
  }
  return {};
}

std::string Explain(const ActionPlan& plan) {
  std::string text = "action " + std::to_string(plan.sequence) + ": " + plan.name + "\n";
  std::unordered_map<StageId, std::size_t> depth;
  for (const Stage& stage : plan.stages) {
    std::size_t level = 1;
    for (const StageInput& input : stage.inputs) level = std::max(level, depth[input.stage] + 1);
    depth[stage.id] = level;
    // Deep lineage must not push the text off the page.
    text += std::string(2 * std::min<std::size_t>(level, 20), ' ') + "stage " + std::to_string(stage.id.value) + "  " + stage.name + "  " +
            std::to_string(stage.tasks) + (stage.tasks == 1 ? " task -> " : " tasks -> ") + std::string(OutputName(stage.output));
    for (std::size_t i = 0; i < stage.inputs.size(); ++i) {
      const StageInput& input = stage.inputs[i];
      text += (i == 0 ? "  reads " : ", ") + std::to_string(input.stage.value) + " " + std::string(PatternName(input.pattern));
      if (input.tasks != 0) {
        text += " in tasks " + std::to_string(input.first_task) + "-" + std::to_string(input.first_task + input.tasks - 1);
      } else if (input.first_task != 0) {
        text += " from task " + std::to_string(input.first_task);
      }
    }
    if (stage.earlier) text += "  (of an earlier action)";
    if (stage.gang) text += stage.gang->spread ? "  as a gang, spread" : "  as a gang";
    if (stage.gang && stage.gang->ranks_min > 0) text += ", of " + std::to_string(stage.gang->ranks_min) + " ranks at least";
    text += "\n";
  }
  if (!plan.retired.empty()) {
    text += "  retires";
    for (StageId id : plan.retired) text += " " + std::to_string(id.value);
    text += "\n";
  }
  return text;
}

std::string FirstDifference(const ActionPlan& a, const ActionPlan& b) {
  if (a.sequence != b.sequence) {
    return "one replica is at action " + std::to_string(a.sequence) + " (" + a.name + "), the other at " + std::to_string(b.sequence) +
           " (" + b.name + ")";
  }
  std::string at = "action " + std::to_string(a.sequence) + " (" + a.name + "): ";
  for (std::size_t i = 0; i < std::min(a.stages.size(), b.stages.size()); ++i) {
    if (std::string difference = StageDifference(a.stages[i], b.stages[i]); !difference.empty()) return at + difference;
  }
  if (a.stages.size() != b.stages.size()) {
    const ActionPlan& longer = a.stages.size() > b.stages.size() ? a : b;
    return at + NameOf(longer.stages[std::min(a.stages.size(), b.stages.size())]) + " is in one replica only";
  }
  if (a.name != b.name) return at + "the other replica is at " + b.name;
  if (a.retired != b.retired) return at + "the replicas let go of different datasets before it";
  if (a.fingerprint != b.fingerprint) return at + "fingerprints differ";
  return "";
}

}  // namespace ropewalk::dag
