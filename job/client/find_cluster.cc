#include "job/client/find_cluster.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "rpc/address.h"
#include "rpc/channel.h"

namespace ropewalk::job {
namespace {

constexpr int kConnectMs = 500;

bool SomebodyListens(const std::string& address) {
  auto candidates = rpc::ResolveAddress(address);
  if (!candidates.ok()) return true;  // a wrong name is told by whoever connects
  for (const rpc::SocketAddress& candidate : *candidates) {
    int fd = socket(candidate.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return true;
    bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&candidate.storage), candidate.size) == 0;
    if (!connected && errno == EINPROGRESS) {
      pollfd ready{fd, POLLOUT, 0};
      int error = 0;
      socklen_t size = sizeof error;
      connected = poll(&ready, 1, kConnectMs) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    }
    close(fd);
    if (connected) return true;
  }
  return false;
}

}  // namespace

std::string HowToStart(const std::string& address) {
  auto candidates = rpc::ResolveAddress(address);
  bool here = candidates.ok() && !candidates->empty() && candidates->front().is_loopback();
  return here ? "`ropewalk start dev` starts a master and workers on this machine; another master is named with --master HOST:PORT"
              : "start it there (`ropewalk start master`), or mend --master; then try again";
}

Result<std::string> TokenFor(const std::string& address, const std::string& token_file) {
  RETURN_IF_ERROR(rpc::ParseHostPort(address).status());  // before anything that would only hide it
  Result<std::string> token = rpc::ReadTokenFile(token_file);
  if (token.ok() || access(token_file.c_str(), F_OK) == 0 || SomebodyListens(address)) return token;
  return Status(Code::kUnavailable, "NET04", "no cluster runs at " + address,
                "nothing listens there, and there is no token " + token_file + " of one that was started before", HowToStart(address));
}

}  // namespace ropewalk::job
