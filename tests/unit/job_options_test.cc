// How a process learns what to be, and what it shows: pure parts of job/.
#include "job/options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/known_names.h"
#include "job/client/elf_needs.h"
#include "job/client/job_marker.h"
#include "job/init.h"
#include "job/progress.h"
#include "job/report.h"

namespace ropewalk::job {
namespace {

struct Taken {
  Result<JobOptions> options;
  std::vector<std::string> args;
};

Taken Take(std::vector<std::string> args, std::map<std::string, std::string> environment = {}) {
  Result<JobOptions> options = TakeOptions(&args, [&](const char* name) {
    auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  });
  return {std::move(options), std::move(args)};
}

TEST(Report, NoPartOfAnErrorIsEmpty) {
  for (int code = 1; code <= static_cast<int>(Code::kInternal); ++code) {
    const Status whole = Completed(Status(static_cast<Code>(code), "T1", "it broke"));
    EXPECT_FALSE(whole.why().empty() || whole.fix().empty()) << CodeName(whole.code());
    EXPECT_EQ(whole.what(), "it broke");
    const Status own = Completed(Status(static_cast<Code>(code), "T1", "it broke", "rust", "oil"));
    EXPECT_EQ(own.ToString(), "error[T1] it broke\n  why: rust   fix: oil");
  }
  EXPECT_TRUE(Completed(Status()).ok());
  EXPECT_EQ(ErrorJson(Status(Code::kCancelled, "T1", "x", "y")).find("\"fix\":\"\""), std::string::npos);
}

TEST(Progress, LinesAreFewWhereNoneIsDrawnOver) {
  ProgressPace pace;
  std::vector<int> told;
  for (int s = 0; s <= 100; ++s)
    if (pace.IsDue(s < 5 ? "first" : s < 40 ? "second" : "third", 7'000 + s * 1'000)) told.push_back(s);
  EXPECT_EQ(told, (std::vector<int>{2, 5, 35, 40, 70, 100}));
  ProgressPace loop;  // of short actions
  int lines = 0;
  for (int ms = 0; ms < 60'000; ms += 10) lines += loop.IsDue("action " + std::to_string(ms), ms) ? 1 : 0;
  EXPECT_EQ(lines, 29) << "once in two seconds, after the first two";
  ProgressState state;
  state.name = "Count (a.cc:3)";
  state.tasks = 40, state.done = 12, state.bytes_in = 1 << 20, state.note = "waiting";
  EXPECT_EQ(ProgressLogText(state), "12/40 tasks, Count (a.cc:3)  1.00 MiB  waiting");
}

TEST(Options, TakesOursAndLeavesTheRest) {
  Taken taken = Take({"prog", "in", "--threads", "3", "--memory=2G", "-o", "out", "--verify=off", "--", "--threads", "9"});
  ASSERT_TRUE(taken.options.ok()) << taken.options.status().ToString();
  EXPECT_EQ(taken.args, (std::vector<std::string>{"prog", "in", "-o", "out", "--", "--threads", "9"}));
  EXPECT_EQ(taken.options->threads, 3u);
  EXPECT_EQ(taken.options->memory_bytes, 2ull << 30);
  EXPECT_FALSE(taken.options->verify);
  Taken to_a_master = Take({"prog", "in", "--detach", "--master", "h:1", "-o", "out"});
  ASSERT_TRUE(to_a_master.options.ok()) << to_a_master.options.status().ToString();
  EXPECT_EQ(to_a_master.args, (std::vector<std::string>{"prog", "in", "-o", "out"}));
  EXPECT_TRUE(to_a_master.options->detach);
  EXPECT_EQ(to_a_master.options->master, "h:1");
}

TEST(Options, WhatIsForThisProcessIsRefusedBesideAMaster) {
  for (const char* flag : {"--threads=2", "--memory=1G"}) {
    for (const Taken& taken : {Take({"p", flag, "--master", "h:1"}), Take({"p", flag}, {{"ROPEWALK_MASTER", "h:1"}})}) {
      ASSERT_FALSE(taken.options.ok()) << flag;
      EXPECT_EQ(taken.options.status().tag(), "CFG01");
      EXPECT_TRUE(taken.options.status().what().starts_with(std::string(flag).substr(0, std::string(flag).find('='))))
          << taken.options.status().ToString();
    }
  }
  EXPECT_TRUE(Take({"p", "--master", "h:1"}, {{"ROPEWALK_THREADS", "2"}}).options.ok()) << "a file or shell may serve both";
}

TEST(Options, FlagsBeatTheEnvironment) {
  Taken taken = Take({"prog", "--threads=2"}, {{"ROPEWALK_THREADS", "7"}, {"ROPEWALK_PARTITIONS", "5"}, {"ROPEWALK_ENV", "A,,B"}});
  ASSERT_TRUE(taken.options.ok());
  EXPECT_EQ(taken.options->threads, 2u);
  EXPECT_EQ(taken.options->partitions, 5u);
  EXPECT_EQ(taken.options->environment_names, (std::vector<std::string>{"A", "B"}));
}

TEST(Options, TheLongNamesOfKeysMeanTheSameAndTheShortOnesWin) {
  Taken taken = Take({"prog"}, {{"ROPEWALK_JOB__THREADS", "7"}, {"ROPEWALK_JOB__MEMORY", "1G"}, {"ROPEWALK_MEMORY", "2G"}});
  ASSERT_TRUE(taken.options.ok());
  EXPECT_EQ(taken.options->threads, 7u);
  EXPECT_EQ(taken.options->memory_bytes, 2ull << 30);
}

TEST(Options, TheEnvironmentAloneSaysHowAJobTalks) {
  auto said = [](std::map<std::string, std::string> environment) {
    return EnvironmentOptions([&](const char* name) {
      auto at = environment.find(name);
      return at == environment.end() ? nullptr : at->second.c_str();
    });
  };
  EXPECT_FALSE(said({}).quiet);
  EXPECT_TRUE(said({{"ROPEWALK_QUIET", "yes"}}).quiet);
  EXPECT_TRUE(said({{"ROPEWALK_JOB__QUIET", "1"}}).quiet);
  EXPECT_FALSE(said({{"ROPEWALK_JOB__QUIET", "1"}, {"ROPEWALK_QUIET", "off"}}).quiet);
  EXPECT_EQ(said({{"ROPEWALK_COMMAND__OUTPUT", "jsonl"}}).output, OutputForm::kJsonLines);
  // What Init refuses takes nothing else along.
  const JobOptions wrong = said({{"ROPEWALK_THREADS", "none"}, {"ROPEWALK_OUTPUT", "json"}, {"ROPEWALK_QUIET", "1"}});
  EXPECT_EQ(wrong.output, OutputForm::kJson);
  EXPECT_TRUE(wrong.quiet);
  EXPECT_TRUE(said({{"ROPEWALK_EXECUTOR_FD", "3"}, {"ROPEWALK_QUIET", "1"}}).quiet) << "an executor's too";
}

TEST(KnownNames, WhatNothingReadsIsRefusedWithTheNearestName) {
  auto check = [](std::vector<std::string> environment) { return CheckVariables(environment); };
  EXPECT_TRUE(
      check({"PATH=/bin", "ROPEWALK=x", "ROPEWALKER_X=1", "ROPEWALK_THREADS=2", "ROPEWALK_MASTER__LISTEN=127.0.0.1:1",
             "ROPEWALK_JOB__VERIFY=off", "ROPEWALK_HOME=/x", "ROPEWALK_BENCH_DIR=/x", "ROPEWALK_TEST_ANYTHING=1", "ROPEWALK_SIM_SEED=1"})
          .ok());
  struct Case {
    const char *variable, *near;
  };
  for (const Case& c : {Case{"ROPEWALK_THREADZ=1", "\"ROPEWALK_THREADS\""}, Case{"ROPEWALK_MASTER__LISTN=1", "\"ROPEWALK_MASTER__LISTEN\""},
                        Case{"ROPEWALK_TOKENFILE=1", "\"ROPEWALK_TOKEN_FILE\""}, Case{"ROPEWALK_SOMETHING_ELSE=1", "config show"},
                        Case{"ROPEWALK_=1", "config show"}, Case{"ROPEWALK___X=1", ""}}) {
    Status status = check({c.variable});
    EXPECT_EQ(status.tag(), "SPEC01") << c.variable;
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_NE(status.fix().find(c.near), std::string::npos) << status.ToString();
  }
}

// The list of known names is the one place: everything that TakeOptions asks for is in it.
TEST(KnownNames, CoverWhatAJobReads) {
  std::vector<std::string> args = {"prog"}, asked;
  auto options = TakeOptions(&args, [&](const char* name) {
    asked.push_back(std::string(name) + "=x");
    return static_cast<const char*>(nullptr);
  });
  ASSERT_TRUE(options.ok());
  EXPECT_GT(asked.size(), 15u);
  EXPECT_TRUE(CheckVariables(asked).ok()) << CheckVariables(asked).ToString();
}

TEST(JobMarker, TellsJobsFromOtherPrograms) {
  // This test is linked with Init, statically.
  [[maybe_unused]] static auto* volatile init = &InitProcess;
  EXPECT_TRUE(CheckIsJob("/proc/self/exe", "ropewalk run").ok());
  Status status = CheckIsJob("/bin/sh", "ropewalk submit");
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_EQ(status.tag(), "CLI10");
  EXPECT_NE(status.why().find("not linked with Ropewalk"), std::string::npos) << status.ToString();

  std::string folder = testing::TempDir() + "/marker_" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/lib");
  auto write = [&](const std::string& name, const std::string& text) { std::ofstream(folder + "/" + name) << text; };
  write("script", "#!/bin/sh\n");
  EXPECT_NE(CheckIsJob(folder + "/script", "ropewalk run").why().find("script"), std::string::npos);
  write("text", "hello");
  EXPECT_EQ(CheckIsJob(folder + "/text", "ropewalk run").tag(), "CLI10");
  write("empty", "");
  EXPECT_EQ(CheckIsJob(folder + "/empty", "ropewalk run").tag(), "CLI10");
  EXPECT_EQ(CheckIsJob(folder + "/none", "ropewalk run").tag(), "ELF01");

  // Linked dynamically: main refers to the library, or a library of its own does.
  write("ropewalk.cc", "namespace ropewalk::job { void InitProcess(int&, char**, unsigned) {} }");
  write("wrapper.cc",
        "namespace ropewalk::job { void InitProcess(int&, char**, unsigned); }\n"
        "void Wrapped(int c, char** v) { ropewalk::job::InitProcess(c, v, 1); }");
  write("direct.cc",
        "namespace ropewalk::job { void InitProcess(int&, char**, unsigned); }\n"
        "int main(int c, char** v) { ropewalk::job::InitProcess(c, v, 1); }");
  write("through.cc", "void Wrapped(int, char**); int main(int c, char** v) { Wrapped(c, v); }");
  write("other.cc", "int main() {}");
  auto run = [&](const std::string& command) { return std::system(("cd " + folder + " && " + command).c_str()); };
  ASSERT_EQ(run("c++ -shared -fPIC ropewalk.cc -o lib/libany.so"), 0);
  ASSERT_EQ(run("c++ -shared -fPIC wrapper.cc -o lib/libwrapper.so -Llib -lany -Wl,-rpath,'$ORIGIN'"), 0);
  ASSERT_EQ(run("c++ direct.cc -o direct -Llib -lany -Wl,-rpath,'$ORIGIN/lib' && strip direct"), 0);
  ASSERT_EQ(run("c++ through.cc -o through -Llib -lwrapper -Wl,-rpath,'$ORIGIN/lib' -Wl,-rpath-link,lib && strip through"), 0);
  ASSERT_EQ(run("c++ other.cc -o other"), 0);
  ASSERT_EQ(run("cp /proc/" + std::to_string(getpid()) + "/exe static && strip static"), 0);
  for (const char* job : {"direct", "through", "static"}) EXPECT_TRUE(CheckIsJob(folder + "/" + job, "ropewalk run").ok()) << job;
  EXPECT_EQ(CheckIsJob(folder + "/other", "ropewalk run").tag(), "CLI10");
  std::filesystem::remove_all(folder);
}

TEST(Options, AnExecutorKeepsItsArguments) {
  Taken taken = Take({"prog", "--threads", "2"}, {{"ROPEWALK_EXECUTOR_FD", "3"}, {"ROPEWALK_MASTER", "h:1"}});
  ASSERT_TRUE(taken.options.ok());
  EXPECT_EQ(taken.options->executor_fd, 3);
  EXPECT_TRUE(taken.options->master.empty());
  EXPECT_EQ(taken.args.size(), 3u);
}

TEST(Options, RefusesWhatItCannotUseByName) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{{"p", "--threads", "0"},
                                                                                    {"p", "--threads"},
                                                                                    {"p", "--memory=12Q"},
                                                                                    {"p", "--memory=1K"},
                                                                                    {"p", "--verify=maybe"},
                                                                                    {"p", "--master", "nowhere"}}) {
    Taken taken = Take(args);
    ASSERT_FALSE(taken.options.ok());
    EXPECT_EQ(taken.options.status().code(), Code::kInvalid);
    EXPECT_NE(taken.options.status().what().find(args[1].substr(0, args[1].find('='))), std::string::npos)
        << taken.options.status().ToString();
  }
  EXPECT_FALSE(Take({"p"}, {{"ROPEWALK_OUTPUT", "xml"}}).options.ok());
}

TEST(Options, ParsesBytes) {
  EXPECT_EQ(ParseBytes("0"), 0u);
  EXPECT_EQ(ParseBytes("12"), 12u);
  EXPECT_EQ(ParseBytes("3K"), 3072u);
  EXPECT_EQ(ParseBytes("2MiB"), 2u << 20);
  EXPECT_EQ(ParseBytes("1GB"), 1u << 30);
  for (const char* bad : {"", "K", "1KK", "1X", "-1", "1 G", "99999999999999999999", "999999999999T"})
    EXPECT_EQ(ParseBytes(bad), std::nullopt) << bad;
}

TEST(ElfNeeds, FindsTheGlibcOfThisBinary) {
  Result<std::uint32_t> version = HighestGlibc("/proc/self/exe");
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_GE(*version, 2017u);
  EXPECT_LE(*version, 2036u) << "Debian 12 has glibc 2.36";
  EXPECT_EQ(GlibcText(2036), "2.36");
}

TEST(ElfNeeds, SurvivesAnyDamage) {
  std::string image;
  {
    std::FILE* file = std::fopen("/proc/self/exe", "rb");
    char buffer[65536];
    for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) image.append(buffer, n);
    std::fclose(file);
  }
  EXPECT_FALSE(HighestGlibcOfImage("", "x").ok());
  EXPECT_FALSE(HighestGlibcOfImage("#!/bin/sh\n", "x").ok());
  for (std::size_t cut : {std::size_t(10), std::size_t(64), image.size() / 2, image.size() - 1}) {
    [[maybe_unused]] auto result = HighestGlibcOfImage(std::string_view(image).substr(0, cut), "x");  // must come back
  }
  std::uint64_t seed = 12345;
  for (int round = 0; round < 200; ++round) {
    std::string damaged = image.substr(0, 4096) + image.substr(image.size() - 8192);
    for (int i = 0; i < 8; ++i) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      damaged[(seed >> 20) % 64] = static_cast<char>(seed >> 50);
    }
    [[maybe_unused]] auto result = HighestGlibcOfImage(damaged, "x");
    [[maybe_unused]] auto marks = ReadJobMarks(damaged, "x");
  }
}

TEST(Progress, FitsTheTerminal) {
  ProgressState state{"ReadLines > CountByKey (word_count.cc:9)", 40, 10, 2, 1'500'000'000, ""};
  std::string text = ProgressText(state, 2000, 100);
  EXPECT_NE(text.find("10/40"), std::string::npos) << text;
  EXPECT_NE(text.find("715 MiB/s"), std::string::npos) << text;
  EXPECT_EQ(text.substr(0, 22), "[=====>              ]");
  ProgressState half{"one long task", 1, 0, 1, 0, "", 500};
  EXPECT_EQ(ProgressText(half, 2000, 100).substr(0, 22), "[==========>         ]") << "a running task counts by what it has read";
  for (int columns : {1, 10, 40, 80}) EXPECT_LT(static_cast<int>(ProgressText(state, 2000, columns).size()), columns);
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(12'345), "12.1 KiB");
  EXPECT_EQ(HumanBytes(1'048'570), "1.00 MiB");
}

TEST(Report, JsonHasTheSameFields) {
  Status status(Code::kUserError, "IO03", "a\"b.gz", "why", "fix");
  EXPECT_EQ(ErrorJson(status), R"({"error":{"code":"user_error","tag":"IO03","what":"a\"b.gz","why":"why","fix":"fix"}})");
}

// A program's own reading of its arguments passes on what is a job's, with its value, and nothing else.
TEST(Options, ArePassedOnWithTheirValues) {
  const std::vector<std::string> args = {"prog",  "--detach", "word",     "--master", "h:1",        "--name=a b",
                                         "--own", "--mine=1", "--verify", "off",      "--detach=1", "--token-file"};
  std::vector<std::string> passed, rest;
  for (std::size_t i = 0; i < args.size(); ++i)
    if (!PassOption(args, &i, &passed)) rest.push_back(args[i]);
  EXPECT_EQ(passed,
            (std::vector<std::string>{"--detach", "--master", "h:1", "--name=a b", "--verify", "off", "--detach=1", "--token-file"}))
      << "a value that is missing is for Init() to miss";
  EXPECT_EQ(rest, (std::vector<std::string>{"prog", "word", "--own", "--mine=1"}));
}

}  // namespace
}  // namespace ropewalk::job
