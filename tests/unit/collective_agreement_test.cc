// How ranks agree though some die: the state machine alone, on a network that is a value. Every order of events for a few ranks (more of
// it in tests/long), and ten thousand seeds for up to nine.
#include "mlrunner/collective/run/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/unit/collective_agreement_world.h"

namespace ropewalk::collective::testing {
namespace {

using Message = Agreements::Message;
using Messages = Agreements::Messages;

// A run whose order, deaths and losses are drawn. Empty: all is as promised.
std::string Play(std::uint64_t seed, World::Fault fault = World::Fault::kNone) {
  Random random(seed);
  const auto ranks = static_cast<std::int32_t>(2 + random.Below(8));
  World world(ranks, 1 + random.Below(4), fault);
  auto deaths = static_cast<std::int32_t>(random.Below(static_cast<std::uint64_t>(ranks)));
  const std::uint64_t rate = 4 + random.Below(40);
  auto has_died = [&](std::int32_t rank) {
    for (std::int32_t to = 0; to < ranks; ++to)
      if (random.OneIn(4)) world.Lose(rank, to, random.Below(1 + world.Waiting(rank, to)));
    --deaths;
  };
  for (;;) {
    const std::vector<World::Event> events = world.Possible();
    if (events.empty()) return world.Wrong();
    const World::Event& event = events[random.Below(events.size())];
    if (deaths > 0 && random.OneIn(rate)) {
      // In the middle of what it says, or at any other moment.
      if (random.OneIn(2)) {
        world.Do(event, static_cast<int>(random.Below(4)));
        has_died(event.to);
      } else {
        const auto rank = static_cast<std::int32_t>(random.Below(static_cast<std::uint64_t>(ranks)));
        if (!world.lives(rank)) continue;
        world.Kill(rank);
        has_died(rank);
      }
      continue;
    }
    world.Do(event);
  }
}

TEST(Agreement, HoldsForTenThousandSeedsWhoeverDies) {
  for (std::uint64_t seed = 1; seed <= 10'000; ++seed) ASSERT_EQ(Play(seed), "") << "seed " << seed;
}

// The controls: what the answers are for, and what is said when a rank has died. Without them some runs hang, or end in two outcomes.
TEST(Agreement, WouldNotHoldWithoutWhatIsSaidAfterDeaths) {
  for (World::Fault fault : {World::Fault::kNoAnswers, World::Fault::kNothingAfterDeaths}) {
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= 10'000; ++seed) wrong += Play(seed, fault).empty() ? 0 : 1;
    std::printf("without %s %d of 10,000 runs go wrong\n",
                fault == World::Fault::kNoAnswers ? "answers of those who know" : "word to the next one that gathers", wrong);
    EXPECT_GT(wrong, 0);
  }
}

TEST(Agreement, HoldsInEveryOrderOfAFewRanks) {
  ExpectEveryOrderHolds(2, 3, 1);
  ExpectEveryOrderHolds(3, 1, 2);
}

TEST(Agreement, TakesTwoMessagesForEachOtherRankWhileNobodyDies) {
  for (std::int32_t ranks : {1, 2, 3, 8, 100})
    for (std::uint64_t agreements : {1, 3}) {
      World world(ranks, agreements);
      Random random(static_cast<std::uint64_t>(ranks));
      for (;;) {
        const std::vector<World::Event> events = world.Possible();
        if (events.empty()) break;
        world.Do(events[random.Below(events.size())]);
      }
      EXPECT_EQ(world.Wrong(), "");
      EXPECT_EQ(world.messages, agreements * 2 * static_cast<std::uint64_t>(ranks - 1)) << ranks << " ranks";
    }
}

// ---- links that break while both ranks live --------------------------------------------------------------------------------------------

// Delivers everything, in the order of its sending, but over the links that are broken.
void Deliver(std::vector<Agreements>* machines, const std::function<bool(std::int32_t, std::int32_t)>& is_broken,
             std::deque<std::pair<std::int32_t, Message>> messages) {
  while (!messages.empty()) {
    auto [from, message] = std::move(messages.front());
    messages.pop_front();
    if (is_broken(from, message.to)) continue;
    Messages out;
    ASSERT_TRUE((*machines)[message.to].Hear(from, message.kind, message.number, message.bytes, &out));
    for (Message& next : out) messages.emplace_back(message.to, std::move(next));
  }
}

TEST(Agreement, TellsARankThatItIsCutOff) {
  for (std::int32_t a = 0; a < 4; ++a)
    for (std::int32_t b = a + 1; b < 4; ++b) {
      std::vector<Agreements> machines;
      for (std::int32_t rank = 0; rank < 4; ++rank) machines.emplace_back(rank, 4);
      std::deque<std::pair<std::int32_t, Message>> messages;
      auto say = [&](std::int32_t from, Messages out) {
        for (Message& message : out) messages.emplace_back(from, std::move(message));
      };
      Messages out;
      machines[a].Over(b, &out);
      machines[b].Over(a, &out);
      for (std::int32_t rank = 0; rank < 4; ++rank) {
        out.clear();
        machines[rank].Propose(0, "word of " + std::to_string(rank), std::vector<bool>(4), &out);
        say(rank, std::move(out));
      }
      Deliver(
          &machines, [&](std::int32_t from, std::int32_t to) { return std::min(from, to) == a && std::max(from, to) == b; },
          std::move(messages));
      const Agreed* first = machines[0].Find(0);
      ASSERT_NE(first, nullptr);
      for (std::int32_t rank = 0; rank < 4; ++rank) {
        const Agreed* agreed = machines[rank].Find(0);
        ASSERT_NE(agreed, nullptr) << "rank " << rank << ", link " << a << " - " << b;
        EXPECT_EQ(agreed->words, first->words);
      }
      // Only the one that gathers does without somebody; of other links that are broken it knows nothing, and ranks say so in their words.
      for (std::int32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(first->words[rank].has_value(), a != 0 || rank != b);
    }
}

// ---- time ------------------------------------------------------------------------------------------------------------------------------

TEST(Agreement, NamesOnAllWhoDidNotComeInTime) {
  std::vector<Agreements> machines;
  for (std::int32_t rank = 0; rank < 4; ++rank) machines.emplace_back(rank, 4);
  auto propose = [&](std::int32_t rank, std::uint64_t number) {
    Messages out;
    machines[rank].Propose(number, "x", std::vector<bool>(4), &out);
    std::deque<std::pair<std::int32_t, Message>> messages;
    for (Message& message : out) messages.emplace_back(rank, std::move(message));
    Deliver(&machines, [](std::int32_t, std::int32_t) { return false; }, std::move(messages));
  };
  for (std::int32_t rank : {0, 1, 3}) propose(rank, 0);
  for (std::int32_t rank : {1, 3, 0}) {
    EXPECT_EQ(machines[rank].Find(0), nullptr);
    Messages out;
    machines[rank].GiveUp(machines[rank].missing(), false, &out);
    EXPECT_EQ(out.size(), rank == 0 ? 2u : 0u);  // nobody else says so
    std::deque<std::pair<std::int32_t, Message>> messages;
    for (Message& message : out) messages.emplace_back(rank, std::move(message));
    Deliver(&machines, [](std::int32_t, std::int32_t) { return false; }, std::move(messages));
  }
  for (std::int32_t rank : {0, 1, 3}) {
    ASSERT_NE(machines[rank].Find(0), nullptr);
    EXPECT_EQ(machines[rank].Find(0)->missed, (std::vector<bool>{false, false, true, false}));
  }
  // Who comes too late learns it, and all may try again.
  propose(2, 0);
  ASSERT_NE(machines[2].Find(0), nullptr);
  EXPECT_TRUE(machines[2].Find(0)->is_given_up());
  for (std::int32_t rank : {3, 2, 0, 1}) propose(rank, 1);
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    ASSERT_NE(machines[rank].Find(1), nullptr);
    EXPECT_FALSE(machines[rank].Find(1)->is_given_up());
  }
}

// ---- bytes -----------------------------------------------------------------------------------------------------------------------------

TEST(Agreement, ReadsBackWhatWasAgreedAndNothingElse) {
  const Agreed agreed{.words = {"a", std::nullopt, std::nullopt, std::string(300, 'x')}, .missed = {false, false, true, false}};
  const std::string bytes = Encode(agreed);
  const std::optional<Agreed> back = DecodeAgreed(bytes, 4);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->words, agreed.words);
  EXPECT_EQ(back->missed, agreed.missed);
  EXPECT_FALSE(DecodeAgreed(bytes, 3).has_value());
  EXPECT_FALSE(DecodeAgreed(bytes, 5).has_value());
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(DecodeAgreed(bytes.substr(0, cut), 4).has_value());
  Agreements machine(0, 4);
  Messages out;
  EXPECT_FALSE(machine.Hear(1, Agreements::Kind::kAgreed, 0, "\x7f", &out));
}

}  // namespace
}  // namespace ropewalk::collective::testing
