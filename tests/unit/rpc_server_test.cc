// The blocking channel against the asynchronous server: what must work, and what a peer must not be able to do.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "rpc/address.h"
#include "rpc/frame.h"
#include "rpc/token.h"
#include "tests/unit/rpc_fixture.h"

namespace ropewalk::rpc {
namespace {

std::unique_ptr<Channel> MustConnect(const EchoServer& server) {
  auto channel = Channel::Connect(server.address(), kTestToken, "client", 5'000);
  EXPECT_TRUE(channel.ok()) << channel.status().ToString();
  return channel.ok() ? *std::move(channel) : nullptr;
}

int RawConnection(const std::string& address) {
  auto to = ResolveAddress(address);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to->front().storage), to->front().size), 0);
  return fd;
}

// True when the peer ended the connection within ten seconds.
bool EndsSoon(int fd) {
  timeval limit{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char byte[4096];
  while (true) {
    ssize_t n = recv(fd, byte, sizeof byte, 0);
    if (n > 0) continue;
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

TEST(RpcServer, EchoesMessagesOfAllSizes) {
  EchoServer server;
  auto channel = MustConnect(server);
  for (std::size_t size : {0ul, 1ul, 100ul, 65'536ul, 1ul << 20, (1ul << 20) + 1, (4ul << 20) + 7, 40ul << 20}) {
    std::string payload(size, 'a');
    for (std::size_t i = 0; i < size; i += 97) payload[i] = static_cast<char>(i * 31);
    ASSERT_TRUE(channel->Send(FrameKind::kRequest, payload).ok());
    auto frame = channel->Receive(20'000);
    ASSERT_TRUE(frame.ok()) << frame.status().ToString();
    EXPECT_EQ(frame->kind, FrameKind::kResponse);
    ASSERT_TRUE(frame->payload == payload) << size;
  }
}

TEST(RpcServer, ManySendersShareAChannelAndNoMessageIsTorn) {
  EchoServer server;
  auto channel = MustConnect(server);
  constexpr int kSenders = 4, kEach = 200;
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&, s] {
      for (int i = 0; i < kEach; ++i) {
        std::size_t size = i % 50 == 0 ? (2u << 20) : 10 + i;  // some are fragments
        EXPECT_TRUE(channel->Send(FrameKind::kRequest, std::string(size, static_cast<char>('a' + s))).ok());
      }
    });
  }
  for (int i = 0; i < kSenders * kEach; ++i) {
    auto frame = channel->Receive(20'000);
    ASSERT_TRUE(frame.ok()) << frame.status().ToString();
    ASSERT_EQ(frame->payload.find_first_not_of(frame->payload[0]), std::string::npos);
  }
  for (auto& sender : senders) sender.join();
}

TEST(RpcServer, RoundTripIsFast) {
  EchoServer server;
  auto channel = MustConnect(server);
  std::vector<double> us;
  for (int i = 0; i < 500; ++i) {
    auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(channel->Send(FrameKind::kRequest, "ping").ok());
    ASSERT_TRUE(channel->Receive(5'000).ok());
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(us.begin(), us.begin() + 250, us.end());
  RecordProperty("round_trip_us_p50", std::to_string(us[250]));
  std::printf("round trip p50 %.0f us\n", us[250]);
  EXPECT_LT(us[250], 5'000);  // no sleep and no delayed acknowledgement (40 ms) on the path
}

TEST(RpcServer, PeersWithoutTheTokenAreRefused) {
  EchoServer server;
  auto wrong = Channel::Connect(server.address(), std::string(64, 'f'), "client", 5'000);
  EXPECT_EQ(wrong.status().code(), Code::kUnauthenticated);
  EXPECT_EQ(wrong.status().tag(), "AUTH01");
  auto role = Channel::Connect(server.address(), kTestToken, "king", 5'000);
  EXPECT_EQ(role.status().code(), Code::kUnauthenticated);
  EXPECT_TRUE(Eventually([&] { return server.stats().connections == 0; }));
  EXPECT_EQ(server.connected, 0);
  EXPECT_EQ(server.frames, 0);
}

TEST(RpcServer, TheProofOfAnotherSessionIsWorthNothing) {
  // Somebody who listened to a whole session replays the client's side.
  EchoServer server;
  std::string nonce = NewNonce(), hello;
  AppendFrames(FrameKind::kAuth, Encode(AuthHello{"client", nonce}), &hello);
  auto run = [&](const std::string& proof_override, std::string* proof_used) {
    Channel channel(RawConnection(server.address()));
    EXPECT_TRUE(channel.Send(FrameKind::kAuth, Encode(AuthHello{"client", nonce})).ok());
    auto challenge = DecodeAuthChallenge(channel.Receive(5'000)->payload);
    *proof_used = proof_override.empty() ? AuthProof(kTestToken, "client", "client", nonce, challenge->nonce) : proof_override;
    EXPECT_TRUE(channel.Send(FrameKind::kAuth, *proof_used).ok());
    auto answer = channel.Receive(5'000);
    return answer.ok() && answer->kind == FrameKind::kAuthOk;
  };
  std::string heard, ignored;
  EXPECT_TRUE(run("", &heard));
  EXPECT_FALSE(run(heard, &ignored));
}

TEST(RpcServer, TheClientRefusesAMasterWithoutTheToken) {
  EchoServer server(ServerOptions{.token = std::string(64, 'e')});
  auto channel = Channel::Connect(server.address(), kTestToken, "client", 5'000);
  EXPECT_EQ(channel.status().tag(), "AUTH01");
}

TEST(RpcServer, UnauthenticatedPeersGetFourKibAndAFewSeconds) {
  EchoServer server(ServerOptions{.unauthenticated_max = 8, .handshake_ms = 300});
  int oversize = RawConnection(server.address());
  char header[kFrameHeaderBytes];
  WriteHeader(FrameKind::kAuth, std::string(kPreAuthBytesMax + 1, 'x'), header);
  ASSERT_EQ(write(oversize, header, sizeof header), static_cast<ssize_t>(sizeof header));
  EXPECT_TRUE(EndsSoon(oversize));  // from the header alone
  close(oversize);

  int silent = RawConnection(server.address());
  EXPECT_TRUE(EndsSoon(silent));
  close(silent);

  std::vector<int> crowd;
  for (int i = 0; i < 30; ++i) crowd.push_back(RawConnection(server.address()));
  EXPECT_LE(server.stats().unauthenticated, 8u);
  for (int fd : crowd) EXPECT_TRUE(EndsSoon(fd));
  for (int fd : crowd) close(fd);
  EXPECT_TRUE(Eventually([&] { return server.stats().connections == 0; }));
  EXPECT_NE(MustConnect(server), nullptr);  // and there is room again
}

TEST(RpcServer, FragmentsAboveTheLimitEndTheConnection) {
  EchoServer server(ServerOptions{.roles = {{"client", RoleLimits{.message_bytes_max = 3u << 20}}}});
  auto channel = MustConnect(server);
  for (int i = 0; i < 8; ++i) (void)channel->Send(FrameKind::kFragment, std::string(1u << 20, 'f'));
  EXPECT_TRUE(Eventually([&] { return server.disconnected == 1; }));
  EXPECT_EQ(server.frames, 0);
  EXPECT_NE(server.closed_reasons().front().find("RPC02"), std::string::npos);
}

TEST(RpcServer, WhoAsksAndDoesNotReadIsNoLongerReadFrom) {
  EchoServer server(ServerOptions{.roles = {{"client", RoleLimits{.queue_bytes_pause = 1u << 20, .queue_bytes_max = 8u << 20}}}});
  auto channel = MustConnect(server);
  std::atomic<int> sent{0};
  constexpr int kRequests = 200;  // of 512 KiB: far more than sockets and queues hold
  std::thread asker([&] {
    const std::string payload(512u << 10, 'q');
    for (; sent < kRequests; ++sent)
      if (!channel->Send(FrameKind::kRequest, payload).ok()) break;
  });
  std::uint64_t queued_max = 0;
  for (int i = 0; i < 300; ++i) {
    queued_max = std::max(queued_max, server.stats().queued_bytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(sent, kRequests);
  EXPECT_LE(queued_max, 3u << 20);
  EXPECT_EQ(server.disconnected, 0);
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(channel->Receive(20'000).ok()) << i;  // and nothing was lost
  asker.join();
}

TEST(RpcServer, WhoIsPushedToAndDoesNotReadIsCutOff) {
  EchoServer server(ServerOptions{.roles = {{"client", RoleLimits{.queue_bytes_max = 2u << 20}}}});
  auto channel = MustConnect(server);
  ASSERT_TRUE(Eventually([&] { return server.connected == 1; }));
  const std::string payload(256u << 10, 'p');
  bool cut = false;
  for (int i = 0; i < 200 && !cut; ++i) server.OnLoop([&](Server& s) { cut = !s.Send(server.last, FrameKind::kMessage, payload); });
  EXPECT_TRUE(cut);
  EXPECT_TRUE(Eventually([&] { return server.disconnected == 1; }));
  EXPECT_NE(server.closed_reasons().front().find("RPC04"), std::string::npos);
}

TEST(RpcServer, ASilentPeerIsGoneAndAClosedOneGetsWhatWasQueued) {
  EchoServer server(ServerOptions{.roles = {{"client", RoleLimits{.silence_ms = 300}}}});
  auto channel = MustConnect(server);
  EXPECT_TRUE(Eventually([&] { return server.disconnected == 1; }));
  EXPECT_EQ(channel->Receive(5'000).status().code(), Code::kUnavailable);

  auto second = MustConnect(server);
  ASSERT_TRUE(Eventually([&] { return server.connected == 2; }));
  server.OnLoop([&](Server& s) {
    EXPECT_TRUE(s.Send(server.last, FrameKind::kMessage, "last words"));
    s.Close(server.last, Status(Code::kStale, "T1", "enough"));
    EXPECT_FALSE(s.Send(server.last, FrameKind::kMessage, "too late"));
  });
  auto frame = second->Receive(5'000);
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame->payload, "last words");
  EXPECT_FALSE(second->Receive(5'000).ok());
  EXPECT_TRUE(Eventually([&] { return server.disconnected == 2; }));
  EXPECT_NE(server.closed_reasons().back().find("T1"), std::string::npos);
}

TEST(RpcServer, RefusesAddressesThatOthersCanReach) {
  EventLoop loop;
  EchoServer taken;
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    auto server = Server::Start(loop, ServerOptions{.listen_address = address, .token = kTestToken}, nullptr);
    EXPECT_EQ(server.status().tag(), "NET05") << address;
    EXPECT_NE(server.status().why().find("TLS"), std::string::npos);
  }
  EXPECT_EQ(Server::Start(loop, ServerOptions{.listen_address = taken.address(), .token = kTestToken}, nullptr).status().tag(), "NET06");
  EXPECT_EQ(Server::Start(loop, ServerOptions{.listen_address = "7077", .token = kTestToken}, nullptr).status().tag(), "NET02");
  for (const char* address : {"localhost:99999", "[::1]:65536", "127.0.0.1:99999999999999999999"}) {
    Status status = ResolveAddress(address).status();
    EXPECT_EQ(status.tag(), "NET02");
    EXPECT_NE(status.why().find("65535"), std::string::npos) << status.ToString();
  }
  EXPECT_EQ(ResolveAddress("localhost:7x").status().why().find("65535"), std::string::npos) << "no number at all";
}

TEST(RpcChannel, SaysWhatIsWrong) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);  // bound, not listening: nobody answers there
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  auto refused = Channel::Connect(where, kTestToken, "client", 2'000);
  EXPECT_EQ(refused.status().tag(), "NET01");
  EXPECT_NE(refused.status().what().find(where), std::string::npos);
  ASSERT_EQ(listen(fd, 4), 0);  // takes the connection and says nothing
  auto silent = Channel::Connect(where, kTestToken, "client", 200);
  EXPECT_EQ(silent.status().code(), Code::kUnavailable);
  close(fd);

  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  Channel a(pair[0]), b(pair[1]);
  EXPECT_EQ(a.Receive(20).status().code(), Code::kDeadlineExceeded);
  ASSERT_TRUE(b.Send(FrameKind::kMessage, "x").ok());
  EXPECT_EQ(a.Receive(1'000)->payload, "x");
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    a.Shutdown();
  });
  EXPECT_EQ(a.Receive(-1).status().code(), Code::kUnavailable);
  EXPECT_FALSE(b.Send(FrameKind::kMessage, "nobody listens").ok());
  waker.join();
}

TEST(RpcToken, FirstStartWritesItAndOnlyItsOwnerMayReadIt) {
  auto folder = std::filesystem::temp_directory_path() / ("rpc_token_test." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::string path = (folder / "token").string();
  EXPECT_EQ(ReadTokenFile(path).status().tag(), "AUTH02");
  auto token = ReadOrCreateTokenFile(path);
  ASSERT_TRUE(token.ok()) << token.status().ToString();
  EXPECT_EQ(token->size(), 64u);
  EXPECT_EQ(*ReadOrCreateTokenFile(path), *token);
  EXPECT_EQ(*ReadTokenFile(path), *token);
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  EXPECT_EQ(ReadTokenFile(path).status().tag(), "AUTH02");
  EXPECT_EQ(ReadOrCreateTokenFile(path).status().tag(), "AUTH02");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  std::ofstream(path) << "short";
  EXPECT_EQ(ReadTokenFile(path).status().tag(), "AUTH02");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ropewalk::rpc
