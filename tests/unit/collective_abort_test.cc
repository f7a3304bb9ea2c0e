// A call that fails gives its caller the memory back while peers may still be reading it: what they read then is never a result of theirs.
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "base/random.h"
#include "mlrunner/collective/run/instance.h"
#include "mlrunner/collective/run/shared_transport.h"
#include "tests/unit/collective_either_way.h"
#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_lateness.h"

namespace ropewalk::collective::testing {
namespace {

// ---- one message, of which the sender fails while it is read ---------------------------------------------------------------------------

// An endpoint whose peer fails, and whose peer's caller writes over what was sent, between the look for a message and the reading of it.
class Overtaken : public SharedTransport {
 public:
  Overtaken(Board board, Transport* sender, std::span<float> sent, bool looks_again)
      : SharedTransport(1, board, {nullptr, nullptr}, 0), sender_(sender), sent_(sent), looks_again_(looks_again) {}

  const void* Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* landing, std::size_t bytes) override {
    const void* found = SharedTransport::Peek(peer, channel, index, landing, bytes);
    if (found != nullptr) {
      sender_->Revoke();
      std::fill(sent_.begin(), sent_.end(), -1.f);
    }
    return found;
  }
  bool IsSound(std::int32_t peer) override { return SharedTransport::IsSound(peer) || !looks_again_; }

 private:
  Transport* const sender_;
  const std::span<float> sent_;
  const bool looks_again_;
};

// Over all borders.
Outcome Go(Instance& instance) {
  Outcome outcome;
  do outcome = instance.Advance();
  while (outcome == Outcome::kYielded);
  return outcome;
}

TEST(Aborted, MessagesThatAreReadWhileTheirSenderFailsAreNotUsed) {
  constexpr std::int64_t kCount = 1000;
  for (bool looks_again : {true, false}) {
    auto memory = SharedMemory::Create(Board::BytesFor(2, 1));
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    const Board board(memory->data(), 2, 1);
    std::vector<float> sent(kCount, 7), got(kCount, 0);
    SharedTransport sender(0, board, {nullptr, nullptr}, 0);
    Overtaken receiver(board, &sender, sent, looks_again);
    auto plan = BuildPlan("broadcast_tree", {.collective = Collective::kBroadcast, .ranks = 2});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    auto from = Instance::Make(&plan->header, &plan->programs[0], {.count = kCount}, &sender);
    auto to = Instance::Make(&plan->header, &plan->programs[1], {.count = kCount}, &receiver);
    ASSERT_TRUE(from.ok() && to.ok());
    ASSERT_TRUE((*from)->Bind(std::vector<void*>{sent.data(), sent.data()}).ok());
    ASSERT_TRUE((*to)->Bind(std::vector<void*>{got.data(), got.data()}).ok());
    const CallLabel label = LabelOf(plan->header, kCount, "b", 0);
    (*from)->Start(0, label);
    (*to)->Start(0, label);
    EXPECT_EQ(Go(**from), Outcome::kBlocked);  // it is there until it has been read
    if (!looks_again) {
      // The control: what comes of it where nobody looks again.
      EXPECT_EQ(Go(**to), Outcome::kDone);
      EXPECT_EQ(got[kCount - 1], -1);
      continue;
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Go(**to), Outcome::kBlocked);
    // Nobody says why: then it is lost in the end.
    while (receiver.status().ok()) receiver.Wait(false);
    EXPECT_EQ(receiver.status().tag(), "COLL20");
    EXPECT_EQ(receiver.status().what(), "rank 0 is lost") << receiver.status().ToString();
    EXPECT_EQ(Go(**to), Outcome::kFailed);
  }
}

// ---- gangs -----------------------------------------------------------------------------------------------------------------------------

// Promised.
constexpr std::int64_t kMsMax = 1'000;

class Aborting : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Aborting, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

// From a thread of its own, at any moment of a run of sums, a hundred times over each wire. Whoever gets the error writes over its vectors
// at once; whoever gets a sum gets the right one.
TEST_P(Aborting, FromAnotherThreadFreesAllAndSpoilsNoSum) {
  constexpr std::int32_t kRanks = 3;
  constexpr std::int64_t kCount = 100'000;
  constexpr int kRepeats = 100;
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::atomic<std::int64_t> sums{0};
  std::int64_t worst_us = 0;
  for (int repeat = 0; repeat < kRepeats && !HasFailure(); ++repeat) {
    using Clock = std::chrono::steady_clock;
    std::atomic<Clock::rep> aborted_at{0};
    std::atomic<std::int64_t> took_us{0};
    std::optional<Lateness> late;
    WithRanks(kRanks, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
      Random shared = Random::ForPurpose(seed, static_cast<std::uint64_t>(repeat));
      const bool submits = shared.OneIn(2);
      const auto aborter = static_cast<std::int32_t>(shared.Below(kRanks));
      const double share = static_cast<double>(shared.Below(1'000)) / 1'000;
      auto memory = all.Allocate(2 * kCount * sizeof(float));
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      auto* in = reinterpret_cast<float*>(*memory);
      float* out = in + kCount;
      meeting.Barrier(all.rank());
      // Some sums are made before it wherever they take long: on a busy machine, under a sanitizer.
      std::fill(in, in + kCount, 1.f);
      const Clock::time_point begin = Clock::now();
      const Status first = SumEitherWay(all, {.in = in, .out = out, .count = kCount, .name = "first"}, submits);
      EXPECT_TRUE(first.ok()) << first.ToString();
      const Clock::duration longest = std::max<Clock::duration>(std::chrono::milliseconds(8), 10 * (Clock::now() - begin));
      meeting.Barrier(all.rank());
      std::thread other;
      if (all.rank() == aborter)
        other = std::thread([&, delay = std::chrono::duration_cast<Clock::duration>(longest * share)] {
          std::this_thread::sleep_for(delay);
          late.emplace();
          aborted_at = Clock::now().time_since_epoch().count();
          all.Abort(Status(Code::kCancelled, "TEST01", "enough"));
        });
      for (int round = 0;; ++round) {
        std::fill(in, in + kCount, static_cast<float>(all.rank() + round));
        constexpr std::string_view kAlgorithms[] = {"direct", "ring", "recursive_doubling", "chain"};
        Status status =
            SumEitherWay(all, {.in = in, .out = out, .count = kCount, .name = "x", .algorithm = kAlgorithms[shared.Below(4)]}, submits);
        if (!status.ok()) {
          const Clock::rep since = Clock::now().time_since_epoch().count() - aborted_at.load();
          std::fill(in, in + 2 * kCount, std::numeric_limits<float>::quiet_NaN());
          EXPECT_EQ(status.tag(), "TEST01") << status.ToString();
          const std::int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(Clock::duration(since)).count();
          for (std::int64_t worst = took_us; us > worst && !took_us.compare_exchange_weak(worst, us);) continue;
          break;
        }
        ++sums;
        const auto expected = static_cast<float>(3 + 3 * round);
        for (std::int64_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], expected) << "repeat " << repeat << ", element " << i;
      }
      if (other.joinable()) other.join();
      meeting.Barrier(all.rank());
    });
    EXPECT_LE(took_us, late->Allowed(kMsMax) * 1'000) << "repeat " << repeat;
    worst_us = std::max(worst_us, took_us.load());
  }
  EXPECT_GT(sums, 0);
  std::printf("%d aborts, %lld sums before them: the last call ended %lld us after the abort\n", kRepeats,
              static_cast<long long>(sums.load()), static_cast<long long>(worst_us));
}

}  // namespace
}  // namespace ropewalk::collective::testing
