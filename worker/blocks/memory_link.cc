#include "worker/blocks/memory_link.h"

#include <malloc.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "worker/blocks/wire.h"

namespace ropewalk::blocks {
namespace {

constexpr std::int64_t kConnectMs = 30'000;
constexpr std::uint64_t kBaseBytes = 16ull << 20;  // huge pages of the block readers and writers themselves

}  // namespace

Result<UniqueFd> ConnectUnix(const std::string& path, std::int64_t timeout_ms) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Status(Code::kInvalid, "BLK30", "the block service's path is too long: " + path, "a socket's path has at most 107 bytes",
                  "give the worker a shorter --dir");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Status(Code::kUnavailable, "BLK43", "cannot reach this worker's block service at " + path, std::strerror(errno),
                  "is the worker daemon still running?");
  SetTimeouts(fd.get(), timeout_ms, timeout_ms);
  return fd;
}

Result<std::unique_ptr<MemoryLink>> MemoryLink::Connect(const RemoteOptions& options) {
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectUnix(options.unix_path, kConnectMs));
  RETURN_IF_ERROR(ProveToken(fd.get(), options.job, options.token));
  RETURN_IF_ERROR(SendWireFrame(fd.get(), WireKind::kOpenMemory, {}));
  ASSIGN_OR_RETURN(WireFrame answer, ReceiveWireFrame(fd.get(), kRequestBytesMax));
  if (answer.kind != WireKind::kOk) return Status(Code::kUnavailable, "BLK43", "the worker daemon lends no memory");
  ASSIGN_OR_RETURN(MemoryWords words, DecodeWords(answer.payload, 1));
  SetTimeouts(fd.get(), 0, kConnectMs);
  return std::unique_ptr<MemoryLink>(new MemoryLink(std::move(fd), words[0], options.pages));
}

MemoryLink::MemoryLink(UniqueFd fd, std::uint64_t id, HugePages* pages) : fd_(std::move(fd)), id_(id), pages_(pages) {
  pages_->Limit(kBaseBytes);
  reader_ = std::thread([this] { Read(); });
}

MemoryLink::~MemoryLink() {
  ::shutdown(fd_.get(), SHUT_RDWR);
  reader_.join();
}

void MemoryLink::Send(std::uint32_t kind, std::uint64_t first, std::uint64_t second) {
  const bool both = static_cast<WireKind>(kind) == WireKind::kAsk;
  // A daemon that is gone is met by the reading thread.
  (void)SendWireFrame(fd_.get(), static_cast<WireKind>(kind), EncodeWords({first, second}, both ? 2 : 1));
}

Status MemoryLink::Take(std::uint64_t bytes, const std::atomic<bool>& cancelled) {
  std::unique_lock lock(mutex_);
  const std::uint64_t ask = next_ask_++;
  bool& granted = waiting_[ask];
  Send(static_cast<std::uint32_t>(WireKind::kAsk), ask, bytes);
  changed_.wait(lock, [&] { return granted || gone_ || cancelled.load(std::memory_order_relaxed); });
  const bool got_it = granted;
  waiting_.erase(ask);
  if (got_it) return {};  // also when it was cancelled: the task looks by itself
  if (gone_) return Status(Code::kUnavailable, "BLK43", "the worker daemon does not lend memory any more", "its connection ended");
  Send(static_cast<std::uint32_t>(WireKind::kWithdraw), ask);
  return Status(Code::kCancelled, "TASK01", "the attempt was cancelled while it waited for memory");
}

void MemoryLink::Give(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  in_use_bytes_ -= bytes;
  resting_bytes_ += bytes;
  Send(static_cast<std::uint32_t>(WireKind::kRest), bytes);
}

void MemoryLink::Wake() {
  // Under the mutex, or a thread between its look at the flag and its sleep would miss it.
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void MemoryLink::Read() {
  while (true) {
    auto frame = ReceiveWireFrame(fd_.get(), kRequestBytesMax);
    Result<MemoryWords> words = !frame.ok()                      ? Result<MemoryWords>(frame.status())
                                : frame->kind == WireKind::kLent ? DecodeWords(frame->payload, 2)
                                                                 : DecodeWords(frame->payload, 0);
    std::lock_guard lock(mutex_);
    if (!words.ok()) {
      gone_ = true;
      changed_.notify_all();
      return;
    }
    if (frame->kind == WireKind::kAskBack) GiveBackResting();
    if (frame->kind != WireKind::kLent) continue;
    auto [ask, bytes, unused] = *words;
    resting_bytes_ -= std::min(resting_bytes_, bytes);  // what rests is lent first
    in_use_bytes_ += bytes;
    pages_->Limit(kBaseBytes + in_use_bytes_ + resting_bytes_);
    auto at = waiting_.find(ask);
    if (at != waiting_.end()) {
      at->second = true;
      changed_.notify_all();
      continue;
    }
    in_use_bytes_ -= bytes;  // its task was cancelled just before
    resting_bytes_ += bytes;
    Send(static_cast<std::uint32_t>(WireKind::kRest), bytes);
  }
}

void MemoryLink::GiveBackResting() {
  const std::uint64_t bytes = std::exchange(resting_bytes_, 0);
  pages_->Limit(kBaseBytes + in_use_bytes_);
  ::malloc_trim(0);
  Send(static_cast<std::uint32_t>(WireKind::kLetGo), bytes);  // after the memory itself
}

}  // namespace ropewalk::blocks
