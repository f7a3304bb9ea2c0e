// Collectives of ten thousand ranks in virtual time: what is kept of them, and that it is no program for each rank.
#include <cstdint>

#include "mlrunner/collective/folded.h"
#include "tests/unit/collective_timed.h"

namespace ropewalk::collective::testing {
namespace {

TEST(Scale, TenThousandRanksAreNotMaterialised) {
  const std::int64_t ranks = 10'000, n = 4000, a = 1000, b = 1;
  const SimulateOptions options{.sizes = {.count = n / 4}, .network = {.latency_ns = a, .ns_per_byte = b}};
  SimulateReport chain = Timed("chain", {.ranks = 10'000, .segment_bytes = 1000}, options);
  // Four segments, one behind the other: the first to arrive on each way takes all hops, the others are right behind.
  EXPECT_EQ(chain.end_ns, 2 * (ranks - 1) * (a + 1000 * b) + 3 * 1000 * b);
  EXPECT_EQ(chain.programs_kept, 4);
  EXPECT_LE(chain.steps_kept, 4 * 6);
  SimulateReport barrier = Timed("barrier", {.collective = Collective::kBarrier, .ranks = 10'000}, options);
  EXPECT_EQ(barrier.end_ns, 14 * a);
  EXPECT_EQ(barrier.programs_kept, 1);
  // Pairs across bits are no rotation: such programs are kept, and are short.
  SimulateReport doubling = Timed("recursive_doubling", {.ranks = 10'000}, options);
  EXPECT_LE(doubling.steps_kept, ranks * (2 * 13 + 2));
}

// A ring of ten thousand has two hundred million steps. That they need not be held is seen without running them: ranks from all over it
// share one program.
TEST(Scale, ARingOfTenThousandIsOneProgram) {
  const Algorithm& ring = **FindAlgorithm(Algorithms(), "ring");
  auto header = BuildHeader(ring, {.ranks = 10'000});
  ASSERT_TRUE(header.ok());
  const Program first = Fold(*header, BuildProgram(ring, *header, 0)).program;
  EXPECT_EQ(first.steps.size(), 20'001u);
  for (std::int32_t rank : {1, 2, 4'999, 5'000, 9'998, 9'999})
    EXPECT_TRUE(Fold(*header, BuildProgram(ring, *header, rank)).program == first) << rank;
}

}  // namespace
}  // namespace ropewalk::collective::testing
