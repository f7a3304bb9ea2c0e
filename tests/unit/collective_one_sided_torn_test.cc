// That nothing is read half-written, with proof that it was tried: a window is written and read at the same time, also without what keeps
// the two apart, and then halves are seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "mlrunner/collective/run/one_sided.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::collective::testing {
namespace {

constexpr std::int64_t kBytes = std::int64_t{1} << 20;

// Two ranks with a window of kBytes each.
struct Pair {
  explicit Pair(Kind kind) : fabric(kind, 2, 2, std::size_t{8} << 20) {
    std::vector<OneSided::Place> places;
    for (OneSided* side : {&writer, &owner}) {
      EXPECT_EQ(*side->AddWindow(kBytes), 0);
      places.push_back(side->PlaceOf(0));
    }
    for (OneSided* side : {&writer, &owner}) EXPECT_TRUE(side->SetPlaces(0, places).ok());
  }
  OneSided::Work Put(const std::vector<char>& from, bool relaxed) {
    return {.op = Op::kPut, .peer = 1, .bytes = kBytes, .from = from.data(), .relaxed = relaxed};
  }

  Fabric fabric;
  OneSided writer{0, 2, &fabric.endpoint(0), 1}, owner{1, 2, &fabric.endpoint(1), 1};
  const CallLabel label{.fingerprint = 1, .sequence = kUncounted};
};

bool IsWhole(const std::vector<char>& seen) { return std::count(seen.begin(), seen.end(), seen[0]) == kBytes; }

// One rank puts a byte over and over, the next one each time, while the other reads, until `enough`, which is told how many reads were torn
// and how often one came while the other was there. Gives the torn reads.
std::uint64_t ReadWhileWritten(Kind kind, bool relaxed, const std::function<bool(std::uint64_t torn, std::uint64_t met)>& enough) {
  Pair pair(kind);
  std::atomic<bool> stop{false};
  std::thread writing([&] {
    std::vector<char> from(kBytes);
    for (char value = 1; !stop.load(); ++value) {
      std::memset(from.data(), value, kBytes);
      while (pair.writer.Do(pair.Put(from, relaxed), pair.label) == Outcome::kBlocked && !stop.load()) continue;
    }
  });
  std::vector<char> seen(kBytes);
  std::uint64_t torn = 0;
  while (!enough(torn, pair.writer.refused() + pair.owner.refused())) {
    if (relaxed)
      while (pair.owner.Lock(0, 0, pair.label) != Outcome::kDone) continue;
    std::memcpy(seen.data(), pair.owner.MemoryOf(0), kBytes);
    if (relaxed) pair.owner.Unlock(0);
    torn += IsWhole(seen) ? 0 : 1;
  }
  stop = true;
  writing.join();
  EXPECT_TRUE(pair.writer.status().ok() && pair.owner.status().ok());
  return torn;
}

TEST(TornReads, AreNoneWhereTheLockIsTaken) {
  for (Kind kind : {Kind::kThreads, Kind::kPools})
    EXPECT_EQ(ReadWhileWritten(kind, true, [](std::uint64_t torn, std::uint64_t met) { return torn > 0 || met >= 50; }), 0u);
}

#if !defined(__SANITIZE_THREAD__)
// The control, which is a race by intent: the same without the lock is seen to be torn, so the test above would see it.
TEST(TornReads, AreSeenWithoutTheLock) {
  for (Kind kind : {Kind::kThreads, Kind::kPools})
    EXPECT_GT(ReadWhileWritten(kind, false, [](std::uint64_t torn, std::uint64_t) { return torn > 0; }), 0u);
}
#endif

// Over sockets the owner's thread does both. A put that is longer than what a socket holds comes in pieces, and the window is read between
// them.
TEST(TornReads, AreNoneWhileAPutIsUnderWay) {
  Pair pair(Kind::kSockets);
  Transport& sending = pair.fabric.endpoint(0);
  std::vector<char> seen(kBytes);
  for (char value = 1; value <= 5; ++value) {
    const std::vector<char> from(kBytes, value);
    ASSERT_EQ(pair.writer.Do(pair.Put(from, true), pair.label), Outcome::kDone);
    int pieces = 0;
    while (!pair.writer.IsDone(0, 0, 1)) {
      const bool was_out = sending.IsFlushed(1, 1, sending.Posted(1, 1));
      pair.owner.Serve();
      // What was not out cannot have come; yet a part of it has: the sender can go on.
      ASSERT_EQ(pair.owner.Lock(0, 0, pair.label), Outcome::kDone);
      std::memcpy(seen.data(), pair.owner.MemoryOf(0), kBytes);
      pair.owner.Unlock(0);
      ASSERT_TRUE(IsWhole(seen));
      if (!was_out) {
        ASSERT_EQ(seen[0], value - 1);
        ++pieces;
      }
      pair.writer.Serve();
    }
    EXPECT_GE(pieces, 2);
    std::memcpy(seen.data(), pair.owner.MemoryOf(0), kBytes);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), value), kBytes);
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
