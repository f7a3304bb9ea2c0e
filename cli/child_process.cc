#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "base/monotonic.h"
#include "storage/io_error.h"

namespace ropewalk::cli {

ChildProcess::ChildProcess(std::string name, std::vector<std::string> args, std::string log_file)
    : name_(std::move(name)), args_(std::move(args)), log_file_(std::move(log_file)) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      args_(std::move(other.args_)),
      log_file_(std::move(other.log_file_)),
      pid_(std::exchange(other.pid_, -1)),
      started_ms_(other.started_ms_) {}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Status ChildProcess::Start(int kept_fd) {
  int log = open(log_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return storage::IoError(errno, "DEV01", "cannot write the log " + storage::QuotedPath(log_file_));
  std::vector<char*> argv = {const_cast<char*>("ropewalk")};
  for (const std::string& arg : args_) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_t pid = fork();
  if (pid < 0) {
    close(log);
    return storage::IoError(errno, "DEV01", "cannot start " + name_);
  }
  if (pid == 0) {
    // Own group: Ctrl-C reaches us alone, and we end the daemons in order. They end with us however we end.
    setpgid(0, 0);
    // SIGINT: a worker that gets SIGTERM drains first. A shell may have left SIGINT ignored for what runs in its background.
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGINT);
    if (getppid() != parent) _exit(127);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (kept_fd >= 0) fcntl(kept_fd, F_SETFD, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(log);
  pid_ = pid;
  started_ms_ = MonotonicMs();
  return {};
}

void ChildProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

bool ChildProcess::Reap(std::string* how) {
  if (pid_ <= 0) return true;
  int status = 0;
  pid_t ended = waitpid(pid_, &status, WNOHANG);
  if (ended != pid_) return false;
  pid_ = -1;
  *how = WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                             : "exited with " + std::to_string(WEXITSTATUS(status));
  return true;
}

std::string ChildProcess::LogTail() const {
  constexpr std::streamoff kTailBytes = 2000;
  std::ifstream file(log_file_, std::ios::binary | std::ios::ate);
  if (!file) return "";
  std::streamoff size = file.tellg();
  std::string tail(static_cast<std::size_t>(std::min(size, kTailBytes)), '\0');
  file.seekg(size - static_cast<std::streamoff>(tail.size()));
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  if (size > kTailBytes) tail.erase(0, tail.find('\n') + 1);
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  return tail;
}

}  // namespace ropewalk::cli
