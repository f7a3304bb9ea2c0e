#include "worker/daemon/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/escape.h"
#include "base/unique_fd.h"
#include "rpc/channel.h"
#include "rpc/event_loop.h"
#include "worker/daemon/daemon.h"
#include "worker/daemon/machine.h"

namespace ropewalk::worker {
namespace {

Status CannotUse(const std::string& folder, const std::string& why) {
  return Status(Code::kUserError, "WORKER12", "cannot use the state folder " + folder, why, "name a writable folder of our own with --dir");
}

// The lock is the kernel's; what is written in the file is for people.
Result<UniqueFd> LockFolder(const std::string& folder, const std::string& name) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return CannotUse(folder, error.message());
  if (::chmod(folder.c_str(), 0700) != 0) return CannotUse(folder, std::strerror(errno));
  std::string path = folder + "/worker.lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return CannotUse(path, std::strerror(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char text[512];
    const ssize_t n = ::pread(lock.get(), text, sizeof text, 0);
    return Status(
        Code::kUnavailable, "WORKER11", "another worker uses this state folder: " + EscapeForLog(folder),
        n > 0 ? "held by " + EscapeForLog(std::string_view(text, static_cast<std::size_t>(n))) : "held by one that is only starting",
        "stop that one, or give this one a folder of its own with --dir");
  }
  const std::string holder = "pid " + std::to_string(::getpid()) + ", worker " + name;
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), holder.data(), holder.size(), 0) < 0)
    return CannotUse(path, std::strerror(errno));
  return lock;
}

}  // namespace

Status RunWorker(WorkerOptions options) {
  if (options.state_dir.empty() || options.state_dir[0] != '/')
    return Status(Code::kInvalid, "WORKER10", "the state folder \"" + options.state_dir + "\" is not an absolute path",
                  "a daemon has no folder of its own that it could be relative to", "name one with --dir");
  if (options.slots == 0) options.slots = std::max(1u, std::thread::hardware_concurrency());
  if (options.memory_bytes == 0) options.memory_bytes = MachineMemoryBytes() / 2;
  if (options.name.empty()) options.name = HostName() + "-" + std::to_string(::getpid());
  ASSIGN_OR_RETURN(std::string token, rpc::ReadTokenFile(options.token_file));
  ASSIGN_OR_RETURN(UniqueFd lock, LockFolder(options.state_dir, options.name));
  ASSIGN_OR_RETURN(std::unique_ptr<Spawner> spawner, Spawner::Start());  // before the first thread
  JobUser user;
  if (!options.job_user.empty()) {
    ASSIGN_OR_RETURN(user, FindUser(options.job_user));
    if (::geteuid() != 0)
      return Status(Code::kUserError, "WORKER34", "executors cannot run as " + options.job_user, "only root can change users",
                    "start the worker as root, or leave worker.job_user empty");
    // It passes through our folders to its own; it cannot list or read ours.
    if (::chmod(options.state_dir.c_str(), 0711) != 0) return CannotUse(options.state_dir, std::strerror(errno));
  }
  RaiseFileLimit();
  ::signal(SIGPIPE, SIG_IGN);

  rpc::EventLoop loop;
  Status outcome;
  std::unique_ptr<Daemon> daemon;
  bool draining = false;
  loop.OnSignals({SIGTERM, SIGINT}, [&](int signal) {
    if (signal != SIGTERM || draining) return loop.Stop();
    draining = true;
    daemon->Drain([&loop] { loop.Stop(); });
  });
  ASSIGN_OR_RETURN(daemon, Daemon::Start(loop, std::move(options), user, std::move(token), std::move(spawner), [&](const Status& status) {
                     if (outcome.ok()) outcome = status;
                     loop.Stop();
                   }));
  loop.Run();
  daemon.reset();
  return outcome;
}

}  // namespace ropewalk::worker
