#include "rpc/address.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <charconv>
#include <cstring>

namespace ropewalk::rpc {

Result<HostPort> ParseHostPort(const std::string& address) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalid, "NET02", "the address \"" + address + "\" cannot be used", why,
                  "write it like 127.0.0.1:7077 or [::1]:7077");
  };
  const Status bad = refuse("it is not host:port");
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  HostPort out;
  out.host = address.substr(0, colon);
  if (out.host.front() == '[') {
    if (out.host.back() != ']') return bad;
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find(':') != std::string::npos) {
    return bad;
  }
  const char* end = address.data() + address.size();
  auto [stop, error] = std::from_chars(address.data() + colon + 1, end, out.port);
  if (error == std::errc::result_out_of_range && stop == end) return refuse("ports go from 0 to 65535");
  if (error != std::errc() || stop != end || out.host.empty()) return bad;
  return out;
}

std::string ToString(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
  }
  if (storage.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
  return false;
}

HostPort SocketAddress::host_port() const {
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  HostPort out{host, 0};
  std::from_chars(port, port + std::strlen(port), out.port);
  return out;
}

Result<std::vector<SocketAddress>> ResolveAddress(const std::string& address) {
  ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(parsed.host.c_str(), std::to_string(parsed.port).c_str(), &hints, &list);
  if (error != 0) {
    return Status(Code::kUnavailable, "NET01", "no address for \"" + parsed.host + "\"", gai_strerror(error), "check the host name");
  }
  std::vector<SocketAddress> out;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    SocketAddress one;
    std::memcpy(&one.storage, at->ai_addr, at->ai_addrlen);
    one.size = at->ai_addrlen;
    out.push_back(one);
  }
  freeaddrinfo(list);
  return out;
}

void TuneSocket(int fd) {
  const auto set = [fd](int level, int name, int value) { (void)setsockopt(fd, level, name, &value, sizeof value); };  // best effort
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
  const int flags = fcntl(fd, F_GETFD);
  if (flags >= 0) (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

}  // namespace ropewalk::rpc
