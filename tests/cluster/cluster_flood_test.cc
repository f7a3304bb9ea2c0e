// A job that prints far more than anybody reads: what it says is bounded, and other jobs are taken as before.
//
// This binary is also its jobs: started with "job NAME" it runs one of the mains below.
#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/job_main.h"

namespace ropewalk::cluster {
namespace {

const std::string kLine = std::string(127, 'x') + "\n";

std::vector<int> Numbers(int n) {
  std::vector<int> numbers(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) numbers[static_cast<std::size_t>(i)] = i;
  return numbers;
}

void Print(std::FILE* to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine.size()) std::fwrite(kLine.data(), 1, kLine.size(), to);
}

int RunJob(int argc, char** argv) {
  Job job = Init(argc, argv);
  const std::string name = argv[2];
  const std::size_t bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) << 20 : 0;
  if (name == "main_prints") Print(stdout, bytes);
  const bool tasks_print = name == "tasks_print";
  const std::uint64_t n = job.FromVector(Numbers(4), {.partitions = 2})
                              .Map([tasks_print, bytes](int i) {
                                if (tasks_print) Print(stdout, bytes / 4);
                                return i;
                              })
                              .Count();
  std::printf("counted %llu\n", static_cast<unsigned long long>(n));
  return 0;
}

class ClusterFlood : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    config_ = fs::path(testing::TempDir()) / ("flood_" + std::to_string(getpid()) + ".toml");
    std::ofstream(config_) << "[master]\njob_stdout = \"3M\"\njob_logs = \"1M\"\n";
    // One executor, so that one stream holds all that tasks print.
    cluster_ = std::make_unique<Cluster>(Cluster::Options{.workers = 1, .slots = 2, .master_arguments = {"--config", config_}});
  }
  static void TearDownTestSuite() {
    cluster_.reset();
    fs::remove(config_);
  }
  static std::pair<std::unique_ptr<Process>, JobId> Submit(const std::string& name, int mebibytes) {
    return cluster_->SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", name, std::to_string(mebibytes)},
                                    {"ROPEWALK_QUIET=1", "ROPEWALK_VERIFY=off"});
  }
  static std::string Kept(JobId job, const std::string& file) {
    return ReadFile(cluster_->dir() / "master" / "jobs" / JobName(job) / file);
  }
  // What of `text` is the job's, and how much more there was by the master's own lines.
  static std::pair<std::uint64_t, std::uint64_t> Count(const std::string& text) {
    std::uint64_t printed = 0, dropped = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("[ropewalk] "))
        printed += static_cast<std::uint64_t>(std::count(line.begin(), line.end(), 'x'));
      else if (const std::size_t at = line.find(" bytes"); line.find("were not kept") != std::string::npos && at != std::string::npos)
        dropped += std::strtoull(line.c_str() + std::strlen("[ropewalk] "), nullptr, 10);
    }
    return {printed, dropped};
  }

  static fs::path config_;
  static std::unique_ptr<Cluster> cluster_;
};
fs::path ClusterFlood::config_;
std::unique_ptr<Cluster> ClusterFlood::cluster_;

TEST_F(ClusterFlood, OfWhatTasksPrintTheLimitIsKeptAndTheRestIsCounted) {
  auto [client, job] = Submit("tasks_print", 8);
  ASSERT_EQ(client->Wait(60'000), 0) << client->err().substr(0, 2000);
  EXPECT_EQ(client->out(), "counted 4\n");
  const std::string log = Kept(job, "driver.err");
  EXPECT_LE(log.size(), (1u << 20) + 1000);
  const auto [printed, dropped] = Count(log);
  EXPECT_GT(printed, 900'000u);
  // Some newlines were dropped, too: one byte of each line.
  constexpr std::uint64_t kPrinted = 8u << 20;
  EXPECT_NEAR(static_cast<double>(log.find("\n[ropewalk]") + dropped), static_cast<double>(kPrinted), 300) << log.substr(log.size() - 300);
}

TEST_F(ClusterFlood, OfWhatMainPrintsTheLimitIsKeptAndTheRestIsCounted) {
  auto [client, job] = Submit("main_prints", 8);
  ASSERT_EQ(client->Wait(60'000), 0) << client->err().substr(0, 2000);
  EXPECT_EQ(client->out().size(), 3u << 20) << "what is above the limit reaches nobody";
  const std::string log = Kept(job, "driver.err");
  const auto [printed, dropped] = Count(log);
  EXPECT_EQ(dropped, (8u << 20) + std::strlen("counted 4\n") - (3u << 20)) << log;
  EXPECT_NE(client->err().find("were not kept"), std::string::npos) << "the user is told: " << client->err();
}

// While one job prints, others are accepted and run.
TEST_F(ClusterFlood, OthersRunBesideAJobThatPrints) {
  auto [flood, first] = Submit("main_prints", 64);
  auto [other, second] = Submit("nothing", 0);
  EXPECT_EQ(other->Wait(60'000), 0) << other->err();
  EXPECT_EQ(other->out(), "counted 4\n");
  EXPECT_EQ(flood->Wait(60'000), 0) << flood->err();
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) { return ropewalk::cluster::TestOrJob(argc, argv, ropewalk::cluster::RunJob, 1); }
