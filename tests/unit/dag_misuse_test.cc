// What users get wrong is refused by the compiler in words that help: dag_misuse.cc is compiled with and without its misuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace ropewalk::dag {
namespace {

namespace fs = std::filesystem;

// The source folder: the nearest one above that holds dag/dataset.h (ctest runs in the build folder, which lies in it).
fs::path SourceRoot() {
  const char* given = std::getenv("ROPEWALK_SOURCE_DIR");
  fs::path at = given != nullptr ? fs::path(given) : fs::current_path();
  while (!fs::exists(at / "dag/dataset.h") && at.has_relative_path()) at = at.parent_path();
  return at;
}

struct Compiled {
  int status = -1;
  std::string output;
};
Compiled Compile(const fs::path& root, const std::string& flags) {
  std::string command =
      "cd '" + root.string() + "' && LC_ALL=C c++ -std=c++20 -fsyntax-only -I. " + flags + " tests/unit/dag_misuse.cc 2>&1";
  Compiled result;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) result.output.append(buffer, n);
  result.status = ::pclose(pipe);
  return result;
}

struct Refusal {
  int line;  // of dag_misuse.cc, where it was asked for
  std::string words;
};
// The static_asserts that failed. gcc first says from which line of ours a template was asked for, then what is wrong.
std::vector<Refusal> Refusals(const std::string& output) {
  std::vector<Refusal> refusals;
  std::istringstream lines(output);
  int from = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string file = "tests/unit/dag_misuse.cc:", failed = "static assertion failed: ";
    if (line.starts_with(file) && line.find("required from here") != std::string::npos) from = std::atoi(line.c_str() + file.size());
    if (std::size_t at = line.find(failed); at != std::string::npos) refusals.push_back({from, line.substr(at + failed.size())});
  }
  return refusals;
}

struct Expectation {
  int first_line, last_line;
  std::string words;
};

TEST(Misuse, IsRefusedInWordsThatHelp) {
  fs::path root = SourceRoot();
  if (!fs::exists(root / "tests/unit/dag_misuse.cc")) GTEST_SKIP() << "no source tree above " << fs::current_path();
  Compiled fine = Compile(root, "");
  ASSERT_EQ(fine.status, 0) << fine.output.substr(0, 3000);
  Compiled refused = Compile(root, "-DMISUSE -fmax-errors=0");
  EXPECT_NE(refused.status, 0);
  std::vector<Refusal> refusals = Refusals(refused.output);
  std::ifstream source(root / "tests/unit/dag_misuse.cc");
  std::vector<Expectation> expected;
  int number = 0;
  for (std::string line; std::getline(source, line);) {
    ++number;
    if (line.starts_with("// expect: ")) expected.push_back({number, 0, line.substr(11)});
    if (!expected.empty()) expected.back().last_line = number;
  }
  for (const Expectation& e : expected) {
    EXPECT_TRUE(std::any_of(
        refusals.begin(), refusals.end(),
        [&](const Refusal& r) { return r.line > e.first_line && r.line <= e.last_line && r.words.find(e.words) != std::string::npos; }))
        << "line " << e.first_line << ": " << e.words;
  }
  EXPECT_GE(expected.size(), 30u);
  if (HasFailure()) std::printf("%.20000s\n", refused.output.c_str());
}

}  // namespace
}  // namespace ropewalk::dag
