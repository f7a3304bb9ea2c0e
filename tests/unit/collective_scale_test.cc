// Rings of a thousand ranks in virtual time: how long is printed, and the counts are held.
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/unit/collective_timed.h"

namespace ropewalk::collective::testing {
namespace {

// 1,024 ranks send two million messages. How long that takes is printed, and what it takes is held: events for each message, one rate for
// each, and one program instead of a thousand.
TEST(Scale, ARingOf1024RanksTakesThreeEventsAMessageAndTheMemoryOfOneProgram) {
  const std::int64_t ranks = 1024, part = 256, a = 50'000, b = 8;
  const SimulateReport report =
      Timed("ring", {.ranks = 1024}, {.sizes = {.count = ranks * part / 4}, .network = {.latency_ns = a, .ns_per_byte = b}});
  EXPECT_EQ(report.end_ns, 2 * (ranks - 1) * (a + part * b));
  const std::uint64_t messages = 2 * ranks * (ranks - 1);
  EXPECT_EQ(report.network.messages, messages);
  EXPECT_EQ(report.network.rates, messages);
  EXPECT_LE(report.events, 3 * messages);
  EXPECT_EQ(report.programs_kept, 1);
  EXPECT_EQ(report.steps_kept, 2 * ranks + 1);  // 2P - 1, and the loop's two
  EXPECT_EQ(report.edges_used, ranks);
}

// Over racks whose uplinks are the slowest: the pace is theirs.
TEST(Scale, ThatRingOverRacksKeepsItsCounts) {
  const std::int64_t ranks = 256, part = 256;
  std::vector<std::int32_t> racks;
  for (int rank = 0; rank < ranks; ++rank) racks.push_back(rank / 32);
  const SimulateReport report =
      Timed("ring", {.ranks = 256},
            {.sizes = {.count = ranks * part / 4}, .topology = std::make_shared<const sim::Topology>(sim::Racks(racks, {1, 100}, {4, 0}))});
  EXPECT_GE(report.end_ns, 2 * (ranks - 1) * part * 4);
  EXPECT_LE(report.end_ns, 2 * (ranks - 1) * (part * 4 + 100));
  EXPECT_EQ(report.network.messages, static_cast<std::uint64_t>(2 * ranks * (ranks - 1)));
  EXPECT_LE(report.network.rates, report.network.messages);
  EXPECT_LE(report.events, 4 * report.network.messages);
  EXPECT_EQ(report.programs_kept, 1);
}

}  // namespace
}  // namespace ropewalk::collective::testing
