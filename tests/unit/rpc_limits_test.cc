// What a peer that never proves the token can take: memory, connections, time; and that it keeps nobody out.
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "rpc/address.h"
#include "rpc/frame.h"
#include "tests/unit/rpc_fixture.h"

namespace ropewalk::rpc {
namespace {

int RawConnection(const std::string& address) {
  auto to = ResolveAddress(address);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to->front().storage), to->front().size), 0);
  return fd;
}

TEST(RpcLimits, AnUnauthenticatedPeerHoldsAtMost64KiB) {
  constexpr int kPeers = 48;
  EchoServer server(ServerOptions{.unauthenticated_max = 64, .handshake_ms = 60'000});
  const std::size_t before = mallinfo2().uordblks;
  std::vector<int> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(RawConnection(server.address()));
    // The largest greeting that is taken, but for its last byte: all of it is buffered, and the server waits.
    std::string frame;
    AppendFrames(FrameKind::kAuth, std::string(kPreAuthBytesMax, 'x'), &frame);
    frame.pop_back();
    EXPECT_EQ(write(peers.back(), frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
  }
  ASSERT_TRUE(Eventually([&] {
    auto stats = server.stats();
    return stats.unauthenticated == kPeers && stats.received_bytes_total >= std::uint64_t(kPeers) * kPreAuthBytesMax;
  }));
  const std::size_t after = mallinfo2().uordblks;
  std::printf("%zu bytes for each of %d peers\n", after > before ? (after - before) / kPeers : 0, kPeers);
  EXPECT_LE(after, before + kPeers * (64u << 10));
  for (int fd : peers) close(fd);
  EXPECT_TRUE(Eventually([&] { return server.stats().connections == 0; }));
}

TEST(RpcLimits, ACrowdThatProvesNothingKeepsNobodyOut) {
  EchoServer server(ServerOptions{.unauthenticated_max = 8, .handshake_ms = 60'000});
  std::vector<int> crowd;
  for (int i = 0; i < 40; ++i) crowd.push_back(RawConnection(server.address()));
  ASSERT_TRUE(Eventually([&] { return server.stats().refused_total >= 32; }));
  EXPECT_LE(server.stats().unauthenticated, 8u);
  auto channel = Channel::Connect(server.address(), kTestToken, "client", 10'000);  // the crowd still holds its places
  ASSERT_TRUE(channel.ok()) << channel.status().ToString();
  ASSERT_TRUE((*channel)->Send(FrameKind::kRequest, "x").ok());
  EXPECT_TRUE((*channel)->Receive(10'000).ok());
  for (int fd : crowd) close(fd);
}

}  // namespace
}  // namespace ropewalk::rpc
