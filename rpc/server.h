// Listens, authenticates, and passes whole messages to a handler: the asynchronous side of rpc/channel.h for daemons.
//
// Limits are enforced here, so that a handler never sees an unauthenticated peer: 4 KiB and a few seconds before authentication, a number
// of connections, the size of a message, and the bytes queued for a slow reader. While a peer does not take what it is owed, nothing more
// is read from it; a peer that is pushed to and does not read is cut off at its hard limit.
//
// Thread rule: lives on one EventLoop; all calls from its thread. The handler is called from there, never from inside Send() or Close().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/event_loop.h"

namespace ropewalk::rpc {

using ConnectionId = std::uint64_t;  // never used twice by a server

struct Peer {
  std::string role;
  std::string address;  // "127.0.0.1:40112"
};

class ServerHandler {
 public:
  virtual ~ServerHandler() = default;
  virtual void OnConnected(ConnectionId id, const Peer& peer) = 0;  // authenticated
  virtual void OnFrame(ConnectionId id, Frame frame) = 0;
  virtual void OnDisconnected(ConnectionId id, const Status& reason) = 0;  // exactly once after OnConnected
};

struct RoleLimits {
  std::uint64_t message_bytes_max = kFrameBytesMax;
  std::uint64_t queue_bytes_pause = 4ull << 20;  // above it nothing more is read from this peer
  std::uint64_t queue_bytes_max = 64ull << 20;   // above it the peer is cut off
  std::int64_t silence_ms = 15 * 60'000;         // a peer from which nothing came for so long is gone (half-open connections)
};

struct ServerOptions {
  std::string listen_address = "127.0.0.1:7077";  // port 0: any; see address()
  std::string token;
  std::map<std::string, RoleLimits> roles;  // a peer of another role is refused
  std::uint32_t connections_max = 1024;
  std::uint32_t unauthenticated_max = 64;  // one more: the oldest of them goes
  std::int64_t handshake_ms = 5'000;
};

class Server {
 public:
  // kInvalid NET05: not a loopback address (there is no TLS yet). kUnavailable NET06: the address is taken or not ours.
  static Result<std::unique_ptr<Server>> Start(EventLoop& loop, ServerOptions options, ServerHandler* handler);
  ~Server();  // ends all connections without calling the handler
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string address() const;  // as bound
  // Queues one message; it goes out with whatever else is queued. False: the connection is gone (or is now cut off, being too slow).
  bool Send(ConnectionId id, FrameKind kind, std::string_view payload);
  // Sends what is queued, then ends the connection; OnDisconnected follows. Unknown ids are ignored.
  void Close(ConnectionId id, Status reason);

  struct Stats {
    std::uint64_t connections = 0, unauthenticated = 0, refused_total = 0, queued_bytes = 0, received_bytes_total = 0, sent_bytes_total = 0;
  };
  Stats stats() const;

 private:
  struct Impl;
  explicit Server(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ropewalk::rpc
