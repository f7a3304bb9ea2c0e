// Jobs several times larger than their workers' memory: what is spilled and how much memory the processes really take. The same jobs with
// room enough spill nothing, or the first half would prove nothing.
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "tests/cluster/cluster.h"

namespace ropewalk::cluster {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kBudget = 64 * kMiB;
// The budget bounds tables, buffers and segments; a process has its code, its threads' stacks and its sockets besides.
constexpr std::uint64_t kProcess = 64 * kMiB;

std::uint64_t PssBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Pss:")) return std::strtoull(line.c_str() + 4, nullptr, 10) << 10;
  return 0;
}

// Segments in memory: the daemon holds them by descriptor and maps none, so no process's PSS shows them.
std::uint64_t MemfdBytes(pid_t pid) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone).string().find("ropewalk-segment") == std::string::npos || gone) continue;
    struct stat info{};
    if (::stat(entry.path().c_str(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

// The most that was seen, by looking again and again.
class Watch {
 public:
  using Look = std::function<void(Watch&)>;
  explicit Watch(Look look) : look_(std::move(look)), thread_([this] { Run(); }) {}
  ~Watch() { Stop(); }
  void Stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  static void Raise(std::uint64_t* most, std::uint64_t seen) { *most = std::max(*most, seen); }
  std::uint64_t executor_bytes = 0, daemon_bytes = 0, segment_bytes = 0;  // read after Stop()
  int looks = 0;

 private:
  void Run() {
    while (!over_) {
      look_(*this);
      ++looks;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  }
  Look look_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Lines "DOCUMENT<TAB>words of 12 letters", so that the index of words groups many documents behind each.
void WriteLines(const fs::path& path, std::uint64_t bytes, std::uint32_t words) {
  std::mt19937_64 random(7);
  std::ofstream file(path, std::ios::binary);
  std::string line;
  for (std::uint64_t written = 0; written < bytes; written += line.size()) {
    line = "d" + std::to_string(random() % 100'000'000) + "\t";
    for (int i = 0; i < 6; ++i) {
      std::string word = std::to_string(random() % words);
      line += std::string(12 - word.size(), 'w') + word + (i == 5 ? '\n' : ' ');
    }
    file << line;
  }
}

struct Spilled {
  std::uint64_t segments = 0, operators = 0;
};

Spilled SpilledBytes(Cluster& cluster, JobId job) {
  Spilled spilled;
  for (const Event& event : cluster.Events(job))
    if (event.kind == "task_finished") spilled.operators += std::strtoull(event.Get("bytes_spilled").c_str(), nullptr, 10);
  wire::ClientRequest request;
  request.mutable_list_workers();
  auto response = cluster.link().Call(&request);
  EXPECT_TRUE(response.ok());
  if (response.ok())
    for (const auto& worker : response->worker_list().workers()) spilled.segments += worker.spilled_bytes_total();
  return spilled;
}

std::uint64_t FolderBytes(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("part-")) bytes += entry.file_size();
  return bytes;
}

Watch::Look LookAt(Cluster& cluster) {
  return [&cluster](Watch& watch) {
    for (int i = 0; i < 2; ++i) {
      const pid_t daemon = cluster.worker(i).pid();
      Watch::Raise(&watch.daemon_bytes, PssBytes(daemon));
      Watch::Raise(&watch.segment_bytes, MemfdBytes(daemon));
      for (pid_t pid : Descendants(daemon)) Watch::Raise(&watch.executor_bytes, PssBytes(pid));
    }
  };
}

TEST(ClusterMemory, WhatDoesNotFitIsSpilledAndProcessesStayBounded) {
  Cluster cluster({.workers = 2, .slots = 1, .worker_arguments = {"--memory", "64M"}});
  WriteLines(cluster.dir() / "lines", 320 * kMiB, 50'000'000);
  WriteLines(cluster.dir() / "documents", 64 * kMiB, 20'000);
  for (bool sort : {true, false}) {
    SCOPED_TRACE(sort ? "sort" : "group");
    Watch watch(LookAt(cluster));
    auto [client, job] = cluster.SubmitAccepted(sort ? std::vector<std::string>{"ropewalk-jobs", "sort", "lines", "-o", "sorted"}
                                                     : std::vector<std::string>{Binary("examples/inverted_index"), "documents", "index"});
    ASSERT_EQ(client->Wait(300'000), 0) << client->err();
    watch.Stop();
    Spilled spilled = SpilledBytes(cluster, job);
    std::printf(
        "%s: spilled %llu MiB of segments and %llu MiB of operators; executor %llu MiB, daemon %llu MiB, segments %llu MiB, %d looks\n",
        sort ? "sort" : "group", static_cast<unsigned long long>(spilled.segments / kMiB),
        static_cast<unsigned long long>(spilled.operators / kMiB), static_cast<unsigned long long>(watch.executor_bytes / kMiB),
        static_cast<unsigned long long>(watch.daemon_bytes / kMiB), static_cast<unsigned long long>(watch.segment_bytes / kMiB),
        watch.looks);
    EXPECT_GT(watch.looks, 10);
    EXPECT_GT(sort ? spilled.segments : spilled.operators, 64 * kMiB);  // segments are counted over both jobs
    EXPECT_GT(watch.segment_bytes, 0u) << "nothing was measured";
    EXPECT_LE(watch.segment_bytes, kBudget);
    EXPECT_LE(watch.executor_bytes, kBudget + kProcess);
    EXPECT_LE(watch.daemon_bytes, kProcess) << "what it holds in memory it does not map";
    if (sort) {
      EXPECT_EQ(FolderBytes(cluster.dir() / "sorted"), fs::file_size(cluster.dir() / "lines"));
    }
  }
}

TEST(ClusterMemory, WhatFitsIsNotSpilled) {
  Cluster cluster({.workers = 2, .slots = 1, .worker_arguments = {"--memory", "2G"}});
  WriteLines(cluster.dir() / "lines", 96 * kMiB, 50'000'000);
  auto [client, job] = cluster.SubmitAccepted({"ropewalk-jobs", "sort", "lines", "-o", "sorted"});
  ASSERT_EQ(client->Wait(120'000), 0) << client->err();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // for a heartbeat after the last task, to say what it has to
  Spilled spilled = SpilledBytes(cluster, job);
  EXPECT_EQ(spilled.segments, 0u);
  EXPECT_EQ(spilled.operators, 0u);
}

// One process: tables, buffers and segments share one budget.
TEST(ClusterMemory, AJobWithoutAClusterStaysBounded) {
  fs::path dir = fs::path(testing::TempDir()) / ("embedded_memory_" + std::to_string(getpid()));
  fs::create_directories(dir);
  WriteLines(dir / "lines", 320 * kMiB, 50'000'000);
  for (bool small : {true, false}) {
    SCOPED_TRACE(small ? "64 MiB" : "4 GiB");
    if (!small) fs::resize_file(dir / "lines", 96 * kMiB);
    const std::string out = small ? "small" : "large";
    Process run({{Binary("ropewalk-jobs"), "sort", "lines", "-o", out, "--threads", "2", "--memory", small ? "64M" : "4G"},
                 {"ROPEWALK_EVENT_LOG=" + out + ".events"},
                 dir,
                 dir / (out + ".log")});
    Watch watch([pid = run.pid()](Watch& at) { Watch::Raise(&at.executor_bytes, PssBytes(pid)); });
    ASSERT_EQ(run.Wait(300'000), 0) << run.err();
    watch.Stop();
    const std::string events = ReadFile(dir / (out + ".events"));
    const std::size_t at = events.find("\"event\":\"memory\"");
    ASSERT_NE(at, std::string::npos) << events.substr(0, 2000);
    Event memory{"memory", events.substr(at)};
    const std::uint64_t spilled = std::strtoull(memory.Get("spilled_bytes").c_str(), nullptr, 10);
    std::printf("embedded, %s: spilled %llu MiB, PSS %llu MiB: %s\n", small ? "64 MiB" : "4 GiB",
                static_cast<unsigned long long>(spilled / kMiB), static_cast<unsigned long long>(watch.executor_bytes / kMiB),
                memory.line.c_str());
    EXPECT_GT(watch.executor_bytes, 0u);
    if (small) {
      EXPECT_GT(spilled, 200 * kMiB);
      EXPECT_LE(watch.executor_bytes, kBudget + kProcess);
    } else {
      EXPECT_EQ(spilled, 0u);
    }
    EXPECT_NEAR(double(FolderBytes(dir / out)), double(fs::file_size(dir / "lines")), 1) << "but for the end of a line that was cut off";
  }
  fs::remove_all(dir);
}

}  // namespace
}  // namespace ropewalk::cluster
