// Who is blamed for a call that stands still: a table of what ranks may say.
#include <gtest/gtest.h>

#include "mlrunner/collective/run/blame.h"

namespace ropewalk::collective {
namespace {

constexpr std::int64_t kTimeoutMs = 1'000;
// Rank 0 waits for rank 2, of four.
const Engine::Stall kStall{.ranks = {2}, .waited_ms = 1'500};

const Activity kWaits{.waits = true, .looks = 5, .moved = 7};
const Activity kMoved{.waits = true, .looks = 6, .moved = 8};
const Activity kElsewhere{.waits = false, .looks = 5, .moved = 7};
const Activity kWorks{.waits = false, .looks = 5, .moved = 7, .worked_ms_ago = 100};
const Activity kWorkedLongAgo{.waits = false, .looks = 5, .moved = 7, .worked_ms_ago = 5'000};
const Activity kInLongStep{.waits = true, .is_in_step = true, .looks = 5, .moved = 7};

Status Say(const std::vector<std::optional<Activity>>& before, const std::vector<std::optional<Activity>>& now) {
  return Blame(0, kStall, before, now, kTimeoutMs);
}

TEST(Blame, FallsOnWhoDoesNotAnswerBeforeAllOthers) {
  const Status status = Say({kWaits, kElsewhere, kElsewhere, std::nullopt}, {kWaits, kElsewhere, kElsewhere, std::nullopt});
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.tag(), "COLL28");
  EXPECT_TRUE(status.what().starts_with("rank 3 is waited for: rank 0 has been at ")) << status.what();
  EXPECT_NE(status.what().find(" for 1500 ms"), std::string::npos) << status.what();
  // It answered once, and then no more.
  EXPECT_TRUE(Say({kWaits, kWaits, kWaits, kWaits}, {kWaits, std::nullopt, kMoved, std::nullopt})
                  .what()
                  .starts_with("rank 1, rank 3 are waited for: "));
}

TEST(Blame, FallsOnWhoIsMissedAndInNoCallEvenWhileOthersGetOn) {
  const Status status = Say({kWaits, kElsewhere, kElsewhere, kWaits}, {kWaits, kElsewhere, kElsewhere, kMoved});
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(status.what().starts_with("rank 2 is waited for: ")) << status.what();
  EXPECT_NE(status.why().find("in no call"), std::string::npos);
}

TEST(Blame, FallsOnNobodyWhileAnyRankGetsOn) {
  EXPECT_TRUE(Say({kWaits, kWaits, kWaits, kWaits}, {kWaits, kWaits, kMoved, kWaits}).ok()) << "bytes have moved";
  EXPECT_TRUE(Say({kWaits, kInLongStep, kWaits, kWaits}, {kWaits, kInLongStep, kWaits, kWaits}).ok()) << "one long step";
  EXPECT_TRUE(Say({kWaits, kWaits, kWorks, kWaits}, {kWaits, kWaits, kWorks, kWaits}).ok()) << "it says that it works";
  // What it does itself does not count: it stands still.
  EXPECT_FALSE(Say({kWaits, kWaits, kWaits, kWaits}, {kMoved, kWaits, kWaits, kWaits}).ok());
}

TEST(Blame, FallsAtLastOnOneInNoCallAndElseOnThoseThatAreMissed) {
  EXPECT_TRUE(Say({kWaits, kWorkedLongAgo, kWaits, kWaits}, {kWaits, kWorkedLongAgo, kWaits, kWaits}).what().starts_with("rank 1 is "));
  const Status status = Say({kWaits, kWaits, kWaits, kWaits}, {kWaits, kWaits, kWaits, kWaits});
  EXPECT_TRUE(status.what().starts_with("rank 2 is ")) << status.what();
  EXPECT_EQ(status.why(), "they wait in calls, too: of other ranks, or in another order");
}

TEST(Blame, OfSilenceFallsOnAllThatWereSilentForSoLong) {
  const std::vector<std::int64_t> silent_ms = {0, 6'999, 7'000, 9'000};
  EXPECT_TRUE(BlameSilent(0, kStall, silent_ms, 9'001).ok());
  const Status status = BlameSilent(0, kStall, silent_ms, 7'000);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_TRUE(status.what().starts_with("rank 2, rank 3 are waited for: ")) << status.what();
}

}  // namespace
}  // namespace ropewalk::collective
