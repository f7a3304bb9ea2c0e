#include "storage/metrics.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/escape.h"

namespace ropewalk::storage {
namespace {

constexpr std::uint8_t kForm = 1;

Status Unreadable() {
  return Status(Code::kDataLoss, "METRIC01", "metrics cannot be read", "they are damaged, or of another version of Ropewalk",
                "bring all to one version");
}

void Write(const MetricSeries& series, ByteWriter* writer) {
  writer->Varint(series.gang);
  writer->Sized(series.name);
  writer->Varint(series.rank);
  writer->Sized(series.machine);
  writer->Varint(series.names.size());
  for (const std::string& name : series.names) writer->Sized(name);
  writer->Varint(series.points.size());
  for (const MetricPoint& point : series.points) {
    writer->Varint(point.first_step);
    writer->Varint(point.last_step);
    writer->Fixed(point.time_us);
    writer->Varint(point.means.size());
    for (const MetricMean& mean : point.means) {
      writer->Varint(mean.count);
      writer->Fixed(mean.sum);
    }
  }
}

// False: a bound is broken. A short read is seen by the caller.
bool Read(ByteReader* reader, MetricSeries* series) {
  series->gang = reader->Varint();
  series->name = reader->Sized();
  series->rank = static_cast<std::uint32_t>(reader->Varint());
  series->machine = reader->Sized();
  const std::uint64_t names = reader->Varint();
  if (names > kMetricNamesMax || series->name.size() > kMetricNameBytesMax || series->machine.size() > kMetricTextBytesMax) return false;
  for (std::uint64_t i = 0; i < names && reader->ok(); ++i) {
    series->names.emplace_back(reader->Sized());
    if (series->names.back().size() > kMetricNameBytesMax) return false;
  }
  for (std::uint64_t left = reader->Varint(); left > 0 && reader->ok(); --left) {
    MetricPoint& point = series->points.emplace_back();
    point.first_step = reader->Varint();
    point.last_step = reader->Varint();
    point.time_us = reader->Fixed<std::int64_t>();
    const std::uint64_t means = reader->Varint();
    if (means > names || point.first_step > point.last_step) return false;
    for (std::uint64_t i = 0; i < means && reader->ok(); ++i) {
      MetricMean& mean = point.means.emplace_back();
      mean.count = reader->Varint();
      mean.sum = reader->Fixed<double>();
    }
  }
  return true;
}

void Write(const MetricNotice& notice, ByteWriter* writer) {
  writer->Varint(notice.gang);
  writer->Sized(notice.kind);
  writer->Varint(notice.rank);
  writer->Sized(notice.machine);
  writer->Varint(notice.step);
  writer->Fixed(notice.time_us);
  writer->Fixed(notice.value);
  writer->Sized(notice.text);
}

bool Read(ByteReader* reader, MetricNotice* notice) {
  notice->gang = reader->Varint();
  notice->kind = reader->Sized();
  notice->rank = static_cast<std::uint32_t>(reader->Varint());
  notice->machine = reader->Sized();
  notice->step = reader->Varint();
  notice->time_us = reader->Fixed<std::int64_t>();
  notice->value = reader->Fixed<double>();
  notice->text = reader->Sized();
  return notice->kind.size() <= kMetricNameBytesMax && notice->machine.size() <= kMetricTextBytesMax &&
         notice->text.size() <= kMetricTextBytesMax;
}

}  // namespace

std::string Encode(const Metrics& metrics) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(kForm);
  writer.Varint(metrics.series.size());
  for (const MetricSeries& series : metrics.series) Write(series, &writer);
  writer.Varint(metrics.notices.size());
  for (const MetricNotice& notice : metrics.notices) Write(notice, &writer);
  return bytes;
}

Result<Metrics> DecodeMetrics(std::string_view bytes) {
  ByteReader reader(bytes);
  Metrics metrics;
  if (reader.Fixed<std::uint8_t>() != kForm) return Unreadable();
  for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok(); --left)
    if (!Read(&reader, &metrics.series.emplace_back())) return Unreadable();
  for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok(); --left)
    if (!Read(&reader, &metrics.notices.emplace_back())) return Unreadable();
  if (!reader.ok() || !reader.empty()) return Unreadable();
  return metrics;
}

Result<Metrics> DecodeSaidMetrics(std::string_view bytes) {
  if (bytes.size() > kMetricsSaidMax) return Unreadable();
  ASSIGN_OR_RETURN(Metrics metrics, DecodeMetrics(bytes));
  const bool one_point_each = std::all_of(metrics.series.begin(), metrics.series.end(), [](const auto& s) { return s.points.size() == 1; });
  if (metrics.series.size() > kMetricSeriesSaidMax || metrics.notices.size() > kMetricNoticesSaidMax || !one_point_each)
    return Unreadable();
  return metrics;
}

std::string EventOf(const MetricNotice& notice, std::int64_t t_ms) {
  auto number = [](const char* name, auto value) { return ",\"" + std::string(name) + "\":" + std::to_string(value); };
  auto text = [](const char* name, const std::string& value) { return ",\"" + std::string(name) + "\":" + JsonString(value); };
  return "{\"event\":\"gang_notice\"" + number("t_ms", t_ms) + text("kind", notice.kind) + number("stage", notice.gang) +
         number("rank", notice.rank) + text("machine", notice.machine) + number("step", notice.step) + text("text", notice.text) + "}";
}

}  // namespace ropewalk::storage
