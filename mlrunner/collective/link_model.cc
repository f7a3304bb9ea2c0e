#include "mlrunner/collective/link_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/sim/topology.h"
#include "mlrunner/collective/folded.h"
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

// Between rank 0 and this one is another link than within a node; not where every rank is on a node of its own, which are all links then.
bool IsFar(const LinkTimings& timings, std::size_t peer) {
  return !timings.nodes.empty() && timings.nodes[peer] != timings.nodes[0] &&
         std::count(timings.nodes.begin(), timings.nodes.end(), timings.nodes[0]) > 1;
}

// What rank 0's messages say: to each rank, alone, and across nodes. How many hops of the chain, which goes round nearly twice, are such at
// most.
double FitNodes(const LinkTimings& timings, LinkModel* model) {
  std::vector<double> starts, slopes, far_starts, far_slopes;
  for (std::size_t peer = 0; peer < timings.one_way.size(); ++peer) {
    const std::vector<Timing>& link = timings.one_way[peer];
    model->from_first.push_back(FitLine(link));
    if (link.empty()) continue;
    (IsFar(timings, peer) ? far_starts : starts).push_back(model->from_first.back().ns);
    (IsFar(timings, peer) ? far_slopes : slopes).push_back(NsPerByte(link));
  }
  model->alone_ns_per_byte = MedianOf(std::move(slopes));
  if (far_starts.empty()) return 0;
  model->across_latency_ns = std::max(0.0, MedianOf(std::move(far_starts)) - MedianOf(std::move(starts)));
  model->across_ns_per_byte = MedianOf(std::move(far_slopes));
  // Alone at least: all at once was timed with calls that also wait for a word of the far ones, behind which short vectors hide.
  model->ns_per_byte = std::max(model->ns_per_byte, model->alone_ns_per_byte);
  const std::size_t ranks = timings.nodes.size();
  auto node_at = [&](std::size_t place) {
    place %= ranks;
    return timings.nodes[timings.order.empty() ? place : static_cast<std::size_t>(timings.order[place])];
  };
  double most = 0;
  for (std::size_t first = 0; first < ranks; ++first) {
    double hops = 0;
    for (std::size_t hop = first; hop < first + 2 * (ranks - 1); ++hop)
      if (node_at(hop) != node_at(hop + 1)) ++hops;
    most = std::max(most, hops);
  }
  return most;
}

// The longest way through recursive doubling: so many hops, and messages that a processor handles on the way beside them. No hops: it
// depends on more than that.
struct Rounds {
  double hops = 0, overheads = 0;
};
Rounds RoundsOfDoubling(std::int32_t ranks) {
  if (std::has_single_bit(static_cast<std::uint32_t>(ranks)))
    return {.hops = static_cast<double>(std::countr_zero(static_cast<std::uint32_t>(ranks)))};
  // One hands its vector over and gets the sum; the other two have exchanged theirs in between.
  if (ranks == 3) return {.hops = 2, .overheads = 2};
  return {};
}

// Nodes counted from 0 on; empty: there is one, or they are not known.
std::vector<std::int32_t> RacksOf(const Nodes& nodes) {
  std::vector<std::int32_t> racks;
  std::map<std::int32_t, std::int32_t> numbers;
  for (std::int32_t node : nodes) racks.push_back(numbers.try_emplace(node, static_cast<std::int32_t>(numbers.size())).first->second);
  return numbers.size() > 1 ? racks : std::vector<std::int32_t>();
}

// Of the caller's two vectors, on the rank that has the longest.
Result<std::int64_t> LongestBytes(const Plan& plan, const Sizes& sizes) {
  std::int64_t longest = 0;
  for (const Program& program : plan.programs) {
    ASSIGN_OR_RETURN(const Layout layout, Layout::Make(plan.header, program, sizes));
    for (std::size_t b = 0; b < plan.header.buffers.size(); ++b) {
      const auto buffer = static_cast<std::int32_t>(b);
      const Role role = plan.header.buffers[b].role;
      if (role == Role::kIn || role == Role::kOut) longest = std::max(longest, layout.ElementsOf(buffer) * layout.BytesOfElement(buffer));
    }
  }
  return longest;
}

// Each number once, for both ways.
template <class Model, class Visit>
void Numbers(Model& model, Visit visit) {
  for (auto* number : {&model.call_ns, &model.latency_ns, &model.overhead_ns, &model.ns_per_byte, &model.alone_ns_per_byte,
                       &model.reduce_ns_per_byte, &model.copy_ns_per_byte, &model.across_latency_ns, &model.across_ns_per_byte})
    visit(*number);
}

// Of ranks that read each other's memory: the port through which each takes is all that there is.
sim::Topology ReadersOf(std::int32_t ranks, const sim::NetworkOptions& network) {
  sim::Topology topology{.hosts = ranks, .switches = 1};
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    topology.Connect(rank, ranks, {.latency_ns = network.latency_ns});
    topology.Connect(ranks, rank, {.ns_per_byte = network.ns_per_byte});
  }
  return topology;
}

// For each rank a port through which all that it sends leaves, and one through which all that it takes comes, as fast as the fastest of its
// links; from each to each a link for the pair.
sim::Topology TopologyOf(const LinkModel& model) {
  const auto ranks = static_cast<std::int32_t>(model.pairs.size());
  sim::Topology topology{.hosts = ranks, .switches = 2 * ranks};
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    double out = std::numeric_limits<double>::infinity(), in = out;
    for (std::int32_t other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      const Line& line = model.pairs[rank][other];
      const double hop_ns = std::max(0.0, line.ns - model.call_ns - 2 * model.overhead_ns);
      topology.Connect(ranks + rank, 2 * ranks + other, {.ns_per_byte = line.ns_per_byte, .latency_ns = std::llround(hop_ns)});
      out = std::min(out, line.ns_per_byte);
      in = std::min(in, model.pairs[other][rank].ns_per_byte);
    }
    topology.Connect(rank, ranks + rank, {.ns_per_byte = out});
    topology.Connect(2 * ranks + rank, rank, {.ns_per_byte = in});
  }
  return topology;
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
  LinkModel model{.reads_in_place = timings.shares_memory};
  model.copy_ns_per_byte = timings.copy_ns_per_byte;
  // Where a message is read in the sender's memory, the fold does what taking it would have cost, and a little more.
  auto reduce_ns_per_byte = [&](double fold, double copy) { return std::max(0.0, fold - (timings.shares_memory ? copy : 0)); };
  model.reduce_ns_per_byte = reduce_ns_per_byte(timings.fold_ns_per_byte, timings.copy_ns_per_byte);
  if (timings.ranks < 2) {
    model.call_ns = timings.chain_ns;
    return model;
  }
  model.ns_per_byte = NsPerByte(timings.shift);
  const double start_ns = FitLine(timings.shift).ns;
  for (const LongTiming& timing : timings.longs)
    model.beyond.push_back({.bytes = timing.bytes,
                            .ns_per_byte = std::max(0.0, timing.shift_ns - start_ns) / static_cast<double>(timing.bytes),
                            .reduce_ns_per_byte = reduce_ns_per_byte(timing.fold_ns_per_byte, timing.copy_ns_per_byte),
                            .copy_ns_per_byte = timing.copy_ns_per_byte});
  const double across_hops = FitNodes(timings, &model);
  const double chain_ns = std::max(0.0, timings.chain_ns - across_hops * model.across_latency_ns);
  const double fan_ns = std::max(0.0, timings.fan_ns - 2 * model.across_latency_ns);
  const double ranks = timings.ranks;
  auto overhead_ns = [&](double call_ns, double hop_ns) {
    // The longest way through the fan has two latencies, and 3P - 2 messages that one processor sends or takes; two hops have 4.
    return ranks > 2 ? std::clamp((fan_ns - call_ns - 2 * hop_ns) / (3 * ranks - 6), 0.0, hop_ns / 2) : 0;
  };

  const Rounds doubling = RoundsOfDoubling(timings.ranks);
  if (timings.doubling_ns > 0 && doubling.hops > 0 && model.across_latency_ns == 0) {
    // Two calls of the same kind that differ in how many messages follow each other.
    const double most = chain_ns / (2 * (ranks - 1));
    double hop = most;
    for (int i = 0; i < 40; ++i) {
      hop = (chain_ns - timings.doubling_ns + doubling.overheads * model.overhead_ns) / (2 * (ranks - 1) - doubling.hops);
      // Noise must not make messages free, of which large plans have thousands; nor calls less than that.
      hop = std::clamp(hop, most / 10, most);
      model.call_ns = chain_ns - 2 * (ranks - 1) * hop;
      model.overhead_ns = overhead_ns(model.call_ns, hop);
    }
    model.latency_ns = hop - 2 * model.overhead_ns;
    return model;
  }

  // A call with one message, and a call with 2(P - 1) of them one after the other.
  std::vector<double> starts;
  for (std::size_t peer = 1; peer < timings.one_way.size(); ++peer)
    if (!timings.one_way[peer].empty() && !IsFar(timings, peer)) starts.push_back(model.from_first[peer].ns);
  const double one = MedianOf(std::move(starts));
  double hop = std::max(one / 10, (chain_ns - one) / (2 * (ranks - 1) - 1));
  // The chain has all ranks at work, which costs more where they share processors. Then a call by itself is free as far as can be seen.
  if (hop > one) hop = chain_ns / (2 * (ranks - 1));
  model.call_ns = std::max(0.0, chain_ns - 2 * (ranks - 1) * hop);
  model.overhead_ns = overhead_ns(model.call_ns, hop);
  model.latency_ns = hop - 2 * model.overhead_ns;
  return model;
}

ByteCosts CostsAt(const LinkModel& model, std::int64_t bytes) {
  const ByteCosts near{.bytes = kNearBytes,
                       .ns_per_byte = model.ns_per_byte,
                       .reduce_ns_per_byte = model.reduce_ns_per_byte,
                       .copy_ns_per_byte = model.copy_ns_per_byte};
  if (bytes <= kNearBytes || model.beyond.empty()) return {bytes, near.ns_per_byte, near.reduce_ns_per_byte, near.copy_ns_per_byte};
  // The two measured lengths about it, or the last two.
  std::size_t above = 0;
  while (above + 1 < model.beyond.size() && model.beyond[above].bytes < bytes) ++above;
  const ByteCosts &low = above == 0 ? near : model.beyond[above - 1], &high = model.beyond[above];
  auto between = [&](double ByteCosts::* cost) {
    auto ns = [&](const ByteCosts& at) { return at.*cost * static_cast<double>(at.bytes); };
    const double part = static_cast<double>(bytes - low.bytes) / static_cast<double>(high.bytes - low.bytes);
    return std::max(0.0, ns(low) + part * (ns(high) - ns(low))) / static_cast<double>(bytes);
  };
  return {bytes, between(&ByteCosts::ns_per_byte), between(&ByteCosts::reduce_ns_per_byte), between(&ByteCosts::copy_ns_per_byte)};
}

std::string Encode(const LinkModel& model) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint8_t>(model.reads_in_place));
  Numbers(model, [&](double number) { writer.Fixed(number); });
  writer.Varint(model.beyond.size());
  for (const ByteCosts& costs : model.beyond) {
    writer.Fixed(costs.bytes);
    for (double number : {costs.ns_per_byte, costs.reduce_ns_per_byte, costs.copy_ns_per_byte}) writer.Fixed(number);
  }
  writer.Varint(model.from_first.size());
  for (const Line& line : model.from_first) {
    writer.Fixed(line.ns);
    writer.Fixed(line.ns_per_byte);
  }
  return bytes;
}

Result<LinkModel> DecodeLinkModel(std::string_view bytes) {
  ByteReader reader(bytes);
  LinkModel model;
  bool is_well = true;
  auto number = [&] {
    const auto value = reader.Fixed<double>();
    is_well = is_well && std::isfinite(value) && value >= 0;
    return value;
  };
  const auto reads_in_place = reader.Fixed<std::uint8_t>();
  is_well = reads_in_place <= 1;
  model.reads_in_place = reads_in_place == 1;
  Numbers(model, [&](double& value) { value = number(); });
  std::int64_t last_bytes = kNearBytes;
  for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok(); --left) {
    ByteCosts& costs = model.beyond.emplace_back();
    costs.bytes = reader.Fixed<std::int64_t>();
    is_well = is_well && costs.bytes > std::exchange(last_bytes, costs.bytes);
    for (double* cost : {&costs.ns_per_byte, &costs.reduce_ns_per_byte, &costs.copy_ns_per_byte}) *cost = number();
  }
  for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok(); --left) {
    Line& line = model.from_first.emplace_back();
    line.ns = number();
    line.ns_per_byte = number();
  }
  if (reader.ok() && reader.empty() && is_well) return model;
  return Status(Code::kDataLoss, "COLL35", "the costs of messages cannot be read",
                is_well ? "bytes are missing or too many" : "a number of them is none that a measurement could give", "measure them again");
}

PairLines FitPairs(const PairTimings& timings) {
  PairLines lines(timings.size(), std::vector<Line>(timings.size()));
  for (std::size_t a = 0; a < timings.size(); ++a)
    for (std::size_t b = a + 1; b < timings.size(); ++b) {
      Line line = FitLine(timings[a][b]);
      if (line.ns_per_byte <= 0) line.ns_per_byte = NsPerByte(timings[a][b]);
      lines[a][b] = lines[b][a] = line;
    }
  return lines;
}

Result<double> PredictNs(const LinkModel& model, const Plan& plan, const Sizes& sizes) {
  ASSIGN_OR_RETURN(const std::int64_t longest, LongestBytes(plan, sizes));
  const ByteCosts costs = CostsAt(model, longest);
  SimulateOptions options{.sizes = sizes,
                          .network = {.latency_ns = std::llround(model.latency_ns), .ns_per_byte = costs.ns_per_byte},
                          .overhead_ns = std::llround(model.overhead_ns),
                          .reduce_ns_per_byte = costs.reduce_ns_per_byte,
                          .copy_ns_per_byte = costs.copy_ns_per_byte};
  const std::vector<std::int32_t> rack_of_rank = RacksOf(plan.header.request.nodes);
  const bool knows_pairs = model.pairs.size() > 1;
  FoldedPrograms programs(&plan.header, &options.sizes);
  for (const Program& program : plan.programs) RETURN_IF_ERROR(programs.Add(program));
  auto simulate = [&]() -> Result<SimulateReport> {
    if (knows_pairs)
      options.topology = std::make_shared<const sim::Topology>(TopologyOf(model));
    else if (!rack_of_rank.empty() && model.across_ns_per_byte + model.across_latency_ns > 0)
      options.topology = std::make_shared<const sim::Topology>(
          sim::Racks(rack_of_rank, {options.network.ns_per_byte, options.network.latency_ns},
                     {model.across_ns_per_byte, static_cast<sim::TimeUs>(std::llround(model.across_latency_ns))}));
    else if (model.reads_in_place)
      options.topology = std::make_shared<const sim::Topology>(ReadersOf(plan.header.request.ranks, options.network));
    return Simulate(plan.header, programs, options);
  };
  ASSIGN_OR_RETURN(SimulateReport report, simulate());
  if (knows_pairs) return model.call_ns + static_cast<double>(report.end_ns);
  const std::int64_t most = *std::max_element(report.sent_bytes.begin(), report.sent_bytes.end());
  if (most > 0 && report.sent_bytes.size() > 1) {
    const auto all = static_cast<double>(std::accumulate(report.sent_bytes.begin(), report.sent_bytes.end(), std::int64_t{0}));
    const double others = (all / static_cast<double>(most) - 1) / static_cast<double>(report.sent_bytes.size() - 1);
    // Alone a byte costs less by as much of what it costs then, at any length.
    const double alone = model.ns_per_byte > 0 ? costs.ns_per_byte * model.alone_ns_per_byte / model.ns_per_byte : model.alone_ns_per_byte;
    const double ns_per_byte = alone + others * (costs.ns_per_byte - alone);
    if (ns_per_byte != options.network.ns_per_byte) {
      options.network.ns_per_byte = ns_per_byte;
      ASSIGN_OR_RETURN(report, simulate());
    }
  }
  return model.call_ns + static_cast<double>(report.end_ns);
}

}  // namespace ropewalk::collective
