#include "worker/daemon/spawner.h"

#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace ropewalk::worker {
namespace {

Status Gone(const std::string& why) {
  return Status(Code::kUnavailable, "WORKER13", "the process that starts executors is gone", why, "start the worker again");
}

Status SendMessage(int fd, SpawnerMessage::Type type, const std::string& payload, const std::vector<int>& fds) {
  SpawnerMessage header{type, static_cast<std::uint32_t>(payload.size())};
  iovec part{&header, sizeof header};
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t n;
  do n = ::sendmsg(fd, &message, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof header)) return Gone(std::strerror(errno));
  std::string_view rest = payload;
  while (!rest.empty()) {
    n = ::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Gone(std::strerror(errno));
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Spawner>> Spawner::Start() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return Gone(std::strerror(errno));
  UniqueFd ours(pair[0]), theirs(pair[1]);
  pid_t pid = ::fork();
  if (pid < 0) return Gone(std::strerror(errno));
  if (pid == 0) {
    ours.Close();
    ServeSpawner(std::move(theirs));
  }
  return std::unique_ptr<Spawner>(new Spawner(pid, std::move(ours)));
}

Spawner::~Spawner() {
  ::shutdown(control_.get(), SHUT_RDWR);
  if (reader_.joinable()) reader_.join();
  int status;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

void Spawner::Listen(std::function<void(const SpawnEvent&)> handler) {
  reader_ = std::thread([fd = control_.get(), handler = std::move(handler)] {
    SpawnEvent event;
    while (true) {
      ssize_t n = ::recv(fd, &event, sizeof event, MSG_WAITALL);
      if (n < 0 && errno == EINTR) continue;
      if (n != static_cast<ssize_t>(sizeof event)) return;
      handler(event);
    }
  });
}

Status Spawner::Spawn(const SpawnRequest& request) {
  std::string payload;
  ByteWriter writer(&payload);
  writer.Fixed(request.id);
  writer.Sized(request.path);
  writer.Sized(request.folder);
  writer.Sized(request.fallback_folder);
  for (const auto* list : {&request.argv, &request.environment, &request.group_procs}) {
    writer.Varint(list->size());
    for (const std::string& item : *list) writer.Sized(item);
  }
  writer.Sized(request.group_processes_max);
  for (std::uint64_t number :
       {request.data_bytes_max, request.processes_max, static_cast<std::uint64_t>(request.uid), static_cast<std::uint64_t>(request.gid)})
    writer.Fixed(number);
  if (payload.size() > kSpawnBytesMax)
    return Status(Code::kInvalid, "WORKER14", "arguments and environment of an executor have " + std::to_string(payload.size()) + " bytes",
                  "the limit is " + std::to_string(kSpawnBytesMax), "pass less by arguments, more by files");
  return SendMessage(control_.get(), SpawnerMessage::kSpawn, payload, {request.socket_fd, request.stdout_fd, request.stderr_fd});
}

Status Spawner::Kill(std::uint64_t id, int signal) {
  std::string payload;
  ByteWriter writer(&payload);
  writer.Fixed(id);
  writer.Fixed(std::int32_t(signal));
  return SendMessage(control_.get(), SpawnerMessage::kKill, payload, {});
}

}  // namespace ropewalk::worker
