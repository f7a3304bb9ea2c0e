// The spawner's own half. It allocates little, has one thread, and trusts the daemon (its parent), not the executors.
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "worker/daemon/processes.h"
#include "worker/daemon/spawner.h"

namespace ropewalk::worker {
namespace {

constexpr rlim_t kOpenFilesMax = 65536;
constexpr int kKillRoundsMax = 50;
constexpr useconds_t kKillPauseUs = 2000;

struct Child {
  std::string path, folder, fallback_folder;
  std::vector<std::string> argv, environment, group_procs;
  std::string group_processes_max;
  std::uint64_t data_bytes_max = 0, processes_max = 0;
  std::int64_t uid = -1, gid = -1;
};

// errno.
int WriteText(const char* path, const char* text) {
  int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const auto length = static_cast<ssize_t>(std::strlen(text));
  const int error = ::write(fd, text, static_cast<std::size_t>(length)) == length ? 0 : errno;
  ::close(fd);
  return error;
}

// Both limits, so that the executor cannot raise it again.
int Limit(__rlimit_resource resource, std::uint64_t value) {
  rlimit limit{value, value};
  return value == 0 || ::setrlimit(resource, &limit) == 0 ? 0 : errno;
}

// Errno of what failed. The user comes last: it may do less.
int TakeLimits(const Child& child) {
  for (const std::string& procs : child.group_procs)
    if (int error = WriteText(procs.c_str(), "0"); error != 0) return error;
  rlimit none{0, 0}, files{};
  if (::setrlimit(RLIMIT_CORE, &none) != 0 || ::getrlimit(RLIMIT_NOFILE, &files) != 0) return errno;
  files.rlim_cur = files.rlim_max = std::min(files.rlim_max, kOpenFilesMax);
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return errno;
  // Where it is not allowed the kernel chooses by itself.
  (void)WriteText("/proc/self/oom_score_adj", "500");
  if (int error = Limit(RLIMIT_DATA, child.data_bytes_max); error != 0) return error;
  if (int error = Limit(RLIMIT_NPROC, child.processes_max); error != 0) return error;
  if (child.uid < 0) return 0;
  const auto uid = static_cast<uid_t>(child.uid);
  const auto gid = static_cast<gid_t>(child.gid);
  return ::setgroups(0, nullptr) == 0 && ::setresgid(gid, gid, gid) == 0 && ::setresuid(uid, uid, uid) == 0 ? 0 : errno;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the forked child. Returns errno of what failed.
int Become(Child& child, pid_t spawner, const int (&given)[3], int report_fd) {
  if (::setsid() < 0) return errno;
  if (int error = TakeLimits(child); error != 0) return error;
  // After the change of user, which resets it, and before the parent is looked at: whoever dies in between is noticed by one of the two.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  if (::getppid() != spawner) return ESRCH;

  // Out of the way of 0-3 first; the copies close themselves at exec.
  int high[3], null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0) return errno;
  null = ::fcntl(null, F_DUPFD_CLOEXEC, 10);
  for (int i = 0; i < 3; ++i)
    if ((high[i] = ::fcntl(given[i], F_DUPFD_CLOEXEC, 10)) < 0) return errno;
  report_fd = ::fcntl(report_fd, F_DUPFD_CLOEXEC, 10);
  if (null < 0 || report_fd < 0) return errno;
  if (::dup2(null, 0) < 0 || ::dup2(high[1], 1) < 0 || ::dup2(high[2], 2) < 0 || ::dup2(high[0], 3) < 0) return errno;
  for (int fd = 4; fd < report_fd; ++fd)
    if (fd != report_fd) ::close(fd);
  if (::close_range(static_cast<unsigned>(report_fd) + 1, ~0u, 0) != 0) return errno;

  // By the system call: glibc's signal() refuses its own two (32, 33), and its posix_spawn leaves them ignored in all that descends from,
  // say, make.
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    std::uint64_t mask;
  } by_default = {SIG_DFL, 0, nullptr, 0};
  for (int s = 1; s < NSIG; ++s) ::syscall(SYS_rt_sigaction, s, &by_default, nullptr, sizeof(by_default.mask));
  sigset_t empty;
  sigemptyset(&empty);
  ::sigprocmask(SIG_SETMASK, &empty, nullptr);
  ::umask(022);
  if (child.folder.empty() || ::chdir(child.folder.c_str()) != 0) {
    if (::chdir(child.fallback_folder.c_str()) != 0) return errno;
  }
  std::vector<char*> argv = Pointers(child.argv), environment = Pointers(child.environment);
  ::execve(child.path.c_str(), argv.data(), environment.data());
  int error = errno;
  (void)!::write(report_fd, &error, sizeof error);
  ::_exit(127);
}

class Server {
 public:
  explicit Server(UniqueFd control) : control_(std::move(control)) {}

  void Run() {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    ::sigprocmask(SIG_SETMASK, &children, nullptr);
    UniqueFd signals(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
    pollfd watched[2] = {{control_.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    while (true) {
      if (::poll(watched, 2, -1) < 0 && errno != EINTR) break;
      if (watched[1].revents != 0) {
        signalfd_siginfo info;
        while (::read(signals.get(), &info, sizeof info) > 0) {
        }
        Reap();
      }
      if (watched[0].revents != 0 && !HandleMessage()) break;
    }
    // The daemon is gone, or wants us to go: nothing may be left behind.
    for (const auto& [id, leader] : running_) EndForks(leader);
    running_.clear();
    EndStrays();
  }

 private:
  bool ReadAll(void* out, std::size_t size) {
    auto* at = static_cast<char*>(out);
    while (size > 0) {
      ssize_t n = ::recv(control_.get(), at, size, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }

  // False: the daemon is gone.
  bool HandleMessage() {
    SpawnerMessage header;
    iovec part{&header, sizeof header};
    alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n = ::recvmsg(control_.get(), &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) return true;
    if (n <= 0) return false;
    int fds[3] = {-1, -1, -1};
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c))
      if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        std::memcpy(fds, CMSG_DATA(c), std::min(c->cmsg_len - CMSG_LEN(0), sizeof fds));
    UniqueFd own[3] = {UniqueFd(fds[0]), UniqueFd(fds[1]), UniqueFd(fds[2])};
    if (!ReadAll(reinterpret_cast<char*>(&header) + n, sizeof header - static_cast<std::size_t>(n)) || header.length > kSpawnBytesMax)
      return false;
    std::string payload(header.length, '\0');
    if (!ReadAll(payload.data(), payload.size())) return false;
    ByteReader reader(payload);
    if (header.type == SpawnerMessage::kKill) {
      auto id = reader.Fixed<std::uint64_t>();
      auto signal = reader.Fixed<std::int32_t>();
      auto at = running_.find(id);
      if (at == running_.end()) return true;
      if (signal == SIGKILL) EndForks(at->second);
      SignalSession(at->second.pid, signal);
      return true;
    }
    auto id = reader.Fixed<std::uint64_t>();
    Child child;
    child.path = reader.Sized();
    child.folder = reader.Sized();
    child.fallback_folder = reader.Sized();
    for (auto* list : {&child.argv, &child.environment, &child.group_procs})
      for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok(); --left) list->emplace_back(reader.Sized());
    child.group_processes_max = reader.Sized();
    child.data_bytes_max = reader.Fixed<std::uint64_t>();
    child.processes_max = reader.Fixed<std::uint64_t>();
    child.uid = static_cast<std::int64_t>(reader.Fixed<std::uint64_t>());
    child.gid = static_cast<std::int64_t>(reader.Fixed<std::uint64_t>());
    if (!reader.ok()) return false;
    return Spawn(id, child, fds);
  }

  bool Spawn(std::uint64_t id, Child& child, const int (&fds)[3]) {
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) return Send({.kind = SpawnEvent::kFailed, .id = id, .error = errno});
    UniqueFd read_end(pipe[0]), write_end(pipe[1]);
    pid_t self = ::getpid(), pid = ::fork();
    if (pid == 0) {
      int error = Become(child, self, fds, write_end.get());
      (void)!::write(write_end.get(), &error, sizeof error);
      ::_exit(127);
    }
    if (pid < 0) return Send({.kind = SpawnEvent::kFailed, .id = id, .error = errno});
    write_end.Close();
    int error = 0;
    ssize_t n;
    do n = ::read(read_end.get(), &error, sizeof error);
    while (n < 0 && errno == EINTR);
    if (n == static_cast<ssize_t>(sizeof error)) {
      while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      return Send({.kind = SpawnEvent::kFailed, .id = id, .error = error});
    }
    running_[id] = {pid, child.group_processes_max};
    return Send({.kind = SpawnEvent::kStarted, .id = id, .pid = pid});
  }

  bool Send(const SpawnEvent& event) {
    ssize_t n;
    do n = ::send(control_.get(), &event, sizeof event, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == static_cast<ssize_t>(sizeof event);
  }

  void Reap() {
    std::vector<SpawnEvent> ended;
    int status;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      auto at = std::find_if(running_.begin(), running_.end(), [pid](const auto& entry) { return entry.second.pid == pid; });
      if (at == running_.end()) continue;  // a grandchild whose parent ended before it
      ended.push_back({.kind = SpawnEvent::kExited,
                       .id = at->first,
                       .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                       .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0});
      EndForks(at->second);
      running_.erase(at);
    }
    if (ended.empty()) return;
    EndStrays();  // before the exit is told: what the executor started must not write after it is gone
    for (const SpawnEvent& event : ended) Send(event);
  }

  void SignalSession(pid_t session, int signal) {
    for (const Process& process : ListProcesses())
      if (process.session == session && !process.zombie) ::kill(process.pid, signal);
  }

  // Ends all descendants that belong to no running executor: sessions that have lost their leader, and processes that left their session
  // and came to us (we are the subreaper) when their parent ended. In rounds, because a process may fork while we look.
  void EndStrays() {
    pid_t self = ::getpid();
    for (int round = 0; round < kKillRoundsMax; ++round) {
      std::vector<Process> all = ListProcesses();
      std::map<pid_t, const Process*> by_pid;
      for (const Process& process : all) by_pid[process.pid] = &process;
      auto is_ours = [&](const Process& process) {
        const Process* at = &process;
        for (std::size_t depth = 0; depth < all.size(); ++depth) {
          auto parent = by_pid.find(at->parent);
          if (at->parent == self) return true;
          if (parent == by_pid.end()) return false;
          at = parent->second;
        }
        return false;
      };
      auto is_wanted = [&](const Process& process) {
        const Process* at = &process;
        for (std::size_t depth = 0; depth <= all.size(); ++depth) {
          for (const auto& [id, leader] : running_)
            if (at->session == leader.pid || at->pid == leader.pid) return true;
          auto parent = by_pid.find(at->parent);
          if (at->parent == self || parent == by_pid.end()) return false;
          at = parent->second;
        }
        return false;
      };
      int found = 0;
      for (const Process& process : all) {
        if (process.zombie || !is_ours(process) || is_wanted(process)) continue;
        ::kill(process.pid, SIGKILL);
        ++found;
      }
      if (found == 0) return;
      ::usleep(kKillPauseUs);
    }
  }

  struct Leader {
    pid_t pid = 0;
    std::string group_processes_max;
  };
  // Whatever its group still holds can end, and cannot multiply. Without a group, or when the group is gone already: nothing.
  static void EndForks(const Leader& leader) {
    if (!leader.group_processes_max.empty()) (void)WriteText(leader.group_processes_max.c_str(), "0");
  }

  UniqueFd control_;
  std::map<std::uint64_t, Leader> running_;
};

}  // namespace

void ServeSpawner(UniqueFd control) {
  // The terminal's Ctrl-C is for the daemon; it tells us by closing the socket.
  ::setsid();
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(s, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  ::prctl(PR_SET_NAME, "ropewalk-spawn");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Nothing of the daemon's (locks, listeners) may live on in us.
  int fd = control.release();
  if (fd != 3) ::dup2(fd, 3);
  ::fcntl(3, F_SETFD, FD_CLOEXEC);
  ::close_range(4, ~0u, 0);
  {
    Server server{UniqueFd(3)};
    server.Run();
  }
  ::_exit(0);
}

}  // namespace ropewalk::worker
