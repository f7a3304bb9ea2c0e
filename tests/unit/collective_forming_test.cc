// Who has which number in a communicator that is formed anew, and who is not in it: what ranks work out from each other's words.
#include "mlrunner/collective/run/forming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace ropewalk::collective {
namespace {

using Said = std::vector<std::optional<std::string>>;

// Words of ranks that stay, all of them.
std::vector<Intent> AllStay(std::int32_t ranks) {
  std::vector<Intent> intents(ranks);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    intents[rank].over.resize(ranks);
    intents[rank].place = "r" + std::to_string(rank);
  }
  return intents;
}

Said Words(const std::vector<Intent>& intents) {
  Said said;
  for (const Intent& one : intents) said.emplace_back(Encode(one));
  return said;
}

std::vector<std::string> Places(const Said& said) {
  auto forming = Form(said);
  EXPECT_TRUE(forming.ok()) << forming.status().ToString();
  return forming.ok() ? forming->words() : std::vector<std::string>();
}

using Strings = std::vector<std::string>;

TEST(Forming, KeepsTheOrderOfThoseWhoStayAndPutsNewcomersBehindThem) {
  std::vector<Intent> intents = AllStay(4);
  EXPECT_EQ(Places(Words(intents)), (Strings{"r0", "r1", "r2", "r3"}));
  intents[1].leaves = true;
  intents[3].newcomers = {{.wish = -1, .place = "n0"}};
  intents[0].newcomers = {{.wish = -1, .place = "n1"}, {.wish = -1, .place = "n2"}};
  EXPECT_EQ(Places(Words(intents)), (Strings{"r0", "r2", "r3", "n1", "n2", "n0"}));
  const auto forming = Form(Words(intents));
  EXPECT_EQ(forming->newcomers, 3);
  EXPECT_EQ(forming->ranks[5].door, 3);
  EXPECT_EQ(forming->ranks[4].newcomer, 1);
  EXPECT_EQ(forming->ranks[1].member, 2);
}

TEST(Forming, GivesNewcomersTheNumbersThatTheyWantIfTheyCanBeHad) {
  // As after rank 2 of four has left, and comes back.
  std::vector<Intent> intents = AllStay(3);
  intents[0].newcomers = {{.wish = 2, .place = "back"}};
  EXPECT_EQ(Places(Words(intents)), (Strings{"r0", "r1", "back", "r2"}));
  // Two at once, one of whom is also the first.
  intents[1].newcomers = {{.wish = 0, .place = "first"}, {.wish = -1, .place = "any"}};
  EXPECT_EQ(Places(Words(intents)), (Strings{"first", "r0", "back", "r1", "r2", "any"}));
}

TEST(Forming, RefusesNumbersThatThereAreNotOrThatAreTaken) {
  std::vector<Intent> intents = AllStay(2);
  intents[0].newcomers = {{.wish = 1, .place = "a"}, {.wish = 1, .place = "b"}, {.wish = 5, .place = "c"}, {.wish = 4, .place = "d"}};
  // With b refused there are five, so that c's 5 is none; then there are four, and d's 4 is none.
  auto forming = Form(Words(intents));
  ASSERT_TRUE(forming.ok()) << forming.status().ToString();
  EXPECT_EQ(forming->words(), (Strings{"r0", "a", "r1"}));
  Strings refused;
  for (const Forming::Place& place : forming->refused) refused.push_back(place.word);
  EXPECT_EQ(refused, (Strings{"b", "c", "d"}));
}

TEST(Forming, HasNoPlaceForThoseWhoAreGone) {
  std::vector<Intent> intents = AllStay(4);
  intents[0].over[2] = true;                               // it takes rank 2 for gone, which has said its word
  intents[2].newcomers = {{.wish = -1, .place = "lost"}};  // nobody could welcome it
  Said said = Words(intents);
  said[3] = std::nullopt;
  auto forming = Form(said);
  ASSERT_TRUE(forming.ok()) << forming.status().ToString();
  EXPECT_EQ(forming->words(), (Strings{"r0", "r1"}));
  EXPECT_EQ(forming->gone, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(forming->newcomers, 0);
}

TEST(Forming, OfNobodyTakesNobodyIn) {
  std::vector<Intent> intents = AllStay(2);
  for (Intent& one : intents) one.leaves = true;
  intents[0].newcomers = {{.wish = -1, .place = "n"}};
  auto forming = Form(Words(intents));
  ASSERT_TRUE(forming.ok()) << forming.status().ToString();
  EXPECT_TRUE(forming->ranks.empty());
  EXPECT_EQ(forming->refused.size(), 1u);
}

TEST(Forming, SaysWhoCallsSomethingElse) {
  std::vector<Intent> intents = AllStay(3);
  intents[1].shrinks = true;
  Status status = Form(Words(intents)).status();
  EXPECT_EQ(status.tag(), "COLL21");
  EXPECT_EQ(status.what(), "rank 0 calls Reform(), rank 1 Shrink()");
  Said said = Words(AllStay(3));
  said[2] = Encode(Formed{.is_well = true});
  status = Form(said).status();
  EXPECT_EQ(status.tag(), "COLL25");
  EXPECT_NE(status.what().find("rank 2"), std::string::npos) << status.ToString();
}

// Whoever comes and goes: each has one number, wishes that are met are met exactly, and those who stay keep their order.
TEST(Forming, HoldsForRandomWords) {
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto ranks = static_cast<std::int32_t>(1 + random.Below(6));
    std::vector<Intent> intents = AllStay(ranks);
    std::size_t come = 0;
    for (Intent& one : intents) {
      one.leaves = random.OneIn(4);
      for (std::uint64_t n = random.Below(3); n > 0; --n, ++come)
        one.newcomers.push_back({.wish = static_cast<std::int32_t>(random.Below(10)) - 3, .place = "n" + std::to_string(come)});
    }
    Said said = Words(intents);
    for (auto& word : said)
      if (random.OneIn(8)) word = std::nullopt;
    auto forming = Form(said);
    ASSERT_TRUE(forming.ok()) << forming.status().ToString();
    std::int32_t last = -1;
    for (std::size_t i = 0; i < forming->ranks.size(); ++i) {
      const Forming::Place& place = forming->ranks[i];
      EXPECT_FALSE(place.word.empty());
      if (place.member >= 0) {
        EXPECT_GT(place.member, last);
        last = place.member;
        EXPECT_TRUE(said[place.member].has_value() && !intents[place.member].leaves);
        continue;
      }
      const std::int32_t wish = intents[place.door].newcomers[place.newcomer].wish;
      if (wish >= 0) {
        EXPECT_EQ(wish, static_cast<std::int32_t>(i));
      }
    }
    Strings words = forming->words();
    std::sort(words.begin(), words.end());
    EXPECT_EQ(std::adjacent_find(words.begin(), words.end()), words.end());
    // Each newcomer at a door that is there is in it or refused, and one is refused for a wish only, unless nobody stays.
    std::size_t offered = 0;
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      if (said[rank].has_value()) offered += intents[rank].newcomers.size();
    EXPECT_EQ(offered, forming->refused.size() + static_cast<std::size_t>(forming->newcomers));
    for (const Forming::Place& place : forming->refused)
      EXPECT_TRUE(intents[place.door].newcomers[place.newcomer].wish >= 0 || forming->ranks.empty());
  }
}

TEST(Forming, ReadsBackItsWordsAndNothingElse) {
  Intent intent{.leaves = true, .over = {false, true, false}, .place = "here", .newcomers = {{.wish = 2, .place = "there"}}};
  const std::string bytes = Encode(intent);
  auto back = DecodeIntent(bytes, 3);
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(back->leaves);
  EXPECT_FALSE(back->shrinks);
  EXPECT_EQ(back->over, intent.over);
  EXPECT_EQ(back->place, "here");
  ASSERT_EQ(back->newcomers.size(), 1u);
  EXPECT_EQ(back->newcomers[0].wish, 2);
  EXPECT_EQ(back->newcomers[0].place, "there");
  const std::string formed = Encode(Formed{.has_lost_one = true, .why = std::string(5'000, 'y')});
  EXPECT_LT(formed.size(), 300u);
  ASSERT_TRUE(DecodeFormed(formed).has_value());
  EXPECT_TRUE(DecodeFormed(formed)->has_lost_one);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(DecodeIntent(bytes.substr(0, cut), 3).has_value());
  for (std::size_t cut = 0; cut < formed.size(); ++cut) EXPECT_FALSE(DecodeFormed(formed.substr(0, cut)).has_value());
  EXPECT_FALSE(DecodeFormed(bytes).has_value());
  EXPECT_FALSE(DecodeIntent(formed, 3).has_value());
}

}  // namespace
}  // namespace ropewalk::collective
