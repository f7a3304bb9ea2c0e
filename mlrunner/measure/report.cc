#include "mlrunner/measure/report.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/escape.h"
#include "mlrunner/measure/bandwidth.h"
#include "mlrunner/measure/plot.h"

namespace ropewalk::measure {
namespace {

std::string Seconds(double us) { return us < 100 ? fmt::format("{:.2f}", us) : fmt::format("{:.1f}", us); }
std::string GbPerS(double ns_per_byte) { return ns_per_byte > 0 ? fmt::format("{:.2f} GB/s", 1 / ns_per_byte) : "unlimited"; }

std::string Size(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G"};
  int unit = 0;
  while (bytes != 0 && unit < 3 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

std::optional<double> BusGbPerS(const BenchJob& job, std::int64_t bytes, double us) {
  const std::optional<double> factor = BusFactor(Name(job.collective), job.ranks);
  if (!factor) return std::nullopt;
  return *factor * AlgorithmGbPerS(bytes, us);
}

std::string PointJson(const BenchJob& job, const Point& point) {
  const std::optional<double> bus = BusGbPerS(job, point.bytes, point.median_us);
  return fmt::format(
      "{{\"collective\":\"{}\",\"ranks\":{},\"size\":{},\"count\":{},\"dtype\":\"{}\",\"op\":\"{}\",\"algorithm\":{},\"chosen\":{},"
      "\"wire\":\"{}\",\"iterations\":{},\"median_us\":{:.3f},\"p95_us\":{:.3f},\"least_us\":{:.3f},\"algbw_gb_per_s\":{:.6f},"
      "\"busbw_gb_per_s\":{},\"predicted_us\":{:.3f},\"wrong\":{}}}",
      Name(job.collective), job.ranks, point.bytes, point.count, Name(job.dtype), Name(job.op), JsonString(point.algorithm),
      point.is_chosen, point.wire, point.iterations, point.median_us, point.p95_us, point.least_us,
      AlgorithmGbPerS(point.bytes, point.median_us), bus ? fmt::format("{:.6f}", *bus) : "null", point.predicted_us,
      point.wrong < 0 ? "null" : std::to_string(point.wrong));
}

std::string WireJson(const WireReport& wire) {
  const collective::LinkModel& model = wire.model;
  std::string links, beyond;
  for (const collective::ByteCosts& costs : model.beyond)
    beyond += fmt::format("{}{{\"bytes\":{},\"ns_per_byte\":{:.6f},\"reduce_ns_per_byte\":{:.6f},\"copy_ns_per_byte\":{:.6f}}}",
                          beyond.empty() ? "" : ",", costs.bytes, costs.ns_per_byte, costs.reduce_ns_per_byte, costs.copy_ns_per_byte);
  for (std::size_t rank = 1; rank < model.from_first.size(); ++rank)
    links += fmt::format("{}{{\"rank\":{},\"ns\":{:.1f},\"ns_per_byte\":{:.6f}}}", links.empty() ? "" : ",", rank,
                         model.from_first[rank].ns, model.from_first[rank].ns_per_byte);
  return fmt::format(
      "{{\"wire\":\"{}\",\"call_ns\":{:.1f},\"latency_ns\":{:.1f},\"overhead_ns\":{:.1f},\"ns_per_byte\":{:.6f},"
      "\"alone_ns_per_byte\":{:.6f},\"reduce_ns_per_byte\":{:.6f},\"copy_ns_per_byte\":{:.6f},\"beyond\":[{}],"
      "\"across_latency_ns\":{:.1f},\"across_ns_per_byte\":{:.6f},\"from_rank_0\":[{}]}}",
      wire.wire, model.call_ns, model.latency_ns, model.overhead_ns, model.ns_per_byte, model.alone_ns_per_byte, model.reduce_ns_per_byte,
      model.copy_ns_per_byte, beyond, model.across_latency_ns, model.across_ns_per_byte, links);
}

}  // namespace

std::string Title(const BenchJob& job) {
  const std::string collective(Name(job.collective));
  const bool reduces = collective.find("reduce") != std::string::npos;
  return fmt::format("{} of {}{}, {} rank{}", collective, Name(job.dtype), reduces ? ", " + std::string(Name(job.op)) : "", job.ranks,
                     job.ranks == 1 ? "" : "s");
}

// Field by field: the bytes of a result are compared, and padding would differ.
std::string Encode(const BenchReport& report) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(report.machines);
  writer.Varint(report.wires.size());
  for (const WireReport& wire : report.wires) {
    writer.Sized(wire.wire);
    writer.Sized(Encode(wire.model));
  }
  writer.Varint(report.choices.size());
  for (const ChoiceReport& choice : report.choices) {
    writer.Sized(choice.wire);
    writer.Fixed(choice.bytes);
    writer.Sized(choice.text);
  }
  writer.Varint(report.points.size());
  for (const Point& point : report.points) {
    for (const std::string* text : {&point.algorithm, &point.wire, &point.first_wrong}) writer.Sized(*text);
    for (std::int64_t number : {std::int64_t{point.is_chosen}, point.bytes, point.count, point.iterations, point.wrong})
      writer.Fixed(number);
    for (double number : {point.median_us, point.p95_us, point.least_us, point.predicted_us}) writer.Fixed(number);
  }
  return bytes;
}

Result<BenchReport> DecodeBenchReport(const std::string& bytes) {
  ByteReader reader(bytes);
  BenchReport report;
  report.machines = reader.Fixed<std::int32_t>();
  const std::uint64_t wires = reader.Varint();
  for (std::uint64_t w = 0; w < wires && reader.ok(); ++w) {
    WireReport& wire = report.wires.emplace_back();
    wire.wire = reader.Sized();
    auto model = collective::DecodeLinkModel(reader.Sized());
    if (!model.ok()) return model.status();
    wire.model = *std::move(model);
  }
  const std::uint64_t choices = reader.Varint();
  for (std::uint64_t c = 0; c < choices && reader.ok(); ++c) {
    ChoiceReport& choice = report.choices.emplace_back();
    choice.wire = reader.Sized();
    choice.bytes = reader.Fixed<std::int64_t>();
    choice.text = reader.Sized();
  }
  const std::uint64_t points = reader.Varint();
  for (std::uint64_t p = 0; p < points && reader.ok(); ++p) {
    Point& point = report.points.emplace_back();
    for (std::string* text : {&point.algorithm, &point.wire, &point.first_wrong}) *text = reader.Sized();
    point.is_chosen = reader.Fixed<std::int64_t>() != 0;
    for (std::int64_t* number : {&point.bytes, &point.count, &point.iterations, &point.wrong}) *number = reader.Fixed<std::int64_t>();
    for (double* number : {&point.median_us, &point.p95_us, &point.least_us, &point.predicted_us}) *number = reader.Fixed<double>();
  }
  if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "BENCH23", "the report of a bench cannot be read");
  return report;
}

double Quantile(const std::vector<double>& sorted, double fraction) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(sorted.size())));
  return sorted[std::min(sorted.size(), std::max<std::size_t>(rank, 1)) - 1];
}

std::string AsTable(const BenchJob& job, const BenchReport& report) {
  std::string text = fmt::format("# {} on {} machine{}; a time is the slowest rank's, from a barrier on; * is chosen where none is named\n",
                                 Title(job), report.machines, report.machines == 1 ? "" : "s");
  for (const std::string& line : job.left_out) text += "# left out: " + line + "\n";
  for (const WireReport& wire : report.wires) {
    const collective::LinkModel& model = wire.model;
    text += fmt::format("# {}: a call {} us, latency {} us, overhead {} us, a link {} ({} alone), reduced at {}\n", wire.wire,
                        Seconds(model.call_ns / 1000), Seconds(model.latency_ns / 1000), Seconds(model.overhead_ns / 1000),
                        GbPerS(model.ns_per_byte), GbPerS(model.alone_ns_per_byte), GbPerS(model.reduce_ns_per_byte));
    for (const collective::ByteCosts& costs : model.beyond)
      text += fmt::format("#   in vectors of {}: a link {}, reduced at {}, copied at {}\n", Size(costs.bytes), GbPerS(costs.ns_per_byte),
                          GbPerS(costs.reduce_ns_per_byte), GbPerS(costs.copy_ns_per_byte));
    if (model.across_latency_ns + model.across_ns_per_byte > 0)
      text += fmt::format("#   to another machine: latency {} us more, a machine's link {}\n", Seconds(model.across_latency_ns / 1000),
                          GbPerS(model.across_ns_per_byte));
    for (const ChoiceReport& choice : report.choices)
      if (choice.wire == wire.wire) text += fmt::format("# {} over {}: {}\n", Size(choice.bytes), wire.wire, choice.text);
  }
  std::vector<std::vector<std::string>> rows = {
      {"size", "count", "dtype", "algorithm", "wire", "median us", "p95 us", "algbw GB/s", "busbw GB/s", "predicted us", "wrong"}};
  for (const Point& point : report.points) {
    const std::optional<double> bus = BusGbPerS(job, point.bytes, point.median_us);
    rows.push_back({Size(point.bytes), std::to_string(point.count), std::string(Name(job.dtype)),
                    point.algorithm + (point.is_chosen ? "*" : ""), point.wire, Seconds(point.median_us), Seconds(point.p95_us),
                    fmt::format("{:.3f}", AlgorithmGbPerS(point.bytes, point.median_us)), bus ? fmt::format("{:.3f}", *bus) : "-",
                    Seconds(point.predicted_us), point.wrong < 0 ? "-" : std::to_string(point.wrong)});
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", row[i], widths[i]);
    text += line + "\n";
  }
  return text;
}

std::string AsJson(const BenchJob& job, const BenchReport& report) {
  std::string wires, points, left_out, choices;
  for (const ChoiceReport& choice : report.choices)
    choices += fmt::format("{}{{\"wire\":\"{}\",\"size\":{},\"choice\":{}}}", choices.empty() ? "" : ",", choice.wire, choice.bytes,
                           JsonString(choice.text));
  for (const WireReport& wire : report.wires) wires += (wires.empty() ? "" : ",") + WireJson(wire);
  for (const Point& point : report.points) points += (points.empty() ? "" : ",") + PointJson(job, point);
  for (const std::string& line : job.left_out) left_out += (left_out.empty() ? "" : ",") + JsonString(line);
  return fmt::format(
      "{{\"job\":\"bench collective\",\"collective\":\"{}\",\"dtype\":\"{}\",\"op\":\"{}\",\"ranks\":{},\"machines\":{},"
      "\"time\":\"slowest rank, from a barrier on\",\"left_out\":[{}],\"calibration\":[{}],\"choices\":[{}],\"points\":[{}]}}\n",
      Name(job.collective), Name(job.dtype), Name(job.op), job.ranks, report.machines, left_out, wires, choices, points);
}

std::string AsJsonLines(const BenchJob& job, const BenchReport& report) {
  std::string lines;
  for (const Point& point : report.points) lines += PointJson(job, point) + "\n";
  return lines;
}

std::string AsSvg(const BenchJob& job, const BenchReport& report) {
  const bool has_bus = BusFactor(Name(job.collective), job.ranks).value_or(0) > 0;
  Plot plot{.title = Title(job), .x_label = "bytes", .y_label = has_bus ? "bus bandwidth, GB/s" : "time, us"};
  auto height = [&](std::int64_t bytes, double us) { return has_bus ? *BusGbPerS(job, bytes, us) : us; };
  for (const Point& point : report.points) {
    const std::string name = point.algorithm + ", " + point.wire;
    auto curve = std::find_if(plot.curves.begin(), plot.curves.end(), [&](const Curve& known) { return known.name == name; });
    if (curve == plot.curves.end()) curve = plot.curves.insert(curve, Curve{.name = name});
    curve->measured.push_back({static_cast<double>(point.bytes), height(point.bytes, point.median_us)});
    curve->predicted.push_back({static_cast<double>(point.bytes), height(point.bytes, point.predicted_us)});
  }
  return Svg(plot);
}

Status CheckRight(const BenchReport& report) {
  std::size_t points = 0;
  const Point* first = nullptr;
  for (const Point& point : report.points)
    if (point.wrong > 0) {
      ++points;
      if (first == nullptr) first = &point;
    }
  if (first == nullptr) return {};
  return Status(Code::kInternal, "BENCH22",
                fmt::format("{} of {} bytes over {} gave {} wrong element{}; so did {} of {} points", first->algorithm, first->bytes,
                            first->wire, first->wrong, first->wrong == 1 ? "" : "s", points, report.points.size()),
                first->first_wrong, "please report it; if it comes and goes, test the machine's memory and network");
}

}  // namespace ropewalk::measure
