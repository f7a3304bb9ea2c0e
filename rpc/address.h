// "host:port" and what follows from it. IPv6 hosts stand in brackets: "[::1]:7077".
//
// Thread rule: pure functions; ResolveAddress may block in the resolver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "base/status.h"

namespace ropewalk::rpc {

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
Result<HostPort> ParseHostPort(const std::string& address);  // kInvalid NET02
std::string ToString(const HostPort& address);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  bool is_loopback() const;
  HostPort host_port() const;  // numeric
};
// All addresses of a name, in the resolver's order; kUnavailable NET01.
Result<std::vector<SocketAddress>> ResolveAddress(const std::string& address);

// No delay, keepalive that notices a vanished peer within about 20 s, close on exec.
void TuneSocket(int fd);

}  // namespace ropewalk::rpc
