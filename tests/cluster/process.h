// Real processes for tests: started with their output in files, ended by pid, never by name.
//
// Thread rule: one thread.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ropewalk::cluster {

namespace fs = std::filesystem;

#ifdef __SANITIZE_THREAD__
constexpr bool kHasThreadSanitizer = true;
#else
constexpr bool kHasThreadSanitizer = false;
#endif
// Under ThreadSanitizer everything takes five to fifteen times as long, also what is waited for in another process.
constexpr int kPatience = kHasThreadSanitizer ? 10 : 1;

inline std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  // By an operator that does not throw: of a process that ends meanwhile /proc gives an error in the middle.
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Where ninja puts binaries: beside the folder of this test.
inline std::string Binary(const std::string& name) {
  fs::path self = fs::read_symlink("/proc/self/exe");
  fs::path path = self.parent_path().parent_path() / "bin" / name;
  EXPECT_TRUE(fs::exists(path)) << path << " is not built";
  return path;
}

// Polls: for conditions of other processes, that nobody can signal to us. A test of a deadline measures it.
template <class Condition>
bool Eventually(Condition condition, int timeout_ms = 30'000) {
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms) * kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// Removes a folder in which processes that were killed a moment ago, or their children, may still make and remove files.
inline void RemoveTree(const fs::path& folder) {
  std::error_code error;
  for (int attempt = 0; attempt < 500; ++attempt) {
    error.clear();
    fs::remove_all(folder, error);
    if (!error && !fs::exists(folder)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ADD_FAILURE() << folder << " cannot be removed: " << error.message();
}

class Process {
 public:
  struct Options {
    std::vector<std::string> argv;
    std::vector<std::string> environment;  // added to ours: "NAME=value"
    fs::path folder;                       // to run in
    fs::path log;                          // log.out and log.err get its output
  };

  explicit Process(Options options) : options_(std::move(options)) {
    pid_ = fork();
    if (pid_ == 0) Exec();
  }
  ~Process() {
    if (running()) {
      kill(pid_, SIGKILL);
      Wait(10'000);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const { return ReadFile(options_.log.string() + ".out"); }
  std::string err() const { return ReadFile(options_.log.string() + ".err"); }

  bool running() {
    if (status_) return false;
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return !status_;
  }
  void Signal(int signal) {
    if (running()) kill(pid_, signal);
  }
  // The exit code, 128 + signal, or nullopt when it still runs after `timeout_ms`.
  std::optional<int> Wait(int timeout_ms = 60'000) {
    if (!Eventually([&] { return !running(); }, timeout_ms)) return std::nullopt;
    return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
  }

 private:
  [[noreturn]] void Exec() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no daemons
    auto redirect = [&](const char* suffix, int fd) {
      int file = open((options_.log.string() + suffix).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      if (file < 0 || dup2(file, fd) < 0) _exit(126);
    };
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    redirect(".out", STDOUT_FILENO);
    redirect(".err", STDERR_FILENO);
    if (chdir(options_.folder.c_str()) != 0) _exit(126);
    for (const std::string& variable : options_.environment) putenv(const_cast<char*>(variable.c_str()));
    std::vector<char*> argv;
    for (const std::string& arg : options_.argv) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }

  Options options_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

// Pids of living processes whose parent is `parent`, and theirs.
inline std::vector<pid_t> Descendants(pid_t parent) {
  std::vector<std::pair<pid_t, pid_t>> all;  // (pid, parent)
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string stat = ReadFile(entry.path() / "stat");
    std::size_t close = stat.rfind(')');  // the command's name may hold anything
    if (close == std::string::npos) continue;
    char state = 0;
    int ppid = 0;
    if (std::sscanf(stat.c_str() + close + 1, " %c %d", &state, &ppid) == 2 && state != 'Z') all.emplace_back(std::stoi(name), ppid);
  }
  std::vector<pid_t> found{parent};
  for (std::size_t i = 0; i < found.size(); ++i)
    for (auto [pid, of] : all)
      if (of == found[i]) found.push_back(pid);
  found.erase(found.begin());
  return found;
}

}  // namespace ropewalk::cluster
