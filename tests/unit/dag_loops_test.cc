// Loops of thousands of rounds: memory stays flat, and a deep lineage needs no deep stack.
#include <gtest/gtest.h>

#include "tests/unit/local_backend.h"

namespace ropewalk::dag {
namespace {

using Pair = std::pair<std::string, std::int64_t>;

struct Point {
  double x = 0, y = 0;
};

// k-means over 10,000 rounds: the same points, new nodes in each round.
TEST(Loops, TenThousandIterationsOverACacheKeepMemoryFlat) {
  for (bool durable : {true, false}) {
    LocalBackend backend(2);
    backend.durable = durable;
    backend.keep_plans = false;
    Session job = backend.NewSession();
    std::vector<Point> data;
    for (int i = 0; i < 8; ++i) data.push_back({double(i % 4), double(i % 4)});
    auto points = job.FromVector(data, {.partitions = 2}).Cache();
    double centre = 10;
    std::int64_t nodes_after_ten = 0;
    for (int round = 0; round < 10000; ++round) {
      auto moved = points.Map([centre](const Point& p) { return std::pair(p.x > centre, p.x); }).ReduceByKey(std::plus<>()).Collect();
      double sum = 0;
      for (const auto& [side, x] : moved) sum += x;
      centre = sum / 8;
      if (round == 10) nodes_after_ten = job.context().live_nodes();
    }
    EXPECT_DOUBLE_EQ(centre, 1.5);
    EXPECT_EQ(job.context().live_nodes(), nodes_after_ten);
    EXPECT_LE(backend.stages_held(), 3u);
    EXPECT_LE(backend.blocks.segments.size(), 6u);
    EXPECT_EQ(backend.tasks_run, 2u + 10000u * 4u);  // the cache once
  }
}

// PageRank: each round's dataset is made of the last one's.
TEST(Loops, TenThousandRoundsOfALineageStayFlatWhereOutputIsDurable) {
  LocalBackend backend(1);
  backend.keep_plans = false;
  Session job = backend.NewSession();
  using Rank = std::pair<std::uint32_t, double>;
  auto links = job.FromVector(std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {1, 2}, {2, 0}, {2, 1}}).GroupByKey().Cache();
  Dataset<Rank> ranks = links.MapValues([](const std::vector<std::uint32_t>&) { return 1.0; });
  for (int round = 0; round < 10000; ++round) {
    ranks = links.Join(ranks)
                .FlatMap([](const std::pair<std::uint32_t, std::pair<std::vector<std::uint32_t>, double>>& page, Emit<Rank> emit) {
                  for (std::uint32_t to : page.second.first) emit(to, page.second.second / double(page.second.first.size()));
                })
                .ReduceByKey(std::plus<>())
                .MapValues([](double sum) { return 0.15 + 0.85 * sum; })
                .Cache();
    ranks.Count();
    ASSERT_LT(job.context().live_nodes(), 20);
    ASSERT_LT(backend.blocks.segments.size(), 20u);
  }
  EXPECT_NEAR(ranks.Map([](const Rank& r) { return r.second; }).Sum(), 3.0, 1e-9);
}

// The same on a cluster, where output can be lost: what an action announces is bounded by what is new, and what main holds by the
// checkpoints that the backend makes.
TEST(Loops, ADependentLoopPlansOnlyWhatIsNewAndLetsGoOfWhatIsCut) {
  for (std::uint64_t cut_every : {0, 16}) {
    LocalBackend backend(2);
    backend.durable = false;
    backend.cut_every = cut_every;
    Session job = backend.NewSession();
    Dataset<Pair> data = job.FromVector(std::vector<Pair>{{"a", 1}, {"b", 2}, {"a", 3}});
    std::int64_t nodes_max = 0;
    for (int round = 0; round < 300; ++round) {
      data = data.MapValues([](std::int64_t n) { return n + 1; }).ReduceByKey(std::plus<>());
      EXPECT_EQ(data.Count(), 2u);
      nodes_max = std::max(nodes_max, job.context().live_nodes());
      EXPECT_LE(backend.plans.back().stages.size(), 3u) << "round " << round;
    }
    if (cut_every == 0) {
      EXPECT_GE(nodes_max, 300) << "then the bound below proves nothing";
    } else {
      EXPECT_LE(nodes_max, 3 * 16 + 10);
      EXPECT_LE(backend.stages_held(), 2 * 16u + 4);
    }
    // The last blocks are lost: they are made again from what is kept.
    if (cut_every == 0) {
      for (const Stage& stage : backend.plans.back().stages) backend.Lose(stage.id);
    }
    EXPECT_EQ(data.Count(), 2u);
  }
}

TEST(Loops, DeepLineageIsPlannedRunAndReleasedWithoutRecursion) {
  LocalBackend backend(1);
  backend.durable = false;
  backend.keep_plans = false;
  Session job = backend.NewSession();
  Dataset<int> data = job.FromVector(std::vector<int>{1, 2, 3});
  for (int i = 0; i < 3000; ++i) data = data.Map([](int x) { return x + 1; }).Cache();
  EXPECT_EQ(data.Sum(), 6 + 3 * 3000);
  data = job.FromVector(std::vector<int>{7});
  EXPECT_EQ(data.Sum(), 7);
  EXPECT_EQ(backend.stages_held(), 0u);
  EXPECT_LE(job.context().live_nodes(), 2);
}

}  // namespace
}  // namespace ropewalk::dag
