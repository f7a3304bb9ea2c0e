// A cluster of `ropewalk start dev` and the commands that a user types at it.
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "tests/cluster/lines_model.h"
#include "tests/cluster/process.h"

namespace ropewalk::cluster {

class DevCluster : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("cli_dev_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "in");
    std::ofstream(dir_ / "in/a.txt") << "rope walk\nwalk walk\n";
  }
  void TearDown() override {
    dev_.reset();
    RemoveTree(dir_);
  }
  void StartDev() {
    dev_ = Start({"start", "dev", "--dir", "state", "--port", "0", "--workers", "2", "--slots", "1", "--memory", "256M"}, "dev");
    ASSERT_TRUE(Eventually([&] { return dev_->out().find("stop:") != std::string::npos || !dev_->running(); })) << dev_->err();
    std::smatch match;
    std::string said = dev_->out();
    ASSERT_TRUE(std::regex_search(said, match, std::regex("127\\.0\\.0\\.1:[0-9]+"))) << said << dev_->err();
    address_ = match[0];
  }
  std::unique_ptr<Process> Start(std::vector<std::string> args, const std::string& log) {
    args.insert(args.begin(), Binary("ropewalk"));
    std::vector<std::string> environment = {"ROPEWALK_HOME=" + (dir_ / "home").string()};
    if (!address_.empty())
      environment.insert(environment.end(), {"ROPEWALK_MASTER=" + address_, "ROPEWALK_TOKEN_FILE=" + (dir_ / "state/token").string()});
    return std::make_unique<Process>(Process::Options{args, environment, dir_, dir_ / log});
  }
  // Runs one command to its end: its exit code; `said` gets stdout and then stderr.
  int Run(std::vector<std::string> args, std::string* said) {
    auto process = Start(std::move(args), "run" + std::to_string(runs_++));
    auto code = process->Wait();
    *said = process->out() + process->err();
    EXPECT_TRUE(code.has_value()) << "it does not end: " << *said;
    return code.value_or(-1);
  }
  // What word count wrote, as ModelOfWordCount gives it.
  std::string Counts(const std::string& folder) { return SortedLines(dir_ / folder); }
  // The child of dev whose command line has `word`.
  pid_t Child(const std::string& word) {
    for (pid_t pid : Descendants(dev_->pid())) {
      std::string command = ReadFile("/proc/" + std::to_string(pid) + "/cmdline");
      if (command.find("start") != std::string::npos && command.find(word) != std::string::npos) return pid;
    }
    return 0;
  }
  static bool Alive(pid_t pid) {
    std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
    std::size_t close = stat.rfind(')');
    return close != std::string::npos && stat.compare(close + 2, 1, "Z") != 0;
  }
  const std::string kCounts = "rope\t1\nwalk\t3\n";
  fs::path dir_;
  std::string address_;
  std::unique_ptr<Process> dev_;
  int runs_ = 0;
};

}  // namespace ropewalk::cluster
