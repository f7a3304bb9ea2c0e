// kill -9 at ten points of a job's progress: executors, workers and the master in turn. The output has to be byte for byte that of a run in
// peace, the event log has to show that work was lost, and no more may be run again than that.
//
// A test binary is also its job: started with "job" as its first argument it runs the job's main (RecoveryMain).
//
// Thread rule: one thread.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"

namespace ropewalk::cluster {

// What the event log says about lost and repeated work.
struct Recovery {
  std::size_t lost = 0;      // attempts that died or gave up for lost input, outputs that were gone, attempts whose end no master saw
  std::size_t unsynced = 0;  // tasks that ended in the last second of a master's life: nothing waits for their journal records
  std::size_t rerun = 0;     // starts of tasks beyond their first, verification aside
};

inline Recovery RecoveryOf(const std::vector<Event>& events) {
  constexpr long kUnsyncedMs = 1'000;
  Recovery recovery;
  std::map<std::pair<std::string, std::string>, std::size_t> started;
  std::set<std::string> open;
  std::vector<long> finished_ms;
  for (const Event& event : events) {
    long at_ms = std::atol(event.Get("t_ms").c_str());
    bool verify = event.Get("verify") == "true";
    if (event.kind == "segments_lost") recovery.lost += std::stoull(event.Get("count"));
    if (event.kind == "task_lost" || event.kind == "fetch_failed" || event.kind == "task_cancelled") ++recovery.lost;
    if (event.kind == "task_finished" && !verify) finished_ms.push_back(at_ms);
    if (event.kind == "job_recovered") {
      for (long finished : finished_ms) recovery.unsynced += at_ms - finished <= kUnsyncedMs ? 1 : 0;
      recovery.lost += open.size();
      open.clear();
    }
    if (event.kind == "task_started") {
      open.insert(event.Get("attempt"));
      if (!verify) ++started[{event.Get("stage"), event.Get("task")}];
    } else {
      open.erase(event.Get("attempt"));
    }
  }
  for (const auto& [task, times] : started) recovery.rerun += times - 1;
  return recovery;
}

inline std::string SortedParts(const fs::path& folder) {
  std::vector<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("part-")) parts.push_back(entry.path());
  std::sort(parts.begin(), parts.end());
  std::string all;
  for (const fs::path& part : parts) all += part.filename().string() + "\n" + ReadFile(part);
  return all;
}

// Sleeps for each record of what a test has to be able to interrupt.
inline void Dawdle(int delay_ms) { std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms)); }

struct RecoveryPlan {
  int delay_ms = 8;
  std::vector<std::size_t> executor_kills, worker_kills, master_kills;  // after so many finished tasks
};

// Runs this binary as a job once in peace and once for each kill.
inline void KillAtPointsOfProgress(const RecoveryPlan& plan) {
  Cluster cluster({.workers = 2, .slots = 1});
  auto submit = [&](const std::string& out) {
    return cluster.SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", std::to_string(plan.delay_ms), out});
  };
  auto [peace, peaceful_job] = submit("peace");
  ASSERT_EQ(peace->Wait(120'000), 0) << peace->err();
  const std::string expected = SortedParts(cluster.dir() / "peace");
  ASSERT_GT(expected.size(), 100u);

  int runs = 0;
  auto run_once = [&](std::size_t progress, const std::function<void(JobId, const std::string& out)>& kill, Recovery* recovery) {
    std::string out = "out" + std::to_string(runs++);
    auto [client, job] = submit(out);
    ASSERT_TRUE(cluster.WaitForEvents(job, "task_finished", progress));
    kill(job, out);
    ASSERT_EQ(client->Wait(100'000), 0) << client->err();
    EXPECT_EQ(client->out(), peace->out()) << "the driver's output is the job's, once";
    EXPECT_EQ(SortedParts(cluster.dir() / out), expected);
    for (const auto& entry : fs::directory_iterator(cluster.dir()))
      EXPECT_FALSE(entry.path().filename().string().starts_with("." + out)) << "left behind: " << entry.path();
    *recovery = RecoveryOf(cluster.Events(job));
    EXPECT_LE(recovery->rerun, recovery->lost + recovery->unsynced);
    ASSERT_TRUE(cluster.WaitForWorkers(2));
  };
  // A kill may fall between two tasks, where there is nothing to lose: such a run has to be exact too, but proves no recovery, so the
  // point is tried again.
  auto run = [&](const char* whom, std::size_t progress, const std::function<void(JobId, const std::string& out)>& kill) {
    constexpr int kTries = 6;
    SCOPED_TRACE(std::string(whom) + " killed after " + std::to_string(progress) + " tasks");
    Recovery recovery;
    for (int i = 0; i < kTries && recovery.lost == 0 && !testing::Test::HasFailure(); ++i) run_once(progress, kill, &recovery);
    EXPECT_GE(recovery.lost, 1u) << "in no try was anything lost: the kills prove nothing";
  };
  for (std::size_t progress : plan.executor_kills)
    run("an executor was", progress, [&](JobId, const std::string& out) {
      EXPECT_TRUE(Eventually([&] {
        int busy = cluster.BusyWorker();
        return busy >= 0 && cluster.KillExecutor(busy, out);
      })) << "no executor was there to kill";
    });
  for (std::size_t progress : plan.worker_kills)
    run("a worker was", progress, [&](JobId, const std::string&) {
      EXPECT_TRUE(Eventually([&] { return cluster.BusyWorker() >= 0; }));
      cluster.KillWorker(static_cast<int>(progress % 2));
      cluster.StartWorker(static_cast<int>(progress % 2));
    });
  for (std::size_t progress : plan.master_kills)
    run("the master was", progress, [&](JobId job, const std::string&) {
      EXPECT_TRUE(Eventually([&] { return cluster.BusyWorker() >= 0; }));
      cluster.KillMaster();
      cluster.StartMaster();
      EXPECT_TRUE(cluster.WaitForEvents(job, "job_recovered", 1)) << "the job was not taken up from the journal";
    });
}

}  // namespace ropewalk::cluster

// The main of a recovery test: `JobMain(job, delay_ms, out)` is the job.
#define ROPEWALK_RECOVERY_MAIN(JobMain)               \
  int main(int argc, char** argv) {                   \
    if (argc > 1 && std::string(argv[1]) == "job") {  \
      ropewalk::Job job = ropewalk::Init(argc, argv); \
      JobMain(job, std::atoi(argv[2]), argv[3]);      \
      return 0;                                       \
    }                                                 \
    testing::InitGoogleTest(&argc, argv);             \
    return RUN_ALL_TESTS();                           \
  }
