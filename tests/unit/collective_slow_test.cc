// What moves is waited for, however long it takes: the time-out is for what stands still. A message on a slow wire, those who wait for its
// receiver, a transfer to a window. And the controls: the same when the wire breaks off.
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tests/unit/collective_flipper.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

constexpr std::int64_t kCount = 400'000, kTimeoutMs = 400;
constexpr std::size_t kBytes = kCount * sizeof(float);
// About 1.2 MB/s each way, so that the vector takes several time-outs.
constexpr Pace kSlow{.bytes_per_turn = 12'000, .turn_ms = 10};

CommunicatorOptions Patient(Wire wire) {
  CommunicatorOptions options = Over(wire);
  options.timeout_ms = kTimeoutMs;
  options.segment_bytes = 64 << 20;  // each vector one message
  return options;
}

std::int64_t MsOf(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
}

// What each of `ranks` ranks returns from `body`, with such a wire between the first two.
std::vector<Status> Through(const Pace& pace, std::int32_t ranks, const std::function<Status(Communicator&)>& body) {
  std::vector<Status> statuses(ranks);
  Meeting meeting(ranks);
  Flipper wire(kNoFlip, pace);
  OnBothSidesOf(
      &wire, &meeting, Patient(Wire::kTcp), false,
      [&](Communicator& all) {
        statuses[all.rank()] = body(all);
        meeting.Barrier(all.rank());
      },
      ranks);
  return statuses;
}

// From rank 0 over the slow wire to rank 1, which passes it on when it has it; so the others see nothing move for as long.
Status BroadcastInOnePiece(Communicator& all) {
  std::vector<float> x(kCount, all.rank() == 0 ? 7 : 0);
  RETURN_IF_ERROR(all.Broadcast({.in = x.data(), .out = x.data(), .count = kCount, .name = "w", .algorithm = "broadcast_chain"}));
  EXPECT_EQ(x, std::vector<float>(kCount, 7));
  return {};
}

Status MixInOnePiece(Communicator& all, const char* algorithm) {
  ASSIGN_OR_RETURN(const Window window, all.MakeWindow(2 * kBytes));
  const auto weights = RingOfNeighbours(all.ranks());
  std::vector<float> in(kCount, 1), out(kCount);
  return all.Mix(
      {.in = in.data(), .out = out.data(), .count = kCount, .name = "m", .algorithm = algorithm, .mixing = &weights, .window = &window});
}

TEST(Slow, AMessageThatMovesIsWaitedForAlsoByWhoWaitsForItsReceiver) {
  std::vector<Status> statuses;
  EXPECT_GT(MsOf([&] { statuses = Through(kSlow, 4, BroadcastInOnePiece); }), 2 * kTimeoutMs) << "the wire is not slow";
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(Slow, AMessageThatMovesNoMoreIsNotWaitedFor) {
  Pace pace = kSlow;
  pace.stops_at_byte = kBytes / 2;
  const std::vector<Status> statuses = Through(pace, 4, BroadcastInOnePiece);
  // All of it is on its way for rank 0.
  for (std::size_t rank = 1; rank < statuses.size(); ++rank) {
    EXPECT_EQ(statuses[rank].tag(), "COLL28") << statuses[rank].ToString();
    EXPECT_TRUE(statuses[rank].what().starts_with("rank 0 is waited for: ")) << statuses[rank].ToString();
  }
}

// With both kinds of windows, at the same time.
void MixThrough(const Pace& pace, const std::function<void(const Status&)>& look) {
  std::vector<std::thread> threads;
  for (const char* algorithm : {"window", "window_relaxed"})
    threads.emplace_back([&, algorithm] {
      SCOPED_TRACE(algorithm);
      for (const Status& status : Through(pace, 2, [&](Communicator& all) { return MixInOnePiece(all, algorithm); })) look(status);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Slow, ATransferToAWindowThatMovesIsWaitedFor) {
  EXPECT_GT(MsOf([&] { MixThrough(kSlow, [](const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }); }), 2 * kTimeoutMs)
      << "the wire is not slow";
}

TEST(Slow, ATransferToAWindowThatMovesNoMoreIsNotWaitedFor) {
  Pace pace = kSlow;
  pace.stops_at_byte = kBytes / 2;
  MixThrough(pace, [](const Status& status) {
    EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
    EXPECT_NE(status.what().find(" is waited for: rank "), std::string::npos) << status.ToString();
  });
}

}  // namespace
}  // namespace ropewalk::collective::testing
