#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/home_process.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/fetcher.h"
#include "worker/blocks/file_extents.h"
#include "worker/blocks/memory_link.h"
#include "worker/blocks/wire.h"

namespace ropewalk::blocks {
namespace {

constexpr std::uint64_t kBuildBytes = 4u << 20;
constexpr std::uint64_t kDirectBytes = 1u << 20;  // larger extents go to the memfd straight from the caller's memory
constexpr std::size_t kLocalConnections = 8;
constexpr std::int64_t kLocalAnswerMs = 120'000;  // an adoption may have to wait for a spill

// One connection to the own daemon. A call waits for its answer; a release is sent at any time, so it never waits behind a call.
struct LocalConnection {
  UniqueFd fd;
  std::mutex call_mutex;
  std::mutex send_mutex;
  HomeProcess home;
};

struct LocalLease {
  const std::shared_ptr<LocalConnection> connection;
  const std::uint64_t id;
  const UniqueFd fd;
  LocalLease(std::shared_ptr<LocalConnection> by, std::uint64_t id, UniqueFd fd) : connection(std::move(by)), id(id), fd(std::move(fd)) {}
  ~LocalLease() {
    if (!connection->home.here()) return;  // the lease is the parent's, and so is the connection
    std::lock_guard lock(connection->send_mutex);
    // A daemon that is gone holds no lease: nothing to do about an error.
    (void)SendWireFrame(connection->fd.get(), WireKind::kRelease, {reinterpret_cast<const char*>(&id), sizeof id});
  }
};

}  // namespace

struct RemoteBlocks::Impl {
  Impl(RemoteOptions given) : options(std::move(given)), pool(options.read_ahead_bytes_total / 4), fetcher(options, pool) {}

  const RemoteOptions options;
  BufferPool pool;
  std::mutex mutex;
  std::vector<std::shared_ptr<LocalConnection>> connections;
  std::size_t turn = 0;
  Fetcher fetcher;
  std::unique_ptr<MemoryLink> memory;
  std::atomic<std::uint64_t> next_reservation{1};
  const HomeProcess home;

  Result<std::shared_ptr<LocalConnection>> Connect() {
    auto connection = std::make_shared<LocalConnection>();
    ASSIGN_OR_RETURN(connection->fd, ConnectUnix(options.unix_path, kLocalAnswerMs));
    RETURN_IF_ERROR(ProveToken(connection->fd.get(), options.job, options.token));
    std::lock_guard lock(mutex);
    connections.push_back(connection);
    return connection;
  }

  // A forked child has its parent's connections, and would take its answers; and its parent's files, and would write into them.
  Status CheckHome() const {
    return home.here() ? Status() : Status(Code::kInternal, "BLK44", "a forked child asks for its parent's blocks");
  }

  // A connection whose call_mutex is now held.
  Result<std::shared_ptr<LocalConnection>> Pick(std::unique_lock<std::mutex>* held) {
    RETURN_IF_ERROR(CheckHome());
    std::shared_ptr<LocalConnection> picked;
    {
      std::lock_guard lock(mutex);
      for (const auto& connection : connections) {
        *held = std::unique_lock(connection->call_mutex, std::try_to_lock);
        if (held->owns_lock()) return connection;
      }
      if (connections.size() >= kLocalConnections) picked = connections[turn++ % connections.size()];
    }
    if (picked == nullptr) {
      ASSIGN_OR_RETURN(picked, Connect());
    }
    *held = std::unique_lock(picked->call_mutex);
    return picked;
  }

  // Without an answer.
  void Tell(WireKind kind, std::string_view payload) {
    std::unique_lock<std::mutex> held;
    auto connection = Pick(&held);
    if (!connection.ok()) return;  // with the daemon, what it held for us is gone
    std::lock_guard lock((*connection)->send_mutex);
    (void)SendWireFrame((*connection)->fd.get(), kind, payload);
  }

  Result<WireFrame> Call(WireKind kind, std::string_view payload, int passed_fd, std::shared_ptr<LocalConnection>* used) {
    std::unique_lock<std::mutex> held;
    ASSIGN_OR_RETURN(std::shared_ptr<LocalConnection> connection, Pick(&held));
    auto exchange = [&]() -> Result<WireFrame> {
      {
        std::lock_guard lock(connection->send_mutex);
        RETURN_IF_ERROR(SendWireFrame(connection->fd.get(), kind, payload, passed_fd));
      }
      return ReceiveWireFrame(connection->fd.get(), kResponseBytesMax);
    };
    auto answer = exchange();
    if (!answer.ok()) {  // the answer may still come: this connection must not be used again, by nobody
      ::shutdown(connection->fd.get(), SHUT_RDWR);
      std::lock_guard lock(mutex);
      std::erase(connections, connection);
      return answer;
    }
    if (answer->kind == WireKind::kError) return DecodeStatus(answer->payload);
    if (answer->kind != WireKind::kOk) return Status(Code::kDataLoss, "BLK22", "an unknown answer about blocks");
    *used = std::move(connection);
    return answer;
  }

  Result<std::unique_ptr<dag::ExtentStream>> OpenLocal(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) {
    std::shared_ptr<LocalConnection> used;
    ASSIGN_OR_RETURN(WireFrame answer,
                     Call(WireKind::kOpenLocal, EncodeQuery({segment.producer, segment.segment, first, count, 0}), -1, &used));
    ASSIGN_OR_RETURN(Opened opened, DecodeOpened(answer.payload));
    auto lease = std::make_shared<LocalLease>(std::move(used), opened.lease, std::move(answer.fd));
    if (!lease->fd)
      return Status(Code::kResourceExhausted, "BLK13", "no descriptor for the segment of " + ToString(segment.producer),
                    "the process has as many open as it may", "raise the open files limit");
    return NewFileExtentStream(lease->fd.get(), lease, opened.entries, segment.producer, pool);
  }
};

// Builds a segment in a buffer and writes it to a memfd of the daemon's, which has made room before; where there is none left, to a file of
// the daemon's.
class RemoteBlocks::Writer final : public dag::SegmentWriter {
 public:
  Writer(Impl* impl, TaskAttempt producer, std::uint32_t parts, WireKind adopt)
      : impl_(impl),
        adopt_(adopt),
        reservation_(impl->next_reservation.fetch_add(1)),
        producer_(producer),
        index_(producer, impl->options.job, parts) {}
  ~Writer() override {
    file_.Close();
    if (reserved_ > 0) impl_->Tell(WireKind::kDrop, EncodeWords({impl_->memory->id(), reservation_}, 2));
  }

  Status Append(std::uint32_t part, std::span<const std::byte> bytes, std::uint64_t records) override {
    if (sealed_) return Status(Code::kInternal, "BLK03", "append to a sealed segment");
    std::uint64_t start = index_.data_bytes();
    RETURN_IF_ERROR(index_.Add(part, bytes, records));
    if (bytes.empty()) return {};
    if (buffer_.capacity() != 0 && bytes.data() == buffer_.data() + used_) {  // built in place
      if (used_ == 0) start_ = start;
      used_ += bytes.size();
      return {};
    }
    if (bytes.size() >= kDirectBytes || (buffer_.capacity() != 0 && used_ + bytes.size() > buffer_.capacity())) RETURN_IF_ERROR(Flush());
    if (bytes.size() >= kDirectBytes) {
      RETURN_IF_ERROR(impl_->CheckHome());
      RETURN_IF_ERROR(MakeRoom(start + bytes.size(), kStepBytesMin));
      RETURN_IF_ERROR(WriteExactly(file_.get(), start, bytes, kWhere));
      written_ = start + bytes.size();
      return {};
    }
    if (buffer_.capacity() == 0) buffer_ = impl_->pool.Get(kBuildBytes);
    if (used_ == 0) start_ = start;
    std::memcpy(buffer_.data() + used_, bytes.data(), bytes.size());
    used_ += bytes.size();
    return {};
  }

  char* Room(std::size_t bytes) override {
    if (sealed_ || bytes > kBuildBytes) return nullptr;
    if (buffer_.capacity() == 0) buffer_ = impl_->pool.Get(kBuildBytes);
    if (used_ + bytes > buffer_.capacity() && !Flush().ok()) return nullptr;  // what was not written stays: Append meets the error again
    return reinterpret_cast<char*>(buffer_.data() + used_);
  }

  Result<dag::SegmentInfo> Seal() override {
    if (sealed_) return Status(Code::kInternal, "BLK03", "a segment is sealed once");
    RETURN_IF_ERROR(impl_->CheckHome());
    sealed_ = true;
    SegmentIndex index = std::move(index_).Finish();
    RETURN_IF_ERROR(MakeRoom(index.file_bytes(), 0));  // its whole size is known now
    RETURN_IF_ERROR(Flush());
    RETURN_IF_ERROR(WriteExactly(file_.get(), index.data_bytes, AsBytes(index.Tail()), kWhere));
    // More was announced than it came to.
    if (::ftruncate(file_.get(), static_cast<off_t>(index.file_bytes())) != 0)
      return Status(Code::kUnavailable, "BLK06", "cannot cut a segment to its size", std::strerror(errno));
    if (!on_disk_ && ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
      return Status(Code::kUnavailable, "BLK06", "cannot seal a segment", std::strerror(errno));
    buffer_ = Buffer();
    std::shared_ptr<LocalConnection> used;
    reserved_ = 0;  // the daemon takes it over, or drops it
    ASSIGN_OR_RETURN(WireFrame answer, impl_->Call(adopt_, EncodeAdopt({producer_, impl_->memory->id(), reservation_}), -1, &used));
    ASSIGN_OR_RETURN(dag::SegmentInfo info, DecodeInfo(answer.payload));
    file_.Close();
    if (info != index.Info(info.segment))
      return Status(Code::kDataLoss, "BLK22", "the daemon read another segment of " + ToString(producer_) + " than was written");
    return info;
  }

 private:
  static constexpr char kWhere[] = "a new segment";
  static constexpr std::uint64_t kStepBytesMin = 4u << 20, kStepBytesMax = 16u << 20;

  // Room for `bytes` of the segment in all, and `step_bytes` more (growing with the segment) when any is needed, so that the daemon is not
  // asked for each buffer.
  Status MakeRoom(std::uint64_t bytes, std::uint64_t step_bytes) {
    if (on_disk_ || (file_ && bytes <= reserved_)) return {};
    if (step_bytes > 0) step_bytes = std::clamp(reserved_, step_bytes, kStepBytesMax);
    const std::uint64_t more = std::max(bytes - std::min(bytes, reserved_), step_bytes);
    std::shared_ptr<LocalConnection> used;
    ASSIGN_OR_RETURN(WireFrame answer,
                     impl_->Call(WireKind::kReserve, EncodeWords({impl_->memory->id(), reservation_, more}, 3), -1, &used));
    ASSIGN_OR_RETURN(MemoryWords words, DecodeWords(answer.payload, 1));
    reserved_ = std::max<std::uint64_t>(reserved_ + more, 1);
    if (words[0] == 0) return MoveTo(std::move(answer.fd));
    if (answer.fd) file_ = std::move(answer.fd);
    return file_ ? Status() : NoDescriptor();
  }

  Status NoDescriptor() const {
    return Status(Code::kResourceExhausted, "BLK13", "no descriptor for the segment of " + ToString(producer_),
                  "the process has as many open as it may", "raise the open files limit");
  }

  Status MoveTo(UniqueFd to) {
    if (!to) return NoDescriptor();
    if (file_) {
      Buffer piece = impl_->pool.Get(kDirectBytes);
      for (std::uint64_t at = 0; at < written_;) {
        std::span<std::byte> bytes(piece.data(), std::min<std::uint64_t>(kDirectBytes, written_ - at));
        RETURN_IF_ERROR(ReadExactly(file_.get(), at, bytes, producer_));
        RETURN_IF_ERROR(WriteExactly(to.get(), at, bytes, kWhere));
        at += bytes.size();
      }
      file_.Close();
      impl_->Tell(WireKind::kMoved, EncodeWords({impl_->memory->id(), reservation_}, 2));
    }
    file_ = std::move(to);
    on_disk_ = true;
    return {};
  }

  Status Flush() {
    if (used_ == 0) return {};
    RETURN_IF_ERROR(impl_->CheckHome());
    RETURN_IF_ERROR(MakeRoom(start_ + used_, kStepBytesMin));
    RETURN_IF_ERROR(WriteExactly(file_.get(), start_, {buffer_.data(), used_}, kWhere));
    written_ = start_ + used_;
    used_ = 0;
    return {};
  }

  Impl* const impl_;
  const WireKind adopt_;
  const std::uint64_t reservation_;
  const TaskAttempt producer_;
  IndexBuilder index_;
  UniqueFd file_;  // the memfd, or the daemon's file
  bool on_disk_ = false;
  Buffer buffer_;
  std::uint64_t start_ = 0, used_ = 0;  // of the buffer
  std::uint64_t written_ = 0;           // to file_
  std::uint64_t reserved_ = 0;          // 0: the daemon holds nothing for us
  bool sealed_ = false;
};

RemoteBlocks::RemoteBlocks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RemoteBlocks::~RemoteBlocks() = default;

Result<std::unique_ptr<RemoteBlocks>> RemoteBlocks::Connect(RemoteOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  ASSIGN_OR_RETURN(auto first, impl->Connect());
  ASSIGN_OR_RETURN(impl->memory, MemoryLink::Connect(impl->options));
  return std::unique_ptr<RemoteBlocks>(new RemoteBlocks(std::move(impl)));
}

Result<std::unique_ptr<dag::SegmentWriter>> RemoteBlocks::NewSegment(TaskAttempt producer, std::uint32_t parts) {
  return std::unique_ptr<dag::SegmentWriter>(std::make_unique<Writer>(impl_.get(), producer, parts, WireKind::kAdopt));
}

Result<std::unique_ptr<dag::SegmentWriter>> RemoteBlocks::NewDurableSegment(TaskAttempt producer, std::uint32_t parts) {
  return std::unique_ptr<dag::SegmentWriter>(std::make_unique<Writer>(impl_.get(), producer, parts, WireKind::kAdoptDurable));
}

TaskMemory& RemoteBlocks::memory() { return *impl_->memory; }

Result<std::unique_ptr<dag::ExtentStream>> RemoteBlocks::Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) {
  RETURN_IF_ERROR(impl_->CheckHome());
  if (segment.location.empty() || segment.location == impl_->options.data_address) return impl_->OpenLocal(segment, first, count);
  return impl_->fetcher.Open(segment, first, count);
}

}  // namespace ropewalk::blocks
