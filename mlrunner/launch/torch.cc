#include "mlrunner/launch/torch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/escape.h"
#include "base/unique_fd.h"
#include "mlrunner/launch/child_program.h"
#include "storage/io_error.h"

namespace ropewalk::launch {
namespace {

// A port of this machine that nobody listens at now. The program takes it a moment later: should somebody else be faster, it fails, and the
// next forming has another one.
Result<std::string> FreePort(const std::string& address) {
  const bool six = address.find(':') != std::string::npos;
  const UniqueFd socket(::socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage any{};
  any.ss_family = six ? AF_INET6 : AF_INET;
  socklen_t size = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (socket.get() < 0 || bind(socket.get(), reinterpret_cast<sockaddr*>(&any), size) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&any), &size) != 0)
    return storage::IoError(errno, "LAUNCH04", "no port is free for the programs to meet at");
  const in_port_t port = six ? reinterpret_cast<sockaddr_in6*>(&any)->sin6_port : reinterpret_cast<sockaddr_in*>(&any)->sin_port;
  return std::to_string(ntohs(port));
}

// A file of this rank alone, gone with it, into which its program may write what it has got to.
class ReachedFile {
 public:
  static Result<std::unique_ptr<ReachedFile>> Make() {
    const char* folder = std::getenv("TMPDIR");
    std::string path = std::string(folder == nullptr || *folder == '\0' ? "/tmp" : folder) + "/ropewalk-reached-XXXXXX";
    const UniqueFd file(mkostemp(path.data(), O_CLOEXEC));
    if (file.get() < 0) return storage::IoError(errno, "LAUNCH04", "no file can be made for what the program reaches");
    return std::unique_ptr<ReachedFile>(new ReachedFile(std::move(path)));
  }
  ~ReachedFile() { unlink(path_.c_str()); }
  ReachedFile(const ReachedFile&) = delete;
  ReachedFile& operator=(const ReachedFile&) = delete;
  const std::string& path() const { return path_; }
  // 0: nothing yet, or what is no number.
  std::uint64_t Read() const {
    std::ifstream file(path_);
    std::uint64_t number = 0;
    return file >> number ? number : 0;
  }

 private:
  explicit ReachedFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Result<std::FILE*> OpenLog(const std::string& folder, std::int32_t rank, std::uint32_t forming) {
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
    return storage::IoError(errno, "LAUNCH04", "the folder of logs " + storage::QuotedPath(folder) + " cannot be made");
  const std::string path = fmt::format("{}/rank-{}.{}", folder, rank, forming);
  std::FILE* log = std::fopen(path.c_str(), "we");
  if (log == nullptr) return storage::IoError(errno, "LAUNCH04", "the log " + storage::QuotedPath(path) + " cannot be written");
  return log;
}

}  // namespace

TorchPlace PlaceOf(const std::vector<std::string>& machines, std::int32_t rank) {
  TorchPlace place;
  const std::string& mine = machines.at(static_cast<std::size_t>(rank));
  std::set<std::string> seen;
  for (std::size_t other = 0; other < machines.size(); ++other) {
    if (machines[other] == mine) {
      ++place.local_ranks;
      if (other < static_cast<std::size_t>(rank)) ++place.local_rank;
      if (!seen.contains(mine)) place.machine = static_cast<std::int32_t>(seen.size());
    }
    seen.insert(machines[other]);
  }
  place.machines = static_cast<std::int32_t>(seen.size());
  return place;
}

std::map<std::string, std::string> TorchEnvironment(const TorchJob& job, const dag::GangContext& gang,
                                                    const std::vector<std::string>& machines, const std::string& address,
                                                    const std::string& port, const std::string& run) {
  const TorchPlace place = PlaceOf(machines, gang.rank());
  std::map<std::string, std::string> environment = {{"MASTER_ADDR", address},
                                                    {"MASTER_PORT", port},
                                                    {"ROLE_NAME", "default"},
                                                    {"TORCHELASTIC_RUN_ID", run},
                                                    {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                    {"PYTHONUNBUFFERED", "1"}};
  auto add = [&](const char* name, auto number) { environment[name] = std::to_string(number); };
  add("RANK", gang.rank());
  add("WORLD_SIZE", gang.ranks());
  add("ROLE_RANK", gang.rank());
  add("ROLE_WORLD_SIZE", gang.ranks());
  add("LOCAL_RANK", place.local_rank);
  add("LOCAL_WORLD_SIZE", place.local_ranks);
  add("GROUP_RANK", place.machine);
  add("GROUP_WORLD_SIZE", place.machines);
  add("TORCHELASTIC_RESTART_COUNT", gang.epoch());
  add("TORCHELASTIC_MAX_RESTARTS", job.restarts_max);
  // Ranks that each take all processors of their machine are slower than ranks that share them.
  if (std::getenv("OMP_NUM_THREADS") == nullptr)
    add("OMP_NUM_THREADS", std::max(1u, std::thread::hardware_concurrency() / static_cast<unsigned>(place.local_ranks)));
  return environment;
}

Result<std::string> RunTorchRank(dag::GangContext& gang, const TorchJob& job, const std::string& run) {
  std::string mine, port;
  if (gang.rank() == 0) {
    ASSIGN_OR_RETURN(port, FreePort(gang.address()));
  }
  ByteWriter writer(&mine);
  writer.Sized(gang.machine());
  writer.Sized(gang.address());
  writer.Sized(port);
  ASSIGN_OR_RETURN(const std::vector<std::string> all, gang.Exchange(std::move(mine)));
  std::vector<std::string> machines;
  std::string address;
  for (const std::string& bytes : all) {
    ByteReader reader(bytes);
    machines.emplace_back(reader.Sized());
    const std::string at(reader.Sized()), given(reader.Sized());
    if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "LAUNCH04", "a rank's greeting cannot be read");
    if (machines.size() == 1) address = at, port = given;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ReachedFile> reached, ReachedFile::Make());
  ProgramOptions options{job.program, job.folder, TorchEnvironment(job, gang, machines, address, port, run)};
  options.environment["ROPEWALK_REACHED_FILE"] = reached->path();
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log(nullptr, std::fclose);
  if (!job.logs.empty()) {
    ASSIGN_OR_RETURN(std::FILE * opened, OpenLog(job.logs, gang.rank(), gang.epoch()));
    log.reset(opened);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ChildProgram> program, ChildProgram::Start(options));

  std::mutex mutex;
  Status lost;
  gang.OnLost([&](const Status& status) {
    std::lock_guard lock(mutex);
    lost = status;
    program->End();
  });
  // What it points to is gone when this returns.
  struct TakeBack {
    dag::GangContext& gang;
    ~TakeBack() { gang.OnLost({}); }
  } take_back{gang};
  std::uint64_t told = 0;
  auto line = [&](std::string_view text) {
    std::fputs(fmt::format("[rank {}] {}\n", gang.rank(), text).c_str(), stderr);
    if (log != nullptr && std::fputs(fmt::format("{}\n", text).c_str(), log.get()) >= 0) std::fflush(log.get());
    if (gang.rank() == 0) gang.Report(EscapeForLog(std::string(text), 150));
  };
  auto tick = [&] {
    if (const std::uint64_t now = reached->Read(); now > told) gang.Reached(told = now);
  };
  const ProgramEnd end = program->Wait(line, tick);
  tick();
  std::lock_guard lock(mutex);
  if (!lost.ok()) return lost;
  if (end.ok()) return std::string();
  return Status(Code::kUserError, "LAUNCH03",
                fmt::format("the program of rank {} on {} {} (WORLD_SIZE={}, LOCAL_RANK={})", gang.rank(), gang.machine(), end.Words(),
                            gang.ranks(), PlaceOf(machines, gang.rank()).local_rank),
                end.last_lines.empty() ? "it printed nothing" : fmt::format("its last lines: {}", fmt::join(end.last_lines, " | ")),
                "mend what it says; --restarts N starts all ranks anew so many times");
}

}  // namespace ropewalk::launch
