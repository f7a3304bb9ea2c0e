// A random job as a model: the program of its main, the plans of its actions, and what each task makes out of what it reads.
//
// A task's content is a hash of its stage, its number and the contents it read; a stage that is not deterministic adds the attempt.
// Contents carry their lineage (which content of which task they came from), so that a mix of two attempts' contents can be seen wherever
// it ends up.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "dag/stage_graph.h"

namespace ropewalk::simulation {

using TaskName = std::pair<std::uint64_t, std::uint32_t>;  // stage, task
using Lineage = std::map<TaskName, std::uint64_t>;         // -> hash of its content

struct Content {
  std::uint64_t hash = 0;
  std::shared_ptr<const Lineage> lineage;
};

// Adds `from`; false when the two disagree about one task's content: a mix.
inline bool Merge(Lineage* into, const Lineage& from) {
  bool same = true;
  for (const auto& [task, hash] : from) {
    auto [it, fresh] = into->emplace(task, hash);
    same &= fresh || it->second == hash;
  }
  return same;
}

enum class Temper { kHonest, kRandomContent, kThrows, kThrowsOnce, kCrashes };

inline constexpr std::uint64_t kPatienceMsMin = 40'000;  // of a gang that fits and does not wait for ever

struct MainStep {
  enum Kind { kOnce, kSubmit, kWait } kind;
  std::uint64_t sequence = 0;  // kSubmit, kWait
  std::string name;            // kOnce
};

struct ModelJob {
  std::string key;
  std::uint64_t seed = 0;
  Temper temper = Temper::kHonest;
  bool verify = false;
  std::uint32_t executors_max = 0;
  std::vector<dag::ActionPlan> plans;  // [sequence - 1]
  bool incremental = false;            // plans only name what earlier ones have listed, as those of dag/ do; else they list all again
  std::vector<std::vector<std::uint64_t>> roots;  // [sequence - 1]: what main holds then
  std::vector<MainStep> main;
  std::map<std::uint64_t, dag::Stage> stages;
  std::set<std::uint64_t> random_stages;  // not deterministic
  TaskName bad_task;                      // throws or crashes
  std::size_t tasks = 0;                  // distinct ones

  static ModelJob Draw(Random& random, std::string key);
  // Some of its results are made by gangs of at most `ranks_max`, a few of them by one of more ranks than the `slots` that there are.
  void AddGangs(Random& random, std::uint32_t ranks_max, std::uint32_t slots);
  bool has_gangs = false;
  std::set<std::uint64_t> large_values;  // gangs whose value is too large for the journal before it is published
  std::set<std::uint64_t> too_many;      // gangs that never fit
  // Each forming of its gangs gets farther than the one before, and says so a moment before it fails: they may fail as often as they like.
  bool climbs() const { return has_gangs && seed % 3 == 1; }

  // What the task makes of `inputs`. Null: they are a mix.
  std::shared_ptr<const Content> Make(std::uint64_t stage, std::uint32_t task, std::uint32_t attempt,
                                      const std::vector<const Content*>& inputs) const {
    auto content = std::make_shared<Content>();
    std::uint64_t hash = HashCombine(HashCombine(seed, stage), task);
    auto lineage = std::make_shared<Lineage>();
    for (const Content* input : inputs) {
      hash = HashCombine(hash, input->hash);
      if (!random_stages.empty() && !Merge(lineage.get(), *input->lineage)) return nullptr;
    }
    if (random_stages.contains(stage)) hash = HashCombine(hash, attempt);
    if (!random_stages.empty()) lineage->emplace(TaskName(stage, task), hash);
    content->hash = hash;
    content->lineage = std::move(lineage);
    return content;
  }
  // Which (stage, task) a task reads, in the order of its inputs.
  std::vector<TaskName> Reads(const dag::Stage& stage, std::uint32_t task) const {
    std::vector<TaskName> reads;
    for (const dag::StageInput& input : stage.inputs) {
      if (!input.ReadBy(task)) continue;
      std::uint32_t count = stages.at(input.stage.value).tasks;
      if (input.pattern == dag::InputPattern::kOneToOne) {
        if (task >= input.first_task && task - input.first_task < count) reads.emplace_back(input.stage.value, task - input.first_task);
      } else {
        for (std::uint32_t t = 0; t < count; ++t) reads.emplace_back(input.stage.value, t);
      }
    }
    return reads;
  }
  // What can be reached from `from`, when nobody looks behind the stages in `cut`.
  std::set<std::uint64_t> Reachable(const std::vector<std::uint64_t>& from, const std::set<std::uint64_t>& cut) const {
    std::set<std::uint64_t> all;
    std::vector<std::uint64_t> walk = from;
    while (!walk.empty()) {
      std::uint64_t id = walk.back();
      walk.pop_back();
      if (!all.insert(id).second || cut.contains(id)) continue;
      for (const dag::StageInput& input : stages.at(id).inputs) walk.push_back(input.stage.value);
    }
    return all;
  }
  // The plan that main announces after the stages in `cut` were checkpointed. `live`: what it has listed and not let go of, before and
  // after.
  dag::ActionPlan Plan(std::uint64_t sequence, const std::set<std::uint64_t>& cut, std::set<std::uint64_t>* live) const {
    dag::ActionPlan plan = plans[sequence - 1];
    std::set<std::uint64_t> needed = Reachable({plan.stages.back().id.value}, cut);
    std::erase_if(plan.stages, [&](const dag::Stage& stage) { return !needed.contains(stage.id.value); });
    for (dag::Stage& stage : plan.stages) {
      if (cut.contains(stage.id.value)) {
        stage.inputs.clear();
        stage.earlier = true;
      }
      if (stage.output == dag::StageOutput::kSegment) live->insert(stage.id.value);
    }
    std::set<std::uint64_t> reachable = Reachable(roots[sequence - 1], cut);
    std::erase_if(*live, [&](std::uint64_t id) {
      if (reachable.contains(id)) return false;
      plan.retired.push_back(StageId{id});
      return true;
    });
    return plan;
  }
  // The only right content of an honest job's task.
  std::uint64_t Expected(TaskName name) const {
    auto [it, fresh] = expected_.try_emplace(name, 0);
    if (!fresh) return it->second;
    const dag::Stage& stage = stages.at(name.first);
    std::uint64_t hash = HashCombine(HashCombine(seed, name.first), name.second);
    for (const TaskName& read : Reads(stage, name.second)) hash = HashCombine(hash, Expected(read));
    return expected_[name] = hash;
  }

 private:
  mutable std::map<TaskName, std::uint64_t> expected_;
};

inline ModelJob ModelJob::Draw(Random& random, std::string key) {
  ModelJob job;
  job.key = std::move(key);
  job.seed = random();
  job.verify = random.OneIn(2);
  if (random.OneIn(5)) job.executors_max = 1 + static_cast<std::uint32_t>(random.Below(2));
  switch (random.Below(10)) {
    case 0:
    case 1:
    case 2:
      job.temper = Temper::kRandomContent;
      break;
    case 3:
      job.temper = random.OneIn(2) ? Temper::kThrows : Temper::kThrowsOnce;
      break;
    case 4:
      job.temper = random.OneIn(3) ? Temper::kCrashes : Temper::kHonest;
      break;
    default:
      break;
  }
  if (job.temper == Temper::kRandomContent && !random.OneIn(3)) job.verify = false;  // else it is mostly caught before anything happens

  std::uint64_t next_stage = 1;
  std::vector<std::uint64_t> cached;                // segment stages that main still has a handle of
  std::map<std::uint64_t, std::uint64_t> last_use;  // stage -> sequence
  auto closure = [&](const std::vector<std::uint64_t>& roots) {
    std::set<std::uint64_t> all;
    std::vector<std::uint64_t> walk = roots;
    while (!walk.empty()) {
      std::uint64_t id = walk.back();
      walk.pop_back();
      if (!all.insert(id).second) continue;
      for (const dag::StageInput& input : job.stages.at(id).inputs) walk.push_back(input.stage.value);
    }
    return all;
  };
  auto add = [&](dag::StageOutput output, std::uint32_t tasks, std::vector<dag::StageInput> inputs) {
    std::uint64_t id = next_stage++;
    dag::Stage stage{StageId{id}, "S" + std::to_string(id), tasks, output, std::move(inputs), {}, id * 17 + 5};
    job.stages[id] = stage;
    return id;
  };
  std::uint64_t actions = 1 + random.Below(random.OneIn(4) ? 8 : 3);
  job.incremental = random.OneIn(2);
  std::set<std::uint64_t> listed;
  for (std::uint64_t sequence = 1; sequence <= actions; ++sequence) {
    if (random.OneIn(3)) job.main.push_back({MainStep::kOnce, 0, "once" + std::to_string(sequence)});
    std::vector<std::uint64_t> heads;
    std::uint64_t sources = random.OneIn(4) ? 2 : 1;
    for (std::uint64_t s = 0; s < sources; ++s) {
      if (!cached.empty() && !random.OneIn(3))
        heads.push_back(cached[random.Below(cached.size())]);
      else
        heads.push_back(add(dag::StageOutput::kSegment, static_cast<std::uint32_t>(random.OneIn(12) ? 0 : 1 + random.Below(5)), {}));
    }
    std::sort(heads.begin(), heads.end());
    heads.erase(std::unique(heads.begin(), heads.end()), heads.end());  // a stage reads another one once
    std::uint64_t depth = random.Below(3);
    for (std::uint64_t d = 0; d < depth; ++d) {
      std::vector<dag::StageInput> inputs;
      std::uint32_t tasks = 0;
      bool one_to_one = random.OneIn(3);
      for (std::uint64_t head : heads) {
        // A union: of what is read one to one, and of shuffles. Drawn apart, so that the other draws of a seed stay what they were.
        Random member(HashCombine(HashCombine(job.seed, next_stage), head));
        if (one_to_one && member.OneIn(2)) {
          auto readers = static_cast<std::uint32_t>(1 + member.Below(3));
          inputs.push_back({StageId{head}, dag::InputPattern::kAllToAll, tasks, readers});
          tasks += readers;
        } else if (one_to_one) {
          std::uint32_t readers = job.stages.at(head).tasks;
          inputs.push_back({StageId{head}, dag::InputPattern::kOneToOne, tasks, member.OneIn(2) ? readers : 0});
          tasks += readers;
        } else {
          inputs.push_back({StageId{head}, dag::InputPattern::kAllToAll, 0});
        }
      }
      if (!one_to_one) tasks = 1 + static_cast<std::uint32_t>(random.Below(4));
      heads = {add(dag::StageOutput::kSegment, tasks, std::move(inputs))};
      if (random.OneIn(2)) cached.push_back(heads[0]);
    }
    std::vector<dag::StageInput> inputs;
    for (std::uint64_t head : heads) inputs.push_back({StageId{head}, dag::InputPattern::kAllToAll, 0});
    auto last_tasks = static_cast<std::uint32_t>(1 + random.Below(3));
    std::uint64_t last;
    if (random.OneIn(3)) {
      std::uint64_t files = add(dag::StageOutput::kFiles, last_tasks, std::move(inputs));
      last = add(dag::StageOutput::kCommit, 1, {{StageId{files}, dag::InputPattern::kGather, 0}});
    } else {
      last = add(dag::StageOutput::kResult, last_tasks, std::move(inputs));
    }
    dag::ActionPlan plan;
    plan.sequence = sequence;
    plan.name = "action " + std::to_string(sequence);
    std::set<std::uint64_t> all = closure({last});
    std::set<std::uint64_t> read;  // by new stages
    for (std::uint64_t id : all)
      if (!listed.contains(id))
        for (const dag::StageInput& input : job.stages.at(id).inputs) read.insert(input.stage.value);
    for (std::uint64_t id : all) {
      dag::Stage stage = job.stages.at(id);
      if (job.incremental && listed.contains(id)) {
        if (!read.contains(id)) continue;
        stage.inputs.clear();
        stage.earlier = true;
      }
      plan.stages.push_back(std::move(stage));
    }
    listed.insert(all.begin(), all.end());
    plan.fingerprint = HashCombine(job.seed, sequence);
    // Main drops some handles before this action was built: what no handle reaches is retired.
    if (!cached.empty() && random.OneIn(3)) cached.erase(cached.begin() + static_cast<std::ptrdiff_t>(random.Below(cached.size())));
    std::vector<std::uint64_t> roots = cached;
    roots.push_back(last);
    job.roots.push_back(roots);
    job.plans.push_back(plan);
    job.main.push_back({MainStep::kSubmit, sequence, ""});
    if (!random.OneIn(5)) job.main.push_back({MainStep::kWait, sequence, ""});  // else it goes on beside the next ones (CollectAsync)
  }
  for (std::uint64_t sequence = 1; sequence <= actions; ++sequence) job.main.push_back({MainStep::kWait, sequence, ""});
  for (const auto& [id, stage] : job.stages) {
    job.tasks += stage.tasks;
    if (job.temper == Temper::kRandomContent && stage.output != dag::StageOutput::kCommit && random.OneIn(2)) job.random_stages.insert(id);
  }
  std::vector<TaskName> names;
  for (const auto& [id, stage] : job.stages)
    for (std::uint32_t t = 0; t < stage.tasks; ++t) names.emplace_back(id, t);
  job.bad_task = names[random.Below(names.size())];
  return job;
}

inline void ModelJob::AddGangs(Random& random, std::uint32_t ranks_max, std::uint32_t slots) {
  for (dag::ActionPlan& plan : plans) {
    dag::Stage& stage = plan.stages.back();
    if (stage.output != dag::StageOutput::kResult || !random.OneIn(2)) continue;
    has_gangs = true;
    stage.tasks = 1 + static_cast<std::uint32_t>(random.Below(ranks_max));
    stage.gang = dag::GangStage{.placement_ms = 0, .spread = random.OneIn(2), .attempts_max = 3, .restarts_max = 1000};
    // Drawn apart, so that the other draws of a seed stay what they were. Who fits has more time than all others together take.
    Random apart(HashCombine(HashCombine(seed, 8), stage.id.value));
    if (apart.OneIn(2)) stage.gang->placement_ms = apart.Between(kPatienceMsMin, 2 * kPatienceMsMin);
    if (apart.OneIn(3)) large_values.insert(stage.id.value);
    if (apart.OneIn(12)) {
      too_many.insert(stage.id.value);
      stage.tasks = slots + 1 + static_cast<std::uint32_t>(apart.Below(3));
      stage.gang->placement_ms = apart.Between(100, 8'000);
    } else if (apart.OneIn(2)) {
      stage.gang->ranks_min = 1 + static_cast<std::uint32_t>(apart.Below(stage.tasks));
      stage.gang->shrink_ms = apart.Between(1, 200);
    }
    tasks += stage.tasks;
    tasks -= stages.at(stage.id.value).tasks;
    stages[stage.id.value] = stage;
    // A rank that each forming has.
    if (bad_task.first == stage.id.value) bad_task.second %= stage.gang->ranks_min > 0 ? stage.gang->ranks_min : stage.tasks;
  }
}

}  // namespace ropewalk::simulation
