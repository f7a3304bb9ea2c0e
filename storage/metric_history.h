// The metrics of one job in bounded memory: where there are too many points, neighbours become one. So the older a point, the more steps
// it is the mean of, and a history of any length keeps its whole shape.
//
// Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "storage/metrics.h"

namespace ropewalk::storage {

class MetricHistory {
 public:
  struct Limits {
    std::size_t points_of_series = 1024;
    std::size_t points = 16 * 1024;  // of all series: the longest are shortened first, those with two points last
    std::size_t series = 4096;       // those of gangs that are long over make room; then there are no new ones
    std::size_t notices = 256;       // the newest
  };
  MetricHistory() = default;
  explicit MetricHistory(Limits limits) : limits_(limits) {}

  // A point at steps that a series has already says them again: its gang went on from a checkpoint, and what lay behind is dropped. A
  // point before it that reaches beyond is cut short; its means stay those of more steps.
  void Add(const Metrics& metrics);

  // By gang, name and rank.
  Metrics All() const;
  // With at most so many points of each series (1 at least).
  Metrics AtMost(std::size_t points_of_series) const;

  std::size_t points() const { return points_; }
  bool empty() const { return series_.empty() && notices_.empty(); }

 private:
  using Key = std::tuple<std::uint64_t, std::string, std::uint32_t>;
  MetricSeries* Find(const MetricSeries& of);
  void Halve(MetricSeries* series);
  Limits limits_;
  std::map<Key, MetricSeries> series_;
  std::vector<MetricNotice> notices_;
  std::size_t points_ = 0;
};

}  // namespace ropewalk::storage
