// How much one-sided work waits: of ranks that do not take their answers, that ask each other at once, and that ask for more than they may.
// One thread plays both ranks, so that what happens between two steps is known.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "mlrunner/collective/run/one_sided.h"
#include "tests/unit/collective_ranks.h"

namespace ropewalk::collective::testing {
namespace {

// Two ranks that share no memory, with one window each, whose bytes say where they are and whose they are.
class TwoRanks : public ::testing::Test {
 protected:
  static constexpr std::int64_t kWindowBytes = std::int64_t{5} << 20;
  static char ByteAt(std::int32_t rank, std::int64_t at) { return static_cast<char>(at * 7 + rank * 3 + at / 251); }

  void SetUp() override {
    MakeWindow(0, kWindowBytes);
    for (std::int32_t rank = 0; rank < 2; ++rank)
      for (std::int64_t at = 0; at < kWindowBytes; ++at) sides_[rank].MemoryOf(0)[at] = ByteAt(rank, at);
  }
  void MakeWindow(std::int32_t number, std::int64_t bytes) {
    std::vector<OneSided::Place> places;
    for (OneSided* side : {&sides_[0], &sides_[1]}) {
      ASSERT_EQ(*side->AddWindow(static_cast<std::size_t>(bytes)), number);
      places.push_back(side->PlaceOf(number));
    }
    for (OneSided& side : sides_) ASSERT_TRUE(side.SetPlaces(number, places).ok());
  }
  OneSided::Work Get(std::int32_t from, std::int64_t offset, std::int64_t bytes, char* into) {
    return {.op = Op::kGet, .peer = from, .offset_bytes = offset, .bytes = bytes, .into = into};
  }
  OneSided::Work Put(std::int32_t to, std::int64_t offset, std::int64_t bytes, const char* from) {
    return {.op = Op::kPut, .peer = to, .offset_bytes = offset, .bytes = bytes, .from = from};
  }
  // What sockets do while a rank waits, and what the others ask.
  void Move() {
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      sides_[rank].Serve();
      (void)fabric_.endpoint(rank).IsFlushed(1 - rank, 1, fabric_.endpoint(rank).Posted(1 - rank, 1));
      ASSERT_TRUE(sides_[rank].status().ok()) << sides_[rank].status().ToString();
    }
  }

  Fabric fabric_{Kind::kSockets, 2, 2};
  OneSided sides_[2] = {{0, 2, &fabric_.endpoint(0), 1}, {1, 2, &fabric_.endpoint(1), 1}};
  const CallLabel label_;
};

TEST_F(TwoRanks, ASlowReaderGetsNoMoreAtOnceThanItMay) {
  constexpr std::int64_t kBytes = 100'000;
  constexpr int kGets = 150;
  std::vector<std::vector<char>> got(kGets, std::vector<char>(kBytes));
  auto offset_of = [](int get) { return std::int64_t{1'000} * get + 17; };
  int asked = 0;
  std::size_t waited_max = 0;
  auto ask = [&] {
    while (asked < kGets) {
      const Outcome outcome = sides_[0].Do(Get(1, offset_of(asked), kBytes, got[asked].data()), label_);
      if (outcome != Outcome::kDone) return outcome;
      ++asked;
    }
    return Outcome::kDone;
  };
  // It takes no answer for a while.
  EXPECT_EQ(ask(), Outcome::kBlocked);
  EXPECT_EQ(asked, static_cast<int>(OneSided::kAskedMax));
  for (int round = 0; round < 1000; ++round) {
    sides_[1].Serve();
    (void)fabric_.endpoint(0).HasSlot(1, 1, 1);
    waited_max = std::max(waited_max, sides_[1].waiting(0));
    EXPECT_EQ(ask(), Outcome::kBlocked);
  }
  EXPECT_GT(waited_max, 0u);  // the answers did not go
  EXPECT_LE(waited_max, OneSided::kAskedMax);
  while (!(ask() == Outcome::kDone && sides_[0].IsDone(0, 0, 1))) Move();
  for (int get = 0; get < kGets; ++get)
    for (std::int64_t i = 0; i < kBytes; i += 97) ASSERT_EQ(got[get][i], ByteAt(1, offset_of(get) + i)) << get << " " << i;
}

TEST_F(TwoRanks, LongOnesGoOneByOne) {
  constexpr std::int64_t kHalf = OneSided::kAskedBytesMax / 2 + 1, kAll = OneSided::kAskedBytesMax + 100;
  MakeWindow(1, kAll);
  std::vector<char> first(kHalf), second(kHalf), all(kAll);
  for (std::int64_t i = 0; i < kAll; i += 997) sides_[1].MemoryOf(1)[i] = ByteAt(1, i);
  auto get = [&](std::int64_t offset, std::vector<char>* into) {
    OneSided::Work work = Get(1, offset, static_cast<std::int64_t>(into->size()), into->data());
    work.window = 1;
    return sides_[0].Do(work, label_);
  };
  ASSERT_EQ(get(0, &first), Outcome::kDone);
  EXPECT_EQ(get(5, &second), Outcome::kBlocked);
  while (!sides_[0].IsDone(0, 0, 1)) Move();
  ASSERT_EQ(get(5, &second), Outcome::kDone);
  while (!sides_[0].IsDone(0, 0, 1)) Move();
  // Longer than what may be under way: alone.
  ASSERT_EQ(get(0, &all), Outcome::kDone);
  EXPECT_EQ(sides_[0].Do(Put(1, 0, 1, all.data()), label_), Outcome::kBlocked);
  while (!sides_[0].IsDone(0, 0, 1)) Move();
  EXPECT_EQ(std::memcmp(first.data(), all.data(), kHalf), 0);
  EXPECT_EQ(std::memcmp(second.data(), all.data() + 5, kHalf), 0);
  EXPECT_EQ(std::memcmp(sides_[1].MemoryOf(1), all.data(), kAll), 0);
}

// Both have asked for all they may before either takes anything: what is asked is taken whatever waits to go out.
TEST_F(TwoRanks, TwoThatAskEachOtherDoNotWaitForEachOther) {
  constexpr std::int64_t kBytes = 300'000;  // more than a socket holds
  constexpr int kActs = 80;
  std::vector<std::vector<char>> got[2];
  std::vector<char> mine[2];
  int done[2] = {};
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    got[rank].assign(kActs, std::vector<char>(kBytes));
    mine[rank].assign(kBytes, static_cast<char>(rank + 1));
  }
  // Gets of the first half of the window, puts into the second.
  auto act = [&](std::int32_t rank) {
    while (done[rank] < kActs) {
      const std::int64_t offset = std::int64_t{10'000} * done[rank];
      const OneSided::Work work = done[rank] % 2 == 0 ? Get(1 - rank, offset, kBytes, got[rank][done[rank]].data())
                                                      : Put(1 - rank, kWindowBytes / 2 + offset, kBytes, mine[rank].data());
      if (sides_[rank].Do(work, label_) != Outcome::kDone) return false;
      ++done[rank];
    }
    return sides_[rank].IsDone(0, 0, 1 - rank);
  };
  for (bool ended[2] = {}; !ended[0] || !ended[1];) {
    for (std::int32_t rank = 0; rank < 2; ++rank) ended[rank] = act(rank);
    for (std::int32_t rank = 0; rank < 2; ++rank) EXPECT_LE(sides_[rank].waiting(1 - rank), 2 * OneSided::kAskedMax);
    Move();
  }
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    for (int get = 0; get < kActs; get += 2)
      for (std::int64_t i = 0; i < kBytes; i += 997) ASSERT_EQ(got[rank][get][i], ByteAt(1 - rank, 10'000 * get + i));
    const char* put = sides_[rank].MemoryOf(0) + kWindowBytes / 2 + 10'000;
    EXPECT_EQ(std::count(put, put + kBytes, static_cast<char>(1 - rank + 1)), kBytes);
  }
}

// The control: a peer that takes no answers and asks on is an error, or its answers would fill the memory.
TEST_F(TwoRanks, WhoAsksForMoreThanItMayIsAnError) {
  // A get of 100 kB as it goes over the wire (one_sided.h: kind, window, offset, bytes).
  std::vector<char> frame(128);
  const std::uint32_t kind = 3;
  const std::int64_t bytes = 100'000;
  std::memcpy(frame.data(), &kind, sizeof(kind));
  std::memcpy(frame.data() + 16, &bytes, sizeof(bytes));
  Transport& greedy = fabric_.endpoint(0);
  int asked = 0;
  for (; asked < 1000 && sides_[1].status().ok(); ++asked) {
    ASSERT_TRUE(greedy.HasSlot(1, 1, kSlotsMax));
    greedy.Post(1, 1, frame.data(), frame.size());
    sides_[1].Serve();
    EXPECT_LE(sides_[1].waiting(0), OneSided::kAskedMax);
  }
  EXPECT_EQ(sides_[1].status().tag(), "COLL27");
  EXPECT_EQ(sides_[1].status().what(), "rank 0 asks for more one-sided work at once than it may") << sides_[1].status().ToString();
  EXPECT_GT(asked, static_cast<int>(OneSided::kAskedMax));
}

}  // namespace
}  // namespace ropewalk::collective::testing
