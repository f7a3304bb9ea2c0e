#include "mlrunner/collective/run/mesh.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/escape.h"
#include "base/monotonic.h"
#include "rpc/address.h"
#include "rpc/frame.h"

namespace ropewalk::collective {
namespace {

constexpr std::uint32_t kHelloMagic = 0x4c4c4548;  // "HELL"
constexpr std::uint16_t kMeshVersion = 3;
constexpr std::size_t kProofBytes = 32;
// Strangers that connect and say nothing: the oldest gives way.
constexpr std::size_t kStrangersMax = 64;

// Where a connection belongs. Sent before anything else; the proofs cover it.
struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint16_t version = kMeshVersion, unused = 0;
  std::uint32_t epoch = 0, from = 0, to = 0;
  std::uint32_t line = 0;  // 0: the link; 1 + channel
  char nonce[rpc::kNonceBytes] = {};
  std::string_view role() const { return {reinterpret_cast<const char*>(this), offsetof(Hello, nonce)}; }
};
static_assert(sizeof(Hello) == 40);
constexpr std::size_t kChallengeBytes = rpc::kNonceBytes + kProofBytes;

std::string Errno() { return std::strerror(errno); }

// `why` is what went wrong on the way to it.
Status Unreachable(std::int32_t rank, const Status& why) {
  return Status(Code::kUnavailable, "COLL31", "rank " + std::to_string(rank) + " cannot be reached",
                why.what() + (why.why().empty() ? "" : ": " + why.why()), why.fix());
}

// Until a descriptor is ready, the deadline is over, or somebody cancels.
struct Waiter {
  std::int32_t ms_max;
  std::int64_t deadline_ms;
  const MeshCancel& cancel;

  Status TimeIsOver() const {
    return Status(
        Code::kDeadlineExceeded, "COLL31", "time is over",
        "it did not answer within " + std::to_string(ms_max) + " ms of the gang's beginning",
        "see whether its process runs, and whether a firewall stands between the machines; where machines are slow to start, give "
        "more time (connect_ms_max)");
  }

  // kDeadlineExceeded at the deadline.
  Status Poll(std::vector<pollfd>* polls) const {
    polls->push_back({cancel.fd(), POLLIN, 0});
    for (;;) {
      if (cancel.is_set()) return cancel.why();
      const std::int64_t left = deadline_ms - MonotonicMs();
      if (left <= 0) return TimeIsOver();
      const int ready = poll(polls->data(), polls->size(), static_cast<int>(std::min<std::int64_t>(left, 1'000)));
      if (ready < 0 && errno != EINTR) return Status(Code::kInternal, "COLL31", "poll", Errno());
      if (ready > 0 && polls->back().revents == 0) break;
    }
    polls->pop_back();
    return {};
  }
  Status Poll(int fd, short events) const {
    std::vector<pollfd> polls{{fd, events, 0}};
    return Poll(&polls);
  }
};

// All of them; a fresh socket takes a hundred bytes at once, or is broken.
Status SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Status(Code::kUnavailable, "COLL31", "the connection broke", Errno());
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<std::string> ReceiveExactly(int fd, std::size_t bytes, const Waiter& waiter) {
  std::string got(bytes, '\0');
  for (std::size_t at = 0; at < bytes;) {
    RETURN_IF_ERROR(waiter.Poll(fd, POLLIN));
    const ssize_t n = recv(fd, got.data() + at, bytes - at, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return Status(Code::kUnavailable, "COLL31", "the connection broke", n == 0 ? "the peer closed it" : Errno());
    at += static_cast<std::size_t>(n);
  }
  return got;
}

// A socket's address in either family.
struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address UnixAddress(const std::string& name) {
  Address address;
  auto* un = reinterpret_cast<sockaddr_un*>(&address.storage);
  un->sun_family = AF_UNIX;
  std::memcpy(un->sun_path + 1, name.data(), std::min(name.size(), sizeof(un->sun_path) - 1));
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Address> TcpAddress(const std::string& numeric, std::uint16_t port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, numeric.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.bytes = sizeof(*v4);
  } else if (inet_pton(AF_INET6, numeric.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.bytes = sizeof(*v6);
  } else {
    return Status(Code::kInvalid, "COLL30", "\"" + EscapeForLog(numeric, 64) + "\" is no numeric address",
                  "peers connect to it as it stands: names are not looked up",
                  "give the address by which the other machines reach this one");
  }
  return address;
}

Result<UniqueFd> Listen(Address address, const std::string& shown) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || bind(fd.get(), address.get(), address.bytes) != 0 || listen(fd.get(), 1024) != 0)
    return Status(Code::kUnavailable, "COLL31", "listening on " + shown, Errno(), "give an address of this machine");
  return fd;
}

// What a rank says about itself over the rendezvous.
struct Place {
  std::string machine, address, unix_name, secret;
  std::uint16_t port = 0;
  Wire wire = Wire::kByMachine;
};

std::string Encode(const Place& place) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(kMeshVersion);
  writer.Fixed(static_cast<std::uint8_t>(place.wire));
  writer.Fixed(place.port);
  for (const std::string* part : {&place.machine, &place.address, &place.unix_name, &place.secret}) writer.Sized(*part);
  return bytes;
}

Result<Place> DecodePlace(std::string_view bytes, std::int32_t rank) {
  ByteReader reader(bytes);
  Place place;
  const auto version = reader.Fixed<std::uint16_t>();
  const auto wire = reader.Fixed<std::uint8_t>();
  place.port = reader.Fixed<std::uint16_t>();
  for (std::string* part : {&place.machine, &place.address, &place.unix_name, &place.secret}) *part = std::string(reader.Sized());
  if (!reader.ok() || !reader.empty() || wire > static_cast<std::uint8_t>(Wire::kTcp) || place.unix_name.size() > 100)
    return Status(Code::kInvalid, "COLL30", "what rank " + std::to_string(rank) + " said at the rendezvous cannot be read",
                  std::to_string(bytes.size()) + " bytes that are no place of a rank: it runs another program, or they are damaged",
                  "run one version on all ranks, and exchange nothing else at that moment");
  if (version != kMeshVersion)
    return Status(Code::kVersionSkew, "COLL23", "rank " + std::to_string(rank) + " is of version " + std::to_string(version),
                  "this rank is of version " + std::to_string(kMeshVersion) + ", and these do not understand each other",
                  "run one version on all ranks");
  place.wire = Wire{wire};
  return place;
}

void Tune(int fd, bool is_tcp) {
  if (!is_tcp) return;
  rpc::TuneSocket(fd);
  // A machine that vanishes without a word is noticed within 10 s, whether bytes are on their way or not.
  const auto set = [fd](int name, int value) { (void)setsockopt(fd, IPPROTO_TCP, name, &value, sizeof value); };
  set(TCP_KEEPIDLE, 3);
  set(TCP_KEEPINTVL, 2);
  set(TCP_KEEPCNT, 3);
  set(TCP_USER_TIMEOUT, 9'000);
}

// One rank's side of all handshakes.
class Builder {
 public:
  Builder(const Rendezvous& rendezvous, std::vector<Place> places, std::string secret, bool shares_memory, std::int32_t channels,
          Waiter waiter)
      : mine_(rendezvous),
        places_(std::move(places)),
        secret_(std::move(secret)),
        shares_memory_(shares_memory),
        lines_(1 + (shares_memory ? 0 : channels)),
        waiter_(waiter) {
    sockets_.resize(static_cast<std::size_t>(mine_.ranks) * lines_);
  }

  // To all lower ranks, one after the other: rank 0 only accepts, so each waits for one that comes to accept.
  Status ConnectToLower() {
    for (std::int32_t peer = 0; peer < mine_.rank; ++peer)
      for (std::int32_t line = 0; line < lines_; ++line) {
        Status status = ConnectOne(peer, line);
        if (status.ok()) continue;
        if (waiter_.cancel.is_set()) return status;
        return Unreachable(peer, status);
      }
    return {};
  }

  Status AcceptHigher(int listener) {
    auto missing = static_cast<std::size_t>(mine_.ranks - 1 - mine_.rank) * lines_;
    while (missing > 0) {
      std::vector<pollfd> polls{{listener, POLLIN, 0}};
      for (const Stranger& stranger : strangers_) polls.push_back({stranger.fd.get(), POLLIN, 0});
      if (Status status = waiter_.Poll(&polls); !status.ok()) return waiter_.cancel.is_set() ? status : Unreachable(FirstMissing(), status);
      for (std::size_t i = strangers_.size(); i-- > 0;) {
        if (polls[1 + i].revents == 0) continue;
        const Progress progress = Hear(&strangers_[i]);
        if (progress == Progress::kMore) continue;
        if (progress == Progress::kJoined) --missing;
        strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polls[0].revents == 0) continue;
      UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd || !IsOurUser(fd.get())) continue;
      Tune(fd.get(), !shares_memory_);
      if (strangers_.size() == kStrangersMax) strangers_.erase(strangers_.begin());
      strangers_.push_back({.fd = std::move(fd), .got = {}, .nonce = {}});
    }
    return {};
  }

  void MoveTo(Mesh* mesh) {
    mesh->links.resize(mine_.ranks);
    mesh->data.resize(static_cast<std::size_t>(mine_.ranks) * (lines_ - 1));
    for (std::int32_t peer = 0; peer < mine_.ranks; ++peer) {
      mesh->links[peer] = std::move(At(peer, 0));
      for (std::int32_t line = 1; line < lines_; ++line) mesh->data[peer * (lines_ - 1) + line - 1] = std::move(At(peer, line));
    }
  }

 private:
  struct Stranger {
    UniqueFd fd;
    std::string got, nonce;
  };
  enum class Progress : std::uint8_t { kMore, kJoined, kRefused };
  UniqueFd& At(std::int32_t peer, std::int32_t line) { return sockets_[peer * lines_ + line]; }

  std::int32_t FirstMissing() {
    for (std::int32_t peer = mine_.rank + 1; peer < mine_.ranks; ++peer)
      for (std::int32_t line = 0; line < lines_; ++line)
        if (!At(peer, line)) return peer;
    return mine_.rank;
  }

  // Shared memory is not for other users, whatever they know.
  bool IsOurUser(int fd) const {
    if (!shares_memory_) return true;
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
  }

  Status ConnectOne(std::int32_t peer, std::int32_t line) {
    const Place& place = places_[peer];
    Address address = UnixAddress(place.unix_name);
    if (!shares_memory_) {
      ASSIGN_OR_RETURN(address, TcpAddress(place.address, place.port));
    }
    UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Status(Code::kUnavailable, "COLL31", "socket", Errno());
    while (connect(fd.get(), address.get(), address.bytes) != 0) {
      if (errno == EINPROGRESS) {
        RETURN_IF_ERROR(waiter_.Poll(fd.get(), POLLOUT));
        int error = 0;
        socklen_t bytes = sizeof(error);
        if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0)
          return Status(Code::kUnavailable, "COLL31", "connect", std::strerror(error));
        break;
      }
      // A Unix socket whose queue is full says so at once.
      if (errno != EAGAIN && errno != EINTR) return Status(Code::kUnavailable, "COLL31", "connect", Errno());
      if (waiter_.cancel.is_set()) return waiter_.cancel.why();
      if (MonotonicMs() > waiter_.deadline_ms) return waiter_.TimeIsOver();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!IsOurUser(fd.get()))
      return Status(
          Code::kUnauthenticated, "COLL32", "the peer is another user's process",
          "ranks of one machine share memory, which only processes of one user may (this one's id is " + std::to_string(geteuid()) + ")",
          "run all ranks of a machine as one user, or give all of them the TCP wire");
    Tune(fd.get(), !shares_memory_);

    Hello hello{.epoch = mine_.epoch,
                .from = static_cast<std::uint32_t>(mine_.rank),
                .to = static_cast<std::uint32_t>(peer),
                .line = static_cast<std::uint32_t>(line)};
    const std::string nonce = rpc::NewNonce();
    std::memcpy(hello.nonce, nonce.data(), sizeof(hello.nonce));
    RETURN_IF_ERROR(SendAll(fd.get(), {reinterpret_cast<const char*>(&hello), sizeof(hello)}));
    ASSIGN_OR_RETURN(std::string challenge, ReceiveExactly(fd.get(), kChallengeBytes, waiter_));
    const std::string_view their_nonce = std::string_view(challenge).substr(0, rpc::kNonceBytes);
    const std::string expected = rpc::AuthProof(secret_, "accept", hello.role(), nonce, their_nonce);
    if (!rpc::EqualInConstantTime(std::string_view(challenge).substr(rpc::kNonceBytes), expected))
      return Status(Code::kUnauthenticated, "COLL32", "the peer does not know the secret",
                    "what listens there is no rank of this gang, or one of an earlier forming of it",
                    "see what else listens on the addresses that the ranks give, then run it again");
    RETURN_IF_ERROR(SendAll(fd.get(), rpc::AuthProof(secret_, "connect", hello.role(), nonce, their_nonce)));
    At(peer, line) = std::move(fd);
    return {};
  }

  // A stranger has said something, or closed.
  Progress Hear(Stranger* stranger) {
    char bytes[sizeof(Hello) + kProofBytes];
    const std::size_t wanted = stranger->nonce.empty() ? sizeof(Hello) : sizeof(Hello) + kProofBytes;
    const ssize_t n = recv(stranger->fd.get(), bytes, wanted - stranger->got.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::kMore;
    if (n <= 0) return Progress::kRefused;
    stranger->got.append(bytes, static_cast<std::size_t>(n));
    if (stranger->got.size() < wanted) return Progress::kMore;

    Hello hello;
    std::memcpy(static_cast<void*>(&hello), stranger->got.data(), sizeof(hello));
    const std::string_view nonce(hello.nonce, sizeof(hello.nonce));
    if (stranger->nonce.empty()) {
      if (hello.magic != kHelloMagic || hello.version != kMeshVersion || hello.epoch != mine_.epoch ||
          hello.to != static_cast<std::uint32_t>(mine_.rank) || hello.from <= hello.to ||
          hello.from >= static_cast<std::uint32_t>(mine_.ranks) || hello.line >= static_cast<std::uint32_t>(lines_))
        return Progress::kRefused;
      stranger->nonce = rpc::NewNonce();
      const std::string proof = rpc::AuthProof(secret_, "accept", hello.role(), nonce, stranger->nonce);
      return SendAll(stranger->fd.get(), stranger->nonce + proof).ok() ? Progress::kMore : Progress::kRefused;
    }
    const std::string expected = rpc::AuthProof(secret_, "connect", hello.role(), nonce, stranger->nonce);
    if (!rpc::EqualInConstantTime(std::string_view(stranger->got).substr(sizeof(Hello)), expected)) return Progress::kRefused;
    UniqueFd& place = At(static_cast<std::int32_t>(hello.from), static_cast<std::int32_t>(hello.line));
    if (place) return Progress::kRefused;
    place = std::move(stranger->fd);
    return Progress::kJoined;
  }

  const Rendezvous& mine_;
  const std::vector<Place> places_;
  const std::string secret_;
  const bool shares_memory_;
  const std::int32_t lines_;
  const Waiter waiter_;
  std::vector<UniqueFd> sockets_;  // [peer · lines + line]
  std::vector<Stranger> strangers_;
};

// A memory file and what it is.
struct Passed {
  std::uint64_t bytes = 0;
  std::uint32_t is_board = 0, unused = 0;
};

Status PassMemory(int link, const SharedMemory& memory, bool is_board) {
  Passed passed{.bytes = memory.bytes(), .is_board = is_board};
  iovec part{&passed, sizeof(passed)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = memory.fd();
  std::memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  ssize_t n;
  do n = sendmsg(link, &message, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof(passed))) return Status(Code::kUnavailable, "COLL31", "passing shared memory", Errno());
  return {};
}

Result<SharedMemory> TakeMemory(int link, bool is_board, std::size_t bytes, const Waiter& waiter) {
  Passed passed;
  iovec part{&passed, sizeof(passed)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  RETURN_IF_ERROR(waiter.Poll(link, POLLIN));
  const ssize_t n = recvmsg(link, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  int fd = -1;
  for (cmsghdr* c = n < 0 ? nullptr : CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c))
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) std::memcpy(&fd, CMSG_DATA(c), sizeof(fd));
  UniqueFd owned(fd);
  if (n != static_cast<ssize_t>(sizeof(passed)) || !owned || (passed.is_board != 0) != is_board)
    return Status(Code::kUnavailable, "COLL31", "taking shared memory", n < 0 ? Errno() : "the peer ended, or sent something else");
  if (passed.bytes != bytes)
    return Status(Code::kInvalid, "COLL30",
                  "shared memory of " + std::to_string(passed.bytes) + " bytes instead of " + std::to_string(bytes),
                  "each rank maps the memory of all, and takes theirs to be as long as its own",
                  "give all ranks the same options (pool_bytes), and run one version on all");
  return SharedMemory::Open(owned.release(), bytes);
}

Status ShareMemory(const Rendezvous& mine, const CommunicatorOptions& options, std::int32_t channels, const Waiter& waiter, Mesh* mesh) {
  const std::size_t board_bytes = Board::BytesFor(mine.ranks, channels);
  mesh->pools.resize(mine.ranks);
  ASSIGN_OR_RETURN(mesh->pools[mine.rank], SharedMemory::Create(options.pool_bytes));
  if (mine.rank == 0) {
    ASSIGN_OR_RETURN(mesh->board, SharedMemory::Create(board_bytes));
  }
  for (std::int32_t peer = 0; peer < mine.ranks; ++peer) {
    if (peer == mine.rank) continue;
    Status status = mine.rank == 0 ? PassMemory(mesh->links[peer].get(), mesh->board, true) : Status();
    if (status.ok()) status = PassMemory(mesh->links[peer].get(), mesh->pools[mine.rank], false);
    if (!status.ok()) return Unreachable(peer, status);
  }
  for (std::int32_t peer = 0; peer < mine.ranks; ++peer) {
    if (peer == mine.rank) continue;
    auto take = [&](bool is_board, std::size_t bytes, SharedMemory* out) -> Status {
      auto taken = TakeMemory(mesh->links[peer].get(), is_board, bytes, waiter);
      if (taken.ok())
        *out = *std::move(taken);
      else if (!waiter.cancel.is_set() && taken.status().code() != Code::kInvalid)
        return Unreachable(peer, taken.status());
      return taken.ok() ? Status() : taken.status();
    };
    if (peer == 0) RETURN_IF_ERROR(take(true, board_bytes, &mesh->board));
    RETURN_IF_ERROR(take(false, options.pool_bytes, &mesh->pools[peer]));
  }
  return {};
}

// What is left to do once the ranks know of each other.
Result<Mesh> Met(const MeshListener& listener, const std::vector<std::string>& said, const Rendezvous& rendezvous,
                 const CommunicatorOptions& options, std::int32_t channels, const Waiter& waiter) {
  if (said.size() != static_cast<std::size_t>(rendezvous.ranks))
    return Status(Code::kInvalid, "COLL30",
                  "the rendezvous gave the words of " + std::to_string(said.size()) + " ranks, not of " + std::to_string(rendezvous.ranks),
                  "its `exchange` must return what every rank said, this one's own words too, in the order of ranks",
                  "mend it, or take the rendezvous from the gang: RendezvousOf(gang)");
  Mesh mesh;
  std::vector<Place> places;
  std::string secret;
  std::map<std::string, std::vector<std::int32_t>> machines;  // their ranks
  bool wants_tcp = false, wants_shared = false;
  for (std::int32_t rank = 0; rank < rendezvous.ranks; ++rank) {
    ASSIGN_OR_RETURN(Place place, DecodePlace(said[rank], rank));
    secret += place.secret;
    machines[place.machine].push_back(rank);
    mesh.hosts.push_back(HostOf(place.machine, place.address));
    mesh.machines.push_back(place.machine);
    wants_tcp = wants_tcp || place.wire == Wire::kTcp;
    wants_shared = wants_shared || place.wire == Wire::kShared;
    places.push_back(std::move(place));
  }
  if (wants_shared && (machines.size() > 1 || wants_tcp))
    return Status(Code::kInvalid, "COLL30", "shared memory is asked for, but " + std::string(wants_tcp ? "not by all" : "machines differ"),
                  wants_tcp ? "other ranks ask for TCP, and all speak by one wire"
                            : "the ranks are on " + std::to_string(machines.size()) + " machines, which share none",
                  wants_tcp ? "give all ranks the same wire, or none (kByMachine)"
                            : "give no wire (kByMachine): then TCP is taken, or place the gang on one machine");

  if (!rendezvous.secret.empty()) secret = rpc::AuthProof(rendezvous.secret, "group", secret, "", "");

  mesh.shares_memory = machines.size() == 1 && !wants_tcp;
  mesh.secret = secret;
  const std::string name = rpc::AuthProof(secret, "name", "", "", "");
  std::memcpy(&mesh.name, name.data(), sizeof(mesh.name));
  mesh.nodes.resize(rendezvous.ranks);
  std::int32_t node = 0;
  for (const auto& [machine, ranks] : machines) {
    mesh.ranks_on_machine_max = std::max(mesh.ranks_on_machine_max, static_cast<std::int32_t>(ranks.size()));
    for (std::int32_t rank : ranks) mesh.nodes[rank] = node;
    ++node;
  }
  Builder builder(rendezvous, std::move(places), std::move(secret), mesh.shares_memory, channels, waiter);
  Status status = builder.ConnectToLower();
  if (status.ok()) status = builder.AcceptHigher(mesh.shares_memory ? listener.on_unix.get() : listener.on_tcp.get());
  if (status.ok()) {
    builder.MoveTo(&mesh);
    if (mesh.shares_memory) status = ShareMemory(rendezvous, options, channels, waiter, &mesh);
  }
  // What ends it from outside has names of its own for ranks.
  if (!status.ok()) return waiter.cancel.is_set() ? status : WithHosts(status, mesh.hosts);
  return mesh;
}

}  // namespace

MeshCancel::MeshCancel() : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void MeshCancel::Set(const Status& why) {
  why_.Set(why);
  const std::uint64_t one = 1;
  // Only a counter that is full already refuses, and that rings, too.
  (void)!write(bell_.get(), &one, sizeof(one));
}

Result<MeshListener> ListenForMesh(const std::string& machine, const std::string& address, Wire wire) {
  MeshListener listener;
  Place mine{.machine = machine,
             .address = address,
             .unix_name = "ropewalk-" + HexString(rpc::NewNonce()),
             .secret = rpc::NewNonce(),
             .wire = wire};
  ASSIGN_OR_RETURN(listener.on_unix, Listen(UnixAddress(mine.unix_name), "a Unix socket"));
  if (wire != Wire::kShared) {
    ASSIGN_OR_RETURN(Address numeric, TcpAddress(address, 0));
    ASSIGN_OR_RETURN(listener.on_tcp, Listen(numeric, address));
    if (getsockname(listener.on_tcp.get(), numeric.get(), &numeric.bytes) != 0)
      return Status(Code::kInternal, "COLL31", "getsockname", Errno());
    // The port lies at the same place in both families.
    mine.port = ntohs(reinterpret_cast<sockaddr_in*>(&numeric.storage)->sin_port);
  }
  listener.word = Encode(mine);
  return listener;
}

Result<Mesh> ConnectMesh(const MeshListener& listener, const std::vector<std::string>& words, const Rendezvous& rendezvous,
                         const CommunicatorOptions& options, std::int32_t channels, const MeshCancel& cancel) {
  const Waiter waiter{options.connect_ms_max, MonotonicMs() + options.connect_ms_max, cancel};
  return Met(listener, words, rendezvous, options, channels, waiter);
}

Result<Mesh> ConnectMesh(const Rendezvous& rendezvous, const CommunicatorOptions& options, std::int32_t channels,
                         const MeshCancel& cancel) {
  if (rendezvous.ranks < 1 || rendezvous.rank < 0 || rendezvous.rank >= rendezvous.ranks || !rendezvous.exchange)
    return Status(
        Code::kInvalid, "COLL30",
        "rank " + std::to_string(rendezvous.rank) + " of " + std::to_string(rendezvous.ranks) + " is no place in a gang",
        rendezvous.exchange ? "ranks count from 0 to ranks - 1" : "there is no function by which the ranks find each other (exchange)",
        "take the rendezvous from the gang: RendezvousOf(gang)");
  const Waiter waiter{options.connect_ms_max, MonotonicMs() + options.connect_ms_max, cancel};
  ASSIGN_OR_RETURN(MeshListener listener, ListenForMesh(rendezvous.machine, rendezvous.address, options.wire));
  ASSIGN_OR_RETURN(std::vector<std::string> said, rendezvous.exchange(listener.word));
  return Met(listener, said, rendezvous, options, channels, waiter);
}

}  // namespace ropewalk::collective
