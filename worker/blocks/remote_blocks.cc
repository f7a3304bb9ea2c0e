#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/fetcher.h"
#include "worker/blocks/file_extents.h"
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
};

struct LocalLease {
  const std::shared_ptr<LocalConnection> connection;
  const std::uint64_t id;
  const UniqueFd fd;
  LocalLease(std::shared_ptr<LocalConnection> by, std::uint64_t id, UniqueFd fd) : connection(std::move(by)), id(id), fd(std::move(fd)) {}
  ~LocalLease() {
    std::lock_guard lock(connection->send_mutex);
    // A daemon that is gone holds no lease: nothing to do about an error.
    (void)SendWireFrame(connection->fd.get(), WireKind::kRelease, {reinterpret_cast<const char*>(&id), sizeof id});
  }
};

Result<UniqueFd> ConnectUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return Status(Code::kInvalid, "BLK30", "the block service's path is too long", path);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Status(Code::kUnavailable, "BLK43", "cannot reach this worker's block service at " + path, std::strerror(errno),
                  "is the worker daemon still running?");
  SetTimeouts(fd.get(), kLocalAnswerMs, kLocalAnswerMs);
  return fd;
}

}  // namespace

struct RemoteBlocks::Impl {
  Impl(RemoteOptions given) : options(std::move(given)), fetcher(options, pool) {}

  const RemoteOptions options;
  BufferPool pool;
  std::mutex mutex;
  std::vector<std::shared_ptr<LocalConnection>> connections;
  std::size_t turn = 0;
  Fetcher fetcher;

  Result<std::shared_ptr<LocalConnection>> Connect() {
    auto connection = std::make_shared<LocalConnection>();
    ASSIGN_OR_RETURN(connection->fd, ConnectUnix(options.unix_path));
    RETURN_IF_ERROR(ProveToken(connection->fd.get(), options.job, options.token));
    std::lock_guard lock(mutex);
    connections.push_back(connection);
    return connection;
  }

  // A connection whose call_mutex is now held.
  Result<std::shared_ptr<LocalConnection>> Pick(std::unique_lock<std::mutex>* held) {
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
      return Status(Code::kResourceExhausted, "BLK13", "no descriptor for the segment of " + ToString(segment.producer), "",
                    "raise the open files limit");
    return NewFileExtentStream(lease->fd.get(), lease, opened.entries, segment.producer, pool);
  }
};

namespace {

class RemoteWriter final : public dag::SegmentWriter {
 public:
  using Adopt = std::function<Result<dag::SegmentInfo>(const TaskAttempt&, int memfd)>;
  RemoteWriter(TaskAttempt producer, JobId job, std::uint32_t parts, BufferPool pool, Adopt adopt)
      : producer_(producer), index_(producer, job, parts), pool_(std::move(pool)), adopt_(std::move(adopt)) {}

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
      RETURN_IF_ERROR(OpenFile());
      return WriteExactly(file_.get(), start, bytes, kWhere);
    }
    if (buffer_.capacity() == 0) buffer_ = pool_.Get(kBuildBytes);
    if (used_ == 0) start_ = start;
    std::memcpy(buffer_.data() + used_, bytes.data(), bytes.size());
    used_ += bytes.size();
    return {};
  }

  char* Room(std::size_t bytes) override {
    if (sealed_ || bytes > kBuildBytes) return nullptr;
    if (buffer_.capacity() == 0) buffer_ = pool_.Get(kBuildBytes);
    if (used_ + bytes > buffer_.capacity() && !Flush().ok()) return nullptr;  // what was not written stays: Append meets the error again
    return reinterpret_cast<char*>(buffer_.data() + used_);
  }

  Result<dag::SegmentInfo> Seal() override {
    if (sealed_) return Status(Code::kInternal, "BLK03", "a segment is sealed once");
    sealed_ = true;
    RETURN_IF_ERROR(OpenFile());
    RETURN_IF_ERROR(Flush());
    SegmentIndex index = std::move(index_).Finish();
    RETURN_IF_ERROR(WriteExactly(file_.get(), index.data_bytes, AsBytes(index.Tail()), kWhere));
    if (::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
      return Status(Code::kUnavailable, "BLK06", "cannot seal a segment", std::strerror(errno));
    buffer_ = Buffer();
    ASSIGN_OR_RETURN(dag::SegmentInfo info, adopt_(producer_, file_.get()));
    file_.Close();
    if (info != index.Info(info.segment))
      return Status(Code::kDataLoss, "BLK22", "the daemon read another segment of " + ToString(producer_) + " than was written");
    return info;
  }

 private:
  static constexpr char kWhere[] = "shared memory (memfd)";

  Status OpenFile() {
    if (file_) return {};
    file_ = UniqueFd(::memfd_create("ropewalk-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (file_) return {};
    return Status(Code::kResourceExhausted, "BLK05", "cannot create a segment in shared memory", std::strerror(errno),
                  "give more memory or raise the open files limit");
  }

  Status Flush() {
    if (used_ == 0) return {};
    RETURN_IF_ERROR(OpenFile());
    RETURN_IF_ERROR(WriteExactly(file_.get(), start_, {buffer_.data(), used_}, kWhere));
    used_ = 0;
    return {};
  }

  const TaskAttempt producer_;
  IndexBuilder index_;
  BufferPool pool_;
  const Adopt adopt_;
  UniqueFd file_;
  Buffer buffer_;
  std::uint64_t start_ = 0, used_ = 0;
  bool sealed_ = false;
};

}  // namespace

RemoteBlocks::RemoteBlocks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RemoteBlocks::~RemoteBlocks() = default;

Result<std::unique_ptr<RemoteBlocks>> RemoteBlocks::Connect(RemoteOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  ASSIGN_OR_RETURN(auto first, impl->Connect());
  return std::unique_ptr<RemoteBlocks>(new RemoteBlocks(std::move(impl)));
}

Result<std::unique_ptr<dag::SegmentWriter>> RemoteBlocks::NewSegment(TaskAttempt producer, std::uint32_t parts) {
  return std::unique_ptr<dag::SegmentWriter>(std::make_unique<RemoteWriter>(
      producer, impl_->options.job, parts, impl_->pool,
      [impl = impl_.get()](const TaskAttempt& made_by, int memfd) -> Result<dag::SegmentInfo> {
        std::shared_ptr<LocalConnection> used;
        ASSIGN_OR_RETURN(WireFrame answer, impl->Call(WireKind::kAdopt, EncodeProducer(made_by), memfd, &used));
        return DecodeInfo(answer.payload);
      }));
}

Result<std::unique_ptr<dag::ExtentStream>> RemoteBlocks::Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) {
  if (segment.location.empty() || segment.location == impl_->options.data_address) return impl_->OpenLocal(segment, first, count);
  return impl_->fetcher.Open(segment, first, count);
}

}  // namespace ropewalk::blocks
