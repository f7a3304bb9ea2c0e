// The job of the gang tests: its ranks meet over sockets, whose addresses they exchange, and then do what the mode says. What they do is
// seen in files of the submit folder: MODE.ready.EPOCH.RANK holds the rank's pid, MODE.lost.EPOCH.RANK what OnLost told it.
//
// Thread rule: the job's side as GangProgram; the test's side one thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include "job/ropewalk.h"
#include "tests/cluster/cluster.h"

namespace ropewalk::cluster {

inline std::string MarkName(const std::string& mode, const char* what, std::uint32_t epoch, int rank) {
  return mode + "." + what + "." + std::to_string(epoch) + "." + std::to_string(rank);
}

// ---- the job -----------------------------------------------------------------------------------------------------------------------

inline void PutMark(const std::string& mode, const char* what, const GangContext& gang, const std::string& text) {
  const std::string name = MarkName(mode, what, gang.epoch(), gang.rank());
  std::ofstream(name + ".part") << text;
  fs::rename(name + ".part", name);
}

struct Socket {
  explicit Socket(int fd) : fd(fd) {
    timeval patience = {.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }
  ~Socket() { close(fd); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  const int fd;
};

inline Status Broken(const char* doing) {
  return Status(Code::kUnavailable, "TEST01", std::string("cannot ") + doing, std::strerror(errno));
}

// Every rank sends its number and the forming's to the next one over a socket; the answer is the sum of what all have received.
inline Result<int> RingSum(GangContext& gang) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  socklen_t size = sizeof at;
  if (inet_pton(AF_INET, gang.address().c_str(), &at.sin_addr) != 1)
    return Status(Code::kUserError, "TEST02", "the address is not numeric: " + gang.address());
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(listener.fd, reinterpret_cast<sockaddr*>(&at), size) != 0 || listen(listener.fd, 8) != 0) return Broken("listen");
  getsockname(listener.fd, reinterpret_cast<sockaddr*>(&at), &size);
  ASSIGN_OR_RETURN(std::vector<std::string> all, gang.Exchange(std::string(reinterpret_cast<const char*>(&at), size)));
  const std::string& next = all[static_cast<std::size_t>((gang.rank() + 1) % gang.ranks())];
  Socket out(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(out.fd, reinterpret_cast<const sockaddr*>(next.data()), static_cast<socklen_t>(next.size())) != 0) return Broken("connect");
  std::int32_t mine[2] = {gang.rank(), static_cast<std::int32_t>(gang.epoch())}, theirs[2] = {};
  if (send(out.fd, mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine) return Broken("send");
  Socket in(accept(listener.fd, nullptr, nullptr));
  if (recv(in.fd, theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs) return Broken("receive");
  if (theirs[1] != mine[1]) return Status(Code::kUserError, "TEST03", "a rank of another forming is here");
  ASSIGN_OR_RETURN(std::vector<std::string> received, gang.Exchange(std::to_string(theirs[0])));
  int sum = 0;
  for (const std::string& number : received) sum += std::atoi(number.c_str());
  return sum;
}

inline Status HoldUntilLost(const std::string& mode, GangContext& gang) {
  auto lost = std::make_shared<std::promise<Status>>();
  gang.OnLost([lost](const Status& status) { lost->set_value(status); });
  gang.Report("rank " + std::to_string(gang.rank()) + " holds");
  PutMark(mode, "ready", gang, std::to_string(getpid()));
  Status status = lost->get_future().get();
  PutMark(mode, "lost", gang, status.what());
  return status;
}

// `hold`: the first forming waits until it is lost. `stuck`: rank 0 of it does not even look. `throw`: rank 1 of every one throws.
// `segv`: it crashes. `far_abort`, `far_kill`, `far_error`: it crashes, is killed or fails in some formings, each of which has got farther,
// a moment after it has said so.
inline constexpr std::uint32_t kFarEpochs = 3;
inline Result<std::string> Rank(const std::string& mode, GangContext& gang) {
  ASSIGN_OR_RETURN(int sum, RingSum(gang));
  if (mode.starts_with("throw") && gang.rank() == 1) throw std::runtime_error("loss is not a number");
  if (mode.starts_with("segv") && gang.rank() == 1) std::abort();
  if (mode.starts_with("throw") || mode.starts_with("segv")) return gang.Exchange("").status();
  if (mode.starts_with("stuck") && gang.epoch() == 0 && gang.rank() == 0) {
    PutMark(mode, "ready", gang, std::to_string(getpid()));
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  if (mode.starts_with("far") && gang.epoch() < kFarEpochs) {
    if (gang.rank() != 1) return gang.Exchange("").status();
    // At once, so that nothing but what it says now can tell of it.
    gang.Reached(2 * gang.epoch() + 1);
    if (mode.starts_with("far_abort")) std::abort();
    if (mode.starts_with("far_kill")) raise(SIGKILL);
    return Status(Code::kUserError, "TEST04", "as far as this");
  }
  if (gang.epoch() == 0 && !mode.starts_with("meet") && !mode.starts_with("far_")) return HoldUntilLost(mode, gang);
  return "epoch " + std::to_string(gang.epoch()) + ", " + std::to_string(gang.ranks()) + " ranks, sum " + std::to_string(sum);
}

// job MODE RANKS PLACEMENT_MS
inline int RunGangJob(int argc, char** argv) {
  Job job = Init(argc, argv);
  const std::string mode = argv[2];
  GangOptions options;
  options.placement_timeout_ms = std::strtoull(argv[4], nullptr, 10);
  // No forming may fail, or be lost, after another one that got as far.
  if (mode.starts_with("far_")) {
    options.attempts_max = 2;
    options.restarts_max = 1;
  }
  Result<std::string> result =
      RunGang(job, mode, static_cast<std::uint32_t>(std::atoi(argv[3])), [mode](GangContext& gang) { return Rank(mode, gang); }, options);
  if (!result.ok()) job.context().Fail(result.status());
  std::printf("%s\n", result->c_str());
  return 0;
}

// ---- the test ------------------------------------------------------------------------------------------------------------------------

class GangCluster : public Cluster {
 public:
  using Cluster::Cluster;
  std::pair<std::unique_ptr<Process>, JobId> Start(const std::string& mode, int ranks, int placement_ms = 120'000) {
    return SubmitAccepted({fs::read_symlink("/proc/self/exe"), "job", mode, std::to_string(ranks), std::to_string(placement_ms)});
  }
  bool WaitForMark(const std::string& mode, const char* what, std::uint32_t epoch, int rank, int timeout_ms = 60'000) {
    return Eventually([&] { return fs::exists(dir() / MarkName(mode, what, epoch, rank)); }, timeout_ms);
  }
  std::string Mark(const std::string& mode, const char* what, std::uint32_t epoch, int rank) {
    return ReadFile(dir() / MarkName(mode, what, epoch, rank));
  }
  // The names of the workers on which the ranks of a forming run, by rank.
  std::vector<std::string> Machines(const std::vector<Event>& events, const std::string& epoch) {
    std::vector<std::string> machines;
    std::map<std::string, std::string> names = WorkerNames();
    bool of_it = false;
    for (const Event& event : events) {
      if (event.kind == "gang_formed") of_it = event.Get("epoch") == epoch;
      if (of_it && event.kind == "task_started") machines.push_back(names[event.Get("worker")]);
    }
    return machines;
  }
  // Of the workers that are here now, by the id of their registration.
  std::map<std::string, std::string> WorkerNames() {
    std::map<std::string, std::string> names;
    wire::ClientRequest request;
    request.mutable_list_workers();
    auto response = link().Call(&request);
    if (response.ok())
      for (const auto& worker : response->worker_list().workers()) names[std::to_string(worker.worker())] = worker.name();
    return names;
  }
  std::vector<std::string> Epochs(JobId job) {
    std::vector<std::string> epochs;
    for (const Event& event : Events(job))
      if (event.kind == "gang_formed") epochs.push_back(event.Get("epoch"));
    return epochs;
  }
};

}  // namespace ropewalk::cluster

#define ROPEWALK_GANG_MAIN                                                                           \
  int main(int argc, char** argv) {                                                                  \
    if (argc > 1 && std::string(argv[1]) == "job") return ropewalk::cluster::RunGangJob(argc, argv); \
    testing::InitGoogleTest(&argc, argv);                                                            \
    return RUN_ALL_TESTS();                                                                          \
  }
