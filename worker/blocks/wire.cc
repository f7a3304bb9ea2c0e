#include "worker/blocks/wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/bytes.h"
#include "base/hash.h"
#include "rpc/frame.h"

namespace ropewalk::blocks {
namespace {

constexpr std::uint64_t kHelloMagic = 0x324b4c42574b5052ull;  // "RPKWBLK2"

struct FrameHeader {
  std::uint32_t kind = 0, length = 0;
  std::uint64_t checksum = 0;         // of the payload
  std::uint64_t header_checksum = 0;  // of all before it
  std::uint64_t Checksum() const {
    return Checksum64(std::string_view(reinterpret_cast<const char*>(this), offsetof(FrameHeader, header_checksum)));
  }
};
static_assert(sizeof(FrameHeader) == 24);

Status Gone(const char* why) { return Status(Code::kUnavailable, "BLK20", "the connection for blocks ended", why); }
Status Malformed() { return Status(Code::kDataLoss, "BLK22", "a message about blocks is malformed"); }

std::string Role(JobId job) { return "blocks/" + std::to_string(job.value); }

TaskAttempt ReadProducer(ByteReader& reader) {
  TaskAttempt producer;
  producer.stage.value = reader.Fixed<std::uint64_t>();
  producer.task = reader.Fixed<std::uint32_t>();
  producer.attempt = reader.Fixed<std::uint32_t>();
  return producer;
}

void WriteProducer(ByteWriter& writer, const TaskAttempt& producer) {
  writer.Fixed(producer.stage.value);
  writer.Fixed(producer.task);
  writer.Fixed(producer.attempt);
}

bool Whole(const ByteReader& reader) { return reader.ok() && reader.empty(); }

// recvmsg that takes at most one descriptor, close-on-exec; 0: end of stream.
ssize_t ReceiveWithFd(int fd, void* out, std::size_t size, UniqueFd* passed) {
  iovec part{out, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    int received = -1;
    std::memcpy(&received, CMSG_DATA(c), sizeof received);
    *passed = UniqueFd(received);
  }
  return n;
}

}  // namespace

std::size_t GatherLength(std::span<const ExtentEntry> entries, std::size_t at, std::uint64_t window_bytes) {
  std::size_t end = at;
  std::uint64_t bytes = 0;
  while (end < entries.size() && end - at < kRangesMax && (end == at || bytes + entries[end].length <= window_bytes))
    bytes += entries[end++].length;
  return end - at;
}

void SetTimeouts(int fd, std::int64_t receive_ms, std::int64_t send_ms) {
  auto set = [fd](int name, std::int64_t ms) {
    timeval time{ms / 1000, (ms % 1000) * 1000};
    (void)::setsockopt(fd, SOL_SOCKET, name, &time, sizeof time);  // cannot fail for a socket of ours; without it we only wait longer
  };
  set(SO_RCVTIMEO, receive_ms);
  set(SO_SNDTIMEO, send_ms);
}

Status SendBytes(int fd, std::string_view bytes, bool more) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Gone(std::strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Status ReceiveBytes(int fd, std::span<std::byte> out) {
  while (!out.empty()) {
    ssize_t n = ::recv(fd, out.data(), out.size(), MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Gone(std::strerror(errno));
    if (n == 0) return Gone("the other side closed it");
    out = out.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status ReceiveBytesUntil(int fd, std::span<std::byte> out, std::chrono::steady_clock::time_point until) {
  while (!out.empty()) {
    ssize_t n = ::recv(fd, out.data(), out.size(), MSG_DONTWAIT);
    if (n == 0) return Gone("the other side closed it");
    if (n > 0) out = out.subspan(static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR && errno != EAGAIN) return Gone(std::strerror(errno));
    if (out.empty()) break;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0) return Gone("the other side stopped in the middle of a message");
    pollfd one{fd, POLLIN, 0};
    if (::poll(&one, 1, static_cast<int>(left)) < 0 && errno != EINTR) return Gone(std::strerror(errno));
  }
  return {};
}

Status SendWireFrame(int fd, WireKind kind, std::string_view payload, int passed_fd, bool more) {
  FrameHeader header{static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(payload.size()), Checksum64(payload), 0};
  header.header_checksum = header.Checksum();
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(payload.data()), payload.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (passed_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &passed_fd, sizeof passed_fd);
  }
  ssize_t n;
  do n = ::sendmsg(fd, &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
  while (n < 0 && errno == EINTR);
  if (n < 0) return Gone(std::strerror(errno));
  // The descriptor went with the first byte; what is left is bytes only.
  auto sent = static_cast<std::size_t>(n);
  std::string_view head(reinterpret_cast<const char*>(&header), sizeof header);
  if (sent < head.size()) {
    RETURN_IF_ERROR(SendBytes(fd, head.substr(sent), true));
    sent = head.size();
  }
  return SendBytes(fd, payload.substr(sent - head.size()), more);
}

Result<WireFrame> ReceiveWireFrame(int fd, std::uint32_t bytes_max, std::int64_t whole_ms) {
  WireFrame frame;
  FrameHeader header;
  ssize_t n;
  do n = ReceiveWithFd(fd, &header, sizeof header, &frame.fd);
  while (n < 0 && errno == EINTR);
  if (n < 0) return Gone(std::strerror(errno));
  if (n == 0) return Gone("the other side closed it");
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(whole_ms);
  auto receive = [&](std::span<std::byte> out) { return whole_ms > 0 ? ReceiveBytesUntil(fd, out, until) : ReceiveBytes(fd, out); };
  RETURN_IF_ERROR(receive(std::as_writable_bytes(std::span(&header, 1)).subspan(static_cast<std::size_t>(n))));
  if (header.header_checksum != header.Checksum()) return Malformed();
  if (header.length > bytes_max)
    return Status(Code::kResourceExhausted, "BLK21", "a message about blocks has " + std::to_string(header.length) + " bytes",
                  "the limit is " + std::to_string(bytes_max), "bring all workers to one version; run the job again");
  frame.kind = static_cast<WireKind>(header.kind);
  // Grows with what really comes: a peer cannot make us allocate by claiming a length.
  constexpr std::size_t kStepBytes = 1u << 20;
  while (frame.payload.size() < header.length) {
    std::size_t at = frame.payload.size();
    frame.payload.resize(std::min<std::size_t>(header.length, at + std::max(kStepBytes, at)));
    RETURN_IF_ERROR(receive(std::as_writable_bytes(std::span(frame.payload).subspan(at))));
  }
  if (Checksum64(frame.payload) != header.checksum) return Malformed();
  return frame;
}

// ---- handshake -----------------------------------------------------------------------------------------------------------------------

Status ProveToken(int fd, JobId job, std::string_view token) {
  std::string theirs(kNonceBytesOnWire, '\0');
  RETURN_IF_ERROR(ReceiveBytes(fd, std::as_writable_bytes(std::span(theirs))));
  const std::string nonce = rpc::NewNonce();
  std::string hello;
  ByteWriter writer(&hello);
  writer.Fixed(kHelloMagic);
  writer.Fixed(job.value);
  writer.Raw(nonce);
  writer.Raw(rpc::AuthProof(token, "client", Role(job), nonce, theirs));
  RETURN_IF_ERROR(SendBytes(fd, hello));
  std::string proof(kProofBytes, '\0');
  Status status = ReceiveBytes(fd, std::as_writable_bytes(std::span(proof)));
  if (!status.ok() || !rpc::EqualInConstantTime(proof, rpc::AuthProof(token, "server", Role(job), nonce, theirs)))
    return Status(Code::kUnauthenticated, "BLK23", "the block service refused our job's token",
                  status.ok() ? "it has another token" : "it ended the connection", "none needed when its worker was just started again");
  return {};
}

Result<std::string> SendGreeting(int fd) {
  std::string nonce = rpc::NewNonce();
  RETURN_IF_ERROR(SendBytes(fd, nonce));
  return nonce;
}

Result<HandshakeHello> ReceiveHello(int fd, std::int64_t limit_ms) {
  std::string bytes(8 + 8 + kNonceBytesOnWire + kProofBytes, '\0');
  RETURN_IF_ERROR(ReceiveBytesUntil(fd, std::as_writable_bytes(std::span(bytes)),
                                    std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms)));
  ByteReader reader(bytes);
  if (reader.Fixed<std::uint64_t>() != kHelloMagic) return Malformed();
  HandshakeHello hello;
  hello.job.value = reader.Fixed<std::uint64_t>();
  hello.nonce = reader.Raw(kNonceBytesOnWire);
  hello.proof = reader.Raw(kProofBytes);
  return hello;
}

bool ProofMatches(const HandshakeHello& hello, std::string_view token, std::string_view nonce) {
  return rpc::EqualInConstantTime(hello.proof, rpc::AuthProof(token, "client", Role(hello.job), hello.nonce, nonce));
}

Status SendProof(int fd, const HandshakeHello& hello, std::string_view token, std::string_view nonce) {
  return SendBytes(fd, rpc::AuthProof(token, "server", Role(hello.job), hello.nonce, nonce));
}

// ---- payloads ------------------------------------------------------------------------------------------------------------------------

std::string EncodeStatus(const Status& status) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint8_t>(status.code()));
  for (const std::string* part : {&status.tag(), &status.what(), &status.why(), &status.fix()}) writer.Sized(*part);
  return bytes;
}

Status DecodeStatus(std::string_view bytes) {
  ByteReader reader(bytes);
  auto code = reader.Fixed<std::uint8_t>();
  std::string parts[4];
  for (std::string& part : parts) part = reader.Sized();
  if (!Whole(reader) || code == 0 || code > static_cast<std::uint8_t>(Code::kInternal)) return Malformed();
  return Status(static_cast<Code>(code), parts[0], parts[1], parts[2], parts[3]);
}

std::string EncodeAdopt(const AdoptRequest& request) {
  std::string bytes;
  ByteWriter writer(&bytes);
  WriteProducer(writer, request.producer);
  writer.Fixed(request.link);
  writer.Fixed(request.reservation);
  return bytes;
}

Result<AdoptRequest> DecodeAdopt(std::string_view bytes) {
  ByteReader reader(bytes);
  AdoptRequest request;
  request.producer = ReadProducer(reader);
  request.link = reader.Fixed<std::uint64_t>();
  request.reservation = reader.Fixed<std::uint64_t>();
  if (!Whole(reader)) return Malformed();
  return request;
}

std::string EncodeWords(const MemoryWords& words, std::size_t count) {
  std::string bytes;
  ByteWriter writer(&bytes);
  for (std::size_t i = 0; i < count; ++i) writer.Fixed(words[i]);
  return bytes;
}

Result<MemoryWords> DecodeWords(std::string_view bytes, std::size_t count) {
  ByteReader reader(bytes);
  MemoryWords words{};
  for (std::size_t i = 0; i < count; ++i) words[i] = reader.Fixed<std::uint64_t>();
  if (!Whole(reader)) return Malformed();
  return words;
}

std::string EncodeQuery(const SegmentQuery& query) {
  std::string bytes;
  ByteWriter writer(&bytes);
  WriteProducer(writer, query.producer);
  writer.Fixed(query.segment.value);
  writer.Fixed(query.first);
  writer.Fixed(query.count);
  writer.Fixed(query.window_bytes);
  return bytes;
}

Result<SegmentQuery> DecodeQuery(std::string_view bytes) {
  ByteReader reader(bytes);
  SegmentQuery query;
  query.producer = ReadProducer(reader);
  query.segment.value = reader.Fixed<std::uint64_t>();
  query.first = reader.Fixed<std::uint32_t>();
  query.count = reader.Fixed<std::uint32_t>();
  query.window_bytes = reader.Fixed<std::uint64_t>();
  if (!Whole(reader)) return Malformed();
  return query;
}

std::string EncodeRead(const TaskAttempt& producer, SegmentId segment, std::span<const ByteRange> ranges) {
  std::string bytes;
  ByteWriter writer(&bytes);
  WriteProducer(writer, producer);
  writer.Fixed(segment.value);
  for (const ByteRange& range : ranges) {
    writer.Fixed(range.offset);
    writer.Fixed(range.length);
  }
  return bytes;
}

Result<ReadRequest> DecodeRead(std::string_view bytes) {
  ByteReader reader(bytes);
  ReadRequest request;
  request.producer = ReadProducer(reader);
  request.segment.value = reader.Fixed<std::uint64_t>();
  while (reader.ok() && !reader.empty() && request.ranges.size() < kRangesMax) {
    ByteRange range;
    range.offset = reader.Fixed<std::uint64_t>();
    range.length = reader.Fixed<std::uint64_t>();
    request.ranges.push_back(range);
  }
  if (!Whole(reader)) return Malformed();
  return request;
}

std::string EncodeInfo(const dag::SegmentInfo& info) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(info.segment.value);
  writer.Fixed(info.bytes);
  writer.Fixed(info.records);
  writer.Fixed(info.content_hash);
  return bytes;
}

Result<dag::SegmentInfo> DecodeInfo(std::string_view bytes) {
  ByteReader reader(bytes);
  dag::SegmentInfo info;
  info.segment.value = reader.Fixed<std::uint64_t>();
  info.bytes = reader.Fixed<std::uint64_t>();
  info.records = reader.Fixed<std::uint64_t>();
  info.content_hash = reader.Fixed<std::uint64_t>();
  if (!Whole(reader)) return Malformed();
  return info;
}

std::string EncodeOpened(std::uint64_t lease, std::uint64_t data_bytes, std::span<const ExtentEntry> entries) {
  std::string bytes;
  bytes.reserve(16 + entries.size_bytes());
  ByteWriter writer(&bytes);
  writer.Fixed(lease);
  writer.Fixed(data_bytes);
  writer.Raw(AsView(std::as_bytes(entries)));
  return bytes;
}

Result<Opened> DecodeOpened(std::string_view bytes) {
  ByteReader reader(bytes);
  Opened opened;
  opened.lease = reader.Fixed<std::uint64_t>();
  opened.data_bytes = reader.Fixed<std::uint64_t>();
  if (!reader.ok() || reader.remaining() % sizeof(ExtentEntry) != 0) return Malformed();
  opened.entries.resize(reader.remaining() / sizeof(ExtentEntry));
  std::string_view rest = reader.Raw(reader.remaining());
  if (!rest.empty()) std::memcpy(opened.entries.data(), rest.data(), rest.size());
  return opened;
}

}  // namespace ropewalk::blocks
