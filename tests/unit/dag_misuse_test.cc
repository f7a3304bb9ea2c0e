// What users get wrong is refused by the compiler in words that help: dag_misuse.cc is compiled with and without its misuses.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

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

TEST(Misuse, IsRefusedInWordsThatHelp) {
  fs::path root = SourceRoot();
  if (!fs::exists(root / "tests/unit/dag_misuse.cc")) GTEST_SKIP() << "no source tree above " << fs::current_path();
  Compiled fine = Compile(root, "");
  ASSERT_EQ(fine.status, 0) << fine.output.substr(0, 3000);
  Compiled refused = Compile(root, "-DMISUSE -fmax-errors=0");
  EXPECT_NE(refused.status, 0);
  std::ifstream source(root / "tests/unit/dag_misuse.cc");
  int expected = 0;
  for (std::string line; std::getline(source, line);) {
    if (std::size_t at = line.find("// expect: "); at == 0) {
      ++expected;
      // Of a static_assert that failed, not of the source line that gcc shows below it.
      std::string words = line.substr(11);
      bool said = false;
      for (std::size_t from = 0; (from = refused.output.find("static assertion failed: ", from)) != std::string::npos; ++from) {
        std::string message = refused.output.substr(from, refused.output.find('\n', from) - from);
        said |= message.find(words) != std::string::npos;
      }
      EXPECT_TRUE(said) << words;
    }
  }
  EXPECT_GE(expected, 15);
  if (HasFailure()) std::printf("%.20000s\n", refused.output.c_str());
}

}  // namespace
}  // namespace ropewalk::dag
