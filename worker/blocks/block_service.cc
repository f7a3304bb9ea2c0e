#include "worker/blocks/block_service.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "rpc/address.h"
#include "worker/blocks/wire.h"

namespace ropewalk::blocks {
namespace {

struct Connection {
  UniqueFd fd;         // closed by the acceptor after the thread has ended, so that shutdown() always meets the right socket
  bool local = false;  // Unix
  JobId job;           // after the proof
  std::thread thread;
};

Status CannotListen(Code code, const std::string& where, const std::string& why) {
  return Status(code, code == Code::kInvalid ? "BLK30" : "BLK31", "cannot serve blocks at " + where, why,
                code == Code::kInvalid ? "name a loopback address and a short state folder" : "choose another address");
}

Result<UniqueFd> ListenUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return CannotListen(Code::kInvalid, path, "a Unix socket's path has 1 to " + std::to_string(sizeof address.sun_path - 1) + " bytes");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ::unlink(path.c_str());
  // The mode is set before the name exists: nobody can connect in between.
  if (!fd || ::fchmod(fd.get(), 0600) != 0 || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), 128) != 0)
    return CannotListen(Code::kUnavailable, path, std::strerror(errno));
  return fd;
}

Result<UniqueFd> ListenTcp(const std::string& where, std::string* bound) {
  ASSIGN_OR_RETURN(std::vector<rpc::SocketAddress> candidates, rpc::ResolveAddress(where));
  std::string why = "the name has no address";
  for (const rpc::SocketAddress& candidate : candidates) {
    if (!candidate.is_loopback()) return CannotListen(Code::kInvalid, where, "it is not a loopback address, and there is no TLS yet");
    UniqueFd fd(::socket(candidate.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int one = 1;
    if (fd) (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);  // else a restart waits for old connections
    if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&candidate.storage), candidate.size) != 0 ||
        ::listen(fd.get(), 256) != 0) {
      why = std::strerror(errno);
      continue;
    }
    rpc::SocketAddress own;
    own.size = sizeof own.storage;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0)
      return CannotListen(Code::kUnavailable, where, std::strerror(errno));
    *bound = rpc::ToString(own.host_port());
    return fd;
  }
  return CannotListen(Code::kUnavailable, where, why);
}

}  // namespace

struct BlockService::Impl {
  ServiceOptions options;
  BlockStore* store = nullptr;
  UniqueFd unix_listener, tcp_listener, wake;
  std::string data_address;

  mutable std::mutex mutex;
  std::unordered_map<JobId, std::string> tokens;
  std::list<Connection> connections;
  std::vector<std::list<Connection>::iterator> ended;  // to be joined by the acceptor
  bool stopping = false;
  std::uint64_t refused_total = 0;
  std::atomic<std::uint64_t> served_bytes_total{0}, adopted_bytes_total{0};
  std::thread acceptor;

  using Leases = std::unordered_map<std::uint64_t, std::shared_ptr<const SegmentLease>>;

  void Wake() {
    std::uint64_t one = 1;
    while (::write(wake.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  // ---- the acceptor's thread
  void Accept() {
    pollfd watched[3] = {{wake.get(), POLLIN, 0}, {unix_listener.get(), POLLIN, 0}, {tcp_listener.get(), POLLIN, 0}};
    while (true) {
      if (::poll(watched, 3, -1) < 0 && errno != EINTR) PLOG(FATAL) << "poll of the block service";
      if (watched[0].revents != 0) {
        std::uint64_t count;
        (void)!::read(wake.get(), &count, sizeof count);  // only empties it
        JoinEnded();
        std::lock_guard lock(mutex);
        if (stopping) return;
      }
      for (int i : {1, 2}) {
        if (watched[i].revents != 0 && !AcceptOne(watched[i].fd, i == 1)) {
          // Out of descriptors: the peer waits in the backlog until one is free or we are stopped.
          pollfd pause{wake.get(), POLLIN, 0};
          ::poll(&pause, 1, 100);
        }
      }
    }
  }

  bool AcceptOne(int listener, bool local) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
    if (!local) rpc::TuneSocket(fd.get());
    std::lock_guard lock(mutex);
    if (stopping || connections.size() >= options.connections_max) {
      ++refused_total;
      return true;
    }
    auto at = connections.emplace(connections.end());
    at->fd = std::move(fd);
    at->local = local;
    try {
      at->thread = std::thread([this, at] { Serve(at); });
    } catch (const std::exception& e) {
      LOG(WARNING) << "no thread for a reader of blocks: " << e.what();
      connections.erase(at);
    }
    return true;
  }

  void JoinEnded() {
    std::list<Connection> dead;
    {
      std::lock_guard lock(mutex);
      for (auto at : ended) dead.splice(dead.end(), connections, at);
      ended.clear();
    }
    for (Connection& connection : dead) connection.thread.join();
  }

  // ---- a connection's thread
  void Serve(std::list<Connection>::iterator at) {
    // sendfile has no MSG_NOSIGNAL: a reader that hangs up must not end the process.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    try {
      Status status = Converse(*at);
      if (status.code() == Code::kUnauthenticated) {
        std::lock_guard lock(mutex);
        ++refused_total;
      }
    } catch (const std::exception& e) {
      LOG(WARNING) << "a reader of blocks is cut off: " << e.what();
    }
    ::shutdown(at->fd.get(), SHUT_RDWR);
    {
      std::lock_guard lock(mutex);
      ended.push_back(at);
    }
    Wake();
  }

  Status Converse(Connection& connection) {
    int fd = connection.fd.get();
    SetTimeouts(fd, options.handshake_ms, options.send_ms);
    ASSIGN_OR_RETURN(JobId job, CheckToken(fd, options.handshake_ms, [this](JobId asked) {
                       std::lock_guard lock(mutex);
                       auto at = tokens.find(asked);
                       return at == tokens.end() ? std::string() : at->second;
                     }));
    {
      std::lock_guard lock(mutex);
      std::uint32_t of_job = 0;
      for (const Connection& other : connections) of_job += other.job == job ? 1 : 0;
      if (tokens.count(job) == 0 || of_job >= options.connections_of_job_max)
        return Status(Code::kUnavailable, "BLK32", "too many connections of one job");
      connection.job = job;
    }
    SetTimeouts(fd, options.idle_ms, options.send_ms);
    Leases leases;
    while (true) {
      ASSIGN_OR_RETURN(WireFrame request, ReceiveWireFrame(fd, kRequestBytesMax, options.request_ms));
      RETURN_IF_ERROR(Handle(connection, request, leases));
    }
  }

  // An error ends the connection; what the reader can be told goes out as an answer.
  Status Handle(Connection& connection, WireFrame& request, Leases& leases) {
    int fd = connection.fd.get();
    JobId job = connection.job;
    if (connection.local) {
      switch (request.kind) {
        case WireKind::kAdopt:
          return Adopt(fd, job, request);
        case WireKind::kOpenLocal:
          return OpenLocal(fd, job, request, leases);
        case WireKind::kRelease: {
          std::uint64_t id = 0;
          if (request.payload.size() == sizeof id) std::memcpy(&id, request.payload.data(), sizeof id);
          leases.erase(id);
          return {};
        }
        default:
          break;
      }
    } else {
      switch (request.kind) {
        case WireKind::kOpenRemote:
          return OpenRemote(fd, job, request);
        case WireKind::kRead:
          return Read(fd, job, request);
        default:
          break;
      }
    }
    return Status(Code::kInvalid, "BLK22", "an unknown request for blocks");
  }

  static Status Answer(int fd, const Status& error) { return SendWireFrame(fd, WireKind::kError, EncodeStatus(error)); }

  Status Adopt(int fd, JobId job, WireFrame& request) {
    auto producer = DecodeProducer(request.payload);
    if (!producer.ok()) return producer.status();
    auto info = store->Adopt(*producer, job, request.fd.release());
    if (!info.ok()) return Answer(fd, info.status());
    adopted_bytes_total += info->bytes;
    return SendWireFrame(fd, WireKind::kOk, EncodeInfo(*info));
  }

  Status OpenLocal(int fd, JobId job, const WireFrame& request, Leases& leases) {
    ASSIGN_OR_RETURN(SegmentQuery query, DecodeQuery(request.payload));
    if (leases.size() >= options.leases_of_connection_max)
      return Answer(fd, Status(Code::kResourceExhausted, "BLK33", "too many segments are open at once", "", "open fewer streams"));
    auto lease = store->Lease(job, query.producer, query.segment);
    if (!lease.ok()) return Answer(fd, lease.status());
    if ((*lease)->fd() < 0) return Answer(fd, Status(Code::kInternal, "BLK34", "a segment of the daemon's own memory cannot be passed"));
    std::uint64_t id = next_lease++;
    std::string payload = EncodeOpened(id, 0, (*lease)->index().Range(query.first, query.count));
    int passed = (*lease)->fd();
    leases.emplace(id, std::move(*lease));
    return SendWireFrame(fd, WireKind::kOk, payload, passed);
  }

  Status OpenRemote(int fd, JobId job, const WireFrame& request) {
    ASSIGN_OR_RETURN(SegmentQuery query, DecodeQuery(request.payload));
    auto lease = store->Lease(job, query.producer, query.segment);
    if (!lease.ok()) return Answer(fd, lease.status());
    std::span<const ExtentEntry> entries = (*lease)->index().Range(query.first, query.count);
    std::size_t first = query.window_bytes == 0 ? 0 : GatherLength(entries, 0, query.window_bytes);
    std::uint64_t data_bytes = 0;
    std::vector<ByteRange> ranges;
    for (const ExtentEntry& entry : entries.first(first)) {
      data_bytes += entry.length;
      ranges.push_back({entry.offset, entry.length});
    }
    RETURN_IF_ERROR(SendWireFrame(fd, WireKind::kOk, EncodeOpened(0, data_bytes, entries), -1, data_bytes > 0));
    return SendRanges(fd, job, query.segment, **lease, ranges);
  }

  Status Read(int fd, JobId job, const WireFrame& request) {
    ASSIGN_OR_RETURN(ReadRequest read, DecodeRead(request.payload));
    auto lease = store->Lease(job, read.producer, read.segment);
    if (!lease.ok()) return Answer(fd, lease.status());
    const SegmentIndex& index = (*lease)->index();
    for (const ByteRange& range : read.ranges) {
      bool inside = range.offset <= index.data_bytes && range.length <= index.data_bytes - range.offset;
      if (inside && (*lease)->fd() < 0)  // memory gives whole extents only
        inside = std::any_of(index.entries.begin(), index.entries.end(),
                             [&](const ExtentEntry& entry) { return entry.offset == range.offset && entry.length == range.length; });
      if (!inside) return Status(Code::kInvalid, "BLK22", "a range outside of its segment");
    }
    bool any = std::any_of(read.ranges.begin(), read.ranges.end(), [](const ByteRange& range) { return range.length > 0; });
    RETURN_IF_ERROR(SendWireFrame(fd, WireKind::kOk, {}, -1, any));
    return SendRanges(fd, job, read.segment, **lease, read.ranges);
  }

  Status SendRanges(int fd, JobId job, SegmentId segment, const SegmentLease& lease, std::span<const ByteRange> ranges) {
    // Empty ones at the end are dropped: after them nothing would follow the "more" of the last byte.
    while (!ranges.empty() && ranges.back().length == 0) ranges = ranges.first(ranges.size() - 1);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const ByteRange& range = ranges[i];
      served_bytes_total += range.length;
      if (lease.fd() < 0) {
        RETURN_IF_ERROR(SendBytes(fd, AsView(lease.Memory(range.offset, range.length)), i + 1 < ranges.size()));
        continue;
      }
      off_t at = static_cast<off_t>(range.offset);
      std::uint64_t left = range.length;
      while (left > 0) {
        ssize_t n = ::sendfile(fd, lease.fd(), &at, std::min<std::uint64_t>(left, 1u << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0 || (n < 0 && errno == EIO)) {
          LOG(WARNING) << "the segment of " << ToString(lease.index().producer) << " cannot be read (any more)";
          store->ReportLost(job, lease.index().producer, segment);
        }
        if (n <= 0)
          return Status(Code::kUnavailable, "BLK20", "the connection for blocks ended", n < 0 ? std::strerror(errno) : "short file");
        left -= static_cast<std::uint64_t>(n);
      }
    }
    return {};
  }

  std::atomic<std::uint64_t> next_lease{1};
};

BlockService::BlockService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<BlockService>> BlockService::Start(ServiceOptions options, BlockStore* store) {
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->unix_listener, ListenUnix(options.unix_path));
  ASSIGN_OR_RETURN(impl->tcp_listener, ListenTcp(options.listen_address, &impl->data_address));
  impl->wake = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!impl->wake) return CannotListen(Code::kUnavailable, options.listen_address, std::strerror(errno));
  impl->options = std::move(options);
  impl->store = store;
  impl->acceptor = std::thread([raw = impl.get()] { raw->Accept(); });
  return std::unique_ptr<BlockService>(new BlockService(std::move(impl)));
}

BlockService::~BlockService() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    for (Connection& connection : impl_->connections) ::shutdown(connection.fd.get(), SHUT_RDWR);
  }
  impl_->Wake();
  impl_->acceptor.join();
  for (Connection& connection : impl_->connections) connection.thread.join();
  ::unlink(impl_->options.unix_path.c_str());
}

std::string BlockService::data_address() const { return impl_->data_address; }

void BlockService::AllowJob(JobId job, std::string token) {
  std::lock_guard lock(impl_->mutex);
  impl_->tokens[job] = std::move(token);
}

void BlockService::ForgetJob(JobId job) {
  std::lock_guard lock(impl_->mutex);
  impl_->tokens.erase(job);
  for (Connection& connection : impl_->connections)
    if (connection.job == job) ::shutdown(connection.fd.get(), SHUT_RDWR);
}

ServiceStats BlockService::stats() const {
  std::lock_guard lock(impl_->mutex);
  return {.connections = impl_->connections.size() - impl_->ended.size(),
          .refused_total = impl_->refused_total,
          .served_bytes_total = impl_->served_bytes_total,
          .adopted_bytes_total = impl_->adopted_bytes_total};
}

}  // namespace ropewalk::blocks
