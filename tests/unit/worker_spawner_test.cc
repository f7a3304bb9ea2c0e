// The spawner with real processes: exits, what an executor inherits, and that nothing outlives its executor, the spawner or the daemon.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "worker/daemon/spawner.h"

namespace ropewalk::worker {
namespace {

int CountProcesses(const std::string& marker) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline");
    std::stringstream text;
    text << file.rdbuf();
    std::string line = text.str();
    if (line.rfind("sleep", 0) == 0 && line.find(marker) != std::string::npos) ++count;
  }
  return count;
}

template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Seconds that no other process sleeps: a mark to find our sleepers by.
std::string Marker() {
  static int next = 0;
  return "3" + std::to_string(::getpid()) + "." + std::to_string(100000 + next++);
}

struct Running {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<SpawnEvent> events;
  std::uint64_t next_id = 1;
  UniqueFd socket;                   // our end of the last one's
  std::unique_ptr<Spawner> spawner;  // last: its thread calls us until it is gone

  Running() {
    auto started = Spawner::Start();
    EXPECT_TRUE(started.ok());
    spawner = *std::move(started);
    spawner->Listen([this](const SpawnEvent& event) {
      std::lock_guard lock(mutex);
      events.push_back(event);
      changed.notify_all();
    });
  }

  struct Started {
    std::uint64_t id;
    UniqueFd out, err;
  };
  Started Start(std::vector<std::string> argv, std::vector<std::string> environment = {"PATH=/usr/bin:/bin"}, std::string folder = "/") {
    int pair[2], out[2], err[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
    socket = UniqueFd(pair[0]);
    UniqueFd theirs(pair[1]), out_write(out[1]), err_write(err[1]);
    std::uint64_t id = next_id++;
    std::string path = argv[0];
    EXPECT_TRUE(spawner
                    ->Spawn({.id = id,
                             .path = path,
                             .argv = argv,
                             .environment = environment,
                             .folder = folder,
                             .fallback_folder = "/tmp",
                             .socket_fd = theirs.get(),
                             .stdout_fd = out_write.get(),
                             .stderr_fd = err_write.get()})
                    .ok());
    return {id, UniqueFd(out[0]), UniqueFd(err[0])};
  }
  Started Shell(const std::string& script) { return Start({"/bin/sh", "-c", script}); }

  SpawnEvent Wait(std::uint64_t id, SpawnEvent::Kind kind) {
    std::unique_lock lock(mutex);
    SpawnEvent found{.kind = SpawnEvent::kFailed, .id = 0};
    bool came = changed.wait_for(lock, std::chrono::seconds(20), [&] {
      for (const SpawnEvent& event : events)
        if (event.id == id && event.kind == kind) return found = event, true;
      return false;
    });
    EXPECT_TRUE(came) << "no event " << kind << " of " << id;
    return found;
  }
};

std::string ReadAll(const UniqueFd& fd) {
  std::string all;
  char buffer[4096];
  for (ssize_t n; (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<std::size_t>(n));
  return all;
}

TEST(WorkerSpawner, TellsExitsSignalsAndWhatCannotStart) {
  Running running;
  auto a = running.Shell("exit 7");
  auto b = running.Shell("kill -SEGV $$");
  auto c = running.Start({"/no/such/program"});
  auto d = running.Start({"/etc/passwd"});
  EXPECT_EQ(running.Wait(a.id, SpawnEvent::kExited).exit_code, 7);
  EXPECT_EQ(running.Wait(a.id, SpawnEvent::kExited).signal, 0);
  EXPECT_GT(running.Wait(a.id, SpawnEvent::kStarted).pid, 1);
  EXPECT_EQ(running.Wait(b.id, SpawnEvent::kExited).signal, SIGSEGV);
  EXPECT_EQ(running.Wait(c.id, SpawnEvent::kFailed).error, ENOENT);
  EXPECT_EQ(running.Wait(d.id, SpawnEvent::kFailed).error, EACCES);
}

TEST(WorkerSpawner, AnExecutorInheritsOnlyWhatItWasGiven) {
  // As below make or Python: their posix_spawn leaves glibc's own signals ignored, Python SIGPIPE too.
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    std::uint64_t mask;
  } ignored = {SIG_IGN, 0, nullptr, 0};
  for (int s : {SIGPIPE, 32, 33}) ASSERT_EQ(::syscall(SYS_rt_sigaction, s, &ignored, nullptr, sizeof(ignored.mask)), 0);
  ::setenv("ROPEWALK_TEST_SECRET", "secret", 1);
  int leak = ::open("/etc/passwd", O_RDONLY);  // not close-on-exec, as a careless library would
  ASSERT_GE(leak, 3);
  Running running;
  auto shell = running.Shell(
      "env; pwd; ls /proc/self/fd | tr '\\n' ' '; echo; readlink /proc/self/fd/0; grep NoNewPrivs /proc/self/status; ulimit -c;"
      "echo session $(cut -d' ' -f6 /proc/self/stat) $$; echo to stderr >&2; grep SigIgn /proc/self/status; readlink /proc/self/fd/3");
  std::string out = ReadAll(shell.out), err = ReadAll(shell.err);
  ::close(leak);
  EXPECT_EQ(err, "to stderr\n");
  EXPECT_EQ(out.find("secret"), std::string::npos) << out;
  EXPECT_NE(out.find("PATH=/usr/bin:/bin"), std::string::npos) << out;
  EXPECT_NE(out.find("\n/\n"), std::string::npos) << out;
  EXPECT_NE(out.find("\n0 1 2 3 4 \n"), std::string::npos) << "4 is ls's own: " << out;
  EXPECT_NE(out.find("\n/dev/null\n"), std::string::npos) << out;
  EXPECT_NE(out.find("NoNewPrivs:\t1"), std::string::npos) << out;
  EXPECT_NE(out.find("\n0\nsession"), std::string::npos) << "core dumps: " << out;
  EXPECT_NE(out.find("SigIgn:\t0000000000000000"), std::string::npos) << out;
  EXPECT_NE(out.find("\nsocket:"), std::string::npos) << out;
  std::string pid = std::to_string(running.Wait(shell.id, SpawnEvent::kStarted).pid);
  EXPECT_NE(out.find("session " + pid + " " + pid + "\n"), std::string::npos) << out;
  auto lost = running.Start({"/bin/pwd"}, {}, "/no/such/folder");
  EXPECT_EQ(ReadAll(lost.out), "/tmp\n");
}

TEST(WorkerSpawner, NothingOutlivesItsExecutor) {
  Running running;
  std::string marker = Marker(), other = Marker();
  auto bystander = running.Shell("exec sleep " + other);
  running.Wait(bystander.id, SpawnEvent::kStarted);
  auto shell = running.Shell("sleep " + marker + " & (setsid sleep " + marker + " &) ; setsid sh -c 'setsid sleep " + marker +
                             " & exec sleep " + marker + "' & sleep 0.3; exit 3");
  EXPECT_TRUE(Eventually([&] { return CountProcesses(marker) == 4; })) << CountProcesses(marker);
  EXPECT_EQ(running.Wait(shell.id, SpawnEvent::kExited).exit_code, 3);
  EXPECT_EQ(CountProcesses(marker), 0) << "they are gone before the exit is told";
  EXPECT_EQ(CountProcesses(other), 1);
  ReadAll(shell.out);  // ends: nobody holds the pipe
}

TEST(WorkerSpawner, KillReachesTheWholeSession) {
  Running running;
  std::string marker = Marker();
  auto shell = running.Shell("trap '' TERM; sleep " + marker + " & sleep " + marker + " & wait; wait; sleep " + marker);
  EXPECT_TRUE(Eventually([&] { return CountProcesses(marker) == 2; }));
  ASSERT_TRUE(running.spawner->Kill(12345, SIGKILL).ok());
  ASSERT_TRUE(running.spawner->Kill(shell.id, SIGKILL).ok());
  EXPECT_EQ(running.Wait(shell.id, SpawnEvent::kExited).signal, SIGKILL);
  EXPECT_EQ(CountProcesses(marker), 0);
}

TEST(WorkerSpawner, TheEndOfTheDaemonIsTheEndOfExecutors) {
  std::string marker = Marker();
  {
    Running running;
    auto shell = running.Shell("sleep " + marker + " & (setsid sleep " + marker + " &); exec sleep " + marker);
    EXPECT_TRUE(Eventually([&] { return CountProcesses(marker) == 3; }));
  }
  EXPECT_EQ(CountProcesses(marker), 0) << "an orderly end waits for it";

  pid_t daemon = ::fork();
  if (daemon == 0) {
    Running running;
    auto shell = running.Shell("(setsid sleep " + marker + " &); exec sleep " + marker);
    ::pause();
  }
  EXPECT_TRUE(Eventually([&] { return CountProcesses(marker) == 2; }));
  ASSERT_EQ(::kill(daemon, SIGKILL), 0);
  ASSERT_EQ(::waitpid(daemon, nullptr, 0), daemon);
  EXPECT_TRUE(Eventually([&] { return CountProcesses(marker) == 0; })) << CountProcesses(marker);
}

TEST(WorkerSpawner, TheEndOfTheSpawnerIsTheEndOfExecutorsAndIsNoticed) {
  Running running;
  std::string marker = Marker();
  auto shell = running.Shell("exec sleep " + marker);
  EXPECT_TRUE(Eventually([&] { return CountProcesses(marker) == 1; }));
  ASSERT_EQ(::kill(running.spawner->pid(), SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return CountProcesses(marker) == 0; }));
  EXPECT_TRUE(Eventually([&] { return running.spawner->Kill(shell.id, SIGKILL).code() == Code::kUnavailable; }));
}

}  // namespace
}  // namespace ropewalk::worker
