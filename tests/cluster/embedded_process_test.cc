// A job without a cluster, as a process: exit codes, Ctrl-C, the event log. No daemon and no port.
//
// The binary is also a job: `embedded_process_test --job OUT` sleeps in its one task, for longer than any test waits, after it has begun to
// write OUT; with --quick it does not sleep.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <thread>

#include "job/ropewalk.h"
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
  void TearDown() override { RemoveTree(dir_); }
  std::unique_ptr<Process> SlowJob(std::vector<std::string> args = {}) {
    args.insert(args.begin(), {fs::read_symlink("/proc/self/exe"), "--job", "out"});
    return std::make_unique<Process>(Process::Options{args, {}, dir_, dir_ / ("log" + std::to_string(runs_++))});
  }
  // A sanitizer would tell the crash in its own way.
  std::unique_ptr<Process> Crashing(const std::string& how, const std::string& variable = "ROPEWALK_OUTPUT=table") {
    return std::make_unique<Process>(
        Process::Options{{fs::read_symlink("/proc/self/exe"), "--job", "out" + std::to_string(runs_), how},
                         {variable, "ASAN_OPTIONS=detect_leaks=0:handle_segv=0:use_sigaltstack=0", "TSAN_OPTIONS=handle_segv=0"},
                         dir_,
                         dir_ / ("log" + std::to_string(runs_++))});
  }
  bool HasHidden() {
    for (const std::string& name : Left())
      if (name.starts_with(".out.ropewalk-")) return true;
    return false;
  }
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

// Words are bytes of the input: neither do they end at a NUL nor may they speak to a terminal.
TEST_F(EmbeddedProcess, TheTopIsSafeToShow) {
  std::ofstream(dir_ / "odd", std::ios::binary) << std::string_view("a\0b a\0b a\0b \x1b[2J \x1b[2J d\xc3\xa9j\xc3\xa0 x\xff a\0b\n", 36);
  auto run = Run({"wordcount", "odd", "-o", "out", "--top", "4", "--threads", "1"});
  ASSERT_EQ(run->Wait(), 0) << run->err();
  std::string out = run->out();
  EXPECT_TRUE(out.starts_with("           4 a\\x00b\n           2 \\x1b[2J\n")) << out;
  for (const char* line : {"           1 d\xc3\xa9j\xc3\xa0\n", "           1 x\\xff\n"})
    EXPECT_NE(out.find(line), std::string::npos) << out;
  std::string counts;
  for (const auto& part : fs::directory_iterator(dir_ / "out"))
    if (part.path().filename().string().starts_with("part-")) counts += ReadFile(part.path());
  EXPECT_NE(counts.find(std::string_view("a\0b\t4\n", 6)), std::string::npos) << "the files have the bytes";
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
    // Before Init, and when the job is over, the signal has its default.
    if (*code != 0) EXPECT_EQ(*code, 128 + SIGINT) << run->err();
    if (*code == 0 || Left() == std::vector<std::string>{"out"}) {  // a fast machine was done first: all of it is there
      std::int64_t words = 0;
      for (const auto& part : fs::directory_iterator(dir_ / "out")) {
        if (!part.path().filename().string().starts_with("part-")) continue;
        const std::string text = ReadFile(part.path());
        words += std::count(text.begin(), text.end(), '\n');
      }
      EXPECT_EQ(words, 100'003);
      fs::remove_all(dir_ / "out");
      continue;
    }
    ++interrupted;
    EXPECT_EQ(Left(), std::vector<std::string>()) << run->err();
  }
  EXPECT_GT(interrupted, 0);
}

// The first Ctrl-C says what it waits for; the second one does not wait, and leaves nothing either.
TEST_F(EmbeddedProcess, ASecondCtrlCStopsAtOnceAndLeavesNothing) {
  for (int second : {SIGINT, SIGTERM}) {
    fs::remove(dir_ / "asleep");
    auto run = SlowJob();
    // A task that has only begun would see the interrupt before its first record.
    ASSERT_TRUE(Eventually([&] { return fs::exists(dir_ / "asleep") || !run->running(); })) << run->err();
    run->Signal(SIGINT);
    ASSERT_TRUE(Eventually([&] { return run->err().find("once more (Ctrl-C) stops at once\n") != std::string::npos; })) << run->err();
    EXPECT_NE(run->err().find("waiting for 1 running task "), std::string::npos) << run->err();
    EXPECT_TRUE(run->running()) << "its task sleeps";
    run->Signal(second);
    EXPECT_EQ(run->Wait(10'000), second == SIGINT ? 130 : 7) << run->err();
    EXPECT_EQ(Left(), std::vector<std::string>()) << run->err();
  }
}

// What a killed job left is removed by the next one that writes the same folder. A job that lives is left alone.
TEST_F(EmbeddedProcess, TheNextJobRemovesWhatAKilledOneLeft) {
  auto killed = SlowJob();
  ASSERT_TRUE(Eventually([&] { return HasHidden() || !killed->running(); })) << killed->err();
  killed->Signal(SIGKILL);
  EXPECT_EQ(killed->Wait(), 128 + SIGKILL);
  ASSERT_TRUE(HasHidden()) << "nobody could tidy up";
  std::string left = Left().front();
  auto alive = SlowJob();
  // While the dead one's is removed it has another name, which begins as before.
  auto others_is_there = [&] {
    const std::vector<std::string> names = Left();
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name[0] == '.' && !name.starts_with(left); });
  };
  ASSERT_TRUE(Eventually([&] { return others_is_there() || !alive->running(); })) << alive->err();
  EXPECT_EQ(Left().size(), 1u) << "the dead one's went, the living one's is there";
  left = Left().front();
  auto next = SlowJob({"--quick"});
  EXPECT_EQ(next->Wait(), 0) << next->err();
  EXPECT_TRUE(fs::exists(dir_ / "out/_SUCCESS"));
  EXPECT_TRUE(fs::exists(dir_ / left)) << "its job lives";
  alive->Signal(SIGINT);
  alive->Signal(SIGTERM);
  EXPECT_TRUE(alive->Wait(10'000).has_value());
  EXPECT_EQ(Left(), std::vector<std::string>{"out"}) << alive->err();
}

// Through a shell: "exec SELF --job out HOW" with what it is given.
TEST_F(EmbeddedProcess, ClosedOrFullStandardStreamsTellTheTruth) {
  const std::string self = "exec " + fs::read_symlink("/proc/self/exe").string() + " --job out ";
  struct Case {
    std::string how;
    int code;
    const char* says;
  };
  for (const Case& c : {Case{"--quick <&- >&- 2>&-", 0, ""}, Case{"--quick <&-", 0, ""}, Case{"--print", 0, ""},
                        Case{"--print >/dev/full", 1, "error[JOB07]"}, Case{"--print >&-", 1, "error[JOB07]"}}) {
    SCOPED_TRACE(c.how);
    auto run =
        std::make_unique<Process>(Process::Options{{"/bin/sh", "-c", self + c.how}, {}, dir_, dir_ / ("log" + std::to_string(runs_++))});
    EXPECT_EQ(run->Wait(), c.code) << run->err();
    EXPECT_NE(run->err().find(c.says), std::string::npos) << run->err();
    EXPECT_TRUE(fs::exists(dir_ / "out/_SUCCESS")) << "the files are complete all the same";
    fs::remove_all(dir_ / "out");
  }
}

TEST_F(EmbeddedProcess, AFileSizeLimitIsAnError) {
  std::ofstream(dir_ / "long") << std::string(100'000, 'x') << "\n";
  auto run = std::make_unique<Process>(Process::Options{
      {"/bin/sh", "-c", "ulimit -f 10; exec " + Binary("ropewalk-jobs") + " sort long -o out"}, {}, dir_, dir_ / "log-limit"});
  EXPECT_EQ(run->Wait(), 1) << run->err();
  EXPECT_NE(run->err().find("error[OUT05]"), std::string::npos) << run->err();
  EXPECT_EQ(Left(), std::vector<std::string>());
}

TEST_F(EmbeddedProcess, TheSpillFolderIsOursAndItsParentIsNotMade) {
  fs::create_directories(dir_ / "planted/elsewhere");
  fs::create_directory_symlink(dir_ / "planted/elsewhere", dir_ / "planted" / ("ropewalk-" + std::to_string(getuid())));
  for (const char* tmp : {"missing", "planted"}) {
    auto run = Run({"wordcount", "small", "-o", "out"}, {"TMPDIR=" + (dir_ / tmp).string()});
    EXPECT_EQ(run->Wait(), 2) << run->err();
    EXPECT_NE(run->err().find("error[JOB08]"), std::string::npos) << run->err();
  }
  EXPECT_FALSE(fs::exists(dir_ / "missing"));
}

// Neither what is thrown nor an action inside of an operator may crash the process.
TEST_F(EmbeddedProcess, OddMistakesInTasksAreNamed) {
  for (const auto& [how, says] : {std::pair("--null", "decltype(nullptr)"), std::pair("--nested", "error[DAG01]"),
                                  std::pair("--control", "std::runtime_error: bad \\x1b[2J record\\n")}) {
    auto run = SlowJob({how});
    std::optional<int> code = run->Wait();
    ASSERT_TRUE(code.has_value());
    EXPECT_TRUE(*code == 1 || *code == 2) << *code << run->err();
    EXPECT_NE(run->err().find(says), std::string::npos) << run->err();
    EXPECT_EQ(Left(), std::vector<std::string>());
  }
}

TEST_F(EmbeddedProcess, AFolderOfHiddenNamesIsEmptyAndSaysSo) {
  fs::create_directories(dir_ / "hidden/.below");
  std::ofstream(dir_ / "hidden/_a") << "x\n";
  auto run = Run({"wordcount", "hidden", "-o", "out"});
  EXPECT_EQ(run->Wait(), 0) << run->err();
  EXPECT_NE(run->err().find("(2), which are skipped"), std::string::npos) << run->err();
}

// Characters where the line is UTF-8, bytes where it is not; a plain pattern is bytes.
TEST_F(EmbeddedProcess, GrepReachesBytesThatAreNoUtf8) {
  std::ofstream(dir_ / "bytes") << "a\xff"
                                   "c\nabc\na\xc3\xa9"
                                   "c\nx\xff\n";
  struct Case {
    std::vector<std::string> pattern;
    const char* lines;
  };
  for (const Case& c : {Case{{"-E", "^[^a].*$"}, "x\xff\n"}, Case{{"-E", "^x.$"}, "x\xff\n"},
                        Case{{"-E", "a.c"},
                             "a\xff"
                             "c\nabc\na\xc3\xa9"
                             "c\n"},
                        Case{{"-E", "x\\xff"}, "x\xff\n"}, Case{{"x\xff"}, "x\xff\n"}, Case{{"-i", "X\xff"}, "x\xff\n"}}) {
    std::vector<std::string> args{"grep"};
    args.insert(args.end(), c.pattern.begin(), c.pattern.end());
    args.insert(args.end(), {"bytes", "-o", "out", "--threads", "1"});
    auto run = Run(args);
    EXPECT_EQ(run->Wait(), 0) << run->err();
    std::string lines;
    for (const auto& part : fs::directory_iterator(dir_ / "out"))
      if (part.path().filename().string().starts_with("part-")) lines += ReadFile(part.path());
    EXPECT_EQ(lines, c.lines) << c.pattern.back();
    fs::remove_all(dir_ / "out");
  }
}

// exit() would run the handlers that join the very thread which called it; and a job that was ended by a task did not succeed.
TEST_F(EmbeddedProcess, ATaskThatCallsExitEndsTheJobWithAnError) {
  auto run = SlowJob({"--exit"});
  EXPECT_EQ(run->Wait(), 1) << run->err();
  EXPECT_NE(run->err().find("error[TASK05]"), std::string::npos) << run->err();
  EXPECT_NE(run->err().find("exit(0)"), std::string::npos) << run->err();
  EXPECT_NE(run->err().find("] task 0 of \"FromVector > Map > WriteText ("), std::string::npos) << run->err();
  EXPECT_NE(run->err().find("it stood at input split 0, in the batch that starts at record 0 of the vector"), std::string::npos)
      << run->err();
  EXPECT_EQ(Left(), std::vector<std::string>());
  auto thread = SlowJob({"--exit-on-a-thread"});
  EXPECT_EQ(thread->Wait(), 1) << thread->err();
  EXPECT_NE(thread->err().find("exit(0) on another thread than main's"), std::string::npos) << thread->err();
}

// Nobody is left to report it: the handler of the signal says which task it was, and where.
TEST_F(EmbeddedProcess, ACrashNamesItsTask) {
  struct Case {
    const char* how;
    int signal;
    const char* who;
    const char* where;
  };
  const char* of_no_task = "such a signal ends the process, and with it the job";
  const char* in_the_vector = "it stood at input split 0, in the batch that starts at record 0 of the vector";
  const std::string in_the_file = "it stood at input split 0, " + (dir_ / "small").string() + " in the batch that starts at offset 0";
  for (const Case& c : {Case{"--segv", SIGSEGV, "task 0 of \"FromVector > Map > WriteText (", in_the_vector},
                        Case{"--segv-line", SIGSEGV, "task 0 of \"ReadLines > Map > Count (", in_the_file.c_str()},
                        Case{"--recurse", SIGSEGV, "task 0 of \"FromVector > Map > WriteText (", in_the_vector},
                        Case{"--abort", SIGABRT, "task 0 of \"FromVector > Map > WriteText (", in_the_vector},
                        Case{"--segv-main", SIGSEGV, "main crashed by signal 11 (SIGSEGV): ", of_no_task},
                        Case{"--recurse-main", SIGSEGV, "main crashed by signal 11 (SIGSEGV): ", of_no_task},
                        Case{"--abort-on-a-thread", SIGABRT, "a thread that runs no task crashed by signal 6 (SIGABRT): ", of_no_task}}) {
    SCOPED_TRACE(c.how);
    auto run = Crashing(c.how);
    EXPECT_EQ(run->Wait(), 128 + c.signal) << "it is still a crash to whoever started it: " << run->err();
    EXPECT_NE(run->err().find(std::string("error[USER04] ") + c.who), std::string::npos) << run->err();
    EXPECT_NE(run->err().find(c.where), std::string::npos) << run->err();
    EXPECT_NE(run->err().find("\n  why: "), std::string::npos) << run->err();
    EXPECT_NE(run->err().find("   fix: mend that code"), std::string::npos) << run->err();
    EXPECT_EQ(run->err().find("error[USER04]"), run->err().rfind("error[USER04]")) << "once: " << run->err();
  }
  auto json = Crashing("--segv", "ROPEWALK_OUTPUT=json");
  EXPECT_EQ(json->Wait(), 128 + SIGSEGV);
  EXPECT_NE(json->err().find(R"({"error":{"code":"user_error","tag":"USER04","what":"task 0 of \"FromVector > Map > WriteText ()"),
            std::string::npos)
      << json->err();
  EXPECT_TRUE(json->err().ends_with("\"}}\n")) << json->err();
  // A child's end is not the job's, and what handles a signal already is left to it.
  auto child = Crashing("--child");
  EXPECT_EQ(child->Wait(), 0) << child->err();
  EXPECT_EQ(child->err().find("USER04"), std::string::npos) << child->err();
  auto own = Crashing("--own-handler");
  EXPECT_EQ(own->Wait(), 42) << own->err();
  EXPECT_EQ(own->err().find("USER04"), std::string::npos) << own->err();
}

TEST_F(EmbeddedProcess, WhatTasksPrintGoesToStderr) {
  auto run = SlowJob({"--print"});
  ASSERT_EQ(run->Wait(), 0) << run->err();
  EXPECT_EQ(run->out(), "begun, printed");
  EXPECT_EQ(run->err(), "task 1\ntask 2\ntask 3\n") << "and nothing else: a short job is not talked about";
}

// What main printed cannot be flushed then: rather tasks print beside it than that it goes to the wrong place.
TEST_F(EmbeddedProcess, WhatMainPrintedStaysInPlaceWhereAThreadHoldsTheStream) {
  auto run = SlowJob({"--hold"});
  ASSERT_EQ(run->Wait(), 0) << run->err();
  EXPECT_EQ(run->out(), "begun, printed");
  EXPECT_EQ(run->err(), "");
}

TEST_F(EmbeddedProcess, AMainThatRunsNoActionIsWarned) {
  auto idle = SlowJob({"--idle"});
  EXPECT_EQ(idle->Wait(), 0) << idle->err();
  EXPECT_NE(idle->err().find("warning[DAG06] main made 1 dataset and ran no action   why: "), std::string::npos) << idle->err();
  EXPECT_NE(idle->err().find("   fix: "), std::string::npos) << idle->err();
  auto busy = SlowJob({"--quick"});
  EXPECT_EQ(busy->Wait(), 0) << busy->err();
  EXPECT_EQ(busy->err(), "");
}

// Two seconds of peace, then a line where no line can be drawn over; a script that wants none says so.
TEST_F(EmbeddedProcess, ALongJobTellsItsProgressInLines) {
  for (const char* how : {"--until-told", "--many-until-told"}) {  // one long action, and many short ones
    auto run = SlowJob({how});
    EXPECT_TRUE(Eventually([&] { return run->err().find("ropewalk: ") != std::string::npos || !run->running(); })) << how;
    std::ofstream(dir_ / "told") << "";
    ASSERT_EQ(run->Wait(), 0) << run->err();
    EXPECT_NE(run->err().find("ropewalk: "), std::string::npos) << how << ": " << run->err();
    fs::remove(dir_ / "told");
    fs::remove_all(dir_ / "out");
  }
  for (const char* variable : {"ROPEWALK_QUIET=1", "ROPEWALK_JOB__QUIET=on"}) {
    auto quiet =
        Process(Process::Options{{fs::read_symlink("/proc/self/exe"), "--job", "out", "--until-told"}, {variable}, dir_, dir_ / "log-q"});
    std::this_thread::sleep_for(std::chrono::milliseconds(3'500));
    std::ofstream(dir_ / "told") << "";
    EXPECT_EQ(quiet.Wait(), 0) << quiet.err();
    EXPECT_EQ(quiet.err(), "") << variable;
    fs::remove(dir_ / "told");
    fs::remove_all(dir_ / "out");
  }
}

TEST_F(EmbeddedProcess, AQuietJobHasNoSummary) {
  for (const char* variable : {"ROPEWALK_QUIET=1", "ROPEWALK_JOB__QUIET=yes"}) {
    auto run = Run({"wordcount", "small", "-o", "out", "--overwrite"}, {variable});
    EXPECT_EQ(run->Wait(), 0) << run->err();
    EXPECT_EQ(run->err(), "") << variable;
  }
  auto json = Run({"wordcount", "small", "-o", "out", "--overwrite"}, {"ROPEWALK_COMMAND__OUTPUT=json", "ROPEWALK_JOB__QUIET=off"});
  EXPECT_EQ(json->Wait(), 0) << json->err();
  EXPECT_EQ(json->err().substr(0, 8), "{\"job\":\"") << json->err();
}

// Two jobs that overwrite one folder: each counts what it committed itself, whatever lies there when it says so. The first one stands in
// its print after its commit.
TEST_F(EmbeddedProcess, ASummaryCountsItsOwnOutputAlsoWhenThatIsReplacedOrRemoved) {
  std::ofstream words(dir_ / "words");
  for (int i = 0; i < 10'000; ++i) words << "word" << i << "\n";
  words.close();
  const std::string job = Binary("ropewalk-jobs") + " wordcount words -o out --overwrite --top 10000";
  for (const std::string form :
       {"replaced", "replaced, as JSON", "removed", "removed, as JSON", "another tool's", "another tool's, as JSON"}) {
    SCOPED_TRACE(form);
    const bool json = form.ends_with("JSON");
    Process first(Process::Options{{"/bin/sh", "-c", job + " | (until [ -e go ]; do sleep 0.05; done; cat > /dev/null)"},
                                   {json ? "ROPEWALK_OUTPUT=json" : "ROPEWALK_OUTPUT=table"},
                                   dir_,
                                   dir_ / "log-first"});
    ASSERT_TRUE(Eventually([&] { return fs::exists(dir_ / "out/_SUCCESS"); })) << first.err();
    std::string since = "since then something has removed that output";
    if (json) since = "\"gone\":true";
    if (form.starts_with("replaced")) {
      auto second = Run({"wordcount", "small", "-o", "out", "--overwrite"});
      ASSERT_EQ(second->Wait(), 0) << second->err();
      EXPECT_NE(second->err().find("different words ("), std::string::npos) << second->err();
      EXPECT_EQ(second->err().find("since then"), std::string::npos) << second->err();
      const std::string writer = "process " + std::to_string(second->pid());
      since = json ? "\"replaced_by\":\"" + writer + "\"" : "since then the output of " + writer + " has replaced that one";
    } else {
      fs::remove_all(dir_ / "out");
    }
    if (form.starts_with("another tool")) {  // Hadoop's and Spark's marker is an empty file
      fs::create_directory(dir_ / "out");
      for (const char* name : {"_SUCCESS", "part-r-00000"}) std::ofstream(dir_ / "out" / name) << "";
      since = json ? "\"replaced_by\":\"another job\"" : "since then the output of another job has replaced that one";
    }
    std::ofstream(dir_ / "go") << "";
    ASSERT_EQ(first.Wait(), 0) << first.err();
    EXPECT_NE(first.err().find(json ? "\"records\":10000," : ", 10000 different words ("), std::string::npos) << first.err();
    EXPECT_NE(first.err().find(since), std::string::npos) << first.err();
    fs::remove(dir_ / "go");
    fs::remove_all(dir_ / "out");
  }
}

TEST_F(EmbeddedProcess, AMisspeltVariableIsRefused) {
  auto run = Run({"wordcount", "small", "-o", "out"}, {"ROPEWALK_THREADZ=1"});
  EXPECT_EQ(run->Wait(), 2) << run->err();
  EXPECT_NE(run->err().find("error[SPEC01]"), std::string::npos) << run->err();
  EXPECT_NE(run->err().find("did you mean \"ROPEWALK_THREADS\"?"), std::string::npos) << run->err();
  auto own = std::make_unique<Process>(
      Process::Options{{fs::read_symlink("/proc/self/exe"), "--job", "out", "--quick"}, {"ROPEWALK_MEMROY=1G"}, dir_, dir_ / "log-own"});
  EXPECT_EQ(own->Wait(), 2) << own->err();
  EXPECT_NE(own->err().find("ROPEWALK_MEMORY"), std::string::npos) << own->err();
  auto section = Run({"wordcount", "small", "-o", "out"}, {"ROPEWALK_WORKER__SLOTZ=1"});
  EXPECT_EQ(section->Wait(), 2) << section->err();
  EXPECT_NE(section->err().find("ROPEWALK_WORKER__SLOTS"), std::string::npos) << section->err();
  EXPECT_EQ(Left(), std::vector<std::string>());
}

TEST_F(EmbeddedProcess, MisspeltFlagsAndHelpSpeakOfTheCommand) {
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* text;
  };
  for (const Case& c : {Case{{"wordcount", "small", "-o", "out", "--redcers", "3"}, 2, "did you mean \"--reducers\"?"},
                        Case{{"sort", "small", "--inot=out"}, 2, "did you mean \"--into\"?"},
                        Case{{"sort", "small", "--output", "out"}, 2, "-o OUT or --into=OUT"},
                        Case{{"grep", "x", "small", "-o", "out", "--thraeds", "2"}, 2, "did you mean \"--threads\"?"},
                        Case{{"wordcount", "small", "-o", "out", "--zzzzz"}, 2, "`ropewalk run wordcount --help`"},
                        Case{{"wordcount", "small"}, 2, "`ropewalk run wordcount --help`"},
                        Case{{"sort", "--help"}, 0, "usage: ropewalk run sort INPUT..."}}) {
    auto run = Run(c.args);
    EXPECT_EQ(run->Wait(), c.code) << run->err();
    std::string said = run->out() + run->err();
    EXPECT_NE(said.find(c.text), std::string::npos) << said;
    EXPECT_EQ(said.find("ropewalk-jobs"), std::string::npos) << said;
  }
}

// What no compiler sees through.
volatile std::uintptr_t nowhere = 16;
volatile int never = 0;
int UseMemoryOfNobody() { return *reinterpret_cast<volatile int*>(nowhere); }
int GoDeeper(int n) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(n);
  return never != 0 ? frame[0] : GoDeeper(n + 1) + frame[0];
}
void OnOwnSignal(int) { _exit(42); }

void CrashInMain(const std::string& how) {
  if (how == "--segv-main") UseMemoryOfNobody();
  if (how == "--recurse-main") GoDeeper(0);
  if (how == "--abort-on-a-thread") std::thread([] { std::abort(); }).join();
  if (how == "--exit-on-a-thread") std::thread([] { std::exit(0); }).join();
  if (how != "--child") return;
  const pid_t child = fork();
  if (child == 0) std::abort();
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) _exit(9);
}

void JobMain(int argc, char** argv) {
  const std::string how = argc > 3 ? argv[3] : "";
  if (how == "--own-handler") ::signal(SIGSEGV, OnOwnSignal);
  Job job = Init(argc, argv);
  std::vector<int> numbers{1, 2, 3};
  static Job* inner = &job;
  CrashInMain(how);
  if (how == "--segv-line") {
    (void)job.ReadLines("small").Map([](std::string_view) { return UseMemoryOfNobody(); }).Count();
    return;
  }
  if (how == "--idle") {
    auto idle = job.FromVector(numbers).Map([](int n) { return n; });
    return;
  }
  if (how == "--print" || how == "--hold") std::cout << "begun, ";
  if (how == "--many-until-told") {
    for (int round = 0; round < 600 && !fs::exists("told"); ++round)
      (void)job.FromVector(numbers, {.partitions = 1})
          .Map([](int n) { return std::this_thread::sleep_for(std::chrono::milliseconds(17)), n; })
          .Count();
    return;
  }
  std::promise<void> held, over;
  std::thread holder;
  if (how == "--hold") {
    holder = std::thread([&] {
      flockfile(stdout);
      held.set_value();
      over.get_future().wait();
      funlockfile(stdout);
    });
    held.get_future().wait();
  }
  job.FromVector(numbers, {.partitions = 1})
      .Map([how](int n) {
        if (how.empty()) {
          std::ofstream marker("asleep");
          marker.close();
          std::this_thread::sleep_for(std::chrono::seconds(120));
        }
        if (how == "--until-told" && n == 1) Eventually([] { return fs::exists("told"); }, 40'000);
        if (how == "--print") std::cout << "task " << n << "\n" << std::flush;
        if (how == "--exit" && n == 3) std::exit(0);
        if ((how == "--segv" || how == "--own-handler") && n == 3) return UseMemoryOfNobody();
        if (how == "--recurse") return GoDeeper(n);
        if (how == "--abort") std::abort();
        if (how == "--null" && n == 3) throw nullptr;
        if (how == "--control") throw std::runtime_error("bad \x1b[2J record\n");
        if (how == "--nested") (void)inner->FromVector(std::vector<int>{n}).Count();
        return n;
      })
      .WriteText(argv[2]);
  over.set_value();
  if (holder.joinable()) holder.join();
  if (how == "--print" || how == "--hold") std::cout << "printed";
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--job") {
    ropewalk::cluster::JobMain(argc, argv);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
