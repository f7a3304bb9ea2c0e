// What a block service and its readers say to each other, over a Unix or a TCP socket, and the blocking socket calls under it.
//
//   service -> reader   nonce                                   (16 bytes, at once)
//   reader -> service   magic, job, nonce, proof                (64 bytes; nothing is read before the proof is checked)
//   service -> reader   proof                                   (or the connection ends)
//   then any number of  request frame -> response frame [data]
//
//   frame = kind u32 | length u32 | XXH3 of the payload u64 | XXH3 of all that u64 | payload
//
// A header is proven before its length is believed: a flipped bit in it is damage like any other, and never a frame that is too large or
// that would be waited for in vain.
//
// The proofs are HMACs with the job's token (rpc/frame.h): neither side shows the token to a peer that does not have it.
//
// Thread rule: one connection, one thread at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "worker/blocks/segment_format.h"

namespace ropewalk::blocks {

enum class WireKind : std::uint32_t {
  kAdopt = 1,         // Unix only: AdoptRequest -> SegmentInfo; without a reservation the sealed memfd travels with it
  kOpenLocal = 2,     // Unix only: SegmentQuery -> lease id, entries; the segment's descriptor travels with the answer
  kRelease = 3,       // Unix only, no answer: lease id
  kOpenRemote = 4,    // SegmentQuery -> entries, then as data the first extents up to window_bytes
  kRead = 5,          // producer, segment, ranges -> the bytes as data
  kAdoptDurable = 6,  // as kAdopt; answered when the segment lies synced on the disk
  // Room for a segment before it is written, Unix only. `link` is of a kOpenMemory connection, with which reservations end.
  kReserve = 7,  // MemoryWords {link, id, bytes} -> {1}: memory, {0}: a file; a descriptor travels with the answer when it is a new one
  kMoved = 8,    // {link, id}, no answer: what was in memory has been copied to the file
  kDrop = 9,     // {link, id}, no answer: it will not be adopted
  // Makes this connection the one over which its process borrows operator memory, Unix only; from then on both sides speak unasked.
  kOpenMemory = 10,  // -> {link}
  kAsk = 11,         // {id, bytes}: see MemoryBorrower
  kWithdraw = 12,    // {id}
  kRest = 13,        // {bytes}
  kLetGo = 14,       // {bytes}
  kOk = 100,
  kError = 101,    // a Status
  kLent = 102,     // {id, bytes}
  kAskBack = 103,  // {}
};
using MemoryWords = std::array<std::uint64_t, 3>;

inline constexpr std::uint32_t kRequestBytesMax = 64u << 10;
inline constexpr std::uint32_t kResponseBytesMax = (1u << 30);  // an index of kExtentsMax entries fits
inline constexpr std::size_t kRangesMax = 1024;                 // of one kRead
inline constexpr std::size_t kNonceBytesOnWire = 16, kProofBytes = 32;

struct SegmentQuery {
  TaskAttempt producer;
  SegmentId segment;
  std::uint32_t first = 0, count = 0;  // parts
  std::uint64_t window_bytes = 0;      // kOpenRemote: how much data to send at once
};
// The entries that one request may ask for starting at `at`, wherever they lie: up to `window_bytes` and kRangesMax, at least one. 0 at the
// end.
std::size_t GatherLength(std::span<const ExtentEntry> entries, std::size_t at, std::uint64_t window_bytes);
struct ByteRange {
  std::uint64_t offset = 0, length = 0;
};

struct WireFrame {
  WireKind kind = WireKind::kError;
  std::string payload;
  UniqueFd fd;  // that came along
};

// What goes over one connected socket. All calls block, bounded by the socket's time-outs; kUnavailable (BLK20): the peer is gone or slow.
// `more`: bytes follow at once. Never say so when none do: the kernel holds back the last packet for 200 ms.
Status SendBytes(int fd, std::string_view bytes, bool more = false);
Status ReceiveBytes(int fd, std::span<std::byte> out);
// All of `out` by `until`, however the bytes trickle in: a socket's time-out begins anew with each of them.
Status ReceiveBytesUntil(int fd, std::span<std::byte> out, std::chrono::steady_clock::time_point until);
Status SendWireFrame(int fd, WireKind kind, std::string_view payload, int passed_fd = -1, bool more = false);
// kResourceExhausted (BLK21) for a payload above `bytes_max`, kDataLoss (BLK22) for a damaged header or payload. The time-out bounds the
// wait for the first bytes; from then on the frame must be whole within `whole_ms` (0: the time-out bounds each wait, nothing bounds their
// sum).
Result<WireFrame> ReceiveWireFrame(int fd, std::uint32_t bytes_max, std::int64_t whole_ms = 0);
void SetTimeouts(int fd, std::int64_t receive_ms, std::int64_t send_ms);

// The reader's half of the handshake. kUnauthenticated (BLK23): the service does not know the job or the token.
Status ProveToken(int fd, JobId job, std::string_view token);
// The service's half: `token_of` gives the job's token, or "" for a job that it does not know. The proof must be here within `limit_ms`.
template <class TokenOf>
Result<JobId> CheckToken(int fd, std::int64_t limit_ms, TokenOf token_of);

std::string EncodeStatus(const Status& status);
Status DecodeStatus(std::string_view bytes);  // never OK
struct AdoptRequest {
  TaskAttempt producer;
  std::uint64_t link = 0, reservation = 0;  // link 0: nothing was reserved
};
std::string EncodeAdopt(const AdoptRequest& request);
Result<AdoptRequest> DecodeAdopt(std::string_view bytes);
// The first `count` words; those behind are 0.
std::string EncodeWords(const MemoryWords& words, std::size_t count);
Result<MemoryWords> DecodeWords(std::string_view bytes, std::size_t count);
std::string EncodeQuery(const SegmentQuery& query);
Result<SegmentQuery> DecodeQuery(std::string_view bytes);
std::string EncodeRead(const TaskAttempt& producer, SegmentId segment, std::span<const ByteRange> ranges);
struct ReadRequest {
  TaskAttempt producer;
  SegmentId segment;
  std::vector<ByteRange> ranges;
};
Result<ReadRequest> DecodeRead(std::string_view bytes);
std::string EncodeInfo(const dag::SegmentInfo& info);
Result<dag::SegmentInfo> DecodeInfo(std::string_view bytes);
// The answer to an open: a lease id (0: none), how many data bytes follow the frame, and the entries.
std::string EncodeOpened(std::uint64_t lease, std::uint64_t data_bytes, std::span<const ExtentEntry> entries);
struct Opened {
  std::uint64_t lease = 0, data_bytes = 0;
  std::vector<ExtentEntry> entries;
};
Result<Opened> DecodeOpened(std::string_view bytes);

// ---- handshake, the service's half ---------------------------------------------------------------------------------------------------
struct HandshakeHello {
  JobId job;
  std::string nonce, proof;
};
Result<std::string> SendGreeting(int fd);  // the service's nonce
Result<HandshakeHello> ReceiveHello(int fd, std::int64_t limit_ms);
bool ProofMatches(const HandshakeHello& hello, std::string_view token, std::string_view nonce);
Status SendProof(int fd, const HandshakeHello& hello, std::string_view token, std::string_view nonce);

template <class TokenOf>
Result<JobId> CheckToken(int fd, std::int64_t limit_ms, TokenOf token_of) {
  ASSIGN_OR_RETURN(std::string nonce, SendGreeting(fd));
  ASSIGN_OR_RETURN(HandshakeHello hello, ReceiveHello(fd, limit_ms));
  const std::string token = token_of(hello.job);
  // An unknown job takes the same way as a wrong token: its answer must not tell which jobs there are.
  const bool matches = ProofMatches(hello, token, nonce);
  if (token.empty() || !matches)
    return Status(Code::kUnauthenticated, "BLK23", "a reader of blocks has the wrong token", "its proof is wrong",
                  "let it join this cluster");
  RETURN_IF_ERROR(SendProof(fd, hello, token, nonce));
  return hello.job;
}

}  // namespace ropewalk::blocks
