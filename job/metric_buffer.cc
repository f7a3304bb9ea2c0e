#include "job/metric_buffer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

namespace ropewalk::job {
namespace {

std::int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string Cut(std::string text, std::size_t bytes_max) {
  if (text.size() > bytes_max) text.resize(bytes_max);
  return text;
}

// Where `name` stands, mostly at `likely`; nullopt-like size(): nowhere, and there is no room.
std::size_t PlaceOf(std::string_view name, std::size_t likely, std::vector<std::string>* names) {
  if (likely < names->size() && (*names)[likely] == name) return likely;
  const auto at = static_cast<std::size_t>(std::find(names->begin(), names->end(), name) - names->begin());
  if (at == names->size() && at < storage::kMetricNamesMax) names->emplace_back(name);
  return at;
}

}  // namespace

void MetricBuffer::Measure(std::string_view name, std::uint64_t step, std::span<const dag::GangFigure> figures) {
  name = name.substr(0, storage::kMetricNameBytesMax);
  auto series = std::find_if(waiting_.series.begin(), waiting_.series.end(), [&](const auto& s) { return s.name == name; });
  if (series == waiting_.series.end()) {
    if (waiting_.series.size() == storage::kMetricSeriesSaidMax) return;
    series = waiting_.series.insert(series, storage::MetricSeries{});
    series->name = name;
  }
  if (series->points.empty()) series->points.push_back({step, step, 0, {}});
  storage::MetricPoint& point = series->points.front();
  if (step <= point.last_step && !point.means.empty()) {  // said again
    point.means.clear();
    point.first_step = step;
  }
  point.last_step = step;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const std::size_t at = PlaceOf(figures[i].name.substr(0, storage::kMetricNameBytesMax), i, &series->names);
    if (at == series->names.size()) continue;
    if (point.means.size() <= at) point.means.resize(at + 1);
    if (!std::isfinite(figures[i].value)) continue;
    point.means[at].sum += figures[i].value;
    ++point.means[at].count;
  }
}

void MetricBuffer::Notice(dag::GangNotice notice) {
  if (waiting_.notices.size() == storage::kMetricNoticesSaidMax) return;
  waiting_.notices.push_back({0, Cut(std::move(notice.kind), storage::kMetricNameBytesMax), static_cast<std::uint32_t>(notice.rank),
                              Cut(std::move(notice.machine), storage::kMetricTextBytesMax), notice.step, NowUs(), notice.value,
                              Cut(std::move(notice.text), storage::kMetricTextBytesMax)});
}

storage::Metrics MetricBuffer::Take(std::uint64_t gang, std::uint32_t rank) {
  storage::Metrics taken;
  for (storage::MetricSeries& series : waiting_.series) {
    if (series.points.empty()) continue;
    series.gang = gang;
    series.rank = rank;
    series.points.front().time_us = NowUs();
    taken.series.push_back(series);
    series.points.clear();
  }
  taken.notices = std::exchange(waiting_.notices, {});
  for (storage::MetricNotice& notice : taken.notices) notice.gang = gang;
  return taken;
}

}  // namespace ropewalk::job
