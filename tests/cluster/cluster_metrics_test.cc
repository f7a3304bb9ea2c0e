// What ranks measure, with real processes: on a cluster the master has it, also when it was killed and started again; in one process it is
// in a file. And where the log of a rank is. This binary is also the job.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/job_main.h"

namespace ropewalk::cluster {
namespace {

constexpr std::uint64_t kSteps = 120;

Result<std::string> Rank(GangContext& gang) {
  std::fprintf(stderr, "rank %d is here\n", gang.rank());
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const dag::GangFigure work[] = {{"seconds", .25 * (1 + gang.rank())}};
    gang.Measure("work", step, work);
    const dag::GangFigure loss[] = {{"loss", static_cast<double>(step)}};
    if (gang.rank() == 0) gang.Measure("step", step, loss);
    if (gang.rank() == 0 && step == 5) gang.Notice({"straggler", 1, "somewhere", step, 1.5, "rank 1 is slow"});
  }
  ASSIGN_OR_RETURN(std::vector<std::string> all, gang.Exchange(""));
  return std::to_string(all.size());
}

int RunJob(int argc, char** argv) {
  Job job = Init(argc, argv);
  Result<std::string> result = RunGang(job, "measures", 2, Rank);
  if (!result.ok()) job.context().Fail(result.status());
  std::printf("%s\n", result->c_str());
  return 0;
}

class ClusterMetrics : public testing::Test {
 protected:
  // ropewalk WORDS..., which has to go well: what it prints.
  std::string Ask(std::vector<std::string> words, std::string* err = nullptr) {
    words.insert(words.begin(), Binary("ropewalk"));
    words.insert(words.end(), {"--master", cluster_.address(), "--token-file", cluster_.token_file()});
    Process process({std::move(words),
                     {"HOME=" + (cluster_.dir() / "home").string()},
                     cluster_.dir(),
                     cluster_.dir() / ("ask" + std::to_string(asked_++))});
    EXPECT_EQ(process.Wait(), 0) << process.err();
    if (err != nullptr) *err = process.err();
    return process.out();
  }
  Cluster cluster_{{.workers = 2, .slots = 1}};
  int asked_ = 0;
};

// All steps once, and their mean.
void ExpectWhole(const std::string& json) {
  const std::string mean = "\"first_step\":1,\"last_step\":" + std::to_string(kSteps) + ",";
  EXPECT_NE(json.find(mean), std::string::npos) << json;
  EXPECT_NE(json.find("\"means\":{\"loss\":60.5}"), std::string::npos) << json;
  EXPECT_NE(json.find("\"rank\":0,\"machine\":\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"means\":{\"seconds\":0.25}"), std::string::npos) << json;
  EXPECT_NE(json.find("\"means\":{\"seconds\":0.5}"), std::string::npos) << json;
  EXPECT_NE(json.find("\"notice\":\"straggler\",\"rank\":1,\"machine\":\"somewhere\",\"step\":5,"), std::string::npos) << json;
}

TEST_F(ClusterMetrics, TheMasterHasThemAlsoWhenItWasKilled) {
  auto [client, id] = cluster_.SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job"});
  const std::string job = JobName(id);
  EXPECT_TRUE(Eventually([&] { return Ask({"job", "metrics", job, "--output", "jsonl"}).find("\"loss\":") != std::string::npos; }, 30'000))
      << "while it runs";
  EXPECT_TRUE(client->running()) << "it was to be seen on the way";
  ASSERT_EQ(client->Wait(), 0) << client->err();

  const std::vector<std::string> one_point = {"job", "metrics", job, "--points", "1", "--output", "json"};
  const std::string before = Ask(one_point);
  ExpectWhole(before);
  EXPECT_NE(before.find("\"machine\":\"w0\""), std::string::npos) << before;
  EXPECT_NE(before.find("\"machine\":\"w1\""), std::string::npos) << before;
  EXPECT_GE(std::count(before.begin(), before.end(), '{'), 6);
  const std::string table = Ask({"job", "metrics", job});
  EXPECT_NE(table.find("straggler: rank 1 is slow"), std::string::npos) << table;
  EXPECT_EQ(cluster_.CountEvents(id, "gang_notice"), 1u);

  std::string places;
  const std::string log = Ask({"logs", job, "--rank", "1"}, &places);
  EXPECT_NE(log.find("rank 1 is here"), std::string::npos) << log;
  EXPECT_EQ(log.find("rank 0 is here"), std::string::npos) << log;
  EXPECT_NE(places.find("rank 1 ran in executor "), std::string::npos) << places;

  cluster_.KillMaster();
  cluster_.StartMaster();
  EXPECT_EQ(Ask(one_point), before);
}

TEST_F(ClusterMetrics, OneProcessKeepsThemInAFile) {
  Process process(
      {{fs::read_symlink("/proc/self/exe"), "job"},
       {"HOME=" + (cluster_.dir() / "home").string(), "ROPEWALK_METRICS=metrics", "ROPEWALK_EVENT_LOG=events", "ROPEWALK_QUIET=1"},
       cluster_.dir(),
       cluster_.dir() / "alone"});
  ASSERT_EQ(process.Wait(), 0) << process.err();
  const std::string all = Ask({"job", "metrics", "metrics", "--output", "jsonl"});
  EXPECT_NE(all.find("\"series\":\"step\",\"rank\":0"), std::string::npos);
  const std::string steps = Ask({"job", "metrics", "metrics", "--output", "jsonl", "--rank", "1"});
  EXPECT_GE(std::count(steps.begin(), steps.end(), '\n'), 2) << "told on the way, not at the end only\n" << steps;
  EXPECT_NE(ReadFile(cluster_.dir() / "events").find("\"event\":\"gang_notice\""), std::string::npos);
  // The numbers are those of a cluster.
  const std::string whole = Ask({"job", "metrics", "metrics"});
  EXPECT_NE(whole.find("work of gang "), std::string::npos) << whole;
  EXPECT_NE(whole.find("straggler: rank 1 is slow"), std::string::npos) << whole;
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) { return ropewalk::cluster::TestOrJob(argc, argv, ropewalk::cluster::RunJob); }
