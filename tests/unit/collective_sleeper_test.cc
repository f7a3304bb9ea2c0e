// Nobody sleeps over what was written for him, whoever rings beside it and however late.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "mlrunner/collective/run/sleeper.h"

namespace ropewalk::collective {
namespace {

// A sleep that lasts as long as this was not ended by anybody.
constexpr std::uint32_t kForeverMs = 20'000;

struct Mailbox {
  Sleeper sleeper;
  std::atomic<std::uint64_t> written{0};
};

void Write(Mailbox* box, std::uint64_t value) {
  box->written.store(value, std::memory_order_seq_cst);
  WakeFor(&box->sleeper, kForMessage);
}

// As transports wait: announce, look, sleep. Returns how many sleeps nobody ended.
int WaitFor(Mailbox* box, std::uint64_t value) {
  int overslept = 0;
  while (box->written.load(std::memory_order_acquire) < value) {
    Announce(&box->sleeper, kForMessage);
    if (box->written.load(std::memory_order_acquire) >= value) {
      Withdraw(&box->sleeper);
      break;
    }
    const auto begin = std::chrono::steady_clock::now();
    Sleep(&box->sleeper, kForMessage, kForeverMs);
    overslept += std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(kForeverMs);
  }
  return overslept;
}

TEST(Sleeper, AWakingBeforeTheSleepEndsIt) {
  Sleeper sleeper;
  Announce(&sleeper, kForMessage);
  WakeFor(&sleeper, kForMessage);
  const auto begin = std::chrono::steady_clock::now();
  Sleep(&sleeper, kForMessage, kForeverMs);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(kForeverMs));
}

// Who waits for a message is left asleep by room, and finds out when the time is over.
TEST(Sleeper, OnlyWhatIsWaitedForWakes) {
  Sleeper sleeper;
  Announce(&sleeper, kForMessage);
  WakeFor(&sleeper, kForRoom);
  const auto begin = std::chrono::steady_clock::now();
  Sleep(&sleeper, kForMessage, 30);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
  Announce(&sleeper, kForMessage | kForRoom);
  WakeFor(&sleeper, kForRoom);
  Sleep(&sleeper, kForMessage | kForRoom, kForeverMs);
}

// Two hand a number to and fro while a third rings both for no reason. A ringer that takes away an announcement it has not rung for, or a
// write between announcement and sleep that wakes nobody, leaves one of them asleep.
TEST(Sleeper, NobodyOversleepsWhileOthersRingForNoReason) {
  constexpr std::uint64_t kRounds = 30'000;
  Mailbox boxes[2];
  std::atomic<bool> ends{false};
  std::atomic<int> overslept{0};
  auto player = [&](int self) {
    for (std::uint64_t round = 1; round <= kRounds && overslept.load() == 0; ++round) {
      if (self == 0) Write(&boxes[1], round);
      overslept.fetch_add(WaitFor(&boxes[self], round));
      if (self == 1) Write(&boxes[0], round);
    }
  };
  std::thread ringer([&] {
    while (!ends.load())
      for (Mailbox& box : boxes) Ring(&box.sleeper);
  });
  std::thread other(player, 1);
  player(0);
  other.join();
  ends.store(true);
  ringer.join();
  EXPECT_EQ(overslept.load(), 0);
}

}  // namespace
}  // namespace ropewalk::collective
