#include "rpc/server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <glog/logging.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "rpc/address.h"
#include "rpc/asio_loop.h"
#include "rpc/frame.h"

namespace ropewalk::rpc {
namespace {

using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Executor>;
using Socket = asio::basic_stream_socket<asio::ip::tcp, Executor>;
using Error = boost::system::error_code;
template <class T>
using Async = asio::awaitable<T, Executor>;

constexpr asio::use_awaitable_t<Executor> kAwait{};
constexpr std::int64_t kSweepMs = 500;
constexpr std::size_t kKeepBufferBytes = 1 << 20;

Status Ended(std::string why) { return {Code::kUnavailable, "NET03", "the connection ended", std::move(why), ""}; }

// async_write moves at most 64 KiB a call unless told otherwise.
std::size_t AsMuchAsPossible(const Error& error, std::size_t) { return error ? 0 : 1u << 30; }

struct Connection {
  Connection(Socket s, ConnectionId i) : socket(std::move(s)), id(i), wake_reader(socket.get_executor()) {}
  Socket socket;
  ConnectionId id;
  Peer peer;
  RoleLimits limits;
  bool authenticated = false;
  bool counted = true;   // in `unauthenticated`
  bool closing = false;  // send what is queued, then end
  bool ended = false;
  Status reason;
  std::int64_t heard_ms = 0;
  std::string queue;  // framed bytes that wait for the write in flight
  std::size_t in_flight_bytes = 0;
  bool writing = false;
  Timer wake_reader;  // never fires: cancelling it wakes the reading coroutine
  std::size_t queued_bytes() const { return queue.size() + in_flight_bytes; }
};
using ConnectionPtr = std::shared_ptr<Connection>;

}  // namespace

struct Server::Impl : std::enable_shared_from_this<Server::Impl> {
  Impl(EventLoop& l, ServerOptions o, ServerHandler* h)
      : loop(&l),
        options(std::move(o)),
        handler(h),
        acceptor(l.impl().context.get_executor()),
        accept_pause(l.impl().context.get_executor()) {}

  EventLoop* loop;
  ServerOptions options;
  ServerHandler* handler;  // null once the Server is gone
  Acceptor acceptor;
  Timer accept_pause;
  std::string address;
  std::map<ConnectionId, ConnectionPtr> connections;
  ConnectionId next_id = 1;
  std::uint64_t unauthenticated = 0;
  std::int64_t sweep_due_ms = 0;
  EventLoop::TimerId sweep_timer = 0;
  Stats totals;

  Status Listen();
  Async<void> Accept();
  Async<void> Serve(ConnectionPtr c);
  Async<Status> Authenticate(ConnectionPtr c, FrameDecoder* decoder);
  Async<Result<Frame>> ReadFrame(ConnectionPtr c, FrameDecoder* decoder);
  Async<Status> ReadLoop(ConnectionPtr c, FrameDecoder* decoder);
  Async<void> Write(ConnectionPtr c);
  void Queue(Connection& c, FrameKind kind, std::string_view payload);
  void StartWriter(const ConnectionPtr& c);
  void End(Connection& c, Status reason);
  void EndOldestUnauthenticated();
  void ArmSweep();
  void Sweep();
};

Status Server::Impl::Listen() {
  ASSIGN_OR_RETURN(std::vector<SocketAddress> candidates, ResolveAddress(options.listen_address));
  for (const SocketAddress& candidate : candidates) {
    if (candidate.is_loopback()) continue;
    return {
        Code::kInvalid, "NET05", "refusing to listen on " + options.listen_address,
        "it can be reached from other machines, and there is no TLS yet: jobs, and with them the right to run code, would travel in clear",
        "listen on 127.0.0.1 and reach it through a tunnel (ssh -L)"};
  }
  Error error = boost::asio::error::not_found;
  for (const SocketAddress& candidate : candidates) {
    asio::ip::tcp::endpoint endpoint;
    endpoint.resize(candidate.size);
    std::memcpy(endpoint.data(), &candidate.storage, candidate.size);
    acceptor.close(error);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);  // a restarted master takes its port at once
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) break;
  }
  if (error) {
    return {Code::kUnavailable, "NET06", "cannot listen on " + options.listen_address, error.message(),
            "is another master running there? choose another port, or 0 for any"};
  }
  TuneSocket(acceptor.native_handle());
  SocketAddress bound;
  bound.size = sizeof bound.storage;
  if (getsockname(acceptor.native_handle(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) == 0)
    address = ToString(bound.host_port());
  return {};
}

Async<void> Server::Impl::Accept() {
  while (acceptor.is_open()) {
    Error error;
    Socket socket(acceptor.get_executor());
    co_await acceptor.async_accept(socket, asio::redirect_error(kAwait, error));
    if (error == asio::error::operation_aborted || handler == nullptr) co_return;
    if (error) {
      // Out of descriptors: wait for some to come back instead of spinning on the ready listener.
      LOG_EVERY_N(WARNING, 100) << "accept: " << error.message();
      accept_pause.expires_after(std::chrono::milliseconds(100));
      co_await accept_pause.async_wait(asio::redirect_error(kAwait, error));
      continue;
    }
    if (unauthenticated >= options.unauthenticated_max) EndOldestUnauthenticated();
    if (connections.size() >= options.connections_max) {
      ++totals.refused_total;
      LOG_EVERY_N(WARNING, 100) << "too many connections: one is refused";
      continue;  // closes it
    }
    TuneSocket(socket.native_handle());
    auto c = std::make_shared<Connection>(std::move(socket), next_id++);
    SocketAddress from;
    from.size = sizeof from.storage;
    if (getpeername(c->socket.native_handle(), reinterpret_cast<sockaddr*>(&from.storage), &from.size) == 0)
      c->peer.address = ToString(from.host_port());
    c->heard_ms = EventLoop::NowMs();
    connections.emplace(c->id, c);
    ++unauthenticated;
    ArmSweep();
    asio::co_spawn(acceptor.get_executor(), Serve(c), asio::detached);
  }
}

// Who knocks and does not prove the token must not keep those out who do: an honest greeting takes two round trips.
void Server::Impl::EndOldestUnauthenticated() {
  for (auto& [id, c] : connections) {
    if (c->authenticated || c->ended) continue;
    c->counted = false;
    --unauthenticated;
    return End(*c, Ended("others knock, and it has not proven the token yet"));
  }
}

Async<Result<Frame>> Server::Impl::ReadFrame(ConnectionPtr c, FrameDecoder* decoder) {
  while (!c->ended) {
    auto frame = decoder->Next();
    if (!frame.ok()) co_return frame.status();
    if (frame->has_value()) co_return std::move(**frame);
    std::span<char> room = decoder->Room();
    Error error;
    std::size_t n = co_await c->socket.async_read_some(asio::buffer(room.data(), room.size()), asio::redirect_error(kAwait, error));
    if (error == asio::error::eof) co_return Ended("the peer closed it");
    if (error) co_return Ended(error.message());
    decoder->Filled(n);
    totals.received_bytes_total += n;
    // Before authentication the time does not start again: a peer that drips bytes gets the handshake's time and no more.
    // Likewise one that we are about to leave.
    if (c->authenticated && !c->closing) c->heard_ms = EventLoop::NowMs();
  }
  co_return Ended("closed");
}

Async<Status> Server::Impl::Authenticate(ConnectionPtr c, FrameDecoder* decoder) {
  const Status refused(Code::kUnauthenticated, "AUTH01", "a peer without the token", "its proof is wrong",
                       "give it the token file of this cluster");
  auto frame = co_await ReadFrame(c, decoder);
  if (!frame.ok()) co_return frame.status();
  if (frame->kind != FrameKind::kAuth) co_return refused;
  auto hello = DecodeAuthHello(frame->payload);
  if (!hello.ok()) co_return hello.status();
  AuthChallenge challenge;
  challenge.nonce = NewNonce();
  challenge.proof = AuthProof(options.token, "server", hello->role, hello->nonce, challenge.nonce);
  Queue(*c, FrameKind::kAuth, Encode(challenge));
  StartWriter(c);
  frame = co_await ReadFrame(c, decoder);
  if (!frame.ok()) co_return frame.status();
  const std::string expected = AuthProof(options.token, "client", hello->role, hello->nonce, challenge.nonce);
  if (frame->kind != FrameKind::kAuth || !EqualInConstantTime(frame->payload, expected)) co_return refused;
  auto role = options.roles.find(hello->role);
  if (role == options.roles.end()) co_return refused;
  c->peer.role = hello->role;
  c->limits = role->second;
  c->authenticated = true;
  c->heard_ms = EventLoop::NowMs();
  --unauthenticated;
  decoder->set_limits({kFrameBytesMax, c->limits.message_bytes_max});
  Queue(*c, FrameKind::kAuthOk, {});
  StartWriter(c);
  co_return Status();
}

Async<Status> Server::Impl::ReadLoop(ConnectionPtr c, FrameDecoder* decoder) {
  while (true) {
    while (c->queued_bytes() > c->limits.queue_bytes_pause && !c->ended) {
      c->wake_reader.expires_at(std::chrono::steady_clock::time_point::max());
      Error ignored;
      co_await c->wake_reader.async_wait(asio::redirect_error(kAwait, ignored));
    }
    auto frame = co_await ReadFrame(c, decoder);
    if (!frame.ok()) co_return frame.status();
    if (c->ended || handler == nullptr) co_return Ended("closed");
    if (frame->kind == FrameKind::kAuth || frame->kind == FrameKind::kAuthOk) {
      co_return Status(Code::kInvalid, "RPC03", "a greeting in the middle of a conversation", "the peer is damaged", "connect again");
    }
    if (!c->closing) handler->OnFrame(c->id, *std::move(frame));
  }
}

Async<void> Server::Impl::Serve(ConnectionPtr c) {
  auto self = shared_from_this();
  Status status;
  {
    FrameDecoder decoder{{}};
    status = co_await Authenticate(c, &decoder);
    if (status.ok()) {
      if (handler != nullptr) handler->OnConnected(c->id, c->peer);
      status = co_await ReadLoop(c, &decoder);
    }
  }
  if (!c->authenticated && status.code() == Code::kUnauthenticated && !c->ended) {
    // Said outright: a client must be able to tell a wrong token (never try again) from a master that dies just now (try again).
    c->closing = true;
    c->reason = status;
    Queue(*c, FrameKind::kAuth, {});
    StartWriter(c);
  } else {
    End(*c, status);
  }
  if (!c->authenticated) {
    unauthenticated -= c->counted ? 1 : 0;
    ++totals.refused_total;
    LOG_EVERY_N(INFO, 100) << "connection from " << c->peer.address << " ended before it proved the token: " << c->reason.what();
  }
  connections.erase(c->id);
  if (c->authenticated && handler != nullptr) handler->OnDisconnected(c->id, c->reason);
}

void Server::Impl::Queue(Connection& c, FrameKind kind, std::string_view payload) { AppendFrames(kind, payload, &c.queue); }

void Server::Impl::StartWriter(const ConnectionPtr& c) {
  if (c->writing) return;
  c->writing = true;
  // Posted by co_spawn: everything that this turn of the loop queues goes out in one write.
  asio::co_spawn(acceptor.get_executor(), Write(c), asio::detached);
}

Async<void> Server::Impl::Write(ConnectionPtr c) {
  auto self = shared_from_this();
  std::string batch;
  Error error;
  co_await asio::post(acceptor.get_executor(), kAwait);  // behind the handlers that are ready now
  while (!c->queue.empty() && !c->ended) {
    batch.clear();
    batch.swap(c->queue);
    c->in_flight_bytes = batch.size();
    co_await asio::async_write(c->socket, asio::buffer(batch), AsMuchAsPossible, asio::redirect_error(kAwait, error));
    totals.sent_bytes_total += batch.size();
    c->in_flight_bytes = 0;
    if (error) {
      End(*c, Ended(error.message()));
      break;
    }
    if (batch.capacity() > kKeepBufferBytes) std::string().swap(batch);
    if (c->queued_bytes() <= c->limits.queue_bytes_pause) c->wake_reader.cancel();
  }
  c->writing = false;
  if (c->closing) End(*c, c->reason);
}

// Ends the socket; the reading coroutine notices, says so to the handler and lets go of the connection.
void Server::Impl::End(Connection& c, Status reason) {
  if (c.ended) return;
  c.ended = true;
  if (c.reason.ok()) c.reason = std::move(reason);
  Error ignored;
  c.socket.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  c.socket.close(ignored);
  c.queue.clear();
  c.wake_reader.cancel();
}

void Server::Impl::ArmSweep() {
  if (sweep_timer != 0) return;
  sweep_due_ms = EventLoop::NowMs() + kSweepMs;
  std::weak_ptr<Impl> weak = weak_from_this();
  sweep_timer = loop->At(sweep_due_ms, [weak] {
    if (auto self = weak.lock()) self->Sweep();
  });
}

void Server::Impl::Sweep() {
  sweep_timer = 0;
  const std::int64_t now = EventLoop::NowMs();
  // If this process itself stood still (stopped, swapped, a slow disk), what the peers sent meanwhile is not read yet: the silence was
  // ours.
  const std::int64_t late_ms = std::max<std::int64_t>(0, now - sweep_due_ms);
  for (auto& [id, c] : connections) {
    if (late_ms > kSweepMs) c->heard_ms = std::min(now, c->heard_ms + late_ms);
    const std::int64_t limit = c->authenticated && !c->closing ? c->limits.silence_ms : options.handshake_ms;
    if (now - c->heard_ms > limit) End(*c, Ended("nothing came for " + std::to_string(now - c->heard_ms) + " ms"));
  }
  if (!connections.empty()) ArmSweep();
}

Server::Server(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Server>> Server::Start(EventLoop& loop, ServerOptions options, ServerHandler* handler) {
  auto impl = std::make_shared<Impl>(loop, std::move(options), handler);
  RETURN_IF_ERROR(impl->Listen());
  asio::co_spawn(impl->acceptor.get_executor(), [impl]() -> Async<void> { co_await impl->Accept(); }, asio::detached);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::~Server() {
  impl_->handler = nullptr;
  Error ignored;
  impl_->acceptor.close(ignored);
  impl_->accept_pause.cancel();
  if (impl_->sweep_timer != 0) impl_->loop->Cancel(impl_->sweep_timer);
  for (auto& [id, c] : impl_->connections) impl_->End(*c, Ended("the server stopped"));
}

std::string Server::address() const { return impl_->address; }

bool Server::Send(ConnectionId id, FrameKind kind, std::string_view payload) {
  auto at = impl_->connections.find(id);
  if (at == impl_->connections.end() || at->second->ended || at->second->closing) return false;
  const ConnectionPtr& c = at->second;
  if (payload.size() > kMessageBytesMax || c->queued_bytes() + payload.size() > c->limits.queue_bytes_max) {
    impl_->End(*c, {Code::kResourceExhausted, "RPC04", "cut off: it does not read what it is sent",
                    std::to_string(c->queued_bytes() + payload.size()) + " bytes would be queued", "connect again, and read faster"});
    return false;
  }
  impl_->Queue(*c, kind, payload);
  impl_->StartWriter(c);
  return true;
}

void Server::Close(ConnectionId id, Status reason) {
  auto at = impl_->connections.find(id);
  if (at == impl_->connections.end() || at->second->ended) return;
  at->second->closing = true;
  at->second->heard_ms = EventLoop::NowMs();
  at->second->reason = std::move(reason);
  impl_->StartWriter(at->second);  // ends the connection when the queue is empty
}

Server::Stats Server::stats() const {
  Stats out = impl_->totals;
  out.connections = impl_->connections.size();
  out.unauthenticated = impl_->unauthenticated;
  for (const auto& [id, c] : impl_->connections) out.queued_bytes += c->queued_bytes();
  return out;
}

}  // namespace ropewalk::rpc
