// A backend for tests: runs the stages of an action one after another in this thread, on blocks in plain memory. It can take the tasks of a
// stage in a random order, run attempts several times and keep any of them, and lose segments: what is computed must not depend on it.
//
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dag/backend.h"
#include "dag/session.h"
#include "tests/unit/fake_blocks.h"

namespace ropewalk::dag {

struct ActionFailed : std::runtime_error {
  explicit ActionFailed(const Status& s) : std::runtime_error(s.ToString()), status(s) {}
  Status status;
};

class LocalBackend final : public Backend {
 public:
  Settings options;
  bool durable = true;
  std::uint64_t cut_every = 0;     // not 0: in each so many actions, what it reads of earlier ones is cut
  std::uint64_t shuffle_seed = 0;  // not 0: random task order and repeated attempts
  std::vector<ActionPlan> plans;   // of all actions submitted, when `keep_plans`
  bool keep_plans = true;
  std::uint64_t tasks_run = 0;
  std::map<std::string, std::string> once_values;
  RecordCursor cursor;  // of the last failed task
  struct Counted {
    std::uint64_t records_in = 0, records_out = 0;
  };
  std::map<StageId, std::map<std::uint32_t, Counted>> counted;  // of each task's attempt that was kept
  testing::FakeBlocks blocks;
  testing::FakeSpill spill;

  explicit LocalBackend(std::uint32_t partitions = 2) {
    options.partitions = partitions;
    options.slots = 2;
    options.work_dir = ::testing::TempDir();
  }

  const Settings& settings() const override { return options; }
  bool in_one_process() const override { return durable; }

  std::unique_ptr<PendingAction> Submit(Action action) override {
    Status legal = Check(action.plan);
    EXPECT_TRUE(legal.ok()) << legal.ToString();
    std::size_t fresh = 0;
    for (const Stage& stage : action.plan.stages) {
      if (stage.earlier) {
        EXPECT_TRUE(graph_.contains(stage.id)) << stage.name << " was listed by no earlier action";
      } else {
        EXPECT_TRUE(action.programs.contains(stage.id)) << stage.name;
        ++fresh;
        graph_[stage.id] = {stage, std::move(action.programs.at(stage.id))};
      }
    }
    EXPECT_EQ(action.programs.size(), fresh);
    if (keep_plans) plans.push_back(action.plan);
    for (StageId id : action.plan.retired) {
      Free(id);
      graph_.erase(id);
    }
    return std::make_unique<Pending>(this, std::move(action));
  }

  Result<std::string> Once(const std::string& name, const std::function<Result<std::string>()>& compute) override {
    if (auto known = once_values.find(name); known != once_values.end()) return known->second;
    ASSIGN_OR_RETURN(std::string value, compute());
    return once_values[name] = value;
  }

  std::size_t stages_held() const { return segments_.size(); }
  void Lose(StageId stage) { Free(stage); }

  // A session on this backend; failures throw ActionFailed.
  Session NewSession() {
    return Session({.backend = this, .fail = [](const Status& status) { throw ActionFailed(status); }, .args = {"test"}});
  }

 private:
  class Pending final : public PendingAction {
   public:
    Pending(LocalBackend* backend, Action action) : backend_(backend), action_(std::move(action)) {}
    Result<std::vector<std::string>> Wait() override { return backend_->Run(action_); }
    std::vector<StageId> cut() const override {
      std::vector<StageId> all;
      for (const Stage& stage : action_.plan.stages)
        if (stage.output == StageOutput::kSegment &&
            (backend_->durable || (stage.earlier && backend_->cut_every != 0 && action_.plan.sequence % backend_->cut_every == 0)))
          all.push_back(stage.id);
      return all;
    }

   private:
    LocalBackend* backend_;
    Action action_;
  };

  void Free(StageId id) {
    for (const SegmentRef& ref : segments_[id]) blocks.segments.erase(ref.segment.value);
    segments_.erase(id);
  }

  Result<std::vector<std::string>> Run(const Action& action) {
    std::map<StageId, std::vector<std::string>> values;
    // The action's stages, and what they lack of earlier ones.
    std::set<StageId> needed;
    for (const Stage& stage : action.plan.stages) needed.insert(stage.id);
    for (auto at = needed.rbegin(); at != needed.rend(); ++at)
      if (!segments_.contains(*at))
        for (const StageInput& input : graph_.at(*at).first.inputs) needed.insert(input.stage);
    for (StageId id : needed) {
      const Stage& stage = graph_.at(id).first;
      if (stage.output == StageOutput::kSegment && segments_.contains(stage.id)) continue;
      std::vector<SegmentRef> refs(stage.tasks);
      std::vector<std::string> stage_values(stage.tasks);
      std::vector<std::uint32_t> order(stage.tasks);
      for (std::uint32_t i = 0; i < stage.tasks; ++i) order[i] = i;
      if (shuffle_seed != 0) std::shuffle(order.begin(), order.end(), random_);
      for (std::uint32_t task : order) {
        TaskResult result;
        RETURN_IF_ERROR(RunTask(stage, graph_.at(id).second, task, values, &result));
        stage_values[task] = result.value;
        EXPECT_EQ(stage.output == StageOutput::kSegment, result.segment.has_value()) << stage.name;
        if (result.segment) refs[task] = {{stage.id, task, attempt_}, result.segment->segment, "", result.segment->bytes};
      }
      if (stage.output == StageOutput::kSegment) {
        segments_[stage.id] = std::move(refs);
      } else {
        values[stage.id] = std::move(stage_values);
      }
    }
    return values[action.plan.stages.back().id];
  }

  std::vector<TaskInput> InputsOf(const Stage& stage, std::uint32_t task, std::map<StageId, std::vector<std::string>>& values) {
    std::vector<TaskInput> inputs;
    for (const StageInput& wanted : stage.inputs) {
      if (!wanted.ReadBy(task)) continue;
      TaskInput input{wanted.stage, wanted.pattern, wanted.first_task, {}, {}, {}};
      if (wanted.pattern == InputPattern::kGather) {
        input.values = values[wanted.stage];
        input.winners.resize(input.values.size());
      } else {
        const std::vector<SegmentRef>& all = segments_[wanted.stage];
        if (wanted.pattern == InputPattern::kAllToAll) input.segments = all;
        if (wanted.pattern == InputPattern::kOneToOne && task >= wanted.first_task && task - wanted.first_task < all.size()) {
          input.segments = {all[task - wanted.first_task]};
        }
      }
      inputs.push_back(std::move(input));
    }
    return inputs;
  }

  Status RunTask(const Stage& stage, const StageProgram& program, std::uint32_t task, std::map<StageId, std::vector<std::string>>& values,
                 TaskResult* kept) {
    std::uint32_t runs = shuffle_seed != 0 ? 1 + random_() % 2 : 1, failures = 0;
    std::uint64_t hash = 0;
    for (std::uint32_t run = 0; run < runs;) {
      StageProgram copy = program;
      TaskProgress progress;
      TaskContext context;
      context.id = {stage.id, task, ++attempt_};
      context.settings = &options;
      context.inputs = InputsOf(stage, task, values);
      context.blocks = &blocks;
      context.segments = &blocks;
      context.spill = &spill;
      context.progress = &progress;
      context.cursor = &cursor;
      context.precise_cursor = failures > 0;
      TaskResult result;
      Status status;
      try {
        status = copy(context, &result);
      } catch (const std::exception& e) {
        status = Status(Code::kUserError, "USER01", std::string("exception: ") + e.what(), stage.name + " task " + std::to_string(task));
      }
      ++tasks_run;
      if (!status.ok()) {
        if (++failures >= options.user_attempts_max || status.code() != Code::kUserError) return status;
        continue;
      }
      if (run > 0) {
        EXPECT_EQ(hash, result.content_hash) << "two attempts differ: " << stage.name;
      }
      hash = result.content_hash;
      // Files: the last attempt wins and is the only one that may be kept; values and segments are equal anyway.
      *kept = std::move(result);
      counted[stage.id][task] = {progress.records_in, progress.records_out};
      ++run;
    }
    return {};
  }

  std::map<StageId, std::vector<SegmentRef>> segments_;
  std::map<StageId, std::pair<Stage, StageProgram>> graph_;
  std::uint32_t attempt_ = 0;

 public:
  std::mt19937_64 random_{1};
};

}  // namespace ropewalk::dag
