// Many seeds of a model cluster around the real scheduler core. A failure prints its seed; ROPEWALK_SIM_SEED=n ROPEWALK_SIM_RUNS=1 replays
// it (with ROPEWALK_SIM_TRACE=1 line by line).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/simulation/world.h"

namespace ropewalk::simulation {
namespace {

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Paths that only rare mixes of faults take. A suite that never reaches one of them proves nothing about it.
constexpr const char* kSometimes[] = {"ack lost",
                                      "submit repeated",
                                      "master crash",
                                      "journal suffix lost",
                                      "journal compacted",
                                      "worker flap",
                                      "worker drains",
                                      "drained worker leaves empty",
                                      "drained worker is out of patience",
                                      "event executor_stopped",
                                      "spilled segments survive",
                                      "executor killed",
                                      "segment dropped",
                                      "damaged segment read",
                                      "stale duplicate",
                                      "commit repeated",
                                      "event rerun",
                                      "event segment_adopted",
                                      "event content_changed",
                                      "event verify_failed",
                                      "event verify_ok",
                                      "event verify_skipped",
                                      "event task_cancelled",
                                      "event fetch_failed",
                                      "event job_recovered",
                                      "event commit",
                                      "event checkpoint",
                                      "event checkpoint_given_up",
                                      "event copy_used",
                                      "event started_over",
                                      "event gang_waits",
                                      "event gang_formed",
                                      "event gang_holds",
                                      "event gang_lost",
                                      "event gang_finished",
                                      "event gang_grows",
                                      "gang formed anew",
                                      "gang of fewer ranks",
                                      "rank does not end",
                                      "gang fails farther on",
                                      "large gang value",
                                      "finish GANG01",
                                      "finish GANG03",
                                      "finish seen after restart",
                                      "master crash before it tells",
                                      "finish ok",
                                      "finish DET01",
                                      "finish DET02",
                                      "finish JOB05",
                                      "finish TASK04",
                                      "finish USER"};

TEST(SchedulerSwarm, EverySeedEndsRightOrWithALegalReason) {
  std::uint64_t first = FromEnvironment("ROPEWALK_SIM_SEED", 1), runs = FromEnvironment("ROPEWALK_SIM_RUNS", 2000);
  std::map<std::string, std::uint64_t> marks;
  std::uint64_t steps = 0, failed = 0;
  for (std::uint64_t seed = first; seed < first + runs && failed < 10; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.print = FromEnvironment("ROPEWALK_SIM_TRACE", 0) != 0;
    Outcome outcome = World(options).Run();
    steps += outcome.steps;
    for (const auto& [mark, n] : outcome.marks) marks[mark] += n;
    if (!outcome.violations.empty()) {
      ++failed;
      ADD_FAILURE() << "seed " << seed << " (trace " << std::hex << outcome.trace_hash << "): " << outcome.violations.front()
                    << "\nreplay: ROPEWALK_SIM_SEED=" << std::dec << seed << " ROPEWALK_SIM_RUNS=1 ROPEWALK_SIM_TRACE=1";
    }
    if (seed % 100 == 0 || runs == 1) {
      options.print = false;
      EXPECT_EQ(World(options).Run().trace_hash, outcome.trace_hash) << "seed " << seed << " ran differently the second time";
    }
  }
  for (const auto& [mark, n] : marks) std::printf("  %8llu  %s\n", static_cast<unsigned long long>(n), mark.c_str());
  std::printf("  seeds %llu to %llu, %llu events\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + runs - 1), static_cast<unsigned long long>(steps));
  if (runs < 1000) return;
  for (const char* mark : kSometimes) EXPECT_GT(marks[mark], 0u) << "no seed took this path: " << mark;
}

TEST(SchedulerSwarm, WithoutFaultsNothingIsDoneTwice) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Outcome outcome = World({.seed = seed, .planted = {}, .faults = false, .checkpoints = {}, .print = false}).Run();
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << outcome.violations.front();
    EXPECT_EQ(outcome.marks["event segments_lost"], 0u) << "seed " << seed;
    EXPECT_EQ(outcome.marks["event content_changed"], 0u) << "seed " << seed;
  }
}

// Whether, where and when outputs are copied changes what a loss costs, and no result.
TEST(SchedulerSwarm, CheckpointsChangeNoResult) {
  std::uint64_t compared = 0, checkpoints = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Outcome with = World({.seed = seed, .planted = {}, .checkpoints = true}).Run();
    Outcome without = World({.seed = seed, .planted = {}, .checkpoints = false}).Run();
    ASSERT_TRUE(with.violations.empty()) << "seed " << seed << ": " << with.violations.front();
    ASSERT_TRUE(without.violations.empty()) << "seed " << seed << ": " << without.violations.front();
    EXPECT_EQ(without.marks["event checkpoint_wanted"], 0u);
    checkpoints += with.marks["event checkpoint"];
    for (const auto& [job, results] : with.results) {
      auto other = without.results.find(job);
      if (other == without.results.end() || with.random_jobs.contains(job)) continue;
      EXPECT_EQ(other->second, results) << "seed " << seed << ", job " << job;
      ++compared;
    }
  }
  EXPECT_GT(compared, 200u);
  EXPECT_GT(checkpoints, 100u);
}

// Each of these bugs was made by some system before. The oracles must see each of them within a few hundred seeds.
struct Planted {
  const char* name;
  scheduler::PlantedBugs bugs;
  std::vector<std::string> seen_as;  // how the oracles may put it
};

class PlantedBug : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBug, IsFound) {
  std::uint64_t first = FromEnvironment("ROPEWALK_SIM_SEED", 1);
  for (std::uint64_t seed = first; seed < first + 3000; ++seed) {
    Outcome outcome = World({.seed = seed,
                             .planted = GetParam().bugs,
                             .faults = true,
                             .checkpoints = {},
                             .print = FromEnvironment("ROPEWALK_SIM_TRACE", 0) != 0})
                          .Run();
    if (outcome.violations.empty()) continue;
    const std::string& what = outcome.violations.front();
    bool told = false;
    for (const std::string& text : GetParam().seen_as) told |= what.find(text) != std::string::npos;
    EXPECT_TRUE(told) << "seed " << seed << " saw something else: " << what;
    std::printf("  %s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed), what.c_str());
    return;
  }
  ADD_FAILURE() << GetParam().name << " was not found in 3000 seeds from " << first;
}

INSTANTIATE_TEST_SUITE_P(
    SchedulerSwarm, PlantedBug,
    testing::Values(Planted{"AttemptsReusedAfterRestart", {.reuse_attempts_after_restart = true}, {"attempt number used twice"}},
                    Planted{"ActsBeforeTheSync",
                            {.act_before_sync = true},
                            {"is gone after a restart", "two values", "two results", "published twice", "mix", "two jobs", "finished twice",
                             "number of a forming"}},
                    Planted{"PartialRerunOfNondeterministicWork", {.keep_stale_consumers = true}, {"mix"}},
                    Planted{"NoSubmitKey", {.ignore_submit_key = true}, {"one submit key, two jobs"}},
                    Planted{"GangNumbersReusedAfterRestart", {.reuse_gang_epochs = true}, {"the number of a forming was used twice"}},
                    Planted{"RanksNotTold", {.keep_ranks_of_lost_gangs = true}, {"a rank was not told"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ropewalk::simulation
