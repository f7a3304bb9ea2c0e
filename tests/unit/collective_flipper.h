// A wire between two ranks on which one bit of each connection flips, or that is slow, or breaks off: the higher rank connects to it, and
// it to the lower one.
//
// Thread rule: one thread makes and destroys it; it has one of its own.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {

// What mesh.cc says on each connection before it carries messages: challenge and proof to the rank that connected.
inline constexpr std::size_t kHandshakeToHigherBytes = 48;

struct Flip {
  bool to_lower = true;  // on the way to the rank that listens
  std::size_t at_byte = 0;
  int bit = 0;
};
inline constexpr std::size_t kNever = std::size_t{1} << 40;
inline constexpr Flip kNoFlip{.at_byte = kNever};

struct Pace {
  std::size_t bytes_per_turn = std::size_t{1} << 16;  // of each way
  std::int64_t turn_ms = 0;
  std::size_t stops_at_byte = kNever;  // of each way; from then on nothing passes, and nobody is told
};

class Flipper {
 public:
  explicit Flipper(const Flip& flip, const Pace& pace = {}) : flip_(flip), pace_(pace) {
    listener_ = Socket();
    sockaddr_in address = Local(0);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Forward(); });
  }
  ~Flipper() {
    stop_.store(true);
    thread_.join();
    close(listener_);
    for (const Way& way : ways_) close(way.from);
  }
  Flipper(const Flipper&) = delete;
  Flipper& operator=(const Flipper&) = delete;

  std::uint16_t port() const { return port_; }
  // Where the lower rank listens; before anybody connects.
  void SetTarget(std::uint16_t port) { target_.store(port); }

 private:
  struct Way {
    int from = -1, to = -1;
    bool flips = false, ended = false;
    std::size_t done = 0;  // bytes
  };
  // What waits on a slow wire waits at the sender.
  int Socket() const {
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int bytes = 32 << 10;
    if (pace_.turn_ms > 0) {
      EXPECT_EQ(setsockopt(made, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
    }
    return made;
  }
  static sockaddr_in Local(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void Forward() {
    while (!stop_.load()) {
      std::vector<pollfd> polls{{listener_, POLLIN, 0}};
      for (const Way& way : ways_) polls.push_back({way.ended ? -1 : way.from, POLLIN, 0});
      if (poll(polls.data(), polls.size(), 20) <= 0) continue;
      if (pace_.turn_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pace_.turn_ms));
      for (std::size_t i = 1; i < polls.size(); ++i)
        if (polls[i].revents != 0) Pass(&ways_[i - 1]);
      if (polls[0].revents != 0) Accept();
    }
  }

  void Accept() {
    const int higher = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), lower = Socket();
    sockaddr_in address = Local(target_.load());
    EXPECT_EQ(connect(lower, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
    ways_.push_back({.from = higher, .to = lower, .flips = flip_.to_lower});
    ways_.push_back({.from = lower, .to = higher, .flips = !flip_.to_lower});
  }

  void Pass(Way* way) {
    if (way->done >= pace_.stops_at_byte) {
      way->ended = true;
      return;
    }
    char bytes[1 << 16];
    const ssize_t n = recv(way->from, bytes, std::min({sizeof(bytes), pace_.bytes_per_turn, pace_.stops_at_byte - way->done}), 0);
    if (n <= 0) {
      way->ended = true;
      (void)shutdown(way->to, SHUT_WR);
      return;
    }
    if (way->flips && flip_.at_byte >= way->done && flip_.at_byte < way->done + static_cast<std::size_t>(n)) {
      char& hit = bytes[flip_.at_byte - way->done];
      hit = static_cast<char>(hit ^ (1 << flip_.bit));
    }
    way->done += static_cast<std::size_t>(n);
    for (ssize_t at = 0; at < n;) {
      const ssize_t sent = send(way->to, bytes + at, static_cast<std::size_t>(n - at), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the other side has closed; what it missed is its own affair
      at += sent;
    }
  }

  const Flip flip_;
  const Pace pace_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<std::uint16_t> target_{0};
  std::atomic<bool> stop_{false};
  std::vector<Way> ways_;  // the thread's
  std::thread thread_;
};

// Connected ranks, and between the first two of them `flipper`: what rank 0 says at the rendezvous reaches rank 1 with another port, which
// lies behind version and wire (mesh.cc).
inline void OnBothSidesOf(Flipper* flipper, Meeting* meeting, CommunicatorOptions options, bool checksum_payload,
                          const std::function<void(Communicator&)>& body, std::int32_t ranks = 2) {
  options.checksum_payload = checksum_payload;
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([=, &body] {
      Rendezvous rendezvous = meeting->Of(rank);
      rendezvous.exchange = [=](std::string mine) {
        constexpr std::size_t kPortAt = 3;
        std::uint16_t port = 0;
        if (rank == 0) {
          std::memcpy(&port, mine.data() + kPortAt, sizeof(port));
          flipper->SetTarget(port);
        }
        std::vector<std::string> all = meeting->Exchange(rank, std::move(mine));
        port = flipper->port();
        if (rank == 1) std::memcpy(all[0].data() + kPortAt, &port, sizeof(port));
        return Result<std::vector<std::string>>(std::move(all));
      };
      auto connected = Communicator::Connect(std::move(rendezvous), options);
      ASSERT_TRUE(connected.ok()) << connected.status().ToString();
      body(**connected);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ropewalk::collective::testing
