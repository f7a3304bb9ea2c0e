#include "mlrunner/collective/run/tcp_transport.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/hash.h"
#include "base/monotonic.h"

namespace ropewalk::collective {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");
constexpr std::uint32_t kMagic = 0x4c4f4352;  // "RCOL"
constexpr std::uint16_t kVersion = 3;
constexpr int kPollMsMax = 100;
// How long a broken connection waits for the one who knows why.
constexpr std::int64_t kVerdictMsMax = 2'000;

struct WireHeader {
  std::uint32_t magic;
  std::uint16_t version, channel;
  std::uint64_t job_epoch;
  std::uint32_t unused, from;
  std::uint64_t sequence, bytes, payload_checksum, header_checksum, communicator;
  CallLabel label;
};
static_assert(sizeof(WireHeader) == 128);

std::uint64_t ChecksumOf(WireHeader header) {
  header.header_checksum = 0;
  return Checksum64(std::as_bytes(std::span(&header, 1)));
}

// One thread writes.
void Add(std::atomic<std::uint64_t>* count, ssize_t bytes) {
  count->store(count->load(std::memory_order_relaxed) + static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
}

}  // namespace

TcpTransport::TcpTransport(std::int32_t rank, std::int32_t ranks, std::int32_t channels, std::vector<int> sockets, TcpOptions options)
    : rank_(rank),
      channels_(channels),
      options_(options),
      lines_(static_cast<std::size_t>(ranks) * channels),
      labels_(channels),
      left_(ranks),
      bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      patience_(CalibratedPatience(options.ranks_on_machine)) {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    lines_[i].socket = i < sockets.size() ? sockets[i] : -1;
    if (lines_[i].socket < 0) continue;
    int on = 1;
    // Fails on sockets that are not TCP, which have no delay to turn off.
    (void)setsockopt(lines_[i].socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  polls_.reserve(lines_.size() + 1);
}

TcpTransport::~TcpTransport() {
  for (Line& line : lines_)
    if (line.socket >= 0) close(line.socket);
  if (bell_ >= 0) close(bell_);
}

void TcpTransport::SetLabel(std::int32_t first_channel, std::int32_t channels, const CallLabel& label) {
  for (std::int32_t channel = first_channel; channel < first_channel + channels; ++channel) labels_[channel] = label;
}

void TcpTransport::Ring() {
  const std::uint64_t one = 1;
  // Only a counter that is full already refuses, and that rings, too.
  (void)!write(bell_, &one, sizeof(one));
}

void TcpTransport::SetLeft(std::int32_t peer) {
  left_[peer].store(true, std::memory_order_release);
  Ring();
}

void TcpTransport::Interrupt(const Status& why) {
  interruption_.Set(why);
  Ring();
}

void TcpTransport::Abort() {
  for (Line& line : lines_)
    if (line.socket >= 0) shutdown(line.socket, SHUT_RDWR);
}

void TcpTransport::Lost(std::int32_t peer, const char* why) {
  if (status_.ok()) status_ = Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(peer) + " is lost", why, "");
}

void TcpTransport::Closed(std::int32_t peer, std::int32_t channel, const char* why) {
  LineOf(peer, channel).closed = true;
  // Whoever waits for the peer finds it; if it died, the links say so.
  if (channel == listening_) return;
  if (left_[peer].load(std::memory_order_acquire)) return Lost(peer, "its program has ended");
  if (!options_.is_told) return Lost(peer, why);
  if (closed_peer_ >= 0) return;
  closed_peer_ = peer;
  closed_at_ms_ = MonotonicMs();
}

// Whoever is told of losses waits for the word that it left: its connection may close before that comes.
bool TcpTransport::HasLeft(std::int32_t peer, std::int32_t channel) const {
  if (!lines_[peer * channels_ + channel].closed) return false;
  return !options_.is_told || left_[peer].load(std::memory_order_acquire);
}

bool TcpTransport::HasSlot(std::int32_t peer, std::int32_t channel, std::int32_t slots) {
  Line& line = LineOf(peer, channel);
  std::uint64_t limit = std::min<std::uint64_t>(static_cast<std::uint64_t>(slots), kSlotsMax);
  if (line.posted - line.written >= limit) WriteOut(peer, channel);
  return line.posted - line.written < limit;
}

void TcpTransport::Post(std::int32_t peer, std::int32_t channel, const void* data, std::size_t bytes) {
  Line& line = LineOf(peer, channel);
  Out& out = line.out[line.posted % kSlotsMax];
  WireHeader header{.magic = kMagic,
                    .version = kVersion,
                    .channel = static_cast<std::uint16_t>(channel),
                    .job_epoch = options_.job_epoch,
                    .unused = 0,
                    .from = static_cast<std::uint32_t>(rank_),
                    .sequence = line.posted,
                    .bytes = bytes,
                    .payload_checksum = options_.checksum_payload ? Checksum64(std::span(static_cast<const std::byte*>(data), bytes)) : 0,
                    .header_checksum = 0,
                    .communicator = options_.communicator,
                    .label = labels_[channel]};
  header.header_checksum = ChecksumOf(header);
  std::memcpy(out.header, &header, sizeof(header));
  out.data = static_cast<const char*>(data);
  out.bytes = bytes;
  ++line.posted;
  WriteOut(peer, channel);
}

void TcpTransport::WriteOut(std::int32_t peer, std::int32_t channel) {
  Line& line = LineOf(peer, channel);
  while (line.written < line.posted && status_.ok() && !line.closed) {
    Out& out = line.out[line.written % kSlotsMax];
    iovec parts[2];
    msghdr message{};
    message.msg_iov = parts;
    std::size_t done = line.out_done;
    if (done < kHeaderBytes) parts[message.msg_iovlen++] = {out.header + done, kHeaderBytes - done};
    std::size_t skip = done > kHeaderBytes ? done - kHeaderBytes : 0;
    if (out.bytes > skip) parts[message.msg_iovlen++] = {const_cast<char*>(out.data) + skip, out.bytes - skip};
    ssize_t wrote = sendmsg(line.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) Closed(peer, channel, std::strerror(errno));
      return;
    }
    has_moved_ = true;
    line.out_done += static_cast<std::size_t>(wrote);
    Add(&line.bytes_out, wrote);
    line.may_be_unsent = true;
    if (line.out_done < kHeaderBytes + out.bytes) continue;
    line.out_done = 0;
    ++line.written;
  }
}

bool TcpTransport::IsHeaderGood(std::int32_t peer, std::int32_t channel, const In& in, std::uint64_t sequence, std::size_t bytes) {
  WireHeader header;
  std::memcpy(&header, in.header, sizeof(header));
  auto from = [&] { return "a message of rank " + std::to_string(peer); };  // only failures may allocate
  if (header.magic != kMagic || header.header_checksum != ChecksumOf(header))
    status_ = Status(Code::kDataLoss, "COLL22", from() + " is damaged", "its header does not agree with its checksum", "");
  else if (header.version != kVersion)
    status_ = Status(Code::kVersionSkew, "COLL23", from() + " is of version " + std::to_string(header.version),
                     "this rank is of version " + std::to_string(kVersion) + ", and these do not understand each other",
                     "run one version on all ranks");
  else if (header.job_epoch != options_.job_epoch || header.communicator != options_.communicator ||
           header.from != static_cast<std::uint32_t>(peer))
    status_ = Status(Code::kStale, "COLL24", from() + " is of another job, epoch or communicator", "", "");
  else if (header.label.fingerprint != labels_[channel].fingerprint)
    status_ = Mismatch(peer, header.label, rank_, labels_[channel]);
  else if (header.channel != channel || header.sequence != sequence || header.bytes != bytes)
    status_ = Status(Code::kInvalid, "COLL21",
                     "rank " + std::to_string(peer) + " sent message " + std::to_string(header.sequence) + " of " +
                         std::to_string(header.bytes) + " bytes where rank " + std::to_string(rank_) + " expects message " +
                         std::to_string(sequence) + " of " + std::to_string(bytes),
                     "the ranks run different collectives, or with different counts", "make all ranks call the same");
  return status_.ok();
}

const void* TcpTransport::Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* landing, std::size_t bytes) {
  if (!status_.ok()) return nullptr;
  Line& line = LineOf(peer, channel);
  if (index >= kTurnsMax) {
    status_ = Status(Code::kInvalid, "COLL12", "a step takes more than " + std::to_string(kTurnsMax) + " messages of one peer",
                     "over TCP no more of them can lie ready until the step takes them all",
                     "mend the builder: divide the step, or run the plan in shared memory");
    return nullptr;
  }
  In& in = line.in[index];
  const std::size_t whole = kHeaderBytes + bytes;
  if (!in.known || in.got < whole) {
    line.wants_in = true;
    if (in.landing == nullptr) in.landing = static_cast<char*>(landing);
    while (in.got < whole) {
      if (line.closed) return nullptr;
      // Never more than this message: what a header announces is believed only when it is what this rank expects.
      iovec parts[2];
      msghdr message{};
      message.msg_iov = parts;
      if (in.got < kHeaderBytes) parts[message.msg_iovlen++] = {in.header + in.got, kHeaderBytes - in.got};
      const std::size_t skip = in.got > kHeaderBytes ? in.got - kHeaderBytes : 0;
      if (bytes > skip) parts[message.msg_iovlen++] = {in.landing + skip, bytes - skip};
      const ssize_t got = recvmsg(line.socket, &message, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return nullptr;
      if (got <= 0) {
        Closed(peer, channel, got == 0 ? "it closed the connection" : std::strerror(errno));
        return nullptr;
      }
      has_moved_ = true;
      in.got += static_cast<std::size_t>(got);
      Add(&line.bytes_in, got);
      if (in.known || in.got < kHeaderBytes) continue;
      if (!IsHeaderGood(peer, channel, in, line.taken + index, bytes)) return nullptr;
      in.known = true;
    }
    WireHeader header;
    if (options_.checksum_payload) {
      std::memcpy(&header, in.header, sizeof(header));
      if (Checksum64(std::span(reinterpret_cast<const std::byte*>(in.landing), bytes)) != header.payload_checksum) {
        status_ = Status(Code::kDataLoss, "COLL22", "a message of rank " + std::to_string(peer) + " is damaged",
                         "its payload does not agree with its checksum", "");
        return nullptr;
      }
    }
    line.wants_in = false;
  }
  return bytes == 0 ? static_cast<const void*>(this) : in.landing;
}

void TcpTransport::Consume(std::int32_t peer, std::int32_t channel) {
  Line& line = LineOf(peer, channel);
  ++line.taken;
  for (std::size_t i = 0; i + 1 < kTurnsMax; ++i) line.in[i] = line.in[i + 1];
  line.in[kTurnsMax - 1] = {};
}

bool TcpTransport::IsFlushed(std::int32_t peer, std::int32_t channel, std::uint64_t messages) {
  Line& line = LineOf(peer, channel);
  if (line.written < messages) WriteOut(peer, channel);
  return line.written >= messages;
}

Transport::Moved TcpTransport::MovedBytes(std::int32_t peer, std::int32_t channel) const {
  const Line& line = lines_[peer * channels_ + channel];
  return {line.bytes_in.load(std::memory_order_relaxed), line.bytes_out.load(std::memory_order_relaxed)};
}

std::uint64_t TcpTransport::UnsentBytes(std::int32_t peer, std::int32_t channel) {
  Line& line = LineOf(peer, channel);
  if (!line.may_be_unsent) return 0;
  int bytes = 0;
  // A socket that cannot say it has failed, and that is found elsewhere.
  line.may_be_unsent = ioctl(line.socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
  return line.may_be_unsent ? static_cast<std::uint64_t>(bytes) : 0;
}

void TcpTransport::Wait(bool spin) {
  if (interruption_.is_set() && status_.ok()) status_ = interruption_.why();
  if (closed_peer_ >= 0) {
    if (left_[closed_peer_].load(std::memory_order_acquire))
      Lost(closed_peer_, "its program has ended");
    else if (MonotonicMs() - closed_at_ms_ > kVerdictMsMax)
      Lost(closed_peer_, "its connection broke");
  }
  if (!status_.ok()) return;
  // What waits to go out goes on whatever the steps are waiting for: their peers may wait for it.
  polls_.clear();
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    Line& line = lines_[i];
    if (line.socket < 0 || line.closed) continue;
    short events = 0;
    if (line.written < line.posted) {
      WriteOut(static_cast<std::int32_t>(i) / channels_, static_cast<std::int32_t>(i) % channels_);
      if (line.written < line.posted) events |= POLLOUT;
    }
    if (line.wants_in) events |= POLLIN;
    if (events != 0) polls_.push_back({line.socket, events, 0});
  }
  // The steps look again a few times before the thread sleeps, counted from when something last went on. Each look is system calls already,
  // so others may as well run between two of them.
  if (std::exchange(has_moved_, false)) looks_ = 0;
  if (spin && looks_++ < patience_.yields) {
    sched_yield();
    return;
  }
  looks_ = 0;
  polls_.push_back({bell_, POLLIN, 0});
  // EINTR and time-outs are fine: the caller looks for itself.
  (void)poll(polls_.data(), polls_.size(), kPollMsMax);
  if ((polls_.back().revents & POLLIN) != 0) {
    std::uint64_t rung;
    (void)!read(bell_, &rung, sizeof(rung));
  }
}

}  // namespace ropewalk::collective
