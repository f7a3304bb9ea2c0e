// Jobs on a master and two workers, all real processes: results equal a model, and a client ends as its job did.
#include <map>
#include <random>
#include <sstream>

#include "tests/cluster/cluster.h"

namespace ropewalk::cluster {
namespace {

using Counts = std::map<std::string, std::uint64_t>;

class ClusterJobs : public testing::Test {
 protected:
  // One cluster for all of these tests: they only add jobs to it.
  static void SetUpTestSuite() { cluster_ = std::make_unique<Cluster>(Cluster::Options{.workers = 2, .slots = 1}); }
  static void TearDownTestSuite() { cluster_.reset(); }

  static Counts PutWords(const std::string& folder, int files, int words) {
    std::uint64_t seed = std::random_device()();
    std::cout << "seed " << seed << "\n";
    std::mt19937_64 random(seed);
    Counts model;
    fs::create_directories(cluster_->dir() / folder);
    for (int file = 0; file < files; ++file) {
      std::ofstream out(cluster_->dir() / folder / ("f" + std::to_string(file)));
      for (int i = 0; i < words; ++i) {
        std::string word = "w" + std::to_string((random() % 1000) * (random() % 1000) / 997);
        ++model[word];
        out << word << (i % 9 == 8 ? '\n' : ' ');
      }
    }
    return model;
  }
  static std::vector<std::string> OutputLines(const std::string& folder) {
    std::vector<fs::path> parts;
    for (const auto& entry : fs::directory_iterator(cluster_->dir() / folder))
      if (entry.path().filename().string().starts_with("part-")) parts.push_back(entry.path());
    std::sort(parts.begin(), parts.end());
    std::vector<std::string> lines;
    for (const fs::path& part : parts) {
      std::istringstream in(ReadFile(part));
      for (std::string line; std::getline(in, line);) lines.push_back(line);
    }
    return lines;
  }
  static Counts OutputCounts(const std::string& folder) {
    Counts counts;
    for (const std::string& line : OutputLines(folder)) {
      std::size_t tab = line.find('\t');
      EXPECT_TRUE(counts.emplace(line.substr(0, tab), std::stoull(line.substr(tab + 1))).second) << "twice: " << line;
    }
    return counts;
  }

  static std::unique_ptr<Cluster> cluster_;
};
std::unique_ptr<Cluster> ClusterJobs::cluster_;

TEST_F(ClusterJobs, WordCountEqualsItsModelAndASecondSubmitSendsNothing) {
  Counts model = PutWords("in", 6, 20000);
  for (const char* out : {"out1", "out2"}) {
    auto client = cluster_->Submit({"ropewalk-jobs", "wordcount", "in", "-o", out});
    ASSERT_EQ(client->Wait(), 0) << client->err();
    EXPECT_EQ(OutputCounts(out), model);
    EXPECT_NE(client->err().find("wordcount: "), std::string::npos) << "the driver's summary did not reach the client: " << client->err();
  }
}

TEST_F(ClusterJobs, SortEqualsItsModel) {
  PutWords("in_sort", 4, 30000);
  std::vector<std::string> model;
  for (const auto& entry : fs::directory_iterator(cluster_->dir() / "in_sort")) {
    std::istringstream in(ReadFile(entry.path()));
    for (std::string line; std::getline(in, line);) model.push_back(line);
  }
  std::sort(model.begin(), model.end());
  auto client = cluster_->Submit({"ropewalk-jobs", "sort", "in_sort", "-o", "out_sort"});
  ASSERT_EQ(client->Wait(), 0) << client->err();
  EXPECT_EQ(OutputLines("out_sort"), model);
}

TEST_F(ClusterJobs, TheDriversOutputReachesTheClient) {
  PutWords("in_top", 2, 1000);
  auto client = cluster_->Submit({"ropewalk-jobs", "wordcount", "in_top", "-o", "out_top", "--top", "3"});
  ASSERT_EQ(client->Wait(), 0) << client->err();
  std::string out = client->out();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 3) << out;
}

TEST_F(ClusterJobs, AFailedJobTellsTheTruth) {
  PutWords("in_fail", 1, 10);
  fs::create_directories(cluster_->dir() / "exists");
  struct Case {
    std::vector<std::string> argv;
    int code;
    const char* text;
  };
  for (const Case& c : {Case{{"ropewalk-jobs", "wordcount", "in_fail", "-o", "exists"}, 1, "error[OUT01]"},
                        Case{{"ropewalk-jobs", "wordcount", "missing", "-o", "o"}, 3, "error[IO01]"},
                        Case{{"ropewalk-jobs", "wordcount", "in_fail"}, 2, "error[JOBS01]"}}) {
    auto client = cluster_->Submit(c.argv);
    EXPECT_EQ(client->Wait(), c.code) << client->err();
    std::string err = client->err();
    std::size_t at = err.find(c.text);
    ASSERT_NE(at, std::string::npos) << err;
    EXPECT_EQ(err.find("error[", at + 1), std::string::npos) << "told twice: " << err;
  }
}

TEST_F(ClusterJobs, DetachPrintsTheIdOnly) {
  Counts model = PutWords("in_detach", 2, 1000);
  auto client = cluster_->Submit({"ropewalk-jobs", "wordcount", "in_detach", "-o", "out_detach", "--detach"});
  ASSERT_EQ(client->Wait(), 0) << client->err();
  std::string id = client->out();
  ASSERT_TRUE(id.ends_with("\n")) << id;
  id.pop_back();
  EXPECT_TRUE(ParseJobName(id).has_value()) << id;
  EXPECT_EQ(client->err(), "");
  ASSERT_TRUE(Eventually([&] { return fs::exists(cluster_->dir() / "out_detach" / "_SUCCESS"); }));
  EXPECT_EQ(OutputCounts("out_detach"), model);
}

TEST_F(ClusterJobs, AMasterThatIsNotThereIsExit5) {
  auto client = cluster_->Submit({"ropewalk-jobs", "wordcount", "in", "-o", "o", "--master", "127.0.0.1:1"});
  EXPECT_EQ(client->Wait(), 5) << client->err();
  EXPECT_NE(client->err().find("127.0.0.1:1"), std::string::npos) << client->err();
}

TEST_F(ClusterJobs, AWrongTokenIsExit4) {
  fs::path token = cluster_->dir() / "wrong";
  std::ofstream(token) << std::string(64, 'a') << "\n";
  fs::permissions(token, fs::perms::owner_read | fs::perms::owner_write);
  auto client = cluster_->Submit({"ropewalk-jobs", "wordcount", "in", "-o", "o", "--token-file", token});
  EXPECT_EQ(client->Wait(), 4) << client->err();
}

}  // namespace
}  // namespace ropewalk::cluster
