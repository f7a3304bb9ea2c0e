#include "rpc/frame.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include <glog/logging.h>

#include "base/bytes.h"
#include "base/hash.h"

namespace ropewalk::rpc {
namespace {

constexpr std::size_t kReadAheadBytes = 64 << 10;
constexpr std::uint8_t kAuthVersion = 1;

// The kind is under the checksum as well; the length is, since another one would give another payload.
std::uint32_t FrameChecksum(std::uint8_t kind, std::string_view payload) {
  return static_cast<std::uint32_t>(Checksum64(payload)) ^ (kind * 0x9e3779b9u);
}

bool KnownKind(std::uint8_t kind) {
  return kind >= static_cast<std::uint8_t>(FrameKind::kAuth) && kind <= static_cast<std::uint8_t>(FrameKind::kFragment);
}

void AppendOne(FrameKind kind, std::string_view payload, std::string* out) {
  char header[kFrameHeaderBytes];
  WriteHeader(kind, payload, header);
  out->append(header, sizeof header);
  out->append(payload);
}

}  // namespace

void WriteHeader(FrameKind kind, std::string_view payload, char (&out)[kFrameHeaderBytes]) {
  CHECK_LE(payload.size(), kFrameBytesMax);
  const auto length = static_cast<std::uint32_t>(payload.size());
  const std::uint32_t checksum = FrameChecksum(static_cast<std::uint8_t>(kind), payload);
  std::memcpy(out, "RW1", 3);
  out[3] = static_cast<char>(kind);
  std::memcpy(out + 4, &length, 4);
  std::memcpy(out + 8, &checksum, 4);
}

void AppendFrames(FrameKind kind, std::string_view payload, std::string* out) {
  const std::size_t frames = payload.size() / kFragmentBytes + 1;
  out->reserve(out->size() + payload.size() + frames * kFrameHeaderBytes);
  while (payload.size() > kFragmentBytes) {
    AppendOne(FrameKind::kFragment, payload.substr(0, kFragmentBytes), out);
    payload.remove_prefix(kFragmentBytes);
  }
  AppendOne(kind, payload, out);
}

std::span<char> FrameDecoder::Room() {
  if (begin_ == end_) begin_ = end_ = 0;
  const std::size_t missing = wanted_ > end_ - begin_ ? wanted_ - (end_ - begin_) : 1;
  const std::size_t room = std::max(missing, std::min<std::size_t>(kReadAheadBytes, limits_.frame_bytes + kFrameHeaderBytes));
  if (buffer_.size() - end_ < room) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    // A large frame may have grown the buffer; it is given back once small ones follow.
    if (buffer_.size() < end_ + room || buffer_.size() > 4 * (end_ + room)) {
      buffer_.resize(end_ + room);
      if (buffer_.capacity() > 4 * buffer_.size()) buffer_.shrink_to_fit();
    }
  }
  return {buffer_.data() + end_, room};
}

void FrameDecoder::Filled(std::size_t bytes) {
  CHECK_LE(bytes, buffer_.size() - end_);
  end_ += bytes;
}

Status FrameDecoder::Fail(Status status) {
  failed_ = std::move(status);
  return failed_;
}

Result<std::optional<Frame>> FrameDecoder::Next() {
  if (!failed_.ok()) return failed_;
  while (end_ - begin_ >= kFrameHeaderBytes) {
    const char* header = buffer_.data() + begin_;
    std::uint32_t length, checksum;
    std::memcpy(&length, header + 4, 4);
    std::memcpy(&checksum, header + 8, 4);
    const auto kind_byte = static_cast<std::uint8_t>(header[3]);
    if (std::memcmp(header, "RW1", 3) != 0 || !KnownKind(kind_byte)) {
      return Fail({Code::kDataLoss, "RPC01", "what came is no frame", "the peer speaks another protocol, or bytes were damaged on the way",
                   "check that the address is that of a ropewalk daemon"});
    }
    if (length > std::min<std::uint64_t>(limits_.frame_bytes, kFrameBytesMax) || joined_.size() + length > limits_.message_bytes) {
      return Fail({Code::kResourceExhausted, "RPC02", "a message of more than " + std::to_string(joined_.size() + length) + " bytes",
                   "the limit is " + std::to_string(std::min(limits_.frame_bytes, limits_.message_bytes)),
                   "send less at once: write large results to files"});
    }
    wanted_ = kFrameHeaderBytes + length;
    if (end_ - begin_ < wanted_) return std::optional<Frame>();
    std::string_view payload(header + kFrameHeaderBytes, length);
    if (FrameChecksum(kind_byte, payload) != checksum) {
      return Fail({Code::kDataLoss, "RPC01", "a frame was damaged on the way", "its checksum does not match", "try again"});
    }
    begin_ += wanted_;
    wanted_ = kFrameHeaderBytes;
    const auto kind = static_cast<FrameKind>(kind_byte);
    if (kind == FrameKind::kFragment) {
      joined_.append(payload);
      continue;
    }
    Frame frame{kind, {}};
    if (joined_.empty()) {
      frame.payload.assign(payload);
    } else {
      joined_.append(payload);
      frame.payload = std::exchange(joined_, {});
    }
    return std::optional<Frame>(std::move(frame));
  }
  return std::optional<Frame>();
}

std::string Encode(const AuthHello& hello) {
  std::string out;
  ByteWriter writer(&out);
  writer.Fixed(kAuthVersion);
  writer.Sized(hello.role);
  writer.Sized(hello.nonce);
  return out;
}

std::string Encode(const AuthChallenge& challenge) {
  std::string out;
  ByteWriter writer(&out);
  writer.Sized(challenge.nonce);
  writer.Sized(challenge.proof);
  return out;
}

Result<AuthHello> DecodeAuthHello(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto version = reader.Fixed<std::uint8_t>();
  AuthHello hello{std::string(reader.Sized()), std::string(reader.Sized())};
  if (!reader.ok() || !reader.empty() || version != kAuthVersion || hello.nonce.size() != kNonceBytes || hello.role.size() > 32) {
    return Status(Code::kInvalid, "RPC03", "the peer's first message is no greeting", "it speaks another version of the protocol",
                  "run the same version of ropewalk on both sides");
  }
  return hello;
}

Result<AuthChallenge> DecodeAuthChallenge(std::string_view bytes) {
  ByteReader reader(bytes);
  AuthChallenge challenge{std::string(reader.Sized()), std::string(reader.Sized())};
  if (!reader.ok() || !reader.empty() || challenge.nonce.size() != kNonceBytes) {
    return Status(Code::kInvalid, "RPC03", "the peer's answer to our greeting cannot be read", "it speaks another version of the protocol",
                  "run the same version of ropewalk on both sides");
  }
  return challenge;
}

std::string AuthProof(std::string_view token, std::string_view side, std::string_view role, std::string_view client_nonce,
                      std::string_view server_nonce) {
  std::string text;
  ByteWriter writer(&text);
  for (std::string_view part : {side, role, client_nonce, server_nonce}) writer.Sized(part);
  // Threads use it until the process is gone, and what they hold in it is freed as they end: nothing may be torn down by exit() below them.
  static const int is_ready = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  CHECK(is_ready == 1) << "OpenSSL cannot be initialised";
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
  CHECK(made != nullptr) << "HMAC-SHA256 is not available";
  return {reinterpret_cast<const char*>(digest), size};
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string NewNonce() {
  std::string nonce(kNonceBytes, '\0');
  CHECK_EQ(getrandom(nonce.data(), nonce.size(), 0), static_cast<ssize_t>(nonce.size()));
  return nonce;
}

}  // namespace ropewalk::rpc
