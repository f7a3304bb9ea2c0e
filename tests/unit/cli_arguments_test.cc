// The command line as values: verbs, flags, suggestions, and what `run` and `submit` start.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/known_names.h"
#include "cli/dev_cluster.h"
#include "cli/invocation.h"
#include "cli/launch.h"
#include "cli/settings.h"
#include "job/init.h"

namespace ropewalk::cli {
namespace {

using Args = std::vector<std::string>;

Invocation Parsed(const Args& args) {
  auto parsed = ParseArguments(args);
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  return parsed.ok() ? *parsed : Invocation();
}

TEST(Arguments, Verbs) {
  for (const Args& args : {Args{"start", "dev"},
                           {"start", "master"},
                           {"start", "worker"},
                           {"job", "list"},
                           {"worker", "list"},
                           {"config", "show"},
                           {"version"}}) {
    std::string verb = args[0] + (args.size() > 1 ? " " + args[1] : "");
    EXPECT_EQ(Parsed(args).verb, verb);
  }
  Invocation wait = Parsed({"job", "wait", "j-713", "--timeout", "1.5", "--output", "jsonl"});
  EXPECT_EQ(wait.verb, "job wait");
  EXPECT_EQ(wait.job_name, "j-713");
  EXPECT_EQ(wait.timeout_ms, 1500);
  EXPECT_EQ(wait.output, job::OutputForm::kJsonLines);
  Invocation logs = Parsed({"logs", "-f", "--stream=events", "j-1", "--master", "m:1"});
  EXPECT_TRUE(logs.follow);
  EXPECT_EQ(logs.stream, "events");
  ASSERT_EQ(logs.flags.size(), 1u);
  EXPECT_EQ(logs.flags[0].name, "client.master");
  EXPECT_EQ(logs.flags[0].origin, "flag --master");
}

TEST(Arguments, GlobalFlagsMayStandBeforeTheVerb) {
  Invocation before = Parsed({"--config", "c.toml", "--output", "json", "--master", "m:1", "--token-file", "t", "job", "list"});
  EXPECT_EQ(before.verb, "job list");
  EXPECT_EQ(before.config_file, "c.toml");
  EXPECT_EQ(before.output, job::OutputForm::kJson);
  ASSERT_EQ(before.flags.size(), 2u);
  EXPECT_EQ(before.flags[0].name, "client.master");
  EXPECT_EQ(before.flags[0].value, "m:1");
  Invocation both = Parsed(
      {"--config", "a", "--master", "m:1", "--output", "json", "job", "list", "--config", "b", "--master", "m:2", "--output", "table"});
  EXPECT_EQ(both.config_file, "b") << "the one after the verb is nearer";
  EXPECT_EQ(both.output, job::OutputForm::kTable);
  ASSERT_EQ(both.flags.size(), 2u);
  EXPECT_EQ(both.flags[1].value, "m:2") << "the last one wins";
  auto wrong = ParseArguments({"--master", "m:1", "start", "dev"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().tag(), "CLI01");
  EXPECT_NE(wrong.status().what().find("--master"), std::string::npos) << wrong.status().ToString();
}

TEST(Arguments, HelpAndVersionAreText) {
  Invocation help = Parsed({"start", "worker", "--help"});
  EXPECT_EQ(help.verb, "");
  EXPECT_NE(help.text.find("ropewalk start worker"), std::string::npos) << help.text;
  EXPECT_NE(help.text.find("--join"), std::string::npos) << help.text;
  EXPECT_EQ(Parsed({"--version"}).text.substr(0, 9), "ropewalk ");
  EXPECT_EQ(Parsed({"help"}).text, Parsed({"--help"}).text);
  const std::string first = Parsed({"--help"}).text.substr(0, Parsed({"--help"}).text.find('\n'));
  EXPECT_NE(first.find("batch jobs"), std::string::npos) << first;
  EXPECT_NE(first.find("trains models"), std::string::npos) << first;
  EXPECT_EQ(Parsed({"help", "start", "worker"}).text, help.text);
  for (const char* verb : {"run", "submit"}) {
    std::string text = Parsed({verb, "--help"}).text;
    EXPECT_NE(text.find(std::string("ropewalk ") + verb + " [FLAGS] JOB [ARGUMENTS OF THE JOB]\n"), std::string::npos) << text;
    EXPECT_EQ(Parsed({"help", verb}).text, text);
  }
}

struct Wrong {
  Args args;
  std::string what, fix;
};

TEST(Arguments, MistakesAreNamedWithTheNearestName) {
  const Wrong table[] = {
      {{}, "ropewalk", "--help"},
      {{"strat", "dev"}, "unknown command \"strat\"", "\"start\""},
      {{"start", "deb"}, "unknown command \"deb\"", "\"dev\""},
      {{"start"}, "ropewalk start", "ropewalk start --help"},
      {{"job", "list", "--limt", "3"}, "unknown flag \"--limt\"", "\"--limit\""},
      {{"job", "list", "--limt=3"}, "unknown flag \"--limt\"", "\"--limit\""},
      {{"job", "list", "more"}, "unknown argument \"more\"", "ropewalk job list --help"},
      {{"job", "list", "--limit", "x"}, "--limit", "ropewalk job list --help"},
      {{"job", "show"}, "JOB", "ropewalk job show --help"},
      {{"job", "list", "--output", "xml"}, "--output", "ropewalk job list --help"},
      {{"logs", "j-1", "--stream", "x"}, "--stream", "ropewalk logs --help"},
      {{"logs", "j-1", "--master"}, "--master", "ropewalk logs --help"},
  };
  for (const Wrong& wrong : table) {
    auto parsed = ParseArguments(wrong.args);
    ASSERT_FALSE(parsed.ok()) << wrong.what;
    EXPECT_EQ(parsed.status().code(), Code::kInvalid);
    EXPECT_EQ(parsed.status().tag(), "CLI01");
    EXPECT_NE(parsed.status().what().find(wrong.what), std::string::npos) << parsed.status().ToString();
    EXPECT_NE(parsed.status().fix().find(wrong.fix), std::string::npos) << parsed.status().ToString();
  }
}

TEST(Arguments, OutputFormOfAFailureIsGuessed) {
  EXPECT_EQ(GuessOutputForm({"job", "lst", "--output=json"}), job::OutputForm::kJson);
  EXPECT_EQ(GuessOutputForm({"--output", "jsonl"}), job::OutputForm::kJsonLines);
  EXPECT_EQ(GuessOutputForm({"run", "x", "--", "--output", "json"}), job::OutputForm::kTable);
}

class LaunchTest : public testing::Test {
 protected:
  LaunchTest() {
    char name[] = "/tmp/ropewalk-launch-XXXXXX";
    root_ = mkdtemp(name);
    [[maybe_unused]] static auto* volatile init = &job::InitProcess;  // which makes a job of this test
    std::filesystem::create_symlink(std::filesystem::read_symlink("/proc/self/exe"), root_ + "/job");
    std::ofstream(root_ + "/data") << "x";
  }
  ~LaunchTest() override { std::filesystem::remove_all(root_); }
  Result<Launch> Plan(const Args& args) {
    auto invocation = ParseArguments(args);
    if (!invocation.ok()) return invocation.status();
    auto config = LoadConfig(*invocation);
    if (!config.ok()) return config.status();
    return PlanLaunch(*invocation, *config, "/bin/ropewalk-jobs");
  }
  Args Argv(const Args& args) {
    auto launch = Plan(args);
    EXPECT_TRUE(launch.ok()) << launch.status().ToString();
    return launch.ok() ? launch->argv : Args();
  }
  std::map<std::string, std::string> Environment(const Args& args) {
    auto launch = Plan(args);
    EXPECT_TRUE(launch.ok()) << launch.status().ToString();
    std::map<std::string, std::string> all;
    if (launch.ok())
      for (const auto& [name, value] : launch->environment) all[name] = value;
    return all;
  }
  std::string root_;
};

TEST_F(LaunchTest, BuiltInJobsGetTheirArguments) {
  EXPECT_EQ(Argv({"run", "wordcount", "a", "b", "-o", "out", "--top", "3"}),
            (Args{"ropewalk run", "wordcount", "a", "b", "-o", "out", "--top", "3"}));
  EXPECT_EQ(Argv({"run", "--threads", "2", "sort", "-i", "in", "--into", "out"}),
            (Args{"ropewalk run", "sort", "-i", "in", "--into", "out"}));
  EXPECT_EQ(Argv({"run", "grep", "-o", "out", "--", "--name", "in"}), (Args{"ropewalk run", "grep", "-o", "out", "--", "--name", "in"}));
  EXPECT_EQ(Argv({"run", "sort", "in", "-o", "job", "--output", "json"}), (Args{"ropewalk run", "sort", "in", "-o", "job"}));
  EXPECT_EQ(Argv({"submit", "wordcount", "--help"}), (Args{"ropewalk submit", "wordcount", "--help"}));
  for (const Args& args : {Args{"run", "--", "sort", "in"}, {"--output", "json", "run", "--threads", "2", "--", "sort", "in"}})
    EXPECT_EQ(Argv(args), (Args{"ropewalk run", "sort", "in"}));
  EXPECT_EQ(Plan({"run", "sort", "in"})->path, "/bin/ropewalk-jobs");
  EXPECT_EQ(Argv({"run", "wordcount", "job", "list"}), (Args{"ropewalk run", "wordcount", "job", "list"}))
      << "verbs of ours are names there";
}

// It is here unless a flag names a master; what is not ours goes to its program, help too.
TEST_F(LaunchTest, TrainIsAJobOfItsOwnProgram) {
  EXPECT_EQ(Argv({"train", "job.toml", "--ranks", "2", "--set", "train.batch=8"}),
            (Args{"ropewalk train", "job.toml", "--ranks", "2", "--set", "train.batch=8"}));
  EXPECT_EQ(Argv({"train", "--help"}), (Args{"ropewalk train", "--help"}));
  EXPECT_EQ(Argv({"train"}), (Args{"ropewalk train"}));
  EXPECT_EQ(Argv({"train", "--ranks", "2", "job.toml"}), (Args{"ropewalk train", "--ranks", "2", "job.toml"}));
  EXPECT_EQ(Environment({"train", "job.toml"})["ROPEWALK_MASTER"], "");
  for (const Args& args : {Args{"train", "--master", "m:1", "job.toml", "--detach"},
                           {"train", "job.toml", "--master", "m:1", "--detach"},
                           {"train", "job.toml", "--master=m:1", "--detach"}}) {
    EXPECT_EQ(Environment(args)["ROPEWALK_MASTER"], "m:1");
    EXPECT_EQ(Environment(args)["ROPEWALK_DETACH"], "1");
    EXPECT_EQ(Argv(args), (Args{"ropewalk train", "job.toml"}));
  }
  EXPECT_EQ(Plan({"train", "job.toml", "--detach"}).status().tag(), "CLI02");
  // What it would take and do nothing with; a master changes nothing about that.
  for (const char* flag : {"--threads", "--memory", "--partitions", "--verify"}) {
    for (const Args& args : {Args{"train", "job.toml", flag, "2"}, {"train", "--master", "m:1", "job.toml", std::string(flag) + "=2"}}) {
      Status status = Plan(args).status();
      EXPECT_EQ(status.tag(), "CLI02") << status.ToString();
      EXPECT_EQ(status.what(), std::string("ropewalk train takes no ") + flag);
      EXPECT_EQ(status.fix(), std::string(flag) == "--threads" ? "--set train.threads=N: the threads of each rank" : "leave it out");
    }
  }
}

// As a training: here unless a flag names a master.
TEST_F(LaunchTest, ABenchOfCollectivesIsAJobOfItsOwnProgram) {
  EXPECT_EQ(ProgramOf("bench collective"), "ropewalk-bench");
  EXPECT_EQ(Argv({"bench", "collective", "--ranks", "2", "--sizes=4K"}), (Args{"ropewalk bench collective", "--ranks", "2", "--sizes=4K"}));
  EXPECT_EQ(Argv({"bench", "collective"}), (Args{"ropewalk bench collective"}));
  EXPECT_EQ(Argv({"bench", "collective", "--help"}), (Args{"ropewalk bench collective", "--help"}));
  EXPECT_EQ(Argv({"help", "bench", "collective"}), (Args{"ropewalk bench collective", "--help"}));
  EXPECT_EQ(Environment({"bench", "collective"})["ROPEWALK_MASTER"], "");
  for (const Args& args : {Args{"--master", "m:1", "bench", "collective", "--ranks", "2"},
                           {"bench", "collective", "--master", "m:1", "--ranks", "2"},
                           {"bench", "collective", "--ranks", "2", "--master=m:1"}}) {
    EXPECT_EQ(Environment(args)["ROPEWALK_MASTER"], "m:1");
    EXPECT_EQ(Argv(args), (Args{"ropewalk bench collective", "--ranks", "2"}));
  }
  auto form = Environment({"bench", "collective", "--ranks", "2", "--output", "json", "-q"});
  EXPECT_EQ(form["ROPEWALK_OUTPUT"], "json");
  EXPECT_EQ(form["ROPEWALK_QUIET"], "1");
  EXPECT_EQ(Plan({"bench", "collective", "--detach"}).status().tag(), "CLI02");
  for (const char* flag : {"--threads", "--memory", "--partitions", "--verify"}) {
    Status status = Plan({"bench", "collective", "--ranks", "2", flag, "2"}).status();
    EXPECT_EQ(status.tag(), "CLI02") << status.ToString();
    EXPECT_EQ(status.what(), std::string("ropewalk bench collective takes no ") + flag);
    EXPECT_EQ(status.fix(), "leave it out");
  }
  EXPECT_EQ(Plan({"bench"}).status().tag(), "CLI01");
  EXPECT_EQ(Plan({"bench", "colective"}).status().fix(), "did you mean \"collective\"?");
}

TEST_F(LaunchTest, FlagsBeforeAndAfterTheNameMeanTheSame) {
  for (const Args& args : {Args{"run", "--threads", "2", "--memory", "1G", "--name", "n", "sort", "in"},
                           {"run", "sort", "--threads=2", "in", "--memory", "1G", "--name", "n"}}) {
    auto environment = Environment(args);
    EXPECT_EQ(environment["ROPEWALK_THREADS"], "2");
    EXPECT_EQ(environment["ROPEWALK_MEMORY"], "1G");
    EXPECT_EQ(environment["ROPEWALK_NAME"], "n");
    EXPECT_EQ(environment["ROPEWALK_MASTER"], "") << "taken out: run is this process";
  }
  for (const Args& args : {Args{"submit", "--detach", "--master", "m:1", "--token-file", "t", "sort", "in"},
                           {"submit", "sort", "in", "--detach", "--master=m:1", "--token-file", "t"}}) {
    auto environment = Environment(args);
    EXPECT_EQ(environment["ROPEWALK_DETACH"], "1");
    EXPECT_EQ(environment["ROPEWALK_MASTER"], "m:1");
    EXPECT_EQ(environment["ROPEWALK_TOKEN_FILE"], "t");
  }
  EXPECT_EQ(Environment({"submit", "sort", "in", "--output", "json"})["ROPEWALK_OUTPUT"], "json");
  EXPECT_EQ(Environment({"submit", "--output", "jsonl", "sort", "in"})["ROPEWALK_OUTPUT"], "jsonl");
  for (const Args& args : {Args{"run", "-q", "sort", "in"}, {"submit", "--quiet", "sort", "in"}, {"run", "sort", "in", "-q"}}) {
    EXPECT_EQ(Environment(args)["ROPEWALK_QUIET"], "1");
    EXPECT_EQ(Argv(args).size(), 3u);
  }
  // One name, one meaning: the folder has another, and a flag of the user's own stands behind the border.
  Status folder = Plan({"run", "sort", "in", "--output", "out"}).status();
  EXPECT_EQ(folder.tag(), "CLI02");
  EXPECT_NE(folder.fix().find("-o OUT or --into OUT"), std::string::npos) << folder.ToString();
  EXPECT_EQ(Argv({"run", root_ + "/job", "--", "--output", "out", "-q"}), (Args{root_ + "/job", "--output", "out", "-q"}));
  EXPECT_EQ(Environment({"submit", "sort", "in"})["ROPEWALK_MASTER"], "127.0.0.1:7077");
  EXPECT_EQ(Plan({"run", "sort", "in", "--master", "m:1"}).status().tag(), "CLI02");
  EXPECT_EQ(Plan({"run", "sort", "in", "--name"}).status().tag(), "CLI02");
}

TEST_F(LaunchTest, FlagsOfTheOtherVerbAreRefusedBeforeAndAfterTheName) {
  const std::map<std::string, std::vector<Args>> flags = {
      {"submit", {{"--threads", "2"}, {"--threads=2"}, {"--memory", "1G"}}},
      {"run", {{"--master", "m:1"}, {"--master=m:1"}, {"--token-file", "t"}, {"--detach"}}},
  };
  for (const auto& [verb, list] : flags) {
    for (const Args& flag : list) {
      Args before = {verb}, after = {verb, "sort", "in"};
      before.insert(before.end(), flag.begin(), flag.end());
      before.insert(before.end(), {"sort", "in"});
      after.insert(after.end(), flag.begin(), flag.end());
      for (const Args& args : {before, after}) {
        Status status = Plan(args).status();
        EXPECT_EQ(status.tag(), "CLI02") << status.ToString();
        EXPECT_NE(status.what().find("takes no " + flag[0].substr(0, flag[0].find('='))), std::string::npos) << status.ToString();
        EXPECT_EQ(status.fix().find("did you mean"), std::string::npos) << status.ToString();
      }
    }
  }
}

// A wrong value is told by the flag that was typed, not by the variable that carries it.
TEST_F(LaunchTest, WrongValuesNameTheFlag) {
  for (const Args& flag : {Args{"--memory", "2Q"}, {"--memory", "1K"}, {"--threads", "0"}, {"--partitions", "x"}, {"--verify", "maybe"}}) {
    for (const Args& args : {Args{"run", flag[0], flag[1], "sort", "in"}, Args{"run", "sort", "in", flag[0] + "=" + flag[1]}}) {
      Status status = Plan(args).status();
      EXPECT_EQ(status.code(), Code::kInvalid);
      EXPECT_TRUE(status.what().starts_with(flag[0] + ": \"" + flag[1] + "\"")) << status.ToString();
    }
  }
}

TEST_F(LaunchTest, YourOwnExecutable) {
  std::string job = root_ + "/job";
  EXPECT_EQ(Argv({"run", job, "--", "--iters", "20"}), (Args{job, "--iters", "20"}));
  EXPECT_EQ(Argv({"run", job, "--iters", "20", "--threads", "2"}), (Args{job, "--iters", "20"}));
  EXPECT_EQ(Argv({"run", job, "--", "--threads", "mine"}), (Args{job, "--", "--threads", "mine"})) << "Init() must not take it";
  auto old = std::filesystem::current_path();
  std::filesystem::current_path(root_);
  EXPECT_EQ(Argv({"run", "job"}), (Args{"./job"}));
  std::filesystem::current_path(old);
}

TEST_F(LaunchTest, WhatCannotBeStarted) {
  Status status = Plan({"run", "wordcuont", "x"}).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.fix().find("\"wordcount\""), std::string::npos) << status.ToString();
  EXPECT_EQ(Plan({"run"}).status().code(), Code::kInvalid);
  EXPECT_EQ(Plan({"submit", "--"}).status().code(), Code::kInvalid);
  EXPECT_EQ(Plan({"run", root_ + "/none"}).status().code(), Code::kNotFound);
  EXPECT_EQ(Plan({"run", root_}).status().tag(), "CLI04");
  if (geteuid() != 0) {
    EXPECT_EQ(Plan({"run", root_ + "/data"}).status().tag(), "CLI04");
  }
  Status flag = Plan({"run", "--thraeds", "2", "sort"}).status();
  EXPECT_EQ(flag.tag(), "CLI01");
  EXPECT_NE(flag.fix().find("--threads"), std::string::npos) << flag.ToString();
}

// Two workers unless told otherwise: with one nobody compares plans. They share the cores.
TEST_F(LaunchTest, ADevClusterHasTwoWorkersThatShareTheCores) {
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  auto dev = [](const Args& more) {
    Args args = {"start", "dev"};
    args.insert(args.end(), more.begin(), more.end());
    auto config = LoadConfig(Parsed(args));
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    return DevOptionsOf(*config);
  };
  auto plain = dev({});
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  EXPECT_EQ(plain->workers, 2u);
  EXPECT_EQ(plain->slots, std::max(cores / 2, 1u));
  EXPECT_GT(plain->memory_bytes, 0u) << "half of the machine's, divided";
  EXPECT_EQ(dev({"--workers", "1"})->slots, cores);
  EXPECT_EQ(dev({"--workers", "64", "--slots", "3"})->slots, 3u);
  EXPECT_EQ(dev({"--workers", "64"})->slots, std::max(cores / 64, 1u));
  for (const Args& wrong : {Args{"--slots", "0"}, {"--workers", "0"}, {"--slots", "1025"}, {"--workers", "65"}, {"--memory", "1K"}}) {
    auto refused = dev(wrong);
    ASSERT_FALSE(refused.ok()) << wrong[0] << " " << wrong[1];
    EXPECT_EQ(refused.status().tag(), "SPEC02");
    EXPECT_NE(refused.status().what().find(wrong[1]), std::string::npos) << refused.status().ToString();
  }
}

TEST_F(LaunchTest, JobKeysOfTheFileReachTheJob) {
  std::string file = root_ + "/r.toml";
  std::ofstream(file) << "[job]\nthreads = 3\nmemory = \"1G\"\nverify = false\n[command]\noutput = \"json\"\n";
  auto environment = Environment({"run", "--config", file, "sort", "in"});
  EXPECT_EQ(environment["ROPEWALK_THREADS"], "3");
  EXPECT_EQ(environment["ROPEWALK_MEMORY"], "1G");
  EXPECT_EQ(environment["ROPEWALK_VERIFY"], "false");
  EXPECT_EQ(environment.count("ROPEWALK_PARTITIONS"), 0u);
  EXPECT_EQ(Environment({"run", "--config", file, "--threads", "5", "sort", "in"})["ROPEWALK_THREADS"], "5") << "flags win";
  EXPECT_EQ(Environment({"run", "--config", file, "sort", "in", "--threads", "6"})["ROPEWALK_THREADS"], "6");
}

// Every key, with what it comes to, and from where.
TEST_F(LaunchTest, ConfigShowsFilledDefaultsAndOrigins) {
  setenv("ROPEWALK_HOME", root_.c_str(), 1);
  setenv("ROPEWALK_THREADS", "3", 1);
  setenv("ROPEWALK_WORKER__SLOTS", "5", 1);
  auto config = LoadConfig(Parsed({"config", "show"}));
  unsetenv("ROPEWALK_HOME");
  unsetenv("ROPEWALK_THREADS");
  unsetenv("ROPEWALK_WORKER__SLOTS");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  setenv("ROPEWALK_HOME", root_.c_str(), 1);
  std::map<std::string, ConfigEntry> shown;
  for (const ConfigEntry& entry : ShownConfig(*config)) {
    EXPECT_FALSE(entry.value.empty()) << entry.name;
    shown[entry.name] = entry;
  }
  unsetenv("ROPEWALK_HOME");
  EXPECT_EQ(shown.size(), KnownKeys().size() + 1);
  EXPECT_EQ(shown["job.threads"].value, "3");
  EXPECT_EQ(shown["job.threads"].origin, "environment ROPEWALK_THREADS");
  EXPECT_EQ(shown["worker.slots"].value, "5");
  EXPECT_EQ(shown["worker.slots"].origin, "environment ROPEWALK_WORKER__SLOTS");
  EXPECT_EQ(shown["client.token_file"].value, root_ + "/token");
  EXPECT_EQ(shown["client.token_file"].origin, "default");
  EXPECT_EQ(shown["master.dir"].value, root_ + "/master");
  EXPECT_NE(shown["dev.slots"].value, "0");
  EXPECT_NE(shown["job.memory"].value, "0");
  EXPECT_EQ(shown["dev.port"].value, "7077");
  EXPECT_EQ(shown["ROPEWALK_HOME"].value, root_);
  EXPECT_EQ(shown["ROPEWALK_HOME"].origin, "environment ROPEWALK_HOME");
  setenv("ROPEWALK_MASTRE", "x", 1);
  EXPECT_EQ(LoadConfig(Parsed({"config", "show"})).status().tag(), "SPEC01") << "the command refuses what nothing reads, too";
  unsetenv("ROPEWALK_MASTRE");
}

TEST_F(LaunchTest, MalformedConfigurationIsRefusedWithItsPlace) {
  std::string file = root_ + "/r.toml";
  for (const char* text : {"[[[", "[[[[", "[[[a", "[[[.", "[", "[]", "a=[[[", "a={b=", "a='''", "=", "\"", "[[a]]]"}) {
    std::ofstream(file) << text;
    Status status = LoadConfig(Parsed({"config", "show", "--config", file})).status();
    EXPECT_EQ(status.tag(), "SPEC03") << text << ": " << status.ToString();
    EXPECT_NE(status.what().find("r.toml:1:"), std::string::npos) << text << ": " << status.ToString();
  }
}

TEST_F(LaunchTest, ConfigurationFilesAreReadWithLineAndColumn) {
  std::string file = root_ + "/r.toml";
  std::ofstream(file) << "[client]\nmaster = \"file:1\"\n[dev]\nworkers = 3\n";
  auto config = LoadConfig(Parsed({"config", "show", "--config", file}));
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->Text("client.master"), "file:1");
  EXPECT_EQ(config->Number("dev.workers"), 3u);
  EXPECT_EQ(config->Show()[0].origin, file + ":2:1");
  EXPECT_EQ(Environment({"submit", "--config", file, "sort", "in"})["ROPEWALK_MASTER"], "file:1");
  setenv("ROPEWALK_MASTER", "env:1", 1);
  EXPECT_EQ(Environment({"submit", "--config", file, "sort", "in"})["ROPEWALK_MASTER"], "env:1");
  EXPECT_EQ(Environment({"submit", "--config", file, "--master", "flag:1", "sort", "in"})["ROPEWALK_MASTER"], "flag:1");
  unsetenv("ROPEWALK_MASTER");
  struct Bad {
    const char* text;
    const char* tag;
    const char* place;
  };
  for (const Bad& bad : {Bad{"[dev]\n\n  workrs = 1\n", "SPEC01", ":3:3: unknown key \"dev.workrs\""},
                         {"[dev]\nworkers = \"x\"\n", "SPEC02", ":2:1: "},
                         {"[dev]\nworkers = \n", "SPEC03", ":2:"},
                         {"[dev]\nworkers = [1]\n", "SPEC02", ":2:1: "},
                         {"[dev]\nworkers = [[1]]\n", "SPEC03", ":2:1: "},
                         {"x = 1\n", "SPEC01", ":1:1: "}}) {
    std::ofstream(file) << bad.text;
    auto loaded = LoadConfig(Parsed({"config", "show", "--config", file}));
    ASSERT_FALSE(loaded.ok()) << bad.text;
    EXPECT_EQ(loaded.status().tag(), bad.tag) << loaded.status().ToString();
    EXPECT_EQ(loaded.status().code(), Code::kInvalid);
    EXPECT_NE(loaded.status().what().find(file + bad.place), std::string::npos) << loaded.status().ToString();
  }
  EXPECT_EQ(LoadConfig(Parsed({"config", "show", "--config", root_ + "/none"})).status().tag(), "IO01");
}

}  // namespace
}  // namespace ropewalk::cli
