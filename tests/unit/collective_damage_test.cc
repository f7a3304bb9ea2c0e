// Bits that flip between ranks: every one in the header of a message, every one of a payload that is summed. And every field of a header
// that is sound in itself but not what the receiver expects. Nothing of such a message is used.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>

#include "base/hash.h"
#include "mlrunner/collective/run/tcp_transport.h"
#include "tests/unit/collective_flipper.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

// ---- one message -----------------------------------------------------------------------------------------------------------------------

constexpr std::size_t kHeaderBytes = 128, kSealAt = 48, kPayloadBytes = 64;

// The layout as tcp_transport.h writes it down, and what the receiver says to a sound header that differs there. Empty: nothing, for the
// field decides nothing.
struct Field {
  const char* name;
  std::size_t begin, end;
  const char* tag;
};
constexpr Field kFields[] = {{"magic", 0, 4, "COLL22"},
                             {"version", 4, 6, "COLL23"},
                             {"channel", 6, 8, "COLL21"},
                             {"job epoch", 8, 16, "COLL24"},
                             {"unused", 16, 20, ""},
                             {"from", 20, 24, "COLL24"},
                             {"sequence", 24, 32, "COLL21"},
                             {"bytes", 32, 40, "COLL21"},
                             {"payload checksum", 40, 48, "COLL22"},
                             {"header checksum", kSealAt, 56, "COLL22"},
                             {"communicator", 56, 64, "COLL24"},
                             {"fingerprint", 64, 72, "COLL21"},
                             {"what the call is called", 72, kHeaderBytes, ""}};

TcpOptions Options(bool checksum_payload) {
  return {.job_epoch = 7, .communicator = 3, .checksum_payload = checksum_payload, .ranks_on_machine = 2};
}
CallLabel Label() {
  CallLabel label{.fingerprint = 0x1234'5678'9abc'def0, .sequence = 5, .count = 16};
  std::memcpy(label.name, "weight", 6);
  return label;
}
std::string Payload() {
  std::string bytes(kPayloadBytes, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37 + 1);
  return bytes;
}
void FlipBit(std::string* bytes, std::size_t bit) { (*bytes)[bit / 8] = static_cast<char>((*bytes)[bit / 8] ^ (1 << bit % 8)); }
void Seal(std::string* message) {
  std::memset(message->data() + kSealAt, 0, 8);
  const std::uint64_t sum = Checksum64(std::string_view(*message).substr(0, kHeaderBytes));
  std::memcpy(message->data() + kSealAt, &sum, 8);
}

// Rank 0's first message to rank 1, as it stands on the wire.
std::string Sent(bool checksum_payload) {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const std::string payload = Payload();
  TcpTransport sender(0, 2, 1, {-1, pair[0]}, Options(checksum_payload));
  sender.SetLabel(0, 1, Label());
  sender.Post(1, 0, payload.data(), payload.size());
  std::string message(kHeaderBytes + kPayloadBytes, '\0');
  EXPECT_EQ(recv(pair[1], message.data(), message.size(), MSG_WAITALL), static_cast<ssize_t>(message.size()));
  close(pair[1]);
  EXPECT_EQ(message.substr(kHeaderBytes), payload);
  return message;
}

// What rank 1 makes of it: the payload, or the tag of its failure.
struct Taken {
  std::optional<std::string> payload;
  std::string tag;
};
Taken Take(const std::string& message, bool checksum_payload) {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  TcpTransport receiver(1, 2, 1, {pair[0], -1}, Options(checksum_payload));
  receiver.SetLabel(0, 1, Label());
  EXPECT_EQ(send(pair[1], message.data(), message.size(), MSG_NOSIGNAL), static_cast<ssize_t>(message.size()));
  char landing[kPayloadBytes] = {};
  const void* at = receiver.Peek(0, 0, 0, landing, kPayloadBytes);
  close(pair[1]);
  Taken taken{.payload = {}, .tag = receiver.status().ok() ? "" : receiver.status().tag()};
  if (at != nullptr) taken.payload = std::string(static_cast<const char*>(at), kPayloadBytes);
  EXPECT_EQ(taken.payload.has_value(), taken.tag.empty());
  return taken;
}

TEST(Damage, AMessageThatNobodyTouchedIsTaken) {
  for (bool checksum_payload : {false, true}) {
    std::string message = Sent(checksum_payload);
    EXPECT_EQ(Take(message, checksum_payload).payload, Payload());
    // The control of what follows: sealing alone changes nothing.
    const std::string before = message;
    Seal(&message);
    EXPECT_EQ(message, before);
  }
}

TEST(Damage, EveryFlippedBitOfAHeaderIsFound) {
  for (bool checksum_payload : {false, true}) {
    const std::string message = Sent(checksum_payload);
    for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
      std::string damaged = message;
      FlipBit(&damaged, bit);
      EXPECT_EQ(Take(damaged, checksum_payload).tag, "COLL22") << "bit " << bit;
    }
  }
}

// The checksum is right, as of a message that another job, epoch, version or call has sent.
TEST(Damage, EveryFieldOfASoundHeaderIsLookedAt) {
  std::size_t covered = 0;
  for (const Field& field : kFields) {
    ASSERT_EQ(field.begin, covered) << field.name;
    covered = field.end;
    if (field.begin == kSealAt) continue;
    for (bool checksum_payload : {false, true}) {
      const std::string message = Sent(checksum_payload);
      const bool decides = checksum_payload || field.name != std::string("payload checksum");
      for (std::size_t bit = 8 * field.begin; bit < 8 * field.end; ++bit) {
        std::string strange = message;
        FlipBit(&strange, bit);
        Seal(&strange);
        EXPECT_EQ(Take(strange, checksum_payload).tag, decides ? field.tag : "") << field.name << ", bit " << bit;
      }
    }
  }
  EXPECT_EQ(covered, kHeaderBytes);
}

TEST(Damage, EveryFlippedBitOfAPayloadIsFoundWhereItIsSummed) {
  for (bool checksum_payload : {false, true}) {
    const std::string message = Sent(checksum_payload);
    for (std::size_t bit = 0; bit < 8 * kPayloadBytes; ++bit) {
      std::string damaged = message;
      FlipBit(&damaged, 8 * kHeaderBytes + bit);
      const Taken taken = Take(damaged, checksum_payload);
      if (checksum_payload) {
        EXPECT_EQ(taken.tag, "COLL22") << "bit " << bit;
      } else {
        // The control: nobody else would have found it.
        EXPECT_EQ(taken.payload, damaged.substr(kHeaderBytes)) << "bit " << bit;
      }
    }
  }
}

// ---- ranks that are connected ----------------------------------------------------------------------------------------------------------

struct Ended {
  std::vector<Status> statuses{2};
  std::vector<std::vector<float>> sums{2};
};

// Two ranks that sum a vector of ones and of twos, with `flip` between them.
Ended SumThrough(const Flip& flip, bool checksum_payload, bool submitted) {
  constexpr std::int64_t kCount = 100'000;
  Ended ended;
  Meeting meeting(2);
  Flipper flipper(flip);
  OnBothSidesOf(&flipper, &meeting, Over(Wire::kTcp), checksum_payload, [&](Communicator& all) {
    std::vector<float> x(kCount, static_cast<float>(all.rank() + 1));
    CollectiveCall call{.in = x.data(), .out = x.data(), .count = kCount, .name = "x"};
    if (submitted) {
      auto handle = all.Submit(call, {});
      ended.statuses[all.rank()] = handle.ok() ? all.Wait(*handle) : handle.status();
    } else {
      ended.statuses[all.rank()] = all.AllReduce(call);
    }
    ended.sums[all.rank()] = std::move(x);
    meeting.Barrier(all.rank());
  });
  return ended;
}

// Far behind all handshakes and headers, in every connection that carries as much: the high byte of an element.
constexpr Flip kInAPayload{.to_lower = true, .at_byte = 2003, .bit = 6};

TEST(Damage, NoRankAddsUpWhatWasDamagedWhereItIsSummed) {
  const Ended ended = SumThrough(kInAPayload, true, false);
  for (const Status& status : ended.statuses) EXPECT_EQ(status.tag(), "COLL22") << status.ToString();
  EXPECT_EQ(ended.statuses[0].what(), "a message of rank 1 is damaged");
}

// The control: without the option the same bit makes a wrong sum that nobody notices. And without the bit it is right.
TEST(Damage, WithoutThatOptionADamagedPayloadIsAddedUp) {
  for (bool flips : {true, false}) {
    Flip flip = kInAPayload;
    if (!flips) flip.at_byte = std::size_t{1} << 40;
    const Ended ended = SumThrough(flip, false, false);
    int wrong = 0;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(ended.statuses[rank].ok()) << ended.statuses[rank].ToString();
      for (float one : ended.sums[rank]) wrong += one != 3 ? 1 : 0;
    }
    EXPECT_EQ(wrong > 0, flips);
  }
}

// Rank 0's order names a call by its number, which is the beginning of its message: 64 instead of 0, which nobody has submitted.
TEST(Damage, AnOrderOfACallThatIsNoneIsRefused) {
  const Flip flip{.to_lower = false, .at_byte = kHandshakeToHigherBytes + kHeaderBytes, .bit = 6};
  const Ended ended = SumThrough(flip, false, true);
  for (const Status& status : ended.statuses) {
    EXPECT_EQ(status.tag(), "COLL25") << status.ToString();
    EXPECT_EQ(status.what(), "rank 0 orders call 64, which is none");
  }
}

TEST(Damage, RanksOfAnotherVersionDoNotMeet) {
  Meeting alone(1);
  Rendezvous rendezvous = alone.Of(0);
  rendezvous.exchange = [](std::string mine) {
    mine[0] = static_cast<char>(mine[0] ^ 2);  // it begins with the version
    return Result<std::vector<std::string>>(std::vector<std::string>{mine});
  };
  Status status = Communicator::Connect(std::move(rendezvous), {}).status();
  EXPECT_EQ(status.tag(), "COLL23") << status.ToString();
}

}  // namespace
}  // namespace ropewalk::collective::testing
