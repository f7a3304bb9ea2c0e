#include "storage/metric_history.h"

#include <algorithm>
#include <utility>

namespace ropewalk::storage {
namespace {

// `point` becomes the means over its steps and those of `next`.
void Merge(MetricPoint* point, const MetricPoint& next) {
  point->last_step = next.last_step;
  point->time_us = next.time_us;
  point->means.resize(std::max(point->means.size(), next.means.size()));
  for (std::size_t i = 0; i < next.means.size(); ++i) {
    point->means[i].sum += next.means[i].sum;
    point->means[i].count += next.means[i].count;
  }
}

// Each two neighbours become one, from the oldest on.
void MergeNeighbours(std::vector<MetricPoint>* points) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points->size(); i += 2, ++kept) {
    MetricPoint point = std::move((*points)[i]);
    if (i + 1 < points->size()) Merge(&point, (*points)[i + 1]);
    (*points)[kept] = std::move(point);
  }
  points->resize(kept);
}

// Where each of `names` stands in `known`, which grows as far as it may; its size: nowhere.
std::vector<std::size_t> PlacesOf(const std::vector<std::string>& names, std::vector<std::string>* known) {
  std::vector<std::size_t> places;
  for (const std::string& name : names) {
    const auto at = static_cast<std::size_t>(std::find(known->begin(), known->end(), name) - known->begin());
    if (at == known->size() && at < kMetricNamesMax) known->push_back(name);
    places.push_back(at);
  }
  return places;
}

}  // namespace

MetricSeries* MetricHistory::Find(const MetricSeries& of) {
  const Key key{of.gang, of.name, of.rank};
  if (auto found = series_.find(key); found != series_.end()) return &found->second;
  while (series_.size() >= limits_.series) {
    const auto oldest = series_.begin();  // gangs are counted over the job
    if (oldest->second.gang >= of.gang) return nullptr;
    points_ -= oldest->second.points.size();
    series_.erase(oldest);
  }
  MetricSeries& fresh = series_[key];
  fresh.gang = of.gang;
  fresh.name = of.name;
  fresh.rank = of.rank;
  return &fresh;
}

void MetricHistory::Halve(MetricSeries* series) {
  points_ -= series->points.size();
  MergeNeighbours(&series->points);
  points_ += series->points.size();
}

void MetricHistory::Add(const Metrics& metrics) {
  for (const MetricSeries& from : metrics.series) {
    MetricSeries* series = Find(from);
    if (series == nullptr) continue;
    if (!from.machine.empty()) series->machine = from.machine;
    const std::vector<std::size_t> places = PlacesOf(from.names, &series->names);
    for (const MetricPoint& point : from.points) {
      std::vector<MetricPoint>& points = series->points;
      points_ -= points.size();
      while (!points.empty() && points.back().first_step >= point.first_step) points.pop_back();
      if (!points.empty() && points.back().last_step >= point.first_step) points.back().last_step = point.first_step - 1;
      MetricPoint placed{point.first_step, point.last_step, point.time_us, {}};
      for (std::size_t i = 0; i < point.means.size() && i < places.size(); ++i) {
        if (places[i] >= series->names.size()) continue;
        if (placed.means.size() <= places[i]) placed.means.resize(places[i] + 1);
        placed.means[places[i]] = point.means[i];
      }
      points.push_back(std::move(placed));
      points_ += points.size();
      if (points.size() > limits_.points_of_series) Halve(series);
    }
  }
  while (points_ > limits_.points) {
    const auto longest = std::max_element(series_.begin(), series_.end(),
                                          [](const auto& a, const auto& b) { return a.second.points.size() < b.second.points.size(); });
    if (longest->second.points.size() < 2) break;
    Halve(&longest->second);
  }
  notices_.insert(notices_.end(), metrics.notices.begin(), metrics.notices.end());
  if (notices_.size() > limits_.notices) notices_.erase(notices_.begin(), notices_.end() - static_cast<std::ptrdiff_t>(limits_.notices));
}

Metrics MetricHistory::All() const {
  Metrics all;
  for (const auto& [key, series] : series_) all.series.push_back(series);
  all.notices = notices_;
  return all;
}

Metrics MetricHistory::AtMost(std::size_t points_of_series) const {
  Metrics all = All();
  for (MetricSeries& series : all.series)
    while (series.points.size() > std::max<std::size_t>(1, points_of_series)) MergeNeighbours(&series.points);
  return all;
}

}  // namespace ropewalk::storage
