// A loop of 300 rounds whose dataset depends on the last round's, on real processes: each action is planned for itself, a worker that is
// killed late costs few tasks, copies on disks survive all workers, and without any copy the job starts over; always with the same output.
#include "tests/cluster/recovery.h"

namespace ropewalk::cluster {
namespace {

constexpr int kRounds = 300, kParts = 2;

void Dependent(Job& job, int, const std::string& out) {
  std::vector<std::pair<int, std::int64_t>> start;
  for (int i = 0; i < 64; ++i) start.emplace_back(i, i);
  Dataset<std::pair<int, std::int64_t>> data = job.FromVector(start, {.partitions = kParts});
  for (int round = 1; round <= kRounds; ++round) {
    data = data.Map([round](const std::pair<int, std::int64_t>& record) {
                 return std::pair<int, std::int64_t>((record.first * 5 + round) % 64, (record.second * 31 + record.first) % 1'000'003);
               })
               .ReduceByKey([](std::int64_t a, std::int64_t b) { return a + b; }, {.partitions = kParts});
    std::int64_t sum = data.Map([](const std::pair<int, std::int64_t>& record) { return record.second; }).Sum();
    std::printf("round %d: %lld\n", round, static_cast<long long>(sum));
  }
  data.WriteText(out);
}

class DeepLineage : public testing::Test {
 protected:
  std::pair<std::unique_ptr<Process>, JobId> Start(const std::string& out) {
    // Each stage twice would only make the test slow.
    return cluster_.SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", "0", out, "--verify=off"});
  }
  void ExpectSameOutput(Process& client, const std::string& out) {
    EXPECT_EQ(client.Wait(120'000), 0) << client.err();
    EXPECT_EQ(client.out(), peace_->out());
    EXPECT_EQ(SortedParts(cluster_.dir() / out), expected_);
  }
  void Peace() {
    auto [client, job] = Start("peace");
    ASSERT_EQ(client->Wait(120'000), 0) << client->err();
    peace_ = std::move(client);
    peace_job_ = job;
    expected_ = SortedParts(cluster_.dir() / "peace");
    ASSERT_GT(expected_.size(), 100u);
  }
  // Of all tasks from `from` on that were started again after their output was lost.
  std::size_t Reruns(JobId job) { return cluster_.CountEvents(job, "rerun"); }

  Cluster cluster_{{.workers = 2, .slots = 1}};
  std::unique_ptr<Process> peace_;
  JobId peace_job_;
  std::string expected_;
};

TEST_F(DeepLineage, EveryActionIsPlannedForItselfAndLossesCostLittle) {
  Peace();
  if (HasFatalFailure()) return;
  std::size_t actions = 0, retired = 0;
  for (const Event& event : cluster_.Events(peace_job_)) {
    if (event.kind != "action_started") continue;
    ++actions;
    EXPECT_LE(std::stoul(event.Get("stages")), 4u) << event.line;
    EXPECT_LE(std::stoul(event.Get("retired")), 40u) << event.line;
    retired += std::stoul(event.Get("retired"));
  }
  EXPECT_EQ(actions, kRounds + 1u);
  EXPECT_GE(retired, 1u * kRounds) << "the results' stages, and what checkpoints have made needless";
  EXPECT_GE(cluster_.CountEvents(peace_job_, "checkpoint"), kRounds / 17 - 1u);
  EXPECT_EQ(Reruns(peace_job_), 0u);

  struct Loss {
    const char *name, *out;
    int workers;
  };
  for (const Loss& loss : {Loss{"one worker is killed", "one", 1}, Loss{"both workers are killed, their disks stay", "both", 2}}) {
    SCOPED_TRACE(loss.name);
    auto [client, job] = Start(loss.out);
    ASSERT_TRUE(cluster_.WaitForEvents(job, "action_published", 250, 120'000));
    for (int i = 0; i < loss.workers; ++i) cluster_.KillWorker(i);
    for (int i = 0; i < loss.workers; ++i) cluster_.StartWorker(i);
    ExpectSameOutput(*client, loss.out);
    EXPECT_LE(Reruns(job), 2u * 20u);
    EXPECT_EQ(cluster_.CountEvents(job, "started_over"), 0u);
    ASSERT_TRUE(cluster_.WaitForWorkers(2));
  }
  {
    SCOPED_TRACE("both workers are killed, their disks are lost");
    auto [client, job] = Start("disks");
    ASSERT_TRUE(cluster_.WaitForEvents(job, "action_published", 100, 120'000));
    cluster_.KillWorker(0);
    cluster_.KillWorker(1);
    for (const char* worker : {"w0", "w1"}) fs::remove_all(cluster_.dir() / worker / "blocks");
    cluster_.StartWorker(0);
    cluster_.StartWorker(1);
    ExpectSameOutput(*client, "disks");
    EXPECT_EQ(cluster_.CountEvents(job, "started_over"), 1u);
    ASSERT_TRUE(cluster_.WaitForWorkers(2));
  }
  {
    SCOPED_TRACE("the master is killed");
    auto [client, job] = Start("restarted");
    ASSERT_TRUE(cluster_.WaitForEvents(job, "action_published", 200, 120'000));
    cluster_.KillMaster();
    cluster_.StartMaster();
    ExpectSameOutput(*client, "restarted");
    EXPECT_LE(Reruns(job), 2u * 20u);
    EXPECT_EQ(cluster_.CountEvents(job, "started_over"), 0u);
  }
}

}  // namespace
}  // namespace ropewalk::cluster

ROPEWALK_RECOVERY_MAIN(ropewalk::cluster::Dependent)
