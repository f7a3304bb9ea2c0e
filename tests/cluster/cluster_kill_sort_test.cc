#include "tests/cluster/recovery.h"

namespace ropewalk::cluster {
namespace {

constexpr int kMaps = 10, kPerMap = 12;

void SortNumbers(Job& job, int delay_ms, const std::string& out) {
  std::vector<std::uint64_t> numbers(kMaps * kPerMap);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = (i * 2654435761u) % 97;  // with equal keys
  job.FromVector(numbers, {.partitions = kMaps})
      .Map([delay_ms](std::uint64_t n) {
        Dawdle(delay_ms);
        return std::pair(n, "value of " + std::to_string(n));
      })
      .SortBy([](const std::pair<std::uint64_t, std::string>& record) { return record.first; }, {.partitions = 4})
      .Map([delay_ms](const std::pair<std::uint64_t, std::string>& record) {
        Dawdle(delay_ms / 3);
        return record;
      })
      .WriteText(out);
  std::printf("sorted\n");
}

TEST(ClusterKillSort, OutputIsExactWhateverIsKilled) {
  KillAtPointsOfProgress({.delay_ms = 9, .executor_kills = {1, 5, 9, 11}, .worker_kills = {2, 7, 11}, .master_kills = {1, 6, 11}});
}

}  // namespace
}  // namespace ropewalk::cluster

ROPEWALK_RECOVERY_MAIN(ropewalk::cluster::SortNumbers)
