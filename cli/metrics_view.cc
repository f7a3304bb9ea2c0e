#include "cli/metrics_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/escape.h"
#include "cli/print.h"

namespace ropewalk::cli {
namespace {

using storage::MetricMean;
using storage::MetricNotice;
using storage::MetricPoint;
using storage::MetricSeries;

std::string Number(const MetricMean& mean) { return mean.count == 0 ? "-" : fmt::format("{:.4g}", mean.value()); }
std::string JsonNumber(double number) { return std::isfinite(number) ? fmt::format("{}", number) : "null"; }

std::string Steps(std::uint64_t first, std::uint64_t last) {
  return first == last ? std::to_string(last) : std::to_string(first) + "-" + std::to_string(last);
}

std::string MeansJson(const MetricSeries& series, const MetricPoint& point) {
  JsonObject means;
  for (std::size_t i = 0; i < point.means.size() && i < series.names.size(); ++i)
    if (point.means[i].count > 0) means.Raw(series.names[i], JsonNumber(point.means[i].value()));
  return means.str();
}

JsonObject SeriesHead(const MetricSeries& series) {
  JsonObject head;
  head.Number("gang", static_cast<std::int64_t>(series.gang)).Text("series", series.name).Number("rank", series.rank);
  head.Text("machine", series.machine);
  return head;
}

JsonObject& AddPoint(const MetricSeries& series, const MetricPoint& point, JsonObject* object) {
  return object->Number("first_step", static_cast<std::int64_t>(point.first_step))
      .Number("last_step", static_cast<std::int64_t>(point.last_step))
      .Number("time_us", point.time_us)
      .Raw("means", MeansJson(series, point));
}

std::string NoticeJson(const MetricNotice& notice) {
  return JsonObject()
      .Number("gang", static_cast<std::int64_t>(notice.gang))
      .Text("notice", notice.kind)
      .Number("rank", notice.rank)
      .Text("machine", notice.machine)
      .Number("step", static_cast<std::int64_t>(notice.step))
      .Number("time_us", notice.time_us)
      .Raw("value", JsonNumber(notice.value))
      .Text("text", notice.text)
      .str();
}

std::string AsJson(const std::string& of, const storage::Metrics& metrics) {
  std::vector<std::string> series, notices;
  for (const MetricSeries& each : metrics.series) {
    std::vector<std::string> points;
    for (const MetricPoint& point : each.points) {
      JsonObject object;
      points.push_back(AddPoint(each, point, &object).str());
    }
    series.push_back(SeriesHead(each).Raw("points", JsonArray(points)).str());
  }
  for (const MetricNotice& notice : metrics.notices) notices.push_back(NoticeJson(notice));
  return JsonObject().Text("job", of).Raw("series", JsonArray(series)).Raw("notices", JsonArray(notices)).str() + "\n";
}

std::string AsJsonLines(const storage::Metrics& metrics) {
  std::string lines;
  for (const MetricSeries& series : metrics.series)
    for (const MetricPoint& point : series.points) {
      JsonObject line = SeriesHead(series);
      lines += AddPoint(series, point, &line).str() + "\n";
    }
  for (const MetricNotice& notice : metrics.notices) lines += NoticeJson(notice) + "\n";
  return lines;
}

std::vector<std::string> Heading(std::vector<std::string> first, const MetricSeries& series) {
  for (const std::string& name : series.names) first.push_back(EscapeForLog(name, storage::kMetricNameBytesMax));
  return first;
}

std::string PointsTable(const MetricSeries& series) {
  std::vector<std::vector<std::string>> rows;
  for (const MetricPoint& point : series.points) {
    std::vector<std::string> row{Steps(point.first_step, point.last_step), HumanTime(point.time_us)};
    for (std::size_t i = 0; i < series.names.size(); ++i) row.push_back(i < point.means.size() ? Number(point.means[i]) : "-");
    rows.push_back(std::move(row));
  }
  return Table(Heading({"STEPS", "UNTIL"}, series), rows);
}

std::string RanksTable(std::span<const MetricSeries> ranks) {
  MetricSeries all;  // of all names that any rank has
  for (const MetricSeries& of : ranks)
    for (const std::string& name : of.names)
      if (std::find(all.names.begin(), all.names.end(), name) == all.names.end()) all.names.push_back(name);
  std::vector<std::vector<std::string>> rows;
  for (const MetricSeries& of : ranks) {
    if (of.points.empty()) continue;
    std::map<std::string, MetricMean> means;
    for (const MetricPoint& point : of.points)
      for (std::size_t i = 0; i < point.means.size() && i < of.names.size(); ++i) {
        means[of.names[i]].sum += point.means[i].sum;
        means[of.names[i]].count += point.means[i].count;
      }
    std::vector<std::string> row{std::to_string(of.rank), EscapeForLog(of.machine, 64),
                                 Steps(of.points.front().first_step, of.points.back().last_step)};
    for (const std::string& name : all.names) row.push_back(Number(means[name]));
    rows.push_back(std::move(row));
  }
  return Table(Heading({"RANK", "MACHINE", "STEPS"}, all), rows);
}

std::string AsTables(const std::string& of, const storage::Metrics& metrics) {
  if (metrics.empty()) return of + " has measured nothing: only ranks of gangs do\n";
  std::string out;
  for (std::size_t begin = 0, end = 0; begin < metrics.series.size(); begin = end) {
    const MetricSeries& first = metrics.series[begin];
    while (end < metrics.series.size() && metrics.series[end].gang == first.gang && metrics.series[end].name == first.name) ++end;
    out += fmt::format("{}{} of gang {}", out.empty() ? "" : "\n", EscapeForLog(first.name, storage::kMetricNameBytesMax), first.gang);
    const bool of_one = end - begin == 1;
    out += of_one ? fmt::format(", rank {} on {}\n", first.rank, EscapeForLog(first.machine, 64)) : ", means over all steps\n";
    out += of_one ? PointsTable(first) : RanksTable(std::span(metrics.series).subspan(begin, end - begin));
  }
  for (const MetricNotice& notice : metrics.notices)
    out += fmt::format("{}  step {}  {}: {}\n", HumanTime(notice.time_us), notice.step, EscapeForLog(notice.kind, 64),
                       EscapeForLog(notice.text, storage::kMetricTextBytesMax));
  return out;
}

}  // namespace

std::string ShowMetrics(const std::string& of, const storage::Metrics& metrics, std::optional<std::uint32_t> rank, job::OutputForm form) {
  storage::Metrics shown = metrics;
  if (rank) {
    std::erase_if(shown.series, [&](const MetricSeries& series) { return series.rank != *rank; });
    std::erase_if(shown.notices, [&](const MetricNotice& notice) { return notice.rank != *rank; });
  }
  if (form == job::OutputForm::kTable) return AsTables(of, shown);
  return form == job::OutputForm::kJson ? AsJson(of, shown) : AsJsonLines(shown);
}

}  // namespace ropewalk::cli
