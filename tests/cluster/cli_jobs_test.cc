// `ropewalk run` and `ropewalk submit` with each of the built-in jobs: both write what this test computes.
#include "tests/cluster/dev_cluster.h"

namespace ropewalk::cluster {
namespace {

class BuiltInJobs : public DevCluster {
 protected:
  // Several files and a folder, a compressed one, bytes that are no text, and last lines without an end.
  void WriteInput() {
    fs::create_directories(dir_ / "texts/deeper");
    for (const std::string& text :
         {std::string("rope walk\r\n walk\twalk\n\nto rope the walk"), std::string("no\0walk\n", 8) + "w\xff\xfe lk\n",
          std::string("a rope\n") + std::string(100'000, 'r') + " walk\n"}) {
      const std::string name = "texts/" + std::string(texts_.size() == 1 ? "deeper/" : "") + static_cast<char>('a' + texts_.size());
      std::ofstream(dir_ / name, std::ios::binary) << text;
      texts_.push_back(text);
    }
    std::string many;
    for (std::size_t i = 0; i < 50'000; ++i) many += "line " + std::to_string(i * 7919 % 50'000) + (i % 3 == 0 ? " walks\n" : "\n");
    std::ofstream(dir_ / "texts/many", std::ios::binary) << many;
    Process gzip(Process::Options{{"/bin/gzip", "texts/many"}, {}, dir_, dir_ / "gzip"});
    ASSERT_EQ(gzip.Wait(), 0) << gzip.err();
    texts_.push_back(many);
  }
  std::vector<std::string> texts_;
};

TEST_F(BuiltInJobs, RunAndSubmitGiveTheModelsAnswer) {
  StartDev();
  WriteInput();
  struct Case {
    std::vector<std::string> job;
    std::string expected;
    bool in_order;  // of the output's lines; else they are spread by hash, or stand file by file
  };
  const std::vector<Case> cases = {{{"wordcount"}, ModelOfWordCount(texts_), false},
                                   {{"sort"}, ModelOfSort(texts_), true},
                                   {{"grep", "walk"}, ModelOfSort({ModelOfGrep(texts_, "walk")}), false},
                                   {{"grep", "nowhere to be found"}, "", false}};
  for (const Case& c : cases)
    for (const std::string verb : {"run", "submit"}) {
      SCOPED_TRACE(verb + " " + c.job[0]);
      const std::string out = verb + "-" + c.job.back();
      std::vector<std::string> args = {verb};
      args.insert(args.end(), c.job.begin(), c.job.end());
      args.insert(args.end(), {"texts", "-o", out, "--partitions", "3"});
      std::string said;
      ASSERT_EQ(Run(args, &said), 0) << said;
      EXPECT_NE(said.find(c.job[0] + ": "), std::string::npos) << "the summary: " << said;
      EXPECT_EQ(said.find(" accepted by ") != std::string::npos, verb == "submit") << said;
      const std::string output = c.in_order ? PartsInOrder(dir_ / out) : SortedLines(dir_ / out);
      EXPECT_TRUE(output == c.expected) << output.size() << " bytes of " << c.expected.size() << ": " << output.substr(0, 1000);
      EXPECT_TRUE(fs::exists(dir_ / out / "_SUCCESS"));
    }
}

}  // namespace
}  // namespace ropewalk::cluster
