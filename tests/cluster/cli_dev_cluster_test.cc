// `ropewalk start dev` and the verbs around it, with real processes: what a user does in the first five minutes, and what must not stay
// behind.
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <regex>

#include "tests/cluster/dev_cluster.h"

namespace ropewalk::cluster {
namespace {

TEST_F(DevCluster, TheFirstFiveMinutes) {
  StartDev();
  std::string said;
  struct stat info;
  ASSERT_EQ(stat((dir_ / "state/token").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(Run({"worker", "list", "--output", "jsonl"}, &said), 0) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;

  ASSERT_EQ(Run({"submit", "wordcount", "in", "-o", "out"}, &said), 0) << said;
  EXPECT_EQ(Counts("out"), kCounts);
  EXPECT_EQ(Run({"submit", "wordcount", "in", "-o", "out"}, &said), 1) << "an existing output is refused: " << said;
  EXPECT_NE(said.find("OUT01"), std::string::npos) << said;

  ASSERT_EQ(Run({"submit", "--detach", "wordcount", "in", "-o", "out2"}, &said), 0) << said;
  std::string job = said.substr(0, said.find('\n'));
  EXPECT_EQ(said, job + "\n") << "only the id";
  EXPECT_EQ(Run({"job", "wait", job, "--timeout", "60"}, &said), 0) << said;
  EXPECT_EQ(Counts("out2"), kCounts);
  EXPECT_EQ(Run({"job", "show", job, "--output", "json"}, &said), 0) << said;
  EXPECT_NE(said.find("\"phase\":\"succeeded\""), std::string::npos) << said;
  EXPECT_EQ(Run({"logs", "-f", job, "--stream", "events"}, &said), 0) << said;
  EXPECT_NE(said.find("job_finished"), std::string::npos) << said;
  EXPECT_EQ(Run({"explain", job}, &said), 0) << said;
  EXPECT_NE(said.find("CountByKey"), std::string::npos) << said;
  EXPECT_EQ(Run({"--output", "json", "job", "list"}, &said), 0) << said;
  EXPECT_NE(said.find(job), std::string::npos) << said;
  passwd* user = getpwuid(getuid());
  if (user != nullptr) {
    EXPECT_NE(said.find(std::string("\"user\":\"") + user->pw_name + "\""), std::string::npos) << said;
  }
  // Executors that end because their job is over are not killed.
  EXPECT_TRUE(Eventually([&] { return ReadFile(dir_ / "state/worker-1.log").find("ended as it was told") != std::string::npos; }))
      << ReadFile(dir_ / "state/worker-1.log");
  EXPECT_EQ(ReadFile(dir_ / "state/worker-1.log").find("(Killed)"), std::string::npos) << ReadFile(dir_ / "state/worker-1.log");

  EXPECT_EQ(Run({"job", "show", "j-fff"}, &said), 3) << said;
  EXPECT_EQ(Run({"submit", "wordcount", "none", "-o", "out3"}, &said), 3) << said;
  EXPECT_EQ(Run({"job", "list", "--master", "127.0.0.1:1"}, &said), 5) << said;
  std::ofstream(dir_ / "wrong") << std::string(64, 'a');
  fs::permissions(dir_ / "wrong", fs::perms(0600));
  EXPECT_EQ(Run({"job", "list", "--token-file", "wrong"}, &said), 4) << said;
}

// Without any cluster the first hint is how to start one.
TEST_F(DevCluster, WithoutAClusterTheHintIsHowToStartOne) {
  std::ofstream(dir_ / "token") << std::string(64, 'a');
  fs::permissions(dir_ / "token", fs::perms(0600));
  std::string said;
  for (std::vector<std::string> args : std::vector<std::vector<std::string>>{
           {"job", "list"}, {"submit", "wordcount", "in", "-o", "out"}, {"job", "list", "--token-file", "token"}}) {
    args.insert(args.begin() + (args[0] == "submit" ? 1 : 2), {"--master", "127.0.0.1:1"});
    EXPECT_EQ(Run(args, &said), 5) << said;
    EXPECT_NE(said.find("`ropewalk start dev`"), std::string::npos) << said;
    EXPECT_EQ(said.find("fix: "), said.rfind("fix: ")) << said;
  }
}

// The end of a job, its length and its plan are still known when the master was restarted.
TEST_F(DevCluster, TimesAndPlansSurviveTheMaster) {
  StartDev();
  std::string said, before;
  ASSERT_EQ(Run({"submit", "--detach", "wordcount", "in", "-o", "out"}, &said), 0) << said;
  std::string job = said.substr(0, said.find('\n'));
  ASSERT_EQ(Run({"job", "wait", job, "--timeout", "60"}, &said), 0) << said;
  ASSERT_EQ(Run({"job", "show", job}, &before), 0) << before;
  EXPECT_TRUE(std::regex_search(before, std::regex("finished   20[0-9][0-9]-"))) << before;
  EXPECT_TRUE(std::regex_search(before, std::regex("time       [0-9.]+ s"))) << before;
  std::string explained;
  ASSERT_EQ(Run({"explain", job}, &explained), 0) << explained;
  EXPECT_NE(explained.find("CountByKey"), std::string::npos) << explained;
  EXPECT_NE(explained.find("100%"), std::string::npos) << explained;
  pid_t master = Child("master");
  ASSERT_GT(master, 0);
  kill(master, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Child("master") > 0 && Child("master") != master; }));
  // Who comes while it is starting is told so beside the answer.
  ASSERT_EQ(Run({"job", "list"}, &said), 0) << said;
  ASSERT_EQ(Run({"job", "show", job}, &said), 0) << said;
  EXPECT_EQ(said, before);
  ASSERT_EQ(Run({"explain", job}, &said), 0) << said;
  EXPECT_EQ(said, explained);
}

// Nothing that is no job is run as one.
TEST_F(DevCluster, AProgramThatIsNoJobIsNotStarted) {
  StartDev();
  std::ofstream(dir_ / "script") << "#!/bin/sh\necho ran\n";
  fs::permissions(dir_ / "script", fs::perms(0755));
  std::string said;
  for (const char* verb : {"submit", "run"})
    for (const std::string& file : {std::string("/bin/echo"), (dir_ / "script").string()}) {
      EXPECT_EQ(Run({verb, file, "ran"}, &said), 2) << said;
      EXPECT_NE(said.find("error[CLI10]"), std::string::npos) << said;
      EXPECT_EQ(said.find("ran\n"), std::string::npos) << said;
    }
  EXPECT_EQ(Run({"submit", Binary("ropewalk-jobs"), "wordcount", "in", "-o", "own"}, &said), 0) << said;
  EXPECT_EQ(Counts("own"), kCounts);
}

// The last words of `submit` are true: it asks the master, and says so when that does not answer.
TEST_F(DevCluster, CtrlCOnSubmitSaysWhatIsKnown) {
  StartDev();
  std::string said;
  fs::create_directories(dir_ / "big");
  for (int file = 0; file < 8; ++file) {
    std::ofstream big(dir_ / "big" / std::to_string(file));
    for (int i = 0; i < 400'000; ++i) big << "word" << (std::int64_t{i} * 7919 + file) % 100'003 << (i % 10 == 9 ? '\n' : ' ');
  }
  for (bool master_lives : {true, false}) {
    auto submit = Start({"submit", "--partitions", "64", "wordcount", "big", "-o", "out"}, master_lives ? "submit1" : "submit2");
    ASSERT_TRUE(Eventually([&] { return submit->err().find("accepted by") != std::string::npos; })) << submit->err();
    pid_t master = Child("master");
    ASSERT_GT(master, 0);
    if (!master_lives) kill(master, SIGSTOP);
    submit->Signal(SIGINT);
    auto code = submit->Wait(20'000);
    kill(master, SIGCONT);
    ASSERT_TRUE(code.has_value());
    if (master_lives) {
      bool over = submit->err().find("is over: succeeded") != std::string::npos || submit->err().find("wordcount: ") != std::string::npos;
      EXPECT_TRUE(*code == 0) << submit->err();
      EXPECT_TRUE(over || submit->err().find(" goes on\n") != std::string::npos) << submit->err();
      // Until it is over, so that its output can go.
      std::smatch match;
      std::string words = submit->err();
      ASSERT_TRUE(std::regex_search(words, match, std::regex("job (j-[0-9a-f]+) accepted"))) << words;
      EXPECT_EQ(Run({"job", "wait", match[1], "--timeout", "60"}, &said), 0) << said;
      fs::remove_all(dir_ / "out");
    } else {
      EXPECT_EQ(*code, 5) << submit->err();
      EXPECT_NE(submit->err().find("is not known"), std::string::npos) << submit->err();
      EXPECT_NE(submit->err().find("ropewalk job show j-"), std::string::npos) << submit->err();
      EXPECT_EQ(submit->err().find(" goes on\n"), std::string::npos) << submit->err();
    }
  }
}

TEST_F(DevCluster, KilledDaemonsComeBackAndNothingStaysBehind) {
  StartDev();
  std::string said;
  for (const char* victim : {"worker-1", "master"}) {
    pid_t pid = Child(victim);
    ASSERT_GT(pid, 0) << victim;
    kill(pid, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return Child(victim) > 0 && Child(victim) != pid; })) << victim;
    ASSERT_TRUE(Eventually(
        [&] { return Run({"worker", "list", "--output", "jsonl"}, &said) == 0 && std::count(said.begin(), said.end(), '\n') == 2; },
        90'000))
        << said;
    ASSERT_EQ(Run({"submit", "wordcount", "in", "-o", std::string("out-") + victim}, &said), 0) << said;
    EXPECT_EQ(Counts(std::string("out-") + victim), kCounts);
  }
  std::vector<pid_t> all = Descendants(dev_->pid());
  ASSERT_GE(all.size(), 3u);
  dev_->Signal(SIGTERM);
  EXPECT_EQ(dev_->Wait(), 0) << dev_->err();
  EXPECT_TRUE(Eventually([&] { return std::none_of(all.begin(), all.end(), Alive); })) << "processes stay behind";
}

// What a killed worker took along is run again; that it happened is said at once, and is to be seen later.
TEST_F(DevCluster, ALostWorkerIsSaid) {
  StartDev();
  fs::create_directories(dir_ / "big");
  std::vector<std::string> texts(8);
  for (std::size_t file = 0; file < texts.size(); ++file) {
    for (std::size_t i = 0; i < 400'000; ++i)
      texts[file] += "word" + std::to_string((i * 7919 + file) % 100'003) + (i % 10 == 9 ? '\n' : ' ');
    std::ofstream(dir_ / "big" / std::to_string(file)) << texts[file];
  }
  const std::string counts = ModelOfWordCount(texts);
  bool lost = false;
  for (int round = 0; round < 5 && !lost; ++round) {
    const std::string name = "lost" + std::to_string(round);
    auto submit = Start({"submit", "--partitions", "64", "wordcount", "big", "-o", name}, name + ".log");
    std::smatch match;
    std::string words, said;
    ASSERT_TRUE(Eventually([&] {
      words = submit->err();
      return std::regex_search(words, match, std::regex("job (j-[0-9a-f]+) accepted"));
    })) << words;
    const std::string job = match[1];
    // Its executors run tasks, or it is over already.
    ASSERT_TRUE(Eventually([&] {
      return Run({"explain", job, "--output", "json"}, &said) == 0 &&
             (std::regex_search(said, std::regex("\"done\":[1-9]")) || !submit->running());
    })) << said;
    pid_t worker = Child("worker-2");
    ASSERT_GT(worker, 0);
    const bool over = !submit->running();
    kill(worker, SIGKILL);
    ASSERT_EQ(submit->Wait(60'000), 0) << submit->err();
    EXPECT_TRUE(Counts(name) == counts) << "what was lost was counted twice, or not at all";
    lost = submit->err().find("worker-2 was lost") != std::string::npos;
    ASSERT_EQ(Run({"job", "show", job}, &said), 0) << said;
    if (lost || !over) std::printf("%s\n", said.c_str());
    EXPECT_EQ(said.find("lost       worker-2 was lost") != std::string::npos, lost) << said;
    ASSERT_TRUE(Eventually([&] {
      return Run({"worker", "list", "--output", "jsonl"}, &said) == 0 && std::count(said.begin(), said.end(), '\n') == 2;
    })) << said;
  }
  EXPECT_TRUE(lost) << "five jobs were over before their worker was killed";
}

TEST_F(DevCluster, KilledItselfItTakesItsDaemonsAlong) {
  StartDev();
  std::vector<pid_t> all = Descendants(dev_->pid());
  dev_->Signal(SIGKILL);
  EXPECT_EQ(dev_->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return std::none_of(all.begin(), all.end(), Alive); })) << "processes stay behind";
}

TEST_F(DevCluster, AStateFolderInUseOrAnOpenAddressIsRefused) {
  StartDev();
  std::string said;
  EXPECT_EQ(Run({"start", "master", "--listen", "127.0.0.1:0", "--dir", "state/master", "--token-file", "state/token"}, &said), 5) << said;
  EXPECT_NE(said.find("error["), std::string::npos) << said;
  EXPECT_EQ(Run({"start", "master", "--listen", "0.0.0.0:0", "--dir", "state2"}, &said), 2) << said;
  EXPECT_NE(said.find("SEC01"), std::string::npos) << said;
  EXPECT_EQ(Run({"start", "worker", "--listen", "0.0.0.0:0"}, &said), 2) << said;
  // Healthy executors say something once a second only.
  for (const char* seconds : {"1", "2"}) {
    setenv("ROPEWALK_WORKER__EXECUTOR_SILENCE", seconds, 1);
    EXPECT_EQ(Run({"start", "worker", "--dir", "state4"}, &said), 2) << said;
    EXPECT_NE(said.find("error[SPEC02]"), std::string::npos) << said;
    EXPECT_NE(said.find("give at least 3 seconds, or 0: never"), std::string::npos) << said;
  }
  unsetenv("ROPEWALK_WORKER__EXECUTOR_SILENCE");
  EXPECT_EQ(Run({"start", "worker", "--join", address_, "--token-file", "state/token", "--dir", (dir_ / "state/worker-1").string()}, &said),
            5)
      << said;
  EXPECT_NE(said.find("error[WORKER11]"), std::string::npos) << said;
  EXPECT_NE(said.find("held by pid " + std::to_string(Child("worker-1")) + ", worker worker-1"), std::string::npos) << said;
  // One error: who runs, where, and what to do.
  EXPECT_EQ(Run({"start", "dev", "--dir", "state", "--port", "0"}, &said), 5) << said;
  EXPECT_NE(said.find("error[DEV02]"), std::string::npos) << said;
  EXPECT_NE(said.find("pid " + std::to_string(dev_->pid())), std::string::npos) << said;
  EXPECT_NE(said.find(address_), std::string::npos) << said;
  EXPECT_EQ(said.find("fix: "), said.rfind("fix: ")) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << "no log of the other one: " << said;
  // A port that somebody else has.
  EXPECT_EQ(Run({"start", "dev", "--dir", "state3", "--port", address_.substr(address_.find(':') + 1)}, &said), 5) << said;
  EXPECT_NE(said.find("error[DEV03]"), std::string::npos) << said;
  EXPECT_NE(said.find("--port 0"), std::string::npos) << said;
}

}  // namespace
}  // namespace ropewalk::cluster
