#include "cli/dev_cluster.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>

#include "base/home_folder.h"
#include "base/monotonic.h"
#include "cli/child_process.h"
#include "cli/settings.h"
#include "cli/start.h"
#include "job/client/master_link.h"
#include "master/daemon/files.h"
#include "proto/client.pb.h"
#include "rpc/channel.h"
#include "storage/io_error.h"

namespace ropewalk::cli {
namespace {

constexpr std::int64_t kReadyMs = 30'000;
constexpr std::int64_t kStopMs = 10'000;
constexpr std::int64_t kHealthyMs = 3'000;  // one that dies sooner after its start is failing, not unlucky
constexpr int kFailuresMax = 3;             // in a row

Status MakeFolder(const std::string& path) {
  std::size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0 && access(path.substr(0, slash).c_str(), F_OK) != 0)
    RETURN_IF_ERROR(MakeFolder(path.substr(0, slash)));
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  Status why = storage::IoError(errno, "DEV01", "cannot make the folder " + storage::QuotedPath(path));
  return Status(Code::kUserError, why.tag(), why.what(), why.why(), why.fix());
}

class DevCluster {
 public:
  explicit DevCluster(const DevOptions& options) : options_(options) {
    sigemptyset(&signals_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
  }

  Status Run() {
    RETURN_IF_ERROR(MakeFolder(options_.folder));
    RETURN_IF_ERROR(TakeFolder());
    if (options_.port != 0) RETURN_IF_ERROR(CheckPort());
    Status status = Serve();
    Stop();
    return status;
  }

 private:
  Status Serve() {
    Status started = StartMaster("127.0.0.1:" + std::to_string(options_.port));
    if (started.ok()) started = StartWorkers();
    if (started.ok()) started = WaitForWorkers();
    if (stopping_) return {};
    if (!started.ok()) return started;
    Announce();
    while (WaitForSignal(-1) && !stopping_) RETURN_IF_ERROR(Restart());
    return {};
  }

  // Told here, in one piece: what a second master's log would say is about the first one's folder.
  Status TakeFolder() {
    auto lock = master::FolderLock::Take(options_.folder + "/dev.lock", Holder());
    if (lock.ok()) {
      lock_ = *std::move(lock);
      return {};
    }
    if (lock.status().code() != Code::kUnavailable) return lock.status();
    std::string holder = lock.status().why(), pid = holder.substr(std::min(holder.find("pid "), holder.size()));
    pid = pid.substr(std::min<std::size_t>(4, pid.size()), pid.find(',') - 4);
    return Status(Code::kUnavailable, "DEV02", "a dev cluster runs already, with its state in " + options_.folder, holder,
                  "use that one, or end it (kill -INT " + pid + ") before you start another");
  }
  std::string Holder() const {
    return "pid " + std::to_string(getpid()) + (address_.empty() ? ", which is starting" : ", master on " + address_);
  }

  Status CheckPort() {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return storage::IoError(errno, "DEV01", "cannot start the master");
    int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(options_.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int error = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
    close(fd);
    if (error == 0) return {};
    std::string what = "port " + std::to_string(options_.port) + " of 127.0.0.1 cannot be used";
    if (error != EADDRINUSE) return storage::IoError(error, "DEV03", what);
    return Status(Code::kUnavailable, "DEV03", what, "another program listens on it: another master, or a dev cluster with another --dir",
                  "take any free port: --port 0");
  }

  std::vector<std::string> MasterArgs(const std::string& listen, int ready_fd) const {
    return {"start",        "master",
            "--listen",     listen,
            "--dir",        options_.folder + "/master",
            "--token-file", options_.token_file,
            "--ready-fd",   std::to_string(ready_fd)};
  }

  Status StartMaster(const std::string& listen) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return storage::IoError(errno, "DEV01", "cannot start the master");
    if (children_.empty()) children_.emplace_back("master", std::vector<std::string>(), options_.folder + "/master.log");
    ChildProcess& master = children_.front();
    master.set_args(MasterArgs(listen, ends[1]));
    Status status = master.Start(ends[1]);
    close(ends[1]);
    if (status.ok()) status = ReadAddress(ends[0]);
    close(ends[0]);
    return status;
  }

  // The master writes its address once it serves; the pipe's end without one means that it died.
  Status ReadAddress(int fd) {
    std::string said;
    std::int64_t give_up_ms = MonotonicMs() + kReadyMs;
    while (said.find('\n') == std::string::npos) {
      // Not WaitForSignal(): a signal while we wait must also end this.
      sigset_t pending;
      sigpending(&pending);
      if (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1) return stopping_ = true, Status();
      pollfd poll_fd{fd, POLLIN, 0};
      int ready = poll(&poll_fd, 1, 50);
      if (ready < 0 && errno != EINTR) return storage::IoError(errno, "DEV01", "cannot start the master");
      char buffer[256];
      ssize_t n = ready > 0 ? read(fd, buffer, sizeof buffer) : -1;
      if (n > 0) said.append(buffer, static_cast<std::size_t>(n));
      if (n == 0 || MonotonicMs() > give_up_ms) return Failed(children_.front(), n == 0 ? "ended" : "does not answer");
    }
    address_ = said.substr(0, said.find('\n'));
    lock_->Describe(Holder());
    return {};
  }

  Status Failed(const ChildProcess& child, const std::string& how) {
    std::string tail = child.LogTail();
    return Status(Code::kUnavailable, "DEV01", "the " + child.name() + " " + how,
                  tail.empty() ? "its log is empty" : "its log ends with:\n" + tail, "see " + child.log_file());
  }

  Status StartWorkers() {
    for (std::uint32_t i = 1; i <= options_.workers && !stopping_; ++i) {
      std::string name = "worker-" + std::to_string(i);
      std::vector<std::string> args = {"start",        "worker",
                                       "--join",       address_,
                                       "--token-file", options_.token_file,
                                       "--dir",        options_.folder + "/" + name,
                                       "--slots",      std::to_string(options_.slots),
                                       "--name",       name};
      if (options_.memory_bytes != 0) args.insert(args.end(), {"--memory", std::to_string(options_.memory_bytes)});
      children_.emplace_back(name, std::move(args), options_.folder + "/" + name + ".log");
      RETURN_IF_ERROR(children_.back().Start());
    }
    return {};
  }

  // So that a job that is submitted when we say "ready" finds workers.
  Status WaitForWorkers() {
    ASSIGN_OR_RETURN(std::string token, rpc::ReadTokenFile(options_.token_file));
    std::int64_t give_up_ms = MonotonicMs() + kReadyMs;
    while (!stopping_) {
      {
        job::MasterLink link({address_, token});
        wire::ClientRequest request;
        request.mutable_list_workers();
        auto response = link.Call(&request);
        if (response.ok() && response->worker_list().workers_size() >= static_cast<int>(options_.workers)) return {};
        if (!response.ok() && response.status().code() != Code::kUnavailable) return response.status();
      }
      for (ChildProcess& child : children_) {
        std::string how;
        if (child.Reap(&how)) return Failed(child, how);
      }
      if (MonotonicMs() > give_up_ms) return Failed(children_.back(), "does not join");
      WaitForSignal(50);
    }
    return {};
  }

  void Announce() {
    std::string target = options_.defaults ? "" : " --master " + address_ + " --token-file " + options_.token_file;
    std::printf(
        "ropewalk dev cluster: master on %s, %u worker%s with %u slot%s each; state and logs in %s\n"
        "  submit:  ropewalk submit%s wordcount INPUT... -o OUT\n"
        "  look:    ropewalk job list%s\n"
        "  token:   %s\n"
        "  stop:    Ctrl-C\n",
        address_.c_str(), options_.workers, options_.workers == 1 ? "" : "s", options_.slots, options_.slots == 1 ? "" : "s",
        options_.folder.c_str(), target.c_str(), target.c_str(), options_.token_file.c_str());
    std::fflush(stdout);
  }

  // False: a timeout or an interruption. SIGCHLD gives true; a wish to end sets stopping_.
  bool WaitForSignal(std::int64_t wait_ms) {
    timespec timeout{wait_ms / 1000, wait_ms % 1000 * 1'000'000};
    int signal = wait_ms < 0 ? sigwaitinfo(&signals_, nullptr) : sigtimedwait(&signals_, nullptr, &timeout);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) stopping_ = true;
    return signal > 0 || (wait_ms < 0 && errno == EINTR);
  }

  // A daemon that was killed comes back, as under a service manager; one that cannot stay up ends us with its reason.
  Status Restart() {
    for (std::size_t i = 0; i < children_.size() && !stopping_; ++i) {
      ChildProcess& child = children_[i];
      std::string how;
      if (!child.running() || !child.Reap(&how)) continue;
      failures_.resize(children_.size());
      failures_[i] = MonotonicMs() - child.started_ms() < kHealthyMs ? failures_[i] + 1 : 1;
      if (failures_[i] > kFailuresMax) return Failed(child, how + " again and again");
      std::fprintf(stderr, "the %s %s; starting it again\n", child.name().c_str(), how.c_str());
      RETURN_IF_ERROR(i == 0 ? StartMaster(address_) : child.Start());
    }
    return {};
  }

  void Stop() {
    // Workers first: they say goodbye to a master that still listens.
    for (std::size_t i = children_.size(); i-- > 0;) {
      children_[i].Signal(SIGINT);
      if (i != 1) continue;
      WaitForEnd(1);
    }
    WaitForEnd(0);
    children_.clear();  // kills what did not end by itself
  }
  void WaitForEnd(std::size_t first) {
    std::int64_t give_up_ms = MonotonicMs() + kStopMs;
    while (MonotonicMs() < give_up_ms) {
      bool running = false;
      for (std::size_t i = first; i < children_.size(); ++i) {
        std::string how;
        running |= children_[i].running() && !children_[i].Reap(&how);
      }
      if (!running) return;
      WaitForSignal(50);
    }
  }

  const DevOptions& options_;
  sigset_t signals_;
  std::vector<ChildProcess> children_;  // the master is the first
  std::vector<int> failures_;
  std::string address_;
  std::unique_ptr<master::FolderLock> lock_;  // of the state folder, for as long as we live
  bool stopping_ = false;
};

}  // namespace

Result<DevOptions> DevOptionsOf(const Config& config) {
  DevOptions options;
  bool own_folder = !config.Text("dev.dir").empty();
  options.folder = StateFolder(config, "dev");
  if (options.folder[0] != '/') {  // the daemons' folders must not depend on where they are started
    char cwd[4096];
    if (getcwd(cwd, sizeof cwd) == nullptr) return storage::IoError(errno, "DEV01", "cannot tell the working folder");
    options.folder = std::string(cwd) + "/" + options.folder;
  }
  options.token_file = own_folder ? options.folder + "/token" : DefaultTokenFile();
  std::uint64_t port = config.Number("dev.port"), workers = config.Number("dev.workers"), slots = config.Number("dev.slots");
  if (port > 65535)
    return Status(Code::kInvalid, "SPEC02", "dev.port " + std::to_string(port) + " is no port", "ports end at 65535", "give 0 to 65535");
  if (workers < 1 || workers > 64)
    return Status(Code::kInvalid, "SPEC02", "dev.workers " + std::to_string(workers) + " is not possible",
                  "all of them run on this machine", "give 1 to 64");
  RETURN_IF_ERROR(CheckSlots(config, "dev.slots"));
  RETURN_IF_ERROR(CheckMemory(config, "dev.memory"));
  options.port = static_cast<std::uint16_t>(port);
  options.workers = static_cast<std::uint32_t>(workers);
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  options.slots = slots != 0 ? static_cast<std::uint32_t>(slots) : std::max(cores / options.workers, 1u);
  options.memory_bytes = config.Number("dev.memory");
  // A worker alone takes half of the machine; several share it.
  if (options.memory_bytes == 0 && options.workers > 1)
    options.memory_bytes =
        static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 2 / options.workers;
  options.defaults = !own_folder && port == 7077;
  return options;
}

Status RunDevCluster(const DevOptions& options) { return DevCluster(options).Run(); }

}  // namespace ropewalk::cli
