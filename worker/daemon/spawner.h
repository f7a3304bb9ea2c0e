// Starts executors from a small single-threaded process, so that no fork ever happens in a daemon with threads. The daemon talks to it over
// a socket pair; when that closes, however the daemon died, the spawner ends all executors and itself.
//
// An executor gets: its own session; its control groups, user and limits; descriptor 0 = /dev/null, 1 and 2 = pipes, 3 = its socket to the
// daemon, nothing else; only the environment that it was given; default signals; no new privileges; no core dumps; a death signal for the
// case that the spawner dies; and it is the first that the kernel ends when memory is short. When it ends, everything that it started is
// ended too.
//
// Thread rule: Spawner: Spawn() and Kill() from one thread; the handler is called from the spawner's own reading thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace ropewalk::worker {

struct SpawnRequest {
  std::uint64_t id = 0;  // the caller's name for the process; never used twice
  std::string path;
  std::vector<std::string> argv;
  std::vector<std::string> environment;                // "NAME=value"; nothing else is inherited
  std::string folder;                                  // working folder, if it can be entered
  std::string fallback_folder;                         // otherwise
  int socket_fd = -1, stdout_fd = -1, stderr_fd = -1;  // become 3, 1 and 2; the caller closes its copies afterwards
  // Limits. 0, -1 and empty: none.
  std::vector<std::string> group_procs;  // cgroup.procs files that it enters by
  std::string group_processes_max;       // pids.max: set to 0 when it is over, so that nothing it started can multiply while it is ended
  std::uint64_t data_bytes_max = 0;      // RLIMIT_DATA
  std::uint64_t processes_max = 0;       // RLIMIT_NPROC: of its user, on the whole machine
  std::int64_t uid = -1, gid = -1;       // with no other groups
};

struct SpawnEvent {
  enum Kind : std::uint32_t { kStarted = 1, kFailed = 2, kExited = 3 };
  Kind kind = kFailed;
  std::uint64_t id = 0;
  std::int32_t pid = 0;        // kStarted
  std::int32_t error = 0;      // kFailed: errno
  std::int32_t exit_code = 0;  // kExited
  std::int32_t signal = 0;     // kExited: 0 when it exited by itself
};

class Spawner {
 public:
  // Forks. No other thread may exist.
  static Result<std::unique_ptr<Spawner>> Start();
  ~Spawner();  // ends all executors and waits for the spawner

  // Events come in order, each id at most one kStarted or kFailed, and one kExited after kStarted. Once, before the first Spawn.
  void Listen(std::function<void(const SpawnEvent&)> handler);
  // kUnavailable WORKER13 when the spawner is gone: the daemon cannot go on.
  Status Spawn(const SpawnRequest& request);
  // Sends `signal` to all processes of the executor's session. Unknown or ended ids are passed over.
  Status Kill(std::uint64_t id, int signal);
  pid_t pid() const { return pid_; }

 private:
  Spawner(pid_t pid, UniqueFd control) : pid_(pid), control_(std::move(control)) {}
  const pid_t pid_;
  UniqueFd control_;
  std::thread reader_;
};

// ---- between the two halves
// --------------------------------------------------------------------------------------------------------------
struct SpawnerMessage {
  enum Type : std::uint32_t { kSpawn = 1, kKill = 2 };
  std::uint32_t type = 0;
  std::uint32_t length = 0;
};
inline constexpr std::uint32_t kSpawnBytesMax = 4u << 20;

// The child's half: serves `control` until it closes, then ends the process.
[[noreturn]] void ServeSpawner(UniqueFd control);

}  // namespace ropewalk::worker
