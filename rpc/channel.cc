#include "rpc/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "rpc/address.h"
#include "rpc/frame.h"

namespace ropewalk::rpc {
namespace {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  explicit Deadline(int timeout_ms) : forever_(timeout_ms < 0), at_(Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0))) {}
  int left_ms() const {  // for poll(); rounded up, so that a wait does not spin through its last millisecond
    if (forever_) return -1;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
  }

 private:
  bool forever_;
  Clock::time_point at_;
};

Status Gone(std::string why) {
  return {Code::kUnavailable, "NET03", "the connection ended", std::move(why), "is the other side still running?"};
}

// True when `fd` has one of `events` (or an error to be read); false when the time is over.
Result<bool> WaitFor(int fd, short events, int timeout_ms) {
  pollfd one{fd, events, 0};
  while (true) {
    const int n = poll(&one, 1, timeout_ms);
    if (n > 0) return true;
    if (n == 0) return false;
    if (errno != EINTR) return Gone(std::strerror(errno));
    if (timeout_ms >= 0) return true;  // the caller looks at its deadline again
  }
}

Status ConnectWithin(int fd, const SocketAddress& to, const Deadline& deadline) {
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to.storage), to.size) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return Gone(std::strerror(errno));
  while (true) {
    const int left = deadline.left_ms();
    ASSIGN_OR_RETURN(bool ready, WaitFor(fd, POLLOUT, left));
    if (!ready || left == 0) return Gone("no answer within the time limit");
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return Gone(std::strerror(error));
    pollfd one{fd, POLLOUT, 0};
    if (poll(&one, 1, 0) == 1) return {};
  }
}

}  // namespace

struct Channel::Impl {
  int fd = -1;
  std::mutex send_mutex;
  FrameDecoder decoder{{kFrameBytesMax, kMessageBytesMax}};

  // All of `parts`, whatever the socket's mode. A peer that takes nothing is the business of whoever calls Shutdown().
  Status SendAll(iovec* parts, int count) {
    while (count > 0) {
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = static_cast<std::size_t>(count);
      ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        auto ready = WaitFor(fd, POLLOUT, -1);
        if (!ready.ok()) return ready.status();
        continue;
      }
      if (n < 0) return Gone(std::strerror(errno));
      for (auto left = static_cast<std::size_t>(n); count > 0;) {
        if (left < parts->iov_len) {
          parts->iov_base = static_cast<char*>(parts->iov_base) + left;
          parts->iov_len -= left;
          break;
        }
        left -= parts->iov_len;
        ++parts, --count;
      }
    }
    return {};
  }

  Status SendOne(FrameKind kind, std::string_view payload) {
    char header[kFrameHeaderBytes];
    WriteHeader(kind, payload, header);
    iovec parts[2] = {{header, sizeof header}, {const_cast<char*>(payload.data()), payload.size()}};
    return SendAll(parts, 2);
  }
};

Channel::Channel(int fd) : impl_(std::make_unique<Impl>()) {
  impl_->fd = fd;
  TuneSocket(fd);
}

Channel::~Channel() {
  if (impl_->fd >= 0) close(impl_->fd);
}

Result<std::unique_ptr<Channel>> Channel::Connect(const std::string& address, const std::string& token, const std::string& role,
                                                  int timeout_ms) {
  const Deadline deadline(timeout_ms);
  ASSIGN_OR_RETURN(std::vector<SocketAddress> candidates, ResolveAddress(address));
  Status last = Gone("the name has no address");
  std::unique_ptr<Channel> channel;
  for (const SocketAddress& to : candidates) {
    const int fd = socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      last = Gone(std::strerror(errno));
      continue;
    }
    auto attempt = std::make_unique<Channel>(fd);
    last = ConnectWithin(fd, to, deadline);
    if (last.ok()) {
      channel = std::move(attempt);
      break;
    }
  }
  if (channel == nullptr) {
    return Status(Code::kUnavailable, "NET01", "cannot reach " + address, last.why(), "is the master running there? check the address");
  }
  const auto unavailable = [&](const Status& status) {
    if (status.code() != Code::kUnavailable && status.code() != Code::kDeadlineExceeded) return status.WithContext(address);
    const bool silent = status.code() == Code::kDeadlineExceeded;
    return Status(Code::kUnavailable, "NET01", "no greeting from " + address,
                  silent ? "it took the connection and said nothing" : status.why(),
                  "is it a ropewalk master? it may be starting, or have too many connections: try again");
  };
  const std::string nonce = NewNonce();
  RETURN_IF_ERROR(channel->Send(FrameKind::kAuth, Encode(AuthHello{role, nonce})));
  auto frame = channel->Receive(deadline.left_ms());
  if (!frame.ok()) return unavailable(frame.status());
  ASSIGN_OR_RETURN(AuthChallenge challenge, DecodeAuthChallenge(frame->payload));
  if (!EqualInConstantTime(challenge.proof, AuthProof(token, "server", role, nonce, challenge.nonce))) {
    return Status(Code::kUnauthenticated, "AUTH01", address + " does not know our token",
                  "the token is of another cluster, or it is not our master",
                  "give the master's token file with --token-file or ROPEWALK_TOKEN_FILE");
  }
  RETURN_IF_ERROR(channel->Send(FrameKind::kAuth, AuthProof(token, "client", role, nonce, challenge.nonce)));
  frame = channel->Receive(deadline.left_ms());
  if (!frame.ok()) return unavailable(frame.status());
  if (frame->kind == FrameKind::kAuth) {
    return Status(Code::kUnauthenticated, "AUTH01", address + " refused our token", "it is not for the role \"" + role + "\"",
                  "give the master's token file with --token-file or ROPEWALK_TOKEN_FILE");
  }
  if (frame->kind != FrameKind::kAuthOk) {
    return Status(Code::kVersionSkew, "RPC03", address + " answered our proof with something else",
                  "it speaks another version of the protocol", "run the same version of ropewalk on both sides");
  }
  return channel;
}

Status Channel::Send(FrameKind kind, std::string_view payload) {
  if (payload.size() > kMessageBytesMax) {
    return {Code::kResourceExhausted, "RPC02", "a message of " + std::to_string(payload.size()) + " bytes",
            "the limit is " + std::to_string(kMessageBytesMax), "send less at once: write large results to files"};
  }
  std::lock_guard lock(impl_->send_mutex);  // held for the whole message: fragments of two must not mix
  while (payload.size() > kFragmentBytes) {
    RETURN_IF_ERROR(impl_->SendOne(FrameKind::kFragment, payload.substr(0, kFragmentBytes)));
    payload.remove_prefix(kFragmentBytes);
  }
  return impl_->SendOne(kind, payload);
}

Result<Frame> Channel::Receive(int timeout_ms) {
  const Deadline deadline(timeout_ms);
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Frame> frame, impl_->decoder.Next());
    if (frame.has_value()) return std::move(*frame);
    std::span<char> room = impl_->decoder.Room();
    const ssize_t n = recv(impl_->fd, room.data(), room.size(), MSG_DONTWAIT);
    if (n > 0) {
      impl_->decoder.Filled(static_cast<std::size_t>(n));
      continue;
    }
    if (n == 0) return impl_->decoder.in_message() ? Gone("in the middle of a message") : Gone("the other side closed it");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Gone(std::strerror(errno));
    const int left = deadline.left_ms();
    ASSIGN_OR_RETURN(bool ready, WaitFor(impl_->fd, POLLIN, left));
    if (!ready) {
      return Status(Code::kDeadlineExceeded, "NET04", "no message within " + std::to_string(timeout_ms) + " ms",
                    "the other side is busy or gone", "try again; is it running?");
    }
  }
}

int Channel::fd() const { return impl_->fd; }

void Channel::Shutdown() { (void)shutdown(impl_->fd, SHUT_RDWR); }

}  // namespace ropewalk::rpc
