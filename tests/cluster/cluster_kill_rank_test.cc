#include "tests/cluster/recovery.h"

namespace ropewalk::cluster {
namespace {

constexpr int kPages = 48, kParts = 3, kRounds = 3;

// PageRank: a loop around actions on a cached dataset, so that a replacement replays several actions and lost caches are made again.
void Rank(Job& job, int delay_ms, const std::string& out) {
  std::vector<std::pair<int, int>> edges;
  for (int page = 0; page < kPages; ++page)
    for (int i = 1; i <= 3; ++i) edges.emplace_back(page, (page * 7 + i * i) % kPages);
  auto links = job.FromVector(edges, {.partitions = kParts})
                   .Map([delay_ms](const std::pair<int, int>& edge) {
                     Dawdle(delay_ms);
                     return edge;
                   })
                   .GroupByKey({.partitions = kParts})
                   .Cache();
  std::printf("%llu pages\n", static_cast<unsigned long long>(links.Count()));
  Dataset<std::pair<int, double>> ranks =
      links.Map([](const std::pair<int, std::vector<int>>& page) { return std::pair(page.first, 1.0); });
  for (int round = 0; round < kRounds; ++round) {
    ranks = links.Join(ranks, {.partitions = kParts})
                .FlatMap([delay_ms](const std::pair<int, std::pair<std::vector<int>, double>>& page) {
                  Dawdle(delay_ms / 2);
                  std::vector<std::pair<int, double>> shares;
                  for (int to : page.second.first) shares.emplace_back(to, page.second.second / double(page.second.first.size()));
                  return shares;
                })
                .ReduceByKey([](double a, double b) { return a + b; }, {.partitions = kParts})
                .MapValues([](double sum) { return 0.15 + 0.85 * sum; });
    std::printf("round %d: %.6f\n", round, ranks.Map([](const std::pair<int, double>& rank) { return rank.second; }).Sum());
  }
  ranks.WriteText(out);
}

TEST(ClusterKillRank, OutputIsExactWhateverIsKilled) {
  KillAtPointsOfProgress({.delay_ms = 6, .executor_kills = {2, 9, 15, 21}, .worker_kills = {4, 11, 18}, .master_kills = {3, 12, 20}});
}

}  // namespace
}  // namespace ropewalk::cluster

ROPEWALK_RECOVERY_MAIN(ropewalk::cluster::Rank)
