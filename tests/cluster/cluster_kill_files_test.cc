// The built-in jobs over files, plain and compressed, while processes are killed: splits are read again, and what the input is was
// journalled when the driver listed it. The output is compared with what this test computes.
#include <random>

#include "tests/cluster/lines_model.h"
#include "tests/cluster/recovery.h"

namespace ropewalk::cluster {
namespace {

constexpr std::size_t kTextBytes = 12u << 20;  // of each file: three splits and one, and each long enough to be killed in its middle

std::string Text(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < kTextBytes) {
    const std::uint32_t drawn = random();
    text += "w" + std::to_string((drawn >> 8) % 200'000) + (drawn % 8 == 0 ? "\n" : drawn % 64 == 1 ? "\r\t" : " ");
  }
  return text + "the last line has no end";
}

class ClusterKillFiles : public testing::Test {
 protected:
  // Two files in a folder: one that is cut into splits, one that is not.
  void WriteInput(const fs::path& folder) {
    fs::create_directories(folder / "in");
    fs::remove(folder / "in/late.txt");
    if (fs::exists(folder / "in/b.txt.gz")) return;
    std::ofstream(folder / "in/a.txt", std::ios::binary) << texts_[0];
    std::ofstream(folder / "in/b.txt", std::ios::binary) << texts_[1];
    Process gzip(Process::Options{{"/bin/gzip", "-1", "in/b.txt"}, {}, folder, folder / "gzip"});
    ASSERT_EQ(gzip.Wait(), 0) << gzip.err();
  }
  RecoveryPlan Plan(std::vector<std::string> argv) {
    argv.insert(argv.begin(), "ropewalk-jobs");
    argv.insert(argv.end(), {"in", "--partitions", "6", "-o"});
    RecoveryPlan plan;
    plan.argv = std::move(argv);
    plan.before = [this](const fs::path& folder) { WriteInput(folder); };
    // Whoever lists the folder again finds more than the job began with.
    plan.before_kill = [](const fs::path& folder) { std::ofstream(folder / "in/late.txt") << "too late\n"; };
    return plan;
  }
  const std::vector<std::string> texts_ = {Text(1), Text(2)};
};

TEST_F(ClusterKillFiles, WordCountIsExact) {
  RecoveryPlan plan = Plan({"wordcount"});
  plan.expected = ModelOfWordCount(texts_);
  plan.output = SortedLines;
  plan.executor_kills = {0, 2};
  plan.worker_kills = {3};
  plan.master_kills = {1, 3};
  KillAtPointsOfProgress(plan);
}

TEST_F(ClusterKillFiles, SortIsExact) {
  RecoveryPlan plan = Plan({"sort"});
  plan.expected = ModelOfSort(texts_);
  plan.output = PartsInOrder;
  plan.executor_kills = {1, 6};
  plan.worker_kills = {4};
  plan.master_kills = {2, 5};
  KillAtPointsOfProgress(plan);
}

}  // namespace
}  // namespace ropewalk::cluster
