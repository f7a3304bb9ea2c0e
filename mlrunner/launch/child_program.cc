#include "mlrunner/launch/child_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "storage/io_error.h"

namespace ropewalk::launch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTickMs = 100;
constexpr std::chrono::seconds kTermPatience{3};      // between SIGTERM and SIGKILL
constexpr std::chrono::seconds kLeftoverPatience{1};  // for output of what the program has left behind, after its end
constexpr std::size_t kLineBytesMax = 64 << 10;       // longer ones come in pieces
constexpr std::size_t kLastLines = 8;
constexpr int kReadsAtOnce = 64;  // before the program's end and the wish for it are looked at again: it may write faster than we read

Status CannotStart(const std::string& program, int error) {
  const Status why = storage::IoError(error, "LAUNCH01", "the program " + storage::QuotedPath(program) + " cannot be started");
  return Status(Code::kUserError, "LAUNCH01", why.what(), why.why(),
                "it has to be there on each machine that runs a rank: give a path that all of them share");
}

bool IsProgram(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

// The path of a name that stands alone, as execvp finds it; empty: it is nowhere.
std::string Search(const std::string& name) {
  const char* variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string folder = end == at ? "." : path.substr(at, end - at);
    if (IsProgram(folder + "/" + name)) return folder + "/" + name;
    at = end + 1;
  }
  return "";
}

// "NAME=value" of all that the child gets.
std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr && more.contains(std::string(static_cast<const char*>(*entry), equals))) continue;
    all.emplace_back(*entry);
  }
  for (const auto& [name, value] : more) all.push_back(name + "=" + value);
  return all;
}

struct Pipe {
  UniqueFd read, write;
  // 0, or why not.
  int Open() {
    int both[2];
    if (pipe2(both, O_CLOEXEC) != 0) return errno;
    read = UniqueFd(both[0]);
    write = UniqueFd(both[1]);
    return 0;
  }
};

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string ProgramEnd::Words() const {
  if (signal != 0) return "was ended by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  return "exited with " + std::to_string(exit_code);
}

Result<std::unique_ptr<ChildProgram>> ChildProgram::Start(const ProgramOptions& options) {
  std::vector<std::string> argv = options.argv, environment = EnvironmentWith(options.environment);
  std::string path = argv.at(0);
  if (path.find('/') == std::string::npos) {
    path = Search(path);
    if (path.empty()) return CannotStart(argv[0], ENOENT);
  }
  struct stat info;
  if (stat(options.folder.c_str(), &info) != 0) {
    const Status why = storage::IoError(errno, "LAUNCH01", "the folder " + storage::QuotedPath(options.folder) + " cannot be entered");
    return Status(Code::kUserError, "LAUNCH01", why.what(), why.why(), "submit from a folder that is there on each machine");
  }
  Pipe output, started;  // `started` is closed by exec, or says why there was none
  if (const int error = output.Open(); error != 0) return CannotStart(path, error);
  if (const int error = started.Open(); error != 0) return CannotStart(path, error);
  std::vector<char*> argv_pointers = Pointers(argv), environment_pointers = Pointers(environment);
  sigset_t none;
  sigemptyset(&none);
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) {  // only what is safe in a child of a process with threads
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    for (int ignored : {SIGPIPE, SIGINT, SIGQUIT}) signal(ignored, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC), out = output.write.get();
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(out, STDERR_FILENO) >= 0 &&
        chdir(options.folder.c_str()) == 0)
      execve(path.c_str(), argv_pointers.data(), environment_pointers.data());
    const int error = errno;
    (void)!write(started.write.get(), &error, sizeof error);
    _exit(127);
  }
  if (pid < 0) return CannotStart(path, errno);
  output.write.Close();
  started.write.Close();
  int error = 0;
  ssize_t got = 0;
  do got = read(started.read.get(), &error, sizeof error);
  while (got < 0 && errno == EINTR);
  if (got > 0) {
    waitpid(pid, nullptr, 0);
    return CannotStart(path, error);
  }
  setpgid(pid, pid);  // by whichever of the two comes first
  fcntl(output.read.get(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<ChildProgram>(new ChildProgram(pid, std::move(output.read)));
}

ChildProgram::~ChildProgram() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

bool ChildProgram::Read(const std::function<void(std::string_view)>& line, ProgramEnd* end) {
  auto give = [&](std::string_view text) {
    end->last_lines.emplace_back(text);
    if (end->last_lines.size() > kLastLines) end->last_lines.erase(end->last_lines.begin());
    line(text);
  };
  char bytes[16 << 10];
  for (int reads = 0; reads < kReadsAtOnce; ++reads) {
    const ssize_t got = read(output_.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) {
      if (!partial_.empty()) give(std::exchange(partial_, ""));
      return false;
    }
    partial_.append(bytes, static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t newline; (newline = partial_.find('\n', begin)) != std::string::npos; begin = newline + 1)
      give(std::string_view(partial_).substr(begin, newline - begin));
    partial_.erase(0, begin);
    if (partial_.size() >= kLineBytesMax) give(std::exchange(partial_, ""));
  }
  return true;
}

ProgramEnd ChildProgram::Wait(const std::function<void(std::string_view)>& line, const std::function<void()>& tick) {
  ProgramEnd end;
  bool has_output = true;
  Clock::time_point kill_at = Clock::time_point::max();
  while (true) {
    pollfd wait{.fd = has_output ? output_.get() : -1, .events = POLLIN, .revents = 0};
    poll(&wait, 1, kTickMs);
    if (has_output) has_output = Read(line, &end);
    tick();
    if (end_asked_ && kill_at == Clock::time_point::max()) {
      kill(-pid_, SIGTERM);
      kill_at = Clock::now() + kTermPatience;
    }
    if (Clock::now() >= kill_at) kill(-pid_, SIGKILL);
    siginfo_t over{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &over, WEXITED | WNOHANG | WNOWAIT) != 0 || over.si_pid != pid_) continue;
    // While its number is still its own: what it has left behind would keep the output open.
    kill(-pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    break;
  }
  for (const Clock::time_point until = Clock::now() + kLeftoverPatience; has_output && Clock::now() < until;) {
    pollfd wait{.fd = output_.get(), .events = POLLIN, .revents = 0};
    poll(&wait, 1, kTickMs);
    has_output = Read(line, &end);
  }
  return end;
}

}  // namespace ropewalk::launch
