// Deep lineage: a loop whose dataset depends on the last round's. What an action costs does not grow with the rounds, a loss re-runs
// little, and when every copy is lost main is replayed from its start.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "tests/unit/scheduler_fixture.h"

namespace ropewalk::scheduler {
namespace {

TEST(CheckpointRule, WeighsTheCostOfALossAgainstTheCostOfWriting) {
  CheckpointRule rule;
  rule.depth_max = 16;
  rule.loss_per_mille = 10;
  rule.write_bytes_per_ms = 1000;
  rule.task_overhead_ms = 5;
  struct Row {
    const char* why;
    CheckpointCase c;
    bool worth;
  };
  const Row rows[] = {
      {"nothing is known yet", {1, 4, 0, 0, 0, 0}, false},
      {"no tasks, nothing to copy", {99, 0, 0, 0, 0, 0}, false},
      {"too deep, whatever it costs", {16, 4, 1ull << 40, 0, 0, 0}, true},
      {"almost too deep", {15, 4, 1ull << 40, 1, 0, 0}, false},
      // 1% of 100 s is 1 s; 10^5 bytes at 1000 a ms are 100 ms, and 4 tasks take 20.
      {"a long computation, little output", {3, 4, 100'000, 100'000, 0, 0}, true},
      {"a long computation, as much output as it is worth", {3, 4, 980'000, 100'000, 0, 0}, false},
      {"one byte less than that", {3, 4, 979'000, 100'000, 0, 0}, true},
      {"a short computation", {3, 4, 100, 1'900, 0, 0}, false},
      {"the disk turned out ten times faster", {3, 4, 980'000, 100'000, 10'000'000, 1000}, true},
      {"the disk turned out ten times slower", {3, 4, 100'000, 100'000, 100'000, 1000}, false},
      {"too little was copied to know", {3, 4, 100'000, 100'000, 1, 99}, true},
      {"more than a 64-bit product holds", {3, 4, 0, ~0ull, 0, 0}, true},
  };
  for (const Row& row : rows) EXPECT_EQ(WorthCheckpoint(rule, row.c), row.worth) << row.why;
  rule.enabled = false;
  for (const Row& row : rows) EXPECT_FALSE(WorthCheckpoint(rule, row.c)) << row.why;
}

constexpr std::uint64_t StageOf(std::uint64_t round) { return 10 * round; }

// for (round = 1..) { d = d.Map(f).ReduceByKey(g); d.Count(); }      as the executors' mains, and workers that answer at once
class Loop {
 public:
  explicit Loop(std::uint64_t rounds, Options options = {}) : puppet(options), rounds_(rounds) {
    for (std::uint64_t round = 0; round <= rounds; ++round) puppet.segment_stages.ids.push_back(StageOf(round + 1));
  }

  struct Main {
    std::uint64_t announced = 0, published = 0;
    std::uint64_t oldest = 1;  // round whose dataset is the oldest that main still holds
    std::vector<StageId> retire;
    bool returned = false;
  };

  // Until `stop()` or nothing more happens.
  void Run(const std::function<bool()>& stop = [] { return false; }) {
    while (!stop()) {
      if (seen_ < puppet.all.size()) {
        Take(SchedulerAction(puppet.all[seen_++]));
        continue;
      }
      bool any = false;
      for (auto& [id, main] : mains)
        if (Advance(id, main)) {
          any = true;
          break;
        }
      if (any) continue;
      if (puppet.tasks.empty()) {
        if (puppet.timers.empty() || idle_++ > 50) return;
        puppet.Advance(1000);
        continue;
      }
      idle_ = 0;
      RunTask task = puppet.tasks.front();
      if (task.copy_parts != 0) ++copies;
      puppet.Finish(task);
    }
  }
  void LoseWorker(std::uint64_t id) {
    std::erase_if(mains, [&](const auto& entry) { return placed_[entry.first] == WorkerId{id}; });
    std::erase_if(puppet.tasks, [&](const RunTask& task) { return placed_[task.executor] == WorkerId{id}; });
    puppet.Do(WorkerLost{WorkerId{id}, "killed"});
  }
  std::uint64_t Published() const {
    std::uint64_t most = 0;
    for (const auto& [id, main] : mains) most = std::max(most, main.published);
    return most;
  }

  Puppet puppet;
  std::map<ExecutorId, Main> mains;
  std::size_t stages_max = 0;  // of one plan
  std::string stage_name;      // of all rounds; empty: each its own
  std::size_t copies = 0;
  std::map<std::uint64_t, std::vector<StageId>> cuts;
  std::optional<FinishJob> finish;

 private:
  bool Advance(ExecutorId id, Main& main) {
    if (main.announced > main.published || main.returned) return false;
    if (main.published == rounds_) {
      main.returned = true;
      puppet.Do(MainReturned{id, 0});
      return true;
    }
    std::uint64_t round = ++main.announced;
    std::vector<dag::Stage> stages;
    std::vector<dag::StageInput> inputs;
    if (round > 1) {
      stages.push_back(MakeStage(StageOf(round - 1), 2, dag::StageOutput::kSegment));
      stages.back().earlier = true;
      inputs.push_back({StageId{StageOf(round - 1)}, dag::InputPattern::kAllToAll, 0});
    }
    stages.push_back(MakeStage(StageOf(round), 2, dag::StageOutput::kSegment, inputs));
    stages.push_back(
        MakeStage(StageOf(round) + 1, 2, dag::StageOutput::kResult, {{StageId{StageOf(round)}, dag::InputPattern::kAllToAll, 0}}));
    if (!stage_name.empty())
      for (dag::Stage& stage : stages) stage.name = stage_name + (stage.output == dag::StageOutput::kResult ? " > Count" : "");
    stages_max = std::max(stages_max, stages.size());
    puppet.Do(ExecutorAtAction{id, MakePlan(round, stages, std::exchange(main.retire, {}))});
    return true;
  }
  void Take(const SchedulerAction& action) {
    if (auto* start = std::get_if<StartExecutor>(&action)) {
      placed_[start->executor] = start->worker;
      mains[start->executor];
      puppet.Do(ExecutorReady{start->executor});
    } else if (auto* stop = std::get_if<StopExecutor>(&action)) {
      mains.erase(stop->executor);
      std::erase_if(puppet.tasks, [&](const RunTask& task) { return task.executor == stop->executor; });
    } else if (auto* publish = std::get_if<PublishAction>(&action)) {
      auto at = mains.find(publish->executor);
      if (at == mains.end()) return;
      Main& main = at->second;
      EXPECT_TRUE(publish->status.ok()) << publish->status.ToString();
      EXPECT_EQ(publish->sequence, main.published + 1);
      main.published = publish->sequence;
      cuts[publish->sequence] = publish->cut;
      // What was cut needs nothing older: main lets go of it, and says so with its next action.
      for (StageId cut : publish->cut)
        for (; StageOf(main.oldest) < cut.value; ++main.oldest) main.retire.push_back(StageId{StageOf(main.oldest)});
    } else if (auto* finished = std::get_if<FinishJob>(&action)) {
      finish = *finished;
    }
  }

  std::uint64_t rounds_;
  std::size_t seen_ = 0;
  std::size_t idle_ = 0;
  std::map<ExecutorId, WorkerId> placed_;
};

void Start(Loop& loop, std::uint64_t workers, bool verify = false) {
  for (std::uint64_t id = 1; id <= workers; ++id) loop.puppet.AddWorker(id, 1);
  loop.puppet.Submit("k", verify);
}

void ExpectDone(Loop& loop) {
  ASSERT_TRUE(loop.finish.has_value());
  EXPECT_TRUE(loop.finish->status.ok()) << loop.finish->status.ToString();
}

std::size_t RecordBytes(const Puppet& puppet, std::uint8_t kind) {
  std::size_t bytes = 0;
  for (const JournalRecord& record : puppet.scheduler->Snapshot())
    if (static_cast<std::uint8_t>(record.bytes[1]) == kind) bytes += record.bytes.size();
  return bytes;
}

TEST(DeepLineage, AThousandDependentRoundsCostTheSameEach) {
  Loop loop(1000);
  Start(loop, 2);
  loop.Run([&] { return loop.Published() == 100; });
  const std::size_t orders_before = loop.puppet.All<RunTask>().size();
  constexpr std::uint8_t kTaskDone = 5;
  const std::size_t known_before = RecordBytes(loop.puppet, kTaskDone);
  ASSERT_GT(known_before, 0u);
  loop.Run([&] { return loop.Published() == 1000; });
  EXPECT_EQ(loop.stages_max, 3u);
  // Each round: two tasks of the shuffle, two of the result; a copy of two segments each sixteen rounds.
  const std::size_t orders = loop.puppet.All<RunTask>().size() - orders_before;
  EXPECT_LE(orders, 900 * 4 + 2 * 900 / 14 + 8);
  EXPECT_GE(loop.copies, 2u * (1000 / 17 - 1));
  EXPECT_LE(RecordBytes(loop.puppet, kTaskDone), 5 * known_before) << "what the master knows of tasks grows";
  EXPECT_EQ(loop.puppet.Count("rerun"), 0u);
  loop.Run();
  ExpectDone(loop);
}

TEST(DeepLineage, WithoutCheckpointsItIsPlannedInPartsAllTheSame) {
  Options options;
  options.checkpoint.enabled = false;
  Loop loop(300, options);
  Start(loop, 2);
  loop.Run();
  ExpectDone(loop);
  EXPECT_EQ(loop.stages_max, 3u);
  EXPECT_EQ(loop.copies, 0u);
}

TEST(DeepLineage, AWorkerThatIsLostLateCostsNoMoreThanTheDepthBetweenCheckpoints) {
  for (bool checkpoints : {true, false}) {
    Options options;
    options.checkpoint.enabled = checkpoints;
    Loop loop(320, options);
    Start(loop, 2);
    loop.Run([&] { return loop.Published() == 300; });
    loop.LoseWorker(1);
    loop.Run();
    ExpectDone(loop);
    EXPECT_EQ(loop.puppet.Count("started_over"), 0u);
    // One of each stage's two tasks lay there.
    if (checkpoints)
      EXPECT_LE(loop.puppet.Count("rerun"), 2 * (options.checkpoint.depth_max + 2));
    else
      EXPECT_GE(loop.puppet.Count("rerun"), 250u) << "then the bound above proves nothing";
  }
}

TEST(DeepLineage, WhenEveryCopyIsLostMainIsReplayedFromItsStart) {
  Loop loop(60);
  Start(loop, 2);
  loop.Run([&] { return loop.Published() == 50; });
  loop.LoseWorker(1);
  loop.LoseWorker(2);
  loop.puppet.AddWorker(3, 1);
  loop.Run();
  ExpectDone(loop);
  EXPECT_EQ(loop.puppet.Count("started_over"), 1u);
  EXPECT_EQ(loop.puppet.Count("content_changed"), 0u);
}

// The disks of a cluster that lost its power hold the copies: they are enough.
TEST(DeepLineage, CopiesOnDiskThatComeBackAreEnough) {
  Loop loop(60);
  Start(loop, 1);
  loop.Run([&] { return loop.Published() == 50; });
  std::map<std::pair<std::uint64_t, std::uint32_t>, TaskAttempt> copies;
  for (const RunTask& task : loop.puppet.All<RunTask>())
    if (task.copy_parts != 0) copies[{task.id.stage.value, task.id.task}] = task.id;
  ASSERT_GE(copies.size(), 4u);
  loop.LoseWorker(1);
  std::vector<SegmentAt> held;
  std::uint64_t segment = 1'000'000;
  for (const auto& [name, id] : copies)
    held.push_back({JobId{1}, {id, SegmentId{segment++}, "w9", 100}, name.first * 1000 + name.second, 1});
  loop.puppet.AddWorker(9, 1, held);
  loop.Run();
  ExpectDone(loop);
  EXPECT_EQ(loop.puppet.Count("started_over"), 0u);
  EXPECT_LE(loop.puppet.Count("rerun"), 2 * (Options{}.checkpoint.depth_max + 2));
}

TEST(DeepLineage, ARestartedMasterLearnsTheLineageAgainAndKeepsTheCuts) {
  Loop loop(60);
  Start(loop, 2);
  loop.Run([&] { return loop.Published() == 50; });
  auto cuts = loop.cuts;
  std::size_t cut = 0;
  for (const auto& [sequence, stages] : cuts) cut += stages.size();
  ASSERT_GE(cut, 2u);
  loop.mains.clear();
  loop.puppet.Restart();
  loop.puppet.AddWorker(11, 1);
  loop.puppet.AddWorker(12, 1);
  loop.Run([&] { return loop.Published() == 50; });
  for (const auto& [sequence, stages] : cuts) EXPECT_EQ(loop.cuts[sequence], stages) << "action " << sequence;
  loop.Run();  // nothing is held any more: the job starts over
  ExpectDone(loop);
  EXPECT_EQ(loop.puppet.Count("started_over"), 1u);
}

TEST(DeepLineage, AFailingCopyIsGivenUpAndTheJobGoesOn) {
  Loop loop(40);
  Start(loop, 1);
  std::size_t refused = 0;
  for (int i = 0; i < 10'000 && !loop.finish; ++i) {
    loop.Run([&] { return !loop.puppet.tasks.empty() && loop.puppet.tasks.front().copy_parts != 0; });
    if (loop.puppet.tasks.empty()) break;
    RunTask copy = loop.puppet.tasks.front();
    loop.puppet.tasks.erase(loop.puppet.tasks.begin());
    loop.puppet.Do(TaskFailed{copy.executor, copy.job, copy.id, Status(Code::kResourceExhausted, "BLK05", "the disk is full"), 0, 0, ""});
    ++refused;
  }
  ExpectDone(loop);
  EXPECT_GE(refused, 3u);
  EXPECT_GE(loop.puppet.Count("checkpoint_given_up"), 1u);
  EXPECT_EQ(loop.puppet.Count("checkpoint"), 0u);
}

// The lines of a loop's body are run twice in the first rounds and seldom later; stages of other lines are each looked at.
TEST(Verification, ALoopIsVerifiedInItsFirstRoundsAndNowAndThen) {
  for (bool same_lines : {true, false}) {
    Loop loop(200);
    if (same_lines) loop.stage_name = "Map > ReduceByKey (loop.cc:7)";
    Start(loop, 2, true);
    loop.Run();
    ExpectDone(loop);
    std::size_t verdicts = loop.puppet.Count("verify_ok");
    if (same_lines) {
      EXPECT_GE(verdicts, 2u * 3 + 400 / 16);
      EXPECT_LE(verdicts, 2u * 3 + 400 / 5);
    } else {
      EXPECT_EQ(verdicts, 400u);
    }
  }
}

}  // namespace
}  // namespace ropewalk::scheduler
