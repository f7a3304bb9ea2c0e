// Random damage to frames and to greetings, thousands of times: the decoder, the handshake and a live server never crash, never give a
// message that was not sent, and never hold more than the bytes that came.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "base/random.h"
#include "rpc/address.h"
#include "rpc/frame.h"
#include "tests/unit/rpc_fixture.h"

namespace ropewalk::rpc {
namespace {

std::uint64_t Seed() {
  const char* given = std::getenv("ROPEWALK_TEST_SEED");
  std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seed %llu (ROPEWALK_TEST_SEED replays it)\n", static_cast<unsigned long long>(seed));
  return seed;
}

std::string RandomBytes(Random& random, std::size_t size) {
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random.Below(256));
  return out;
}

std::string Damage(Random& random, std::string bytes) {
  for (std::uint64_t n = random.Between(1, 4); n-- > 0;) {
    const std::size_t at = random.Below(bytes.size() + 1);
    switch (random.Below(5)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.Below(8)));
        break;
      case 1:
        bytes.erase(at, random.Below(20));
        break;
      case 2:
        bytes.insert(at, RandomBytes(random, random.Below(20)));
        break;
      case 3: {  // a length that promises much
        const std::uint32_t length = static_cast<std::uint32_t>(random.OneIn(2) ? 0xffffffffu >> random.Below(20) : random.Below(1u << 23));
        if (bytes.size() >= 8) std::memcpy(bytes.data() + 4, &length, 4);
        break;
      }
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

struct Decoded {
  std::vector<Frame> frames;
  Status status;
};

Decoded DecodeInPieces(Random& random, std::string_view bytes, FrameDecoder::Limits limits) {
  FrameDecoder decoder(limits);
  Decoded out;
  const std::size_t all = bytes.size();
  while (true) {
    while (true) {
      auto frame = decoder.Next();
      if (!frame.ok()) {
        out.status = frame.status();
        EXPECT_FALSE(decoder.Next().ok());  // and it stays so
        return out;
      }
      if (!frame->has_value()) break;
      out.frames.push_back(std::move(**frame));
    }
    EXPECT_LE(decoder.buffered_bytes(), all);
    if (bytes.empty()) return out;
    std::span<char> room = decoder.Room();
    EXPECT_LE(room.size(), std::max<std::uint64_t>(limits.frame_bytes + kFrameHeaderBytes, 64u << 10));
    const std::size_t n = std::min({room.size(), bytes.size(), static_cast<std::size_t>(random.Between(1, 5000))});
    std::memcpy(room.data(), bytes.data(), n);
    decoder.Filled(n);
    bytes.remove_prefix(n);
  }
}

TEST(RpcMalformed, DecoderGivesOnlyWhatWasSent) {
  Random random(Seed());
  for (int round = 0; round < 20'000; ++round) {
    std::string stream;
    std::vector<std::string> sent;
    for (std::uint64_t n = random.Between(1, 4); n-- > 0;) {
      std::string payload = RandomBytes(random, random.OneIn(10) ? random.Below(6000) : random.Below(60));
      if (random.OneIn(4)) {
        std::string first = RandomBytes(random, random.Below(40));
        AppendFrames(FrameKind::kFragment, first, &stream);
        AppendFrames(FrameKind::kMessage, payload, &stream);
        sent.push_back(first + payload);
      } else {
        AppendFrames(FrameKind::kMessage, payload, &stream);
        sent.push_back(payload);
      }
    }
    FrameDecoder::Limits limits{1u << 16, 1u << 17};
    Decoded whole = DecodeInPieces(random, stream, limits);
    ASSERT_TRUE(whole.status.ok()) << whole.status.ToString();
    ASSERT_EQ(whole.frames.size(), sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(whole.frames[i].payload, sent[i]);
    // Damage may hit between frames (whole ones lost or doubled); a frame's own bytes must be as they were sent.
    Decoded damaged = DecodeInPieces(random, Damage(random, stream), limits);
    for (const Frame& frame : damaged.frames) ASSERT_LE(frame.payload.size(), limits.message_bytes);
  }
}

TEST(RpcMalformed, FlippedBitsInOneFrameNeverPass) {
  Random random(Seed());
  int refused = 0, incomplete = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string payload = RandomBytes(random, 1 + random.Below(200)), stream;
    AppendFrames(FrameKind::kMessage, payload, &stream);
    const std::size_t at = random.Below(stream.size());
    stream[at] = static_cast<char>(stream[at] ^ (1 << random.Below(8)));
    Decoded decoded = DecodeInPieces(random, stream, {1u << 16, 1u << 16});
    ASSERT_TRUE(decoded.frames.empty()) << "a flip in byte " << at << " passed";
    decoded.status.ok() ? ++incomplete : ++refused;
  }
  EXPECT_GT(refused, 15'000);
  EXPECT_GT(incomplete, 0);
}

TEST(RpcMalformed, GreetingsOfAnyBytesAreRefusedOrRead) {
  Random random(Seed());
  for (int round = 0; round < 50'000; ++round) {
    std::string hello = Encode(AuthHello{"client", NewNonce()}), challenge = Encode(AuthChallenge{NewNonce(), "proof"});
    auto a = DecodeAuthHello(Damage(random, hello));
    if (a.ok()) {
      ASSERT_EQ(a->nonce.size(), kNonceBytes);
      ASSERT_LE(a->role.size(), 32u);
    }
    auto b = DecodeAuthChallenge(Damage(random, challenge));
    if (b.ok()) {
      ASSERT_EQ(b->nonce.size(), kNonceBytes);
    }
    (void)DecodeAuthHello(RandomBytes(random, random.Below(64))).ok();
  }
}

TEST(RpcMalformed, ALiveServerSurvivesAndStillServes) {
  Random random(Seed());
  EchoServer server(
      ServerOptions{.roles = {{"client", RoleLimits{.message_bytes_max = 1u << 20}}}, .unauthenticated_max = 1000, .handshake_ms = 2'000});
  auto to = ResolveAddress(server.address());
  for (int round = 0; round < 3'000; ++round) {
    std::string stream;
    AppendFrames(FrameKind::kAuth, Encode(AuthHello{"client", NewNonce()}), &stream);
    AppendFrames(FrameKind::kAuth, RandomBytes(random, 32), &stream);
    AppendFrames(FrameKind::kRequest, "let me in", &stream);
    stream = random.OneIn(8) ? RandomBytes(random, random.Below(9000)) : Damage(random, stream);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to->front().storage), to->front().size), 0);
    (void)send(fd, stream.data(), stream.size(), MSG_NOSIGNAL);
    close(fd);
  }
  // The same after authentication.
  for (int round = 0; round < 300; ++round) {
    auto good = Channel::Connect(server.address(), kTestToken, "client", 10'000);
    ASSERT_TRUE(good.ok()) << good.status().ToString();
    std::string payload = RandomBytes(random, random.Below(3000));
    ASSERT_TRUE((*good)->Send(static_cast<FrameKind>(random.Between(1, 6)), payload).ok());
    (void)(*good)->Send(FrameKind::kMessage, payload);
  }
  EXPECT_TRUE(Eventually([&] { return server.stats().connections == 0; }));
  auto channel = Channel::Connect(server.address(), kTestToken, "client", 5'000);
  ASSERT_TRUE(channel.ok()) << channel.status().ToString();
  ASSERT_TRUE((*channel)->Send(FrameKind::kRequest, "still there?").ok());
  EXPECT_EQ((*channel)->Receive(5'000)->payload, "still there?");
}

}  // namespace
}  // namespace ropewalk::rpc
