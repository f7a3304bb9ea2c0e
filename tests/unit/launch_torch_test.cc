// Programs of others as children of ranks: what they get, what is read of them, and that nothing of them is left.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "mlrunner/launch/child_program.h"
#include "mlrunner/launch/torch.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::launch {
namespace {

class OneRank final : public dag::GangContext {
 public:
  OneRank(std::int32_t rank, std::int32_t ranks) : rank_(rank), ranks_(ranks) {}
  std::int32_t rank() const override { return rank_; }
  std::int32_t ranks() const override { return ranks_; }
  std::uint32_t epoch() const override { return 2; }
  const std::string& address() const override { return address_; }
  const std::string& machine() const override { return machine_; }
  Result<std::vector<std::string>> Exchange(std::string mine) override { return std::vector<std::string>{std::move(mine)}; }
  void OnLost(std::function<void(const Status&)> lost) override {
    std::lock_guard lock(mutex_);
    on_lost_ = std::move(lost);
  }
  void Report(std::string line) override { lines.push_back(std::move(line)); }
  void Reached(std::uint64_t milestone) override {
    reached.push_back(milestone);
    if (on_reached) on_reached();
  }
  bool IsWatched() {
    std::lock_guard lock(mutex_);
    return on_lost_ != nullptr;
  }
  void Lose(const Status& status) {
    std::lock_guard lock(mutex_);
    on_lost_(status);
  }
  std::function<void()> on_reached;
  std::vector<std::string> lines;
  std::vector<std::uint64_t> reached;

 private:
  std::int32_t rank_, ranks_;
  std::mutex mutex_;
  std::function<void(const Status&)> on_lost_;
  std::string address_ = "127.0.0.1", machine_ = "here";
};

Result<TorchArguments> Parse(std::vector<std::string> more) {
  std::vector<std::string> args = {"ropewalk train", "torch"};
  args.insert(args.end(), more.begin(), more.end());
  return ParseTorchArguments(args, "/home/me");
}
TorchJob Job(const std::string& script) {
  TorchJob job;
  job.program = {"sh", "-c", script};
  job.folder = "/tmp";
  return job;
}

TEST(Torch, RanksOfAMachineCountThereAndMachinesInTheOrderOfTheirFirstRank) {
  const std::vector<std::string> machines = {"b", "b", "a", "b", "a", "c"};
  const int local_rank[] = {0, 1, 0, 2, 1, 0}, local_ranks[] = {3, 3, 2, 3, 2, 1}, machine[] = {0, 0, 1, 0, 1, 2};
  for (std::int32_t rank = 0; rank < 6; ++rank) {
    const TorchPlace place = PlaceOf(machines, rank);
    EXPECT_EQ(place.local_rank, local_rank[rank]);
    EXPECT_EQ(place.local_ranks, local_ranks[rank]);
    EXPECT_EQ(place.machine, machine[rank]);
    EXPECT_EQ(place.machines, 3);
  }
}

TEST(Torch, ProgramsGetWhatTorchrunGivesThem) {
  OneRank gang(2, 3);
  TorchJob job = Job("");
  job.restarts_max = 4;
  unsetenv("OMP_NUM_THREADS");
  auto environment = TorchEnvironment(job, gang, {"a", "b", "b"}, "10.0.0.7", "4711", "17");
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "2"},
                                                                      {"WORLD_SIZE", "3"},
                                                                      {"LOCAL_RANK", "1"},
                                                                      {"LOCAL_WORLD_SIZE", "2"},
                                                                      {"GROUP_RANK", "1"},
                                                                      {"GROUP_WORLD_SIZE", "2"},
                                                                      {"ROLE_RANK", "2"},
                                                                      {"ROLE_WORLD_SIZE", "3"},
                                                                      {"MASTER_ADDR", "10.0.0.7"},
                                                                      {"MASTER_PORT", "4711"},
                                                                      {"TORCHELASTIC_RESTART_COUNT", "2"},
                                                                      {"TORCHELASTIC_MAX_RESTARTS", "4"},
                                                                      {"TORCHELASTIC_RUN_ID", "17"},
                                                                      {"TORCHELASTIC_USE_AGENT_STORE", "False"}})
    EXPECT_EQ(environment[name], value) << name;
  EXPECT_GE(std::stoi(environment["OMP_NUM_THREADS"]), 1);
  setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_FALSE(TorchEnvironment(job, gang, {"a", "b", "b"}, "", "", "").contains("OMP_NUM_THREADS")) << "what somebody has set stays";
  unsetenv("OMP_NUM_THREADS");
}

TEST(Torch, TheCallIsTheSameInEveryProcess) {
  auto parsed = Parse({"--ranks", "3", "--ranks-min=2", "--logs", "logs", "--restarts=1", "--", "bin/train", "--ranks", "9"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->job.program, (std::vector<std::string>{"/home/me/bin/train", "--ranks", "9"}));
  EXPECT_EQ(parsed->job.ranks, 3);
  EXPECT_EQ(parsed->job.ranks_min, 2);
  EXPECT_EQ(parsed->job.restarts_max, 1u);
  EXPECT_EQ(parsed->job.logs, "/home/me/logs");
  EXPECT_EQ(parsed->job.folder, "/home/me");
  auto again = ParseTorchArguments(parsed->argv, "/elsewhere");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->argv, parsed->argv);
  EXPECT_EQ(again->job.program, parsed->job.program);
  EXPECT_EQ(again->job.folder, parsed->job.folder);
  EXPECT_EQ(Parse({"--", "python3", "x.py"})->job.program[0], "python3") << "found in each machine's PATH";
}

TEST(Torch, AWrongCallIsRefusedWithWhatIsWrong) {
  struct Case {
    std::vector<std::string> args;
    const char* what;
  };
  for (const Case& c :
       {Case{{}, "which program?"}, Case{{"--"}, "which program?"}, Case{{"train.py"}, "what is \"train.py\"?"},
        Case{{"--rank", "2", "--", "x"}, "unknown flag \"--rank\""}, Case{{"--ranks"}, "--ranks needs a value"},
        Case{{"--ranks", "0", "--", "x"}, "\"0\" is no value for --ranks"},
        Case{{"--ranks", "two", "--", "x"}, "\"two\" is no value for --ranks"},
        Case{{"--ranks=2", "--ranks-min=3", "--", "x"}, "--ranks-min 3 is more than --ranks 2"},
        Case{{"--shrink-after=3", "--", "x"}, "--shrink-after means nothing"}, Case{{"--logs=", "--", "x"}, "--logs names no folder"}}) {
    auto parsed = Parse(c.args);
    EXPECT_EQ(parsed.status().tag(), "LAUNCH02") << c.what;
    EXPECT_NE(parsed.status().what().find(c.what), std::string::npos) << parsed.status().ToString();
    EXPECT_FALSE(parsed.status().fix().empty());
  }
  EXPECT_NE(Parse({"--rank", "2", "--", "x"}).status().fix().find("--ranks"), std::string::npos);
}

TEST(Torch, ARankEndsAsItsProgramDoes) {
  OneRank well(0, 1);
  ASSERT_TRUE(RunTorchRank(well, Job("test $RANK = 0 && test -n \"$MASTER_PORT\" && echo fine"), "1").ok());
  EXPECT_EQ(well.lines, std::vector<std::string>{"fine"});
  EXPECT_FALSE(well.IsWatched()) << "a function is left that points to what is gone";
  OneRank badly(0, 1);
  auto failed = RunTorchRank(badly, Job("echo one; echo two >&2; exit 3"), "1");
  EXPECT_EQ(failed.status().tag(), "LAUNCH03");
  EXPECT_NE(failed.status().what().find("exited with 3"), std::string::npos) << failed.status().ToString();
  EXPECT_NE(failed.status().why().find("one | two"), std::string::npos) << failed.status().ToString();
  auto killed = RunTorchRank(badly, Job("kill -9 $$"), "1");
  EXPECT_NE(killed.status().what().find("signal 9"), std::string::npos) << killed.status().ToString();
  TorchJob none = Job("");
  none.program = {"no-such-program-here"};
  EXPECT_EQ(RunTorchRank(badly, none, "1").status().tag(), "LAUNCH01");
  none.program = {"/etc/passwd"};
  EXPECT_EQ(RunTorchRank(badly, none, "1").status().tag(), "LAUNCH01");
  none = Job("true");
  none.folder = "/no/such/folder";
  EXPECT_EQ(RunTorchRank(badly, none, "1").status().tag(), "LAUNCH01");
}

TEST(Torch, WhatAProgramReachesIsTold) {
  mlrunner::testing::TempFolder folder;
  OneRank gang(0, 1);
  gang.on_reached = [&] { std::ofstream(folder.path() + "/" + std::to_string(gang.reached.back())) << "told"; };
  const std::string wait = "while ! test -e " + folder.path() + "/$n; do sleep 0.02; done";
  ASSERT_TRUE(
      RunTorchRank(gang, Job("for n in 3 8; do echo $n > $ROPEWALK_REACHED_FILE; " + wait + "; done; echo 9 > $ROPEWALK_REACHED_FILE"), "1")
          .ok());
  EXPECT_EQ(gang.reached, (std::vector<std::uint64_t>{3, 8, 9}));
}

TEST(Torch, ALostGangEndsTheProgramAndAllThatItHasStarted) {
  mlrunner::testing::TempFolder folder;
  OneRank gang(0, 1);
  const std::string pids = folder.path() + "/pids";
  // It and its child do not listen to SIGTERM.
  TorchJob job = Job("trap '' TERM; sh -c \"trap '' TERM; echo \\$\\$ >> " + pids + "; while true; do sleep 0.1; done\" & echo $$ >> " +
                     pids + "; while true; do sleep 0.1; done");
  std::thread loser([&] {
    auto lines = [&] {
      std::ifstream file(pids);
      return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    };
    for (int i = 0; i < 3000 && (lines() < 2 || !gang.IsWatched()); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    gang.Lose(Status(Code::kUnavailable, "GANG02", "rank 1 was lost"));
  });
  auto result = RunTorchRank(gang, job, "1");
  loser.join();
  EXPECT_EQ(result.status().tag(), "GANG02") << result.status().ToString();
  std::ifstream file(pids);
  int seen = 0;
  for (pid_t pid; file >> pid; ++seen) {
    bool gone = false;
    for (int i = 0; i < 500 && !gone; ++i) {
      // One that nobody has waited for yet is there in name only.
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::ostringstream read;  // does not throw, where the process ends meanwhile
      read << stat.rdbuf();
      const std::string text = read.str();
      gone = text.empty() || text.find(") Z ") != std::string::npos;
      if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(gone) << pid;
  }
  EXPECT_EQ(seen, 2);
}

// One that writes without end, faster than its lines are taken, is ended all the same.
TEST(Torch, AFloodOfOutputHidesNothing) {
  auto program = ChildProgram::Start({.argv = {"yes"}, .folder = "/", .environment = {}});
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  std::size_t lines = 0;
  int ticks = 0;
  auto line = [&](std::string_view text) { lines += text == "y" ? 1 : 0; };
  auto tick = [&] {
    if (++ticks == 3) (*program)->End();
  };
  const ProgramEnd end = (*program)->Wait(line, tick);
  EXPECT_EQ(end.signal, SIGTERM) << end.Words();
  EXPECT_GT(lines, 100'000u);
  EXPECT_GE(ticks, 3);
}

TEST(Torch, LinesComeWholeAndTheLastOneWithoutANewline) {
  OneRank gang(0, 1);
  ASSERT_TRUE(RunTorchRank(gang, Job("printf 'a'; sleep 0.3; printf 'b\\n\\nlast'"), "1").ok());
  EXPECT_EQ(gang.lines, (std::vector<std::string>{"ab", "", "last"}));
}

TEST(Torch, LogsAreOfOneRankAndForming) {
  mlrunner::testing::TempFolder folder;
  OneRank gang(0, 1);
  TorchJob job = Job("echo hello");
  job.logs = folder.path() + "/logs";
  ASSERT_TRUE(RunTorchRank(gang, job, "1").ok());
  std::ifstream log(job.logs + "/rank-0.2");
  std::string text((std::istreambuf_iterator<char>(log)), {});
  EXPECT_EQ(text, "hello\n");
  job.logs = "/no/such/folder/logs";
  EXPECT_EQ(RunTorchRank(gang, job, "1").status().tag(), "LAUNCH04");
}

}  // namespace
}  // namespace ropewalk::launch
