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

constexpr std::uint64_t kSegmentBytesMax = 1ull << 50;

// A segment that an executor is writing.
struct Held {
  std::mutex mutex;  // while its room grows, or it is adopted
  std::unique_ptr<Reservation> reservation;
};

// An executor's memory: what it borrows, and the segments that it is writing. Ends with its connection.
struct MemoryLink {
  explicit MemoryLink(JobId job, int fd) : job(job), fd(fd) {}
  const JobId job;
  const int fd;
  std::mutex mutex;
  bool ended = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<Held>> held;
  std::unique_ptr<MemoryBorrower> borrower;  // of the connection's thread

  // Never waits for the executor: one that does not read what it asked for is cut off.
  void Tell(WireKind kind, const MemoryWords& words, std::size_t count) {
    pollfd room{fd, POLLOUT, 0};
    bool sent = ::poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0 && SendWireFrame(fd, kind, EncodeWords(words, count)).ok();
    if (!sent) ::shutdown(fd, SHUT_RDWR);
  }
};

struct Connection {
  UniqueFd fd;         // closed by the acceptor after the thread has ended, so that shutdown() always meets the right socket
  bool local = false;  // Unix
  JobId job;           // after the proof
  bool over = false;   // its thread is done
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

  std::unordered_map<std::uint64_t, std::shared_ptr<MemoryLink>> links;  // under `mutex`

  // What ends with a connection.
  struct Leases {
    std::unordered_map<std::uint64_t, std::shared_ptr<const SegmentLease>> segments;
    std::uint64_t link_id = 0;
    std::shared_ptr<MemoryLink> link;
  };

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
    std::uint32_t unproven = 0;
    for (const Connection& other : connections) unproven += !other.job && !other.over ? 1 : 0;
    // Who connects and proves nothing must not keep out those who do.
    for (auto oldest = connections.begin(); unproven >= options.unproven_max && oldest != connections.end(); ++oldest) {
      if (oldest->job || oldest->over) continue;
      ::shutdown(oldest->fd.get(), SHUT_RDWR);
      ++refused_total;
      break;
    }
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
      at->over = true;
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
    Status status;
    while (status.ok()) {
      auto request = ReceiveWireFrame(fd, kRequestBytesMax, options.request_ms);
      status = request.ok() ? Handle(connection, *request, leases) : request.status();
    }
    if (leases.link != nullptr) EndLink(leases);
    return status;
  }

  // An error ends the connection; what the reader can be told goes out as an answer.
  Status Handle(Connection& connection, WireFrame& request, Leases& leases) {
    int fd = connection.fd.get();
    JobId job = connection.job;
    if (connection.local) {
      switch (request.kind) {
        case WireKind::kAdopt:
        case WireKind::kAdoptDurable:
          return Adopt(fd, job, request);
        case WireKind::kOpenLocal:
          return OpenLocal(fd, job, request, leases);
        case WireKind::kRelease: {
          std::uint64_t id = 0;
          if (request.payload.size() == sizeof id) std::memcpy(&id, request.payload.data(), sizeof id);
          leases.segments.erase(id);
          return {};
        }
        case WireKind::kReserve:
          return Reserve(fd, job, request);
        case WireKind::kMoved:
        case WireKind::kDrop:
          return EndReservation(job, request);
        case WireKind::kOpenMemory:
          return OpenMemory(fd, job, leases);
        default:
          if (leases.link != nullptr) return Borrow(*leases.link->borrower, request);
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
    return Status(Code::kInvalid, "BLK22", "an unknown request for blocks", "the peer is damaged or of another version",
                  "bring all workers to one version; run the job again");
  }

  static Status Answer(int fd, const Status& error) { return SendWireFrame(fd, WireKind::kError, EncodeStatus(error)); }

  Status Adopt(int fd, JobId job, WireFrame& request) {
    ASSIGN_OR_RETURN(AdoptRequest adopt, DecodeAdopt(request.payload));
    std::shared_ptr<Held> held;
    if (adopt.link != 0) {
      ASSIGN_OR_RETURN(std::shared_ptr<MemoryLink> link, FindLink(adopt.link, job));
      std::lock_guard lock(link->mutex);
      auto at = link->held.find(adopt.reservation);
      if (at == link->held.end()) return NoReservation();
      held = std::move(at->second);
      link->held.erase(at);
    }
    std::unique_lock<std::mutex> lock;
    if (held != nullptr) lock = std::unique_lock(held->mutex);
    auto info = store->Adopt(adopt.producer, job, request.fd.release(), held == nullptr ? nullptr : held->reservation.get(),
                             request.kind == WireKind::kAdoptDurable);
    if (!info.ok()) return Answer(fd, info.status());
    adopted_bytes_total += info->bytes;
    return SendWireFrame(fd, WireKind::kOk, EncodeInfo(*info));
  }

  // ---- memory
  static Status NoReservation() {
    return Status(Code::kInvalid, "BLK22", "a segment that was not announced, or whose link has ended",
                  "the peer is damaged or of another version", "bring all workers to one version; run the job again");
  }

  Result<std::shared_ptr<MemoryLink>> FindLink(std::uint64_t id, JobId job) {
    std::lock_guard lock(mutex);
    auto at = links.find(id);
    if (at == links.end() || at->second->job != job) return NoReservation();
    return at->second;
  }

  Status Reserve(int fd, JobId job, const WireFrame& request) {
    ASSIGN_OR_RETURN(MemoryWords words, DecodeWords(request.payload, 3));
    ASSIGN_OR_RETURN(std::shared_ptr<MemoryLink> link, FindLink(words[0], job));
    std::shared_ptr<Held> held;
    {
      std::lock_guard lock(link->mutex);
      if (link->ended) return NoReservation();
      std::shared_ptr<Held>& at = link->held[words[1]];
      if (at == nullptr) {
        if (link->held.size() > options.leases_of_connection_max) {
          link->held.erase(words[1]);
          return Answer(fd, Status(Code::kResourceExhausted, "BLK33", "too many segments are written at once",
                                   "each holds a descriptor of the worker", "run fewer tasks at a time"));
        }
        at = std::make_shared<Held>();
        at->reservation = store->Reserve(link->job);
      }
      held = at;
    }
    std::lock_guard lock(held->mutex);
    if (words[2] > kSegmentBytesMax)
      return Status(Code::kInvalid, "BLK22", "an impossible size of a segment", "the peer is damaged or of another version",
                    "bring all workers to one version; run the job again");
    const int before = held->reservation->fd();
    auto fits = held->reservation->Extend(words[2]);
    if (!fits.ok()) return Answer(fd, fits.status());
    const int now = held->reservation->fd();
    return SendWireFrame(fd, WireKind::kOk, EncodeWords({*fits ? 1u : 0u}, 1), now == before ? -1 : now);
  }

  Status EndReservation(JobId job, const WireFrame& request) {
    ASSIGN_OR_RETURN(MemoryWords words, DecodeWords(request.payload, 2));
    auto link = FindLink(words[0], job);
    if (!link.ok()) return {};  // it ended by itself
    std::shared_ptr<Held> held;
    {
      std::lock_guard lock((*link)->mutex);
      auto at = (*link)->held.find(words[1]);
      if (at == (*link)->held.end()) return {};
      held = at->second;
      if (request.kind == WireKind::kDrop) (*link)->held.erase(at);
    }
    std::lock_guard lock(held->mutex);
    if (request.kind == WireKind::kMoved) held->reservation->DropMemory();
    return {};
  }

  Status OpenMemory(int fd, JobId job, Leases& leases) {
    if (leases.link != nullptr)
      return Status(Code::kInvalid, "BLK22", "a second memory link on one connection", "the peer is damaged or of another version",
                    "bring all workers to one version; run the job again");
    SetTimeouts(fd, 0, options.send_ms);  // between tasks there is nothing to say
    auto link = std::make_shared<MemoryLink>(job, fd);
    MemoryLink* raw = link.get();  // the borrower ends before the link does
    link->borrower =
        store->NewBorrower({.granted = [raw](std::uint64_t id, std::uint64_t bytes) { raw->Tell(WireKind::kLent, {id, bytes}, 2); },
                            .ask_back = [raw] { raw->Tell(WireKind::kAskBack, {}, 0); }});
    leases.link = link;
    leases.link_id = next_lease++;
    {
      std::lock_guard lock(mutex);
      links.emplace(leases.link_id, std::move(link));
    }
    return SendWireFrame(fd, WireKind::kOk, EncodeWords({leases.link_id}, 1));
  }

  static Status Borrow(MemoryBorrower& borrower, const WireFrame& request) {
    if (request.kind == WireKind::kAsk) {
      ASSIGN_OR_RETURN(MemoryWords words, DecodeWords(request.payload, 2));
      return borrower.Ask(words[0], words[1]);
    }
    ASSIGN_OR_RETURN(MemoryWords words, DecodeWords(request.payload, 1));
    switch (request.kind) {
      case WireKind::kWithdraw:
        return borrower.Withdraw(words[0]), Status();
      case WireKind::kRest:
        return borrower.Rest(words[0]), Status();
      case WireKind::kLetGo:
        return borrower.LetGo(words[0]), Status();
      default:
        return Status(Code::kInvalid, "BLK22", "an unknown request about memory", "the peer is damaged or of another version",
                      "bring all workers to one version; run the job again");
    }
  }

  void EndLink(Leases& leases) {
    {
      std::lock_guard lock(mutex);
      links.erase(leases.link_id);
    }
    leases.link->borrower.reset();
    std::unordered_map<std::uint64_t, std::shared_ptr<Held>> held;
    std::lock_guard lock(leases.link->mutex);
    leases.link->ended = true;
    held.swap(leases.link->held);
  }

  Status OpenLocal(int fd, JobId job, const WireFrame& request, Leases& leases) {
    ASSIGN_OR_RETURN(SegmentQuery query, DecodeQuery(request.payload));
    if (leases.segments.size() >= options.leases_of_connection_max)
      return Answer(fd, Status(Code::kResourceExhausted, "BLK33", "too many segments are open at once",
                               "each holds a descriptor of the worker", "run fewer tasks at a time (--slots)"));
    auto lease = store->Lease(job, query.producer, query.segment);
    if (!lease.ok()) return Answer(fd, lease.status());
    if ((*lease)->fd() < 0) return Answer(fd, Status(Code::kInternal, "BLK34", "a segment of the daemon's own memory cannot be passed"));
    std::uint64_t id = next_lease++;
    std::string payload = EncodeOpened(id, 0, (*lease)->index().Range(query.first, query.count));
    int passed = (*lease)->fd();
    leases.segments.emplace(id, std::move(*lease));
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
      if (!inside)
        return Status(Code::kInvalid, "BLK22", "a range outside of its segment", "the peer is damaged or of another version",
                      "bring all workers to one version; run the job again");
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
