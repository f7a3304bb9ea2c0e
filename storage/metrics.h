// What the ranks of gangs have measured, step by step: series of points, each of them means over some steps.
//
//   series (gang 4, "step", rank 0)      names:   loss   samples_per_s
//     steps 1-32, at 12:00:03            means:   1.91   35,200
//     steps 33-64, at 12:00:04                    1.52   36,100
//
// A mean is kept as a sum and how many numbers are in it, so that two points become one without loss of weight, and what is no number in a
// step (a loss) leaves the others as they are.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::storage {

struct MetricMean {
  double sum = 0;
  std::uint64_t count = 0;  // of numbers; 0: there was none
  double value() const { return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count); }
  friend bool operator==(const MetricMean&, const MetricMean&) = default;
};

struct MetricPoint {
  std::uint64_t first_step = 0, last_step = 0;
  std::int64_t time_us = 0;       // since 1970, of the last step; 0: not known
  std::vector<MetricMean> means;  // in the order of MetricSeries::names; what is missing at the end was not measured
  friend bool operator==(const MetricPoint&, const MetricPoint&) = default;
};

struct MetricSeries {
  std::uint64_t gang = 0;  // id of its stage in the job
  std::string name;        // "step", "evaluation": what its points are of
  std::uint32_t rank = 0;
  std::string machine;  // where the rank was last
  std::vector<std::string> names;
  std::vector<MetricPoint> points;  // by steps, which do not overlap
  friend bool operator==(const MetricSeries&, const MetricSeries&) = default;
};

// Something that people should know of a gang (dag::GangNotice).
struct MetricNotice {
  std::uint64_t gang = 0;
  std::string kind;        // "straggler"
  std::uint32_t rank = 0;  // whom it is about, and where that is
  std::string machine;
  std::uint64_t step = 0;
  std::int64_t time_us = 0;
  double value = 0;
  std::string text;
  friend bool operator==(const MetricNotice&, const MetricNotice&) = default;
};

struct Metrics {
  std::vector<MetricSeries> series;
  std::vector<MetricNotice> notices;  // in the order of time
  bool empty() const { return series.empty() && notices.empty(); }
  friend bool operator==(const Metrics&, const Metrics&) = default;
};

inline constexpr std::size_t kMetricNamesMax = 64;         // of one series
inline constexpr std::size_t kMetricNameBytesMax = 64;     // of a name, of a kind; what is longer is cut
inline constexpr std::size_t kMetricTextBytesMax = 1024;   // of a notice's text, of a machine's name
inline constexpr std::size_t kMetricsSaidMax = 96u << 10;  // bytes, encoded, that one rank may say at once
inline constexpr std::size_t kMetricSeriesSaidMax = 8;     // and series, of one point each
inline constexpr std::size_t kMetricNoticesSaidMax = 16;

std::string Encode(const Metrics& metrics);
// Bytes from a wire or a disk. kDataLoss METRIC01: they cannot be read, or break a bound from above.
Result<Metrics> DecodeMetrics(std::string_view bytes);
// The same of what one rank says at once.
Result<Metrics> DecodeSaidMetrics(std::string_view bytes);

// The line of a job's event log for it, as JSON, with the time of the other events there.
std::string EventOf(const MetricNotice& notice, std::int64_t t_ms);

}  // namespace ropewalk::storage
