// The watch over the peers, with a peer that is played by the test: it reads when it likes, and answers what it likes.
#include "mlrunner/collective/run/links.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace ropewalk::collective {
namespace {

// As links.cc has them.
enum class Kind : std::uint8_t { kLeft = 1, kFailed = 2, kAsk = 3, kHere = 4 };

struct Frame {
  Kind kind = Kind::kLeft;
  std::uint64_t question = 0;
};

// Rank 1, by hand.
class Peer {
 public:
  explicit Peer(int link) : link_(link) {}

  // The next frame that has come; waits for it.
  Frame Take() {
    const std::string length = Read(sizeof(std::uint32_t));
    const std::string body = Read(ByteReader(length).Fixed<std::uint32_t>());
    ByteReader reader(body);
    Frame frame{.kind = Kind{reader.Fixed<std::uint8_t>()}};
    if (frame.kind == Kind::kAsk || frame.kind == Kind::kHere) frame.question = reader.Fixed<std::uint64_t>();
    return frame;
  }
  // The number of the next question.
  std::uint64_t TakeQuestion() {
    const Frame frame = Take();
    EXPECT_EQ(frame.kind, Kind::kAsk);
    return frame.question;
  }
  void Answer(std::uint64_t question, std::uint64_t moved) {
    std::string body, frame;
    ByteWriter writer(&body);
    writer.Fixed(Kind::kHere);
    writer.Fixed(question);
    writer.Fixed(std::uint8_t{1});
    writer.Fixed(std::uint8_t{0});
    for (std::uint64_t number : {std::uint64_t{0}, moved, Activity::kNever}) writer.Fixed(number);
    ByteWriter(&frame).Fixed(static_cast<std::uint32_t>(body.size()));
    frame += body;
    EXPECT_EQ(write(link_.get(), frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
  }

 private:
  std::string Read(std::size_t bytes) {
    std::string read(bytes, '\0');
    for (std::size_t at = 0; at < bytes;) {
      const ssize_t n = ::read(link_.get(), read.data() + at, bytes - at);
      EXPECT_GT(n, 0);
      if (n <= 0) return std::string(bytes, '\0');
      at += static_cast<std::size_t>(n);
    }
    return read;
  }
  UniqueFd link_;
};

class LinksOfTwo : public ::testing::Test {
 protected:
  LinksOfTwo() {
    std::array<int, 2> pair{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    peer_.emplace(pair[1]);
    std::vector<UniqueFd> links(2);
    links[1] = UniqueFd(pair[0]);
    links_.emplace(0, std::move(links), /*begin_ms_max=*/1'000,
                   Links::Events{.on_failed = [this](const Status&) { ++failures_; },
                                 .on_left = [](std::int32_t) {},
                                 .activity = [] { return Activity{}; },
                                 .on_over = [](std::int32_t) {},
                                 .on_given_up = [](std::int32_t) {}});
    EXPECT_EQ(peer_->Take().kind, Kind::kHere);  // its first word, which nobody asked for
  }
  // Until the word that was said before has been heard.
  void UntilHeard(std::int64_t since_ms) {
    while (links_->Listen(since_ms)[1] != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  std::atomic<int> failures_{0};
  std::optional<Peer> peer_;
  std::optional<Links> links_;
};

TEST_F(LinksOfTwo, WhoDoesNotAnswerIsSilentForAsLongAsItIsListenedTo) {
  EXPECT_EQ(links_->Listen(0)[1], 0);
  // It may still be connecting to others.
  EXPECT_EQ(links_->Listen(900)[1], 0);
  EXPECT_EQ(links_->Listen(900)[1], 800);
  peer_->Answer(peer_->TakeQuestion(), 0);
  UntilHeard(500);
  EXPECT_EQ(links_->Listen(500)[1], 500);
  EXPECT_EQ(links_->Listen(700)[1], 1'200);
  EXPECT_EQ(links_->Listen(0)[1], 0) << "what was before this wait is forgotten";
  EXPECT_EQ(links_->Listen(500)[0], 0) << "a rank hears itself";
}

// One that is stopped for hours has its link full of nothing: what is said at last reaches it when it goes on.
TEST_F(LinksOfTwo, AStoppedPeerIsOwedFewQuestions) {
  for (int i = 0; i < 5'000; ++i) (void)links_->Listen(i == 0 ? 0 : 500);
  links_->TellFailed(Status(Code::kUnavailable, "COLL28", "rank 1 is waited for", "its process does not answer"));
  std::uint64_t last = 0;
  for (int i = 0; i < Links::kUnansweredMax; ++i) {
    const std::uint64_t question = peer_->TakeQuestion();
    EXPECT_GT(question, last);
    last = question;
  }
  EXPECT_EQ(peer_->Take().kind, Kind::kFailed);
  // Who answers is asked again.
  peer_->Answer(last, 0);
  UntilHeard(500);
  EXPECT_GT(peer_->TakeQuestion(), last);
}

// Two answers that differ say that a peer gets on. One that comes late is none to the question that was asked meanwhile.
TEST_F(LinksOfTwo, ALateAnswerIsNoneToTheNextQuestion) {
  (void)links_->Listen(0);
  std::thread peer([this] {
    const std::uint64_t heard = peer_->TakeQuestion(), first = peer_->TakeQuestion();
    peer_->Answer(first, 10);
    const std::uint64_t second = peer_->TakeQuestion();
    peer_->Answer(heard, 10);
    peer_->Answer(first, 10);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    peer_->Answer(second, 20);
  });
  const auto before = links_->Ask(30'000), now = links_->Ask(30'000);
  peer.join();
  ASSERT_TRUE(before[1].has_value() && now[1].has_value());
  EXPECT_EQ(before[1]->moved, 10u);
  EXPECT_EQ(now[1]->moved, 20u);
  EXPECT_TRUE(GetsOn(*before[1], *now[1]));
  EXPECT_TRUE(before[0]->waits);
}

TEST_F(LinksOfTwo, WhoDoesNotAnswerInTimeHasNotAnswered) {
  EXPECT_FALSE(links_->Ask(50)[1].has_value());
  EXPECT_FALSE(links_->Ask(250)[1].has_value());
  EXPECT_EQ(failures_.load(), 0);
}

// A question without a number, and an answer with half of one.
TEST(Links, WhatNobodyUnderstandsEndsALink) {
  for (const std::string& body : {std::string("\x03"), std::string("\x04\x01"),
                                  std::string("\x03"
                                              "12345678"
                                              "9")}) {
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    const UniqueFd other(pair[1]);
    std::vector<UniqueFd> ends(2);
    ends[1] = UniqueFd(pair[0]);
    std::atomic<bool> has_failed{false}, is_over{false};
    Links links(0, std::move(ends), 0,
                Links::Events{.on_failed =
                                  [&](const Status& why) {
                                    EXPECT_EQ(why.tag(), "COLL20");
                                    has_failed = true;
                                  },
                              .on_left = [](std::int32_t) {},
                              .activity = [] { return Activity{}; },
                              .on_over = [&](std::int32_t) { is_over = true; },
                              .on_given_up = [](std::int32_t) {}});
    std::string frame;
    ByteWriter(&frame).Fixed(static_cast<std::uint32_t>(body.size()));
    frame += body;
    ASSERT_EQ(write(other.get(), frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
    while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(has_failed);
    EXPECT_TRUE(links.Over()[1]);
  }
}

}  // namespace
}  // namespace ropewalk::collective
