// A framed, checksummed message channel over a stream socket, for code that waits: executors, clients, tests. Daemons use the
// asynchronous twin in rpc/server.h with the same bytes.
//
//   frame = magic 'R','W','1',kind u8 | length u32 le | checksum u32 le | payload
//   checksum = low half of XXH3 of the payload, xor kind * 0x9e3779b9
//
// Limits: 4 KiB before authentication, 4 MiB after (checked from the header, before anything is allocated). A payload above 1 MiB travels
// as fragments that Receive() joins again, up to kMessageBytesMax: memory grows with what has come, never with what was announced.
//
// Thread rule: Send() may be called from any thread (a mutex keeps frames whole); Receive() from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ropewalk::rpc {

enum class FrameKind : std::uint8_t {
  kAuth = 1,  // both sides prove that they have the token, neither shows it (rpc/frame.h); the first frames on every TCP connection
  kAuthOk = 2,
  kRequest = 3,  // one serialised message; which one depends on the conversation
  kResponse = 4,
  kMessage = 5,   // one way
  kFragment = 6,  // a piece of a larger payload; the frame that ends it says the kind. Never seen by users of Channel
};

inline constexpr std::uint32_t kFrameBytesMax = 4u << 20;
inline constexpr std::uint32_t kPreAuthBytesMax = 4u << 10;
inline constexpr std::uint32_t kFragmentBytes = 1u << 20;
inline constexpr std::uint64_t kMessageBytesMax = 320ull << 20;  // a Collect of 256 MiB and its envelope

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  std::string payload;
};

class Channel {
 public:
  // Takes over a connected descriptor (the executor's inherited socket).
  explicit Channel(int fd);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Connects to "host:port" and authenticates with `token` in the named role ("client", "worker"). kUnavailable (NET01) names the address,
  // kUnauthenticated (AUTH01) says how to give a token.
  static Result<std::unique_ptr<Channel>> Connect(const std::string& address, const std::string& token, const std::string& role,
                                                  int timeout_ms);

  Status Send(FrameKind kind, std::string_view payload);
  // kUnavailable when the peer closed, kDeadlineExceeded after `timeout_ms` (-1: wait for ever), kDataLoss for a damaged frame.
  Result<Frame> Receive(int timeout_ms);
  void Shutdown();  // wakes a Receive() in another thread
  int fd() const;   // for poll(): whether the other side is there, or says something; what was read ahead does not show

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads a token file: 0600 (or stricter) and ours, else kUnauthenticated AUTH02.
Result<std::string> ReadTokenFile(const std::string& path);

}  // namespace ropewalk::rpc
