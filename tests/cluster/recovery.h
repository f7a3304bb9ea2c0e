// kill -9 at ten points of a job's progress: executors, workers and the master in turn. The output has to be byte for byte that of a run in
// peace, or what the test has computed by itself; the event log has to show that work was lost, and no more may be run again than that.
//
// A test binary is also its job: started with "job" as its first argument it runs the job's main (RecoveryMain). Or it names another one.
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
  std::size_t lost = 0;  // attempts that died or gave up, outputs that were gone, ends that no master saw or whose record was lost with one
  std::size_t rerun = 0;              // starts of tasks beyond their first, verification aside
  std::vector<std::string> needless;  // starts that no loss explains
};

// Explains every start of a task, from the log alone. Allowed are, for each task: its first start; one more for each attempt of it that
// failed, died, was cancelled, or ran when the master died; one more where a restarted master does not know its end, because the record was
// not yet in the journal (records keep the order of the ends, and job_recovered says which is the last); and, in each stage, one more for
// each output that was lost. Ancestors need no allowance of their own: one is run again only if its own output is lost, and then the log
// says so.
inline Recovery RecoveryOf(const std::vector<Event>& events) {
  enum class End { kRunning, kFinished, kFailed, kForgotten };
  struct Task {
    std::size_t starts = 0;
    std::string attempt;  // the newest
    End end = End::kFailed;
  };
  using Name = std::pair<std::string, std::string>;
  Recovery recovery;
  std::map<Name, Task> tasks;
  std::vector<std::pair<Name, std::string>> finished;  // in this order: task, attempt
  std::map<std::string, std::size_t> outputs_lost;     // by stage, not explained any start yet
  for (const Event& event : events) {
    Name name{event.Get("stage"), event.Get("task")};
    const std::string attempt = event.Get("attempt");
    if (event.kind == "segments_lost") {
      std::size_t count = std::stoull(event.Get("count"));
      recovery.lost += count;
      outputs_lost[name.first] += count;
    } else if (event.kind == "job_recovered") {
      const std::string last_done = event.Get("last_done");
      auto known = finished.begin();
      for (auto at = finished.begin(); at != finished.end(); ++at)
        if (at->second == last_done) known = at + 1;
      for (auto at = known; at != finished.end(); ++at) {
        ++recovery.lost;
        Task& task = tasks[at->first];
        if (task.attempt == at->second) task.end = End::kForgotten;
      }
      finished.erase(known, finished.end());
      for (auto& [of, task] : tasks) {
        if (task.end != End::kRunning) continue;
        task.end = End::kForgotten;
        ++recovery.lost;
      }
    } else if (event.Get("verify") == "true") {
      continue;
    } else if (event.kind == "task_lost" || event.kind == "fetch_failed" || event.kind == "task_cancelled" || event.kind == "task_failed") {
      ++recovery.lost;
      if (auto task = tasks.find(name); task != tasks.end() && task->second.attempt == attempt) task->second.end = End::kFailed;
    } else if (event.kind == "task_finished") {
      tasks[name].end = End::kFinished;
      finished.emplace_back(name, attempt);
    } else if (event.kind == "task_started") {
      Task& task = tasks[name];
      if (task.starts++ > 0) ++recovery.rerun;
      if (task.end == End::kRunning) recovery.needless.push_back("while it runs: " + event.line);
      if (task.end == End::kFinished) {
        if (outputs_lost[name.first] == 0)
          recovery.needless.push_back("though its output was not lost: " + event.line);
        else
          --outputs_lost[name.first];
      }
      task.attempt = attempt;
      task.end = End::kRunning;
    }
  }
  return recovery;
}

// After so many finished tasks, a task runs that is no verification: whoever is killed then takes work along.
inline bool AtWork(const std::vector<Event>& events, std::size_t progress) {
  std::set<std::string> running;
  std::size_t finished = 0;
  for (const Event& event : events) {
    if (event.kind == "task_finished") ++finished;
    if (event.Get("verify") == "true") continue;
    if (event.kind == "task_started") running.insert(event.Get("attempt"));
    for (const char* end : {"task_finished", "task_failed", "task_lost", "task_cancelled", "fetch_failed"})
      if (event.kind == end) running.erase(event.Get("attempt"));
  }
  return finished >= progress && !running.empty();
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
  std::vector<std::string> argv = {};                                   // of another job than this binary; its output folder follows
  std::function<std::string(const fs::path&)> output = SortedParts;     // what is compared, of the folder that the job wrote
  std::string expected = "";                                            // empty: what a run in peace gives
  std::function<void(const fs::path&)> before = nullptr;                // each submit, with the folder that jobs run in
  std::function<void(const fs::path&)> before_kill = nullptr;
};

// Runs the job once in peace and once for each kill.
inline void KillAtPointsOfProgress(const RecoveryPlan& plan) {
  Cluster cluster({.workers = 2, .slots = 1});
  auto submit = [&](const std::string& out) {
    std::vector<std::string> argv = plan.argv;
    if (argv.empty()) argv = {fs::read_symlink("/proc/self/exe"), "job", std::to_string(plan.delay_ms)};
    argv.push_back(out);
    if (plan.before) plan.before(cluster.dir());
    return cluster.SubmitAccepted(argv);
  };
  auto [peace, peaceful_job] = submit("peace");
  ASSERT_EQ(peace->Wait(120'000), 0) << peace->err();
  const std::string in_peace = plan.output(cluster.dir() / "peace"), expected = plan.expected.empty() ? in_peace : plan.expected;
  ASSERT_GT(expected.size(), 100u);
  ASSERT_TRUE(in_peace == expected) << "in peace " << in_peace.size() << " bytes, and not as expected: " << in_peace.substr(0, 1000);

  int runs = 0;
  auto run_once = [&](std::size_t progress, const std::function<void(JobId, const std::string& out)>& kill, Recovery* recovery) {
    std::string out = "out" + std::to_string(runs++);
    auto [client, job] = submit(out);
    bool over = false;
    ASSERT_TRUE(Eventually([&] {
      std::vector<Event> events = cluster.Events(job);
      over = std::any_of(events.begin(), events.end(), [](const Event& event) { return event.kind == "job_finished"; });
      return over || AtWork(events, progress);
    }));
    if (!over && plan.before_kill) plan.before_kill(cluster.dir());
    if (!over) kill(job, out);
    ASSERT_EQ(client->Wait(100'000), 0) << client->err();
    EXPECT_EQ(client->out(), peace->out()) << "the driver's output is the job's, once";
    const std::string output = plan.output(cluster.dir() / out);
    EXPECT_TRUE(output == expected) << output.size() << " bytes of " << expected.size() << ": " << output.substr(0, 1000);
    for (const auto& entry : fs::directory_iterator(cluster.dir()))
      EXPECT_FALSE(entry.path().filename().string().starts_with("." + out)) << "left behind: " << entry.path();
    *recovery = RecoveryOf(cluster.Events(job));
    EXPECT_LE(recovery->rerun, recovery->lost);
    for (const std::string& start : recovery->needless) ADD_FAILURE() << "a task was started " << start;
    ASSERT_TRUE(cluster.WaitForWorkers(2));
  };
  // A kill may fall between two tasks or on a verification, where there is nothing to lose: such a run has to be exact too, but proves no
  // recovery, so the kill is tried again, a task later: it may be the same at the same point each time.
  auto run = [&](const char* whom, std::size_t progress, const std::function<void(JobId, const std::string& out)>& kill) {
    constexpr std::size_t kTries = 6;
    SCOPED_TRACE(std::string(whom) + " killed after " + std::to_string(progress) + " tasks");
    Recovery recovery;
    for (std::size_t i = 0; i < kTries && recovery.lost == 0 && !testing::Test::HasFailure(); ++i) run_once(progress + i, kill, &recovery);
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
