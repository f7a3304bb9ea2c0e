// What is said of an executor that was killed: as much as the kernel's counts show, and no more.
#include "worker/daemon/kill_reason.h"

#include <gtest/gtest.h>

#include "dag/failure_tags.h"

namespace ropewalk::worker {
namespace {

const std::string kWho = "an executor on w1 ended by signal 9 (Killed)";

TEST(KillReason, IsAsStrongAsTheEvidence) {
  struct Case {
    KillEvidence evidence;
    Code code;
    const char* tag;
    const char* why;
  };
  for (const Case& c : {
           Case{{}, Code::kUnavailable, "WORKER30", "somebody killed it"},
           Case{{.group_kills = 0}, Code::kUnavailable, "WORKER30", "somebody killed it"},
           // Its own group knows better than the machine, whichever of the two is loud.
           Case{{.group_kills = 0, .machine_kills = 5}, Code::kUnavailable, "WORKER30", "somebody killed it"},
           Case{{.group_kills = 0, .group_was_full = true, .machine_kills = 5}, Code::kUnavailable, "WORKER30", "somebody killed it"},
           Case{{.group_kills = 1, .group_was_full = true, .machine_kills = 1, .memory_bytes_max = 300u << 20},
                Code::kResourceExhausted,
                "WORKER35",
                "the job used more than the 300 MiB that an executor has here"},
           Case{{.group_kills = 1, .machine_kills = 1},
                Code::kResourceExhausted,
                "WORKER29",
                "the machine ran out of memory, and its kernel ended this process for it"},
           Case{{.machine_kills = 1},
                Code::kResourceExhausted,
                dag::kPerhapsOutOfMemoryTag,
                "perhaps the machine ran out of memory: its kernel ended a process for that lately, and without control groups nothing "
                "tells "
                "which; or somebody killed it"},
           Case{{.machine_kills = 3},
                Code::kResourceExhausted,
                dag::kPerhapsOutOfMemoryTag,
                "perhaps the machine ran out of memory: its kernel ended 3 processes for that lately, and without control groups nothing "
                "tells which; or somebody killed it"},
       }) {
    const Status status = ReasonOfKill(kWho, c.evidence);
    EXPECT_EQ(status.code(), c.code) << status.ToString();
    EXPECT_EQ(status.tag(), c.tag) << status.ToString();
    EXPECT_EQ(status.what(), kWho);
    EXPECT_EQ(status.why(), c.why);
    EXPECT_FALSE(status.fix().empty());
  }
}

TEST(KillReason, OldEventsExplainNoNewEnd) {
  RecentGrowth kills(100);
  EXPECT_EQ(kills.Until(100), 0u);
  EXPECT_EQ(kills.Until(102), 2u) << "before the first note it is counted from the start";
  kills.Note(103);
  EXPECT_EQ(kills.Until(103), 3u);
  for (std::size_t i = 0; i + 2 < RecentGrowth::kNotesKept; ++i) kills.Note(103);
  EXPECT_EQ(kills.Until(103), 3u) << "a process may take a while to be gone";
  kills.Note(103);
  EXPECT_EQ(kills.Until(103), 0u);
  EXPECT_EQ(kills.Until(104), 1u);
  EXPECT_EQ(kills.Until(50), 0u) << "a count that cannot be read any more is none";
}

}  // namespace
}  // namespace ropewalk::worker
