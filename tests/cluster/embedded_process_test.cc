// A job without a cluster, as a process: exit codes, Ctrl-C, the event log. No daemon and no port.
#include <map>

#include "tests/cluster/process.h"

namespace ropewalk::cluster {
namespace {

class EmbeddedProcess : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("embedded_process_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    std::ofstream(dir_ / "small") << "a b a\nc\n";
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::unique_ptr<Process> Run(std::vector<std::string> args, std::vector<std::string> environment = {}) {
    args.insert(args.begin(), Binary("ropewalk-jobs"));
    return std::make_unique<Process>(Process::Options{args, environment, dir_, dir_ / ("log" + std::to_string(runs_++))});
  }
  // Names in the folder that are no input and no log.
  std::vector<std::string> Left() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      std::string name = entry.path().filename();
      if (name.find("out") != std::string::npos && !name.starts_with("log")) names.push_back(name);
    }
    return names;
  }
  fs::path dir_;
  int runs_ = 0;
};

TEST_F(EmbeddedProcess, SucceedsWithASummaryOnStderrAndTheTopOnStdout) {
  auto run = Run({"wordcount", "small", "-o", "out", "--top", "1", "--threads", "2"}, {"ROPEWALK_EVENT_LOG=events"});
  ASSERT_EQ(run->Wait(), 0) << run->err();
  EXPECT_EQ(run->out(), "           2 a\n");
  EXPECT_NE(run->err().find("wordcount: 8 B in "), std::string::npos) << run->err();
  EXPECT_NE(run->err().find((dir_ / "out").string()), std::string::npos) << run->err();
  std::string events = ReadFile(dir_ / "events");
  for (const char* kind : {"job_accepted", "action_started", "task_finished", "action_published", "job_finished"})
    EXPECT_NE(events.find(std::string("\"event\":\"") + kind), std::string::npos) << kind << " is missing in\n" << events;
}

TEST_F(EmbeddedProcess, ExitCodesTellTheTruth) {
  fs::create_directories(dir_ / "exists");
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* text;
  };
  for (const Case& c :
       {Case{{"wordcount", "small", "-o", "exists"}, 1, "error[OUT01]"}, Case{{"wordcount", "missing", "-o", "out"}, 3, "error[IO01]"},
        Case{{"wordcount", "small"}, 2, "error[JOBS01]"}, Case{{"wordcount", "small", "-o", "out", "--threads", "x"}, 2, "error[CFG01]"},
        Case{{"grep", "(", "small", "-o", "out", "-E"}, 2, "error[JOBS02]"}}) {
    auto run = Run(c.args);
    EXPECT_EQ(run->Wait(), c.code) << run->err();
    EXPECT_NE(run->err().find(c.text), std::string::npos) << run->err();
    EXPECT_EQ(Left(), std::vector<std::string>()) << run->err();
  }
}

TEST_F(EmbeddedProcess, CtrlCCancelsAndLeavesNothing) {
  std::ofstream big(dir_ / "big");
  for (int i = 0; i < 3'000'000; ++i) big << "word" << i % 100'003 << (i % 10 == 9 ? '\n' : ' ');
  big.close();
  int interrupted = 0;
  for (int delay_ms : {20, 60, 150}) {
    auto run = Run({"wordcount", "big", "-o", "out", "--threads", "1"});
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    run->Signal(SIGINT);
    std::optional<int> code = run->Wait(20'000);
    ASSERT_TRUE(code.has_value());
    if (*code == 0) {  // a fast machine was done first
      fs::remove_all(dir_ / "out");
      continue;
    }
    ++interrupted;
    EXPECT_EQ(*code == 130 || *code == 128 + SIGINT, true) << *code << run->err();  // before Init the signal has its default
    EXPECT_EQ(Left(), std::vector<std::string>()) << run->err();
  }
  EXPECT_GT(interrupted, 0);
}

}  // namespace
}  // namespace ropewalk::cluster
