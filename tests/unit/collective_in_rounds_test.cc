// Plans made into rounds of sends and receives: how many, what is refused, and what the proof of rounds finds. What they leave is held
// against the interpreter in gpu_rounds_test.cc, where a library runs them.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/rounds.h"
#include "tests/unit/collective_early.h"
#include "tests/unit/collective_plans.h"
#include "tests/unit/collective_rounds.h"
#include "tests/unit/collective_ungrouped.h"

namespace ropewalk::collective::testing {
namespace {

Plan Built(std::string_view algorithm, const Request& request) {
  auto plan = BuildPlan(algorithm, request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : Plan{};
}

Rounds Made(const Plan& plan, std::int64_t count) {
  auto rounds = MakeRounds(plan, {.count = count});
  EXPECT_TRUE(rounds.ok()) << plan.header.algorithm << " N=" << count << ": " << rounds.status().ToString();
  return rounds.ok() ? *std::move(rounds) : Rounds{};
}

// By algorithm: what the reason says.
const std::map<std::string, std::string>& Refused() {
  static const std::map<std::string, std::string> kRefused = {{"sra", "codecs run on the host"},
                                                              {"all_to_all_v", "learned from messages"},
                                                              {"allgather_v", "learned from messages"},
                                                              {"eager", "without the call of this rank"},
                                                              {"window", "a counter"},
                                                              {"window_relaxed", "a window"},
                                                              {"native", "a library's own already"},
                                                              {"native_reduce_scatter", "a library's own already"},
                                                              {"native_allgather", "a library's own already"},
                                                              {"native_broadcast", "a library's own already"},
                                                              {"native_reduce", "a library's own already"}};
  return kRefused;
}

TEST(InRounds, EveryPlanOfMessagesIsAndEveryOtherIsRefusedWithTheReason) {
  for (std::int32_t ranks : {2, 3, 4, 7, 8})
    for (std::int64_t segment_bytes : {0, 32})
      for (const Case& one : AllCases(ranks, segment_bytes)) {
        const Plan plan = Built(one.algorithm, one.request);
        for (std::int64_t count : {0, 1, ranks - 1, 100}) {
          std::vector<std::int64_t> table(static_cast<std::size_t>(ranks) * ranks, 1);
          auto rounds = MakeRounds(plan, {.count = count, .table = table});
          auto refused = Refused().find(one.algorithm);
          if (refused == Refused().end()) {
            EXPECT_TRUE(rounds.ok()) << Name(one) << " N=" << count << ": " << rounds.status().ToString();
            continue;
          }
          ASSERT_FALSE(rounds.ok()) << Name(one);
          EXPECT_EQ(rounds.status().tag(), "COLL12") << Name(one);
          EXPECT_NE(rounds.status().why().find(refused->second), std::string::npos) << rounds.status().ToString();
          EXPECT_EQ(rounds.status().what(), one.algorithm + " cannot be run as rounds of sends and receives");
          EXPECT_FALSE(rounds.status().fix().empty());
        }
      }
}

// With slots enough there is a round for each link of the longest chain of messages, and nothing is sent beside them.
TEST(InRounds, ThereAreAsManyRoundsAndBytesAsThePlanHas) {
  for (std::int32_t ranks : {2, 3, 4, 6, 8, 9})
    for (const Case& one : AllCases(ranks, 0)) {
      if (Refused().contains(one.algorithm)) continue;
      Request request = one.request;
      request.slots = 64;
      const Plan plan = Built(one.algorithm, request);
      constexpr std::int64_t kCount = 5040;
      const Figures figures = RoundMachine::FiguresOf(plan, {.count = kCount});
      const Rounds rounds = Made(plan, kCount);
      EXPECT_EQ(rounds.groups, figures.rounds) << Name(one);
      EXPECT_EQ(rounds.bytes, one.request.collective == Collective::kBarrier ? rounds.messages : figures.total()) << Name(one);
      // Not more memory than the messages that are folded.
      EXPECT_LE(rounds.landed, rounds.messages) << Name(one);
      for (const RankRounds& rank : rounds.ranks) EXPECT_EQ(rank.rounds.size(), static_cast<std::size_t>(rounds.groups) + 1) << Name(one);
    }
}

TEST(InRounds, WhatIsOnlyStoredIsReceivedWhereItBelongs) {
  for (const char* algorithm : {"broadcast_tree", "broadcast_chain"})
    EXPECT_EQ(Made(Built(algorithm, {.collective = Collective::kBroadcast, .ranks = 5}), 100).landed, 0) << algorithm;
  for (const char* algorithm : {"allgather_direct", "allgather_ring"})
    EXPECT_EQ(Made(Built(algorithm, {.collective = Collective::kAllgather, .ranks = 5}), 100).landed, 0) << algorithm;
  EXPECT_EQ(Made(Built("all_to_all", {.collective = Collective::kAllToAll, .ranks = 5}), 100).landed, 0);
  // Each rank folds four messages of others, and stores four.
  EXPECT_EQ(Made(Built("direct", {.ranks = 5}), 100).landed, 20);
}

TEST(InRounds, WhatComesBeforeItsMemoryIsFreeLands) {
  for (const Algorithm& algorithm : {kTwice, kOvertakes}) {
    auto plan = BuildPlan(algorithm, {.collective = algorithm.collective, .ranks = 2});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    const Rounds rounds = Made(*plan, 9);
    EXPECT_EQ(rounds.groups, 1) << algorithm.name << ": both messages are sent at once";
    // One of the two halves; and both vectors, for the first is folded, too.
    EXPECT_EQ(rounds.landed, algorithm.name == "twice" ? 1 : 2) << algorithm.name;
  }
}

// A barrier's messages have no elements, and still travel.
TEST(InRounds, SignsAreOneByteEach) {
  const Rounds rounds = Made(Built("barrier", {.collective = Collective::kBarrier, .ranks = 5}), 0);
  EXPECT_EQ(rounds.groups, 3);
  EXPECT_EQ(rounds.messages, 15);
  EXPECT_EQ(rounds.bytes, 15);
  EXPECT_EQ(Made(Built("ring", {.ranks = 5}), 0).messages, 0) << "what is left out is no sign";
}

TEST(InRounds, TooManyStepsAreRefused) {
  const Plan plan = Built("broadcast_chain", {.collective = Collective::kBroadcast, .segment_bytes = 4});
  auto rounds = MakeRounds(plan, {.count = kRoundStepsMax + 1});
  EXPECT_EQ(rounds.status().code(), Code::kResourceExhausted) << rounds.status().ToString();
  EXPECT_EQ(rounds.status().tag(), "COLL12");
}

// A plan that nobody proved.
TEST(InRounds, APlanThatDoesNotEndIsRefused) {
  Plan plan = Built("broadcast_chain", {.collective = Collective::kBroadcast, .ranks = 3});
  plan.programs[0].channels[0].step_count = 0;
  plan.programs[0].steps.clear();
  Status status = MakeRounds(plan, {.count = 9}).status();
  EXPECT_EQ(status.tag(), "COLL03");
  EXPECT_NE(status.what().find("rank 1, channel 0 waits for ever"), std::string::npos) << status.ToString();
}

// ---- the proof -------------------------------------------------------------------------------------------------------------------------

TEST(Proof, WithoutGroupsRanksWaitForEachOther) {
  std::set<std::string> refused, accepted;
  for (const Case& one : AllCases(4, 0)) {
    if (Refused().contains(one.algorithm)) continue;
    const Rounds rounds = Made(Built(one.algorithm, one.request), 100);
    Status status = CheckRounds(Ungrouped(rounds));
    (status.ok() ? accepted : refused).insert(one.algorithm);
    if (!status.ok()) {
      EXPECT_EQ(status.tag(), "COLL03") << Name(one);
      EXPECT_NE(status.what().find("deadlock: it waits for ever to "), std::string::npos) << status.ToString();
    }
  }
  for (const char* algorithm : {"direct", "ring", "recursive_doubling", "halving_doubling", "barrier", "all_to_all"})
    EXPECT_TRUE(refused.contains(algorithm)) << algorithm;
  for (const char* algorithm : {"broadcast_tree", "broadcast_chain", "send_recv", "gather_direct", "scatter_tree"})
    EXPECT_TRUE(accepted.contains(algorithm)) << algorithm;
}

TEST(Proof, HalvesThatDoNotFitAreFound) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE(seed);
  Random random(seed);
  int mutants = 0;
  for (const Case& one : AllCases(4, 64)) {
    if (Refused().contains(one.algorithm)) continue;
    const Rounds rounds = Made(Built(one.algorithm, one.request), 100);
    for (int round = 0; round < 12; ++round) {
      Rounds mutant = rounds;
      RankRounds& rank = mutant.ranks[random.Below(mutant.ranks.size())];
      if (rank.transfers.empty()) continue;
      const auto t = static_cast<std::int32_t>(random.Below(rank.transfers.size()));
      Transfer& transfer = rank.transfers[static_cast<std::size_t>(t)];
      switch (round % 4) {
        case 0:  // shorter on one side
          if (transfer.is_sign) continue;
          --transfer.count;
          break;
        case 1:  // of another type
          transfer.dtype = Dtype::kBF16;
          break;
        case 2:  // with itself
          transfer.peer = static_cast<std::int32_t>(&rank - mutant.ranks.data());
          break;
        case 3:  // the other way
          transfer.sends = !transfer.sends;
          break;
      }
      ++mutants;
      Status status = CheckRounds(mutant);
      EXPECT_TRUE(status.tag() == "COLL03" || status.tag() == "COLL02" || status.tag() == "COLL04" || status.tag() == "COLL05")
          << Name(one) << ", mutant " << round % 4 << ": " << status.ToString();
    }
    // One half is left out.
    for (std::size_t r = 0; r < rounds.ranks.size(); ++r) {
      Rounds mutant = rounds;
      for (Round& last : mutant.ranks[r].rounds) {
        if (last.transfer_count == 0) continue;
        --last.transfer_count;
        ++mutants;
        EXPECT_FALSE(CheckRounds(mutant).ok()) << Name(one) << ", rank " << r;
        break;
      }
    }
  }
  EXPECT_GT(mutants, 300);
}

Rounds Direct() { return Made(Built("direct", {.ranks = 3}), 9); }

// A rank that does its second round first folds what has not come.
TEST(Proof, RoundsInAnotherOrderAreFound) {
  Rounds rounds = Made(Built("halving_doubling", {.ranks = 4}), 100);
  std::swap(rounds.ranks[0].rounds[0], rounds.ranks[0].rounds[1]);
  EXPECT_FALSE(CheckRounds(rounds).ok());
}

TEST(Proof, WhatAGroupSendsItDoesNotReceiveInto) {
  Rounds rounds = Direct();
  RankRounds& rank = rounds.ranks[1];
  const Round& second = rank.rounds[1];
  ASSERT_EQ(second.transfer_count, 4);
  Transfer* group = rank.transfers.data() + second.first_transfer;
  ASSERT_TRUE(group[0].sends && !group[2].sends && !group[3].sends);
  const RoundPlace before = group[2].place;
  group[2].place = group[0].place;
  EXPECT_EQ(CheckRounds(rounds).tag(), "COLL04");
  group[2].place = group[3].place;
  EXPECT_EQ(CheckRounds(rounds).tag(), "COLL04");
  // In place it is the same memory by another name.
  group[2].place = {0, group[0].place.offset_bytes};
  EXPECT_EQ(CheckRounds(rounds).tag(), "COLL04");
  rank.aliases.clear();
  EXPECT_TRUE(CheckRounds(rounds).ok()) << "apart they do not touch each other";
  group[2].place = before;
  EXPECT_TRUE(CheckRounds(rounds).ok());
  group[2].place.offset_bytes = 1'000'000;
  EXPECT_EQ(CheckRounds(rounds).tag(), "COLL02");
}

TEST(Proof, AFoldReadsWhatHasLandedAndNothingElse) {
  Rounds rounds = Direct();
  RankRounds& rank = rounds.ranks[1];
  ASSERT_EQ(rank.rounds[1].fold_count, 1);
  // One group too early.
  std::swap(rank.rounds[0].fold_count, rank.rounds[1].fold_count);
  EXPECT_EQ(CheckRounds(rounds).tag(), "COLL05");
  std::swap(rank.rounds[0].fold_count, rank.rounds[1].fold_count);
  EXPECT_TRUE(CheckRounds(rounds).ok());
  // Never: the next message lands on what lies there.
  rank.rounds[1].fold_count = 0;
  Transfer& second = rank.transfers[static_cast<std::size_t>(rank.rounds[1].first_transfer + 2)];
  second.place = rank.transfers[static_cast<std::size_t>(rank.rounds[0].first_transfer + 2)].place;
  EXPECT_EQ(CheckRounds(rounds).tag(), "COLL04");
}

TEST(Proof, ListsThatNameWhatIsNoneAreFound) {
  for (int mutant = 0; mutant < 6; ++mutant) {
    Rounds rounds = Direct();
    RankRounds& rank = rounds.ranks[2];
    if (mutant == 0) rank.rounds[0].transfer_count = 1000;
    if (mutant == 1) rank.rounds[1].first_fold = -1;
    if (mutant == 2) rank.folds[0].row_count = 100;
    if (mutant == 3) rank.transfers[0].peer = 3;
    if (mutant == 4) rank.rounds.pop_back();
    if (mutant == 5) rank.memory_bytes.clear();
    EXPECT_EQ(CheckRounds(rounds).tag(), "COLL02") << mutant;
  }
}

}  // namespace
}  // namespace ropewalk::collective::testing
