// The shortest road: lines of files, words, counts, text; the same for every number of partitions, order of tasks and split size.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "dag/text.h"
#include "tests/unit/local_backend.h"

namespace ropewalk::dag {
namespace {

namespace fs = std::filesystem;

class WordCount : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("dag_word_count_" + std::to_string(::getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "in");
  }
  void TearDown() override { fs::remove_all(dir_); }
  void Put(const std::string& name, const std::string& text) { std::ofstream(dir_ / "in" / name) << text; }
  // Lines of all parts, sorted.
  std::vector<std::string> Output(const std::string& name) {
    std::vector<std::string> lines;
    for (const auto& part : fs::directory_iterator(dir_ / name)) {
      if (part.path().filename().string().starts_with("_")) continue;
      std::ifstream in(part.path());
      for (std::string line; std::getline(in, line);) lines.push_back(line);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }
  fs::path dir_;
};

TEST_F(WordCount, FilesToTextForAnyPartitionsOrderAndSplits) {
  std::mt19937_64 random(7);
  std::map<std::string, std::uint64_t> model;
  for (int file = 0; file < 5; ++file) {
    std::string text;
    for (int i = 0; i < 3000; ++i) {
      std::string word = "w" + std::to_string(random() % 500);
      ++model[word];
      text += word + (random() % 7 == 0 ? "\n" : random() % 3 == 0 ? "\t " : " ");
    }
    Put("f" + std::to_string(file), text);
  }
  std::vector<std::string> expected;
  std::uint64_t bytes = 0;
  for (const auto& [word, n] : model) {
    expected.push_back(word + "\t" + std::to_string(n));
    bytes += expected.back().size() + 1;
  }
  std::sort(expected.begin(), expected.end());
  for (std::uint32_t partitions : {1, 2, 5, 8}) {
    for (std::uint64_t split_bytes : {1u << 12, 128u << 20}) {
      LocalBackend backend(partitions);
      backend.options.split_bytes_max = split_bytes;
      backend.options.work_dir = dir_;
      backend.shuffle_seed = partitions;
      Session job = backend.NewSession();
      const Written written = job.ReadLines("in").FlatMap(Words).CountByKey().WriteText("out", {.overwrite = true});
      EXPECT_EQ(written, (Written{expected.size(), bytes, partitions}))
          << written.records << ", " << written.bytes << ", " << written.parts;
      EXPECT_EQ(Output("out"), expected) << partitions << " partitions, splits of " << split_bytes;
      EXPECT_EQ(backend.plans.back().stages[0].name.substr(0, 32), "ReadLines > FlatMap > CountByKey");
    }
  }
}

TEST_F(WordCount, AnEmptyFolderGivesAnEmptyResult) {
  LocalBackend backend;
  backend.options.work_dir = dir_;
  Session job = backend.NewSession();
  auto words = job.ReadLines("in").FlatMap(Words);
  EXPECT_EQ(words.Count(), 0u);
  words.CountByKey().WriteText("out");
  EXPECT_TRUE(Output("out").empty());
  EXPECT_TRUE(fs::exists(dir_ / "out" / "_SUCCESS"));
}

TEST_F(WordCount, RefusedInputAndOutputFailTheAction) {
  Put("a", "x\n");
  LocalBackend backend;
  backend.options.work_dir = dir_;
  Session job = backend.NewSession();
  try {
    job.ReadLines("missing*");
    FAIL();
  } catch (const ActionFailed& failed) {
    EXPECT_EQ(failed.status.tag(), "IO01");
  }
  auto lines = job.ReadLines("in");
  lines.WriteText("out");
  try {
    lines.WriteText("out");
    FAIL();
  } catch (const ActionFailed& failed) {
    EXPECT_EQ(failed.status.tag(), "OUT01");
  }
  try {
    lines.WriteText("in", {.overwrite = true});
    FAIL();
  } catch (const ActionFailed& failed) {
    EXPECT_EQ(failed.status.tag(), "OUT03");
  }
}

// However the folder that is read was typed: what the job writes there, its next run would count.
TEST_F(WordCount, AnOutputInAFolderThatIsReadIsRefused) {
  Put("a", "x\n");
  fs::create_directories(dir_ / "elsewhere");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "in" / "link");
  const std::string dir = dir_.string();
  for (const std::string& input : {std::string("in"), std::string("./in/"), dir + "/in", "file://" + dir + "/in", dir + "/i*",
                                   std::string("i[n]"), "file://" + dir + "/i?", std::string("in/**")}) {
    LocalBackend backend;
    backend.options.work_dir = dir_;
    Session job = backend.NewSession();
    auto lines = job.ReadLines(input);
    for (const char* output : {"in", "in/out", "in/sub/../out", "elsewhere/out", "in/link/out"}) {
      try {
        lines.WriteText(output, {.overwrite = true});
        FAIL() << input << " " << output;
      } catch (const ActionFailed& failed) {
        EXPECT_EQ(failed.status.tag(), "OUT03") << input << " " << output << ": " << failed.status.ToString();
      }
    }
    lines.WriteText("out", {.overwrite = true});
    EXPECT_EQ(Output("out"), std::vector<std::string>{"x"}) << input;
  }
}

TEST_F(WordCount, ThrowingUserCodeIsRetriedAndTheCursorNamesTheRecord) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "line " + std::to_string(i) + "\n";
  Put("a", text);
  LocalBackend backend;
  backend.options.work_dir = dir_;
  Session job = backend.NewSession();
  auto bad = job.ReadLines("in").Map([](std::string_view line) -> int {
    if (line == "line 4321") throw std::runtime_error("bad line");
    return 1;
  });
  EXPECT_THROW(bad.Sum(), ActionFailed);
  EXPECT_EQ(backend.tasks_run, backend.options.user_attempts_max);
  EXPECT_EQ(backend.cursor.offset.load(), text.find("line 4321\n"));
  EXPECT_TRUE(std::string(backend.cursor.source).ends_with("/in/a"));
}

}  // namespace
}  // namespace ropewalk::dag
