// SIGTERM of a worker under a running job, and how far a task is while it runs. Real processes.
//
// This binary is also its jobs: started with "job NAME" it runs one of the mains below.
#include <signal.h>

#include <algorithm>

#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"

namespace ropewalk::cluster {
namespace {

constexpr int kNumbers = 24;

// Twelve maps of a third of a second, then a shuffle that reads them all.
void SlowMaps(Job& job) {
  std::vector<int> numbers;
  for (int i = 0; i < kNumbers; ++i) numbers.push_back(i);
  job.FromVector(numbers, {.partitions = 12})
      .Map([](int n) {
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
        return n % 3;
      })
      .CountByValue()
      .WriteText("counts");
}

// One long task over a file: half a millisecond a line.
void SlowLines(Job& job) {
  std::uint64_t count = job.ReadLines("lines")
                            .Map([](std::string_view line) {
                              std::this_thread::sleep_for(std::chrono::microseconds(500));
                              return line.size();
                            })
                            .Count();
  std::printf("%llu\n", static_cast<unsigned long long>(count));
}

std::vector<std::string> Argv(const std::string& name) { return {fs::read_symlink("/proc/self/exe"), "job", name, "--verify=off"}; }

std::string WorkerStates(Cluster& cluster) {
  wire::ClientRequest request;
  request.mutable_list_workers();
  auto response = cluster.link().Call(&request);
  std::string states;
  if (response.ok())
    for (const auto& worker : response->worker_list().workers()) states += worker.name() + " " + worker.state() + "\n";
  return states;
}

TEST(Drain, ARunningJobLosesNothingAndTheWorkerLeavesWithZero) {
  Cluster cluster({.workers = 2, .slots = 1});
  auto [client, job] = cluster.SubmitAccepted(Argv("maps"));
  ASSERT_TRUE(cluster.WaitForEvents(job, "task_finished", 3));
  cluster.worker(1).Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] { return WorkerStates(cluster).find("w1 draining\n") != std::string::npos; })) << WorkerStates(cluster);
  EXPECT_EQ(client->Wait(), 0) << client->err() << cluster.Logs();
  EXPECT_EQ(cluster.worker(1).Wait(), 0) << cluster.Logs();
  for (const char* trouble : {"task_lost", "task_failed", "fetch_failed", "rerun", "segments_lost", "worker_lost"})
    EXPECT_EQ(cluster.CountEvents(job, trouble), 0u) << trouble;
  std::vector<std::string> lines;
  for (const auto& entry : fs::directory_iterator(cluster.dir() / "counts")) {
    std::ifstream part(entry.path());
    if (entry.path().filename().string().starts_with("part-"))
      for (std::string line; std::getline(part, line);) lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"0\t8", "1\t8", "2\t8"}));
  EXPECT_TRUE(Eventually([&] { return WorkerStates(cluster) == "w0 ready\n"; })) << WorkerStates(cluster);
  const std::string log = ReadFile(cluster.dir() / "master0.err");
  EXPECT_NE(log.find(") has left: it was drained"), std::string::npos) << log;
  EXPECT_EQ(log.find(") lost: "), std::string::npos) << "nothing was: " << log;
  fs::remove_all(cluster.dir() / "counts");
  EXPECT_EQ(cluster.Submit(Argv("maps"))->Wait(), 0) << "the other worker goes on";
}

TEST(Progress, ATaskIsSeenToGetOn) {
  Cluster cluster({.workers = 1, .slots = 1});
  std::ofstream file(cluster.dir() / "lines");
  for (int i = 0; i < 60'000; ++i) file << "line " << i << "\n";
  file.close();
  auto [client, job] = cluster.SubmitAccepted(Argv("lines"));
  std::vector<std::uint64_t> records;
  std::uint32_t permille = 0;
  EXPECT_TRUE(Eventually([&] {
    wire::ClientRequest request;
    request.mutable_job_query()->set_job(job.value);
    auto response = cluster.link().Call(&request);
    if (!response.ok() || response->job_state().stages_size() == 0) return !client->running();
    const wire::StageState& stage = response->job_state().stages(0);
    EXPECT_EQ(stage.done(), 0u);
    permille = stage.running_permille();
    if (stage.counters().records_in() > 0 && (records.empty() || records.back() != stage.counters().records_in()))
      records.push_back(stage.counters().records_in());
    return records.size() >= 3 || !client->running();
  }));
  ASSERT_GE(records.size(), 3u) << client->err();
  EXPECT_TRUE(std::is_sorted(records.begin(), records.end()));
  EXPECT_GT(permille, 0u);
  EXPECT_LT(permille, 1000u);
  wire::ClientRequest cancel;
  cancel.mutable_cancel_job()->set_job(job.value);
  ASSERT_TRUE(cluster.link().Call(&cancel).ok());
  EXPECT_EQ(client->Wait(), 7);
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "job") {
    ropewalk::Job job = ropewalk::Init(argc, argv);
    if (std::string(argv[2]) == "maps")
      ropewalk::cluster::SlowMaps(job);
    else
      ropewalk::cluster::SlowLines(job);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
