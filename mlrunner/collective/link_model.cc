#include "mlrunner/collective/link_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "mlrunner/collective/simulate.h"

namespace ropewalk::collective {
namespace {

double MedianOf(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

// The slope of their line; where noise hides it, the best rate that was seen.
double NsPerByte(std::span<const Timing> timings) {
  const double slope = FitLine(timings).ns_per_byte;
  if (slope > 0) return slope;
  double least = 0;
  for (const Timing& timing : timings) {
    const double seen = timing.bytes > 0 ? timing.ns / static_cast<double>(timing.bytes) : 0;
    if (seen > 0 && (least == 0 || seen < least)) least = seen;
  }
  return least;
}

}  // namespace

// Weighted by 1/ns²: a microsecond counts for much in 2 µs and for nothing in 2 ms, and sizes span several powers of ten.
Line FitLine(std::span<const Timing> timings) {
  double weights = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const Timing& timing : timings) {
    if (!(timing.ns > 0)) continue;
    const double weight = 1 / (timing.ns * timing.ns), bytes = static_cast<double>(timing.bytes);
    weights += weight;
    x += weight * bytes;
    y += weight * timing.ns;
    xx += weight * bytes * bytes;
    xy += weight * bytes * timing.ns;
  }
  if (weights == 0) return {};
  const double spread = weights * xx - x * x;
  if (spread <= 1e-12 * weights * xx) return {.ns = y / weights};
  const Line line{.ns = (xx * y - x * xy) / spread, .ns_per_byte = (weights * xy - x * y) / spread};
  // A number that would be negative is noise: it is none, and the other one is fitted again without it.
  if (line.ns < 0) return {.ns_per_byte = std::max(0.0, xy / xx)};
  if (line.ns_per_byte < 0) return {.ns = y / weights};
  return line;
}

LinkModel FitLinks(const LinkTimings& timings) {
  LinkModel model;
  model.copy_ns_per_byte = timings.copy_ns_per_byte;
  // Where a message is read in the sender's memory, the fold does what taking it would have cost, and a little more.
  model.reduce_ns_per_byte = std::max(0.0, timings.fold_ns_per_byte - (timings.shares_memory ? timings.copy_ns_per_byte : 0));
  if (timings.ranks < 2) {
    model.call_ns = timings.chain_ns;
    return model;
  }
  std::vector<double> starts, slopes;
  for (const std::vector<Timing>& link : timings.one_way) {
    model.from_first.push_back(FitLine(link));
    if (link.empty()) continue;
    starts.push_back(model.from_first.back().ns);
    slopes.push_back(NsPerByte(link));
  }
  model.ns_per_byte = NsPerByte(timings.shift);
  model.alone_ns_per_byte = MedianOf(std::move(slopes));

  // A call with one message, and a call with 2(P - 1) of them one after the other.
  const double one = MedianOf(std::move(starts)), ranks = timings.ranks;
  // Noise must not make messages free, of which large plans have thousands.
  double hop = std::max(one / 10, (timings.chain_ns - one) / (2 * (ranks - 1) - 1));
  // The chain has all ranks at work, which costs more where they share processors. Then a call by itself is free as far as can be seen.
  if (hop > one) hop = timings.chain_ns / (2 * (ranks - 1));
  model.call_ns = std::max(0.0, timings.chain_ns - 2 * (ranks - 1) * hop);
  // The longest way through the fan has two latencies, and 3P - 2 messages that one processor sends or takes; two hops have 4.
  if (ranks > 2) model.overhead_ns = std::clamp((timings.fan_ns - model.call_ns - 2 * hop) / (3 * ranks - 6), 0.0, hop / 2);
  model.latency_ns = hop - 2 * model.overhead_ns;
  return model;
}

Result<double> PredictNs(const LinkModel& model, const Plan& plan, const Sizes& sizes) {
  SimulateOptions options{.sizes = sizes,
                          .network = {.latency_ns = std::llround(model.latency_ns), .ns_per_byte = model.ns_per_byte},
                          .overhead_ns = std::llround(model.overhead_ns),
                          .reduce_ns_per_byte = model.reduce_ns_per_byte,
                          .copy_ns_per_byte = model.copy_ns_per_byte};
  ASSIGN_OR_RETURN(SimulateReport report, Simulate(plan, options));
  const std::int64_t most = *std::max_element(report.sent_bytes.begin(), report.sent_bytes.end());
  if (most > 0 && report.sent_bytes.size() > 1) {
    const auto all = static_cast<double>(std::accumulate(report.sent_bytes.begin(), report.sent_bytes.end(), std::int64_t{0}));
    const double others = (all / static_cast<double>(most) - 1) / static_cast<double>(report.sent_bytes.size() - 1);
    const double ns_per_byte = model.alone_ns_per_byte + others * (model.ns_per_byte - model.alone_ns_per_byte);
    if (ns_per_byte != options.network.ns_per_byte) {
      options.network.ns_per_byte = ns_per_byte;
      ASSIGN_OR_RETURN(report, Simulate(plan, options));
    }
  }
  return model.call_ns + static_cast<double>(report.end_ns);
}

}  // namespace ropewalk::collective
