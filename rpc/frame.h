// Frames as bytes: the one definition that the blocking channel, the asynchronous server and the fuzz tests share (layout in
// channel.h).
//
// The decoder is fed whatever came and gives whole messages. It allocates nothing from a length that it has not checked against the
// limit in force, and joins fragments up to a limit for the whole message.
//
// Thread rule: values; one decoder a connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rpc/channel.h"

namespace ropewalk::rpc {

inline constexpr std::size_t kFrameHeaderBytes = 12;

// Appends `payload` as one frame, or as fragments and a last frame when it is above kFragmentBytes.
void AppendFrames(FrameKind kind, std::string_view payload, std::string* out);

// The header of one frame; `length` must be at most kFrameBytesMax.
void WriteHeader(FrameKind kind, std::string_view payload, char (&out)[kFrameHeaderBytes]);

class FrameDecoder {
 public:
  struct Limits {
    std::uint64_t frame_bytes = kPreAuthBytesMax;
    std::uint64_t message_bytes = kPreAuthBytesMax;  // fragments joined
  };
  explicit FrameDecoder(Limits limits) : limits_(limits) {}
  void set_limits(Limits limits) { limits_ = limits; }

  // Where the next bytes from the socket go: at least one byte, at most what the frame in progress needs or a read-ahead of 64 KiB.
  std::span<char> Room();
  void Filled(std::size_t bytes);  // so many of Room() are now there

  // The next whole message; nullopt: more bytes are needed. kDataLoss RPC01 (magic, kind, checksum), kResourceExhausted RPC02
  // (longer than the limit). After an error the connection is of no more use: every further call gives the same error.
  Result<std::optional<Frame>> Next();

  std::size_t buffered_bytes() const { return (end_ - begin_) + joined_.size(); }
  bool in_message() const { return end_ != begin_ || !joined_.empty(); }

 private:
  Status Fail(Status status);

  Limits limits_;
  std::string buffer_;  // bytes [begin_, end_) have come and are not decoded
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t wanted_ = kFrameHeaderBytes;  // of the frame in progress, header included
  std::string joined_;                      // fragments so far
  Status failed_;
};

// The proofs of the token, so that neither side shows it to a peer that does not have it:
//   client -> server  kAuth   version u8, role, client nonce
//   server -> client  kAuth   server nonce, HMAC(token, "server" | role | both nonces)
//   client -> server  kAuth   HMAC(token, "client" | role | both nonces)
//   server -> client  kAuthOk; or an empty kAuth: refused
inline constexpr std::size_t kNonceBytes = 16;
struct AuthHello {
  std::string role;
  std::string nonce;
};
struct AuthChallenge {
  std::string nonce;
  std::string proof;
};
std::string Encode(const AuthHello& hello);
std::string Encode(const AuthChallenge& challenge);
Result<AuthHello> DecodeAuthHello(std::string_view bytes);          // kInvalid RPC03
Result<AuthChallenge> DecodeAuthChallenge(std::string_view bytes);  // kInvalid RPC03
std::string AuthProof(std::string_view token, std::string_view side, std::string_view role, std::string_view client_nonce,
                      std::string_view server_nonce);
bool EqualInConstantTime(std::string_view a, std::string_view b);  // the time depends on the lengths only
std::string NewNonce();

}  // namespace ropewalk::rpc
