#include "mlrunner/collective/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/collective/run/kernels.h"

namespace ropewalk::collective {
namespace {

// One segment of either wire at most, so that no pipeline is measured.
constexpr std::array<std::int64_t, 4> kOneWayBytes = {8, 4 << 10, 32 << 10, 256 << 10};
constexpr std::array<std::int64_t, 3> kShiftBytes = {16 << 10, 64 << 10, kNearBytes};
constexpr std::int64_t kFoldBytes = kNearBytes;
// Up to what no cache holds: collectives of large vectors stream through memory. The longest ones are left out where there is no room.
constexpr std::array<std::int64_t, 3> kLongBytes = {1 << 20, 4 << 20, 32 << 20};
constexpr double kOneMeasurementNs = 3e6, kAllLinksNs = 100e6;
constexpr int kRepeatsMin = 3, kRepeatsMax = 31;
constexpr int kRoundTrips = 3;
// All is measured so often, and of each number the least counts, which is a median in itself: what else the machine does only adds to it,
// and it takes a while until the system has given each rank a processor of its own.
constexpr std::size_t kRounds = 5;
constexpr double kAllRoundsNs = 1e9;  // then there is no further one
constexpr double kAllLongNs = 200e6;  // likewise, of long vectors
constexpr double kWarmNs = 30e6;
// What costs next to nothing but its latency, and what is so long that most of it goes at the link's rate: where a bucket of tokens makes
// that, what the bucket holds passes at once, and sizes between would say that the link is fast.
struct PairSize {
  std::int64_t bytes;
  int trips;
};
constexpr std::array<PairSize, 2> kPairSizes = {{{8, 8}, {1 << 20, 3}}};
constexpr int kPairRounds = 2;

double NowNs() { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Calibration {
 public:
  Calibration(Communicator* ranks, Dtype dtype, ReduceOp op)
      : all_(*ranks), dtype_(dtype), op_(op == ReduceOp::kAvg ? ReduceOp::kSum : op) {}
  ~Calibration() {
    all_.Free(in_);
    all_.Free(out_);
  }

  Result<LinkTimings> Measure() {
    RETURN_IF_ERROR(MakeRoom());
    for (double begin = NowNs(), passed = 0; passed < kWarmNs;) {
      RETURN_IF_ERROR(all_.Barrier());
      passed = NowNs() - begin;
      RETURN_IF_ERROR(AllMax({&passed, 1}));
    }
    std::vector<LinkTimings> rounds;
    for (double begin = NowNs(), passed = 0; rounds.size() < kRounds && passed < kAllRoundsNs;) {
      ASSIGN_OR_RETURN(LinkTimings timings, Round());
      rounds.push_back(std::move(timings));
      passed = NowNs() - begin;
      RETURN_IF_ERROR(AllMax({&passed, 1}));
    }
    LinkTimings timings = LeastOf(rounds);
    if (all_.ranks() < 2) return timings;
    // Seldom three times: they take milliseconds each. More than once, because a rank that shares its processor may wait as long for it.
    for (double begin = NowNs(), passed = 0; passed < kAllLongNs;) {
      RETURN_IF_ERROR(MeasureLong(&timings));
      passed = NowNs() - begin;
      RETURN_IF_ERROR(AllMax({&passed, 1}));
    }
    return timings;
  }

 private:
  // The same on all ranks.
  Status MakeRoom() {
    double lacking = 0;
    for (std::size_t i = kLongBytes.size(); i-- > 0;) {
      room_bytes_ = kLongBytes[i];
      auto in = all_.Allocate(room_bytes_), out = all_.Allocate(room_bytes_);
      lacking = in.ok() && out.ok() ? 0 : 1;
      const Status status = AllMax({&lacking, 1});
      if (status.ok() && lacking == 0) {
        in_ = *in;
        out_ = *out;
        // Written, so that its pages are there; of these bytes every type makes numbers with which it is at its usual speed, products too.
        std::memset(in_, 0x3f, room_bytes_);
        std::memset(out_, 0x3f, room_bytes_);
        return {};
      }
      if (in.ok()) all_.Free(*in);
      if (out.ok()) all_.Free(*out);
      RETURN_IF_ERROR(status);
      if (i > 0) continue;
      RETURN_IF_ERROR(in.status());
      RETURN_IF_ERROR(out.status());
    }
    return Status(Code::kResourceExhausted, "COLL13", "no room to calibrate on another rank",
                  "two vectors of " + std::to_string(room_bytes_) + " bytes are needed on each", "raise pool_bytes");
  }

  // Number by number.
  static LinkTimings LeastOf(const std::vector<LinkTimings>& rounds) {
    LinkTimings least = rounds[0];
    for (const LinkTimings& round : rounds) {
      for (double LinkTimings::* number : {&LinkTimings::chain_ns, &LinkTimings::fan_ns, &LinkTimings::doubling_ns,
                                           &LinkTimings::fold_ns_per_byte, &LinkTimings::copy_ns_per_byte})
        least.*number = std::min(least.*number, round.*number);
      for (std::size_t i = 0; i < least.shift.size(); ++i) least.shift[i].ns = std::min(least.shift[i].ns, round.shift[i].ns);
      for (std::size_t peer = 0; peer < least.one_way.size(); ++peer)
        for (std::size_t i = 0; i < least.one_way[peer].size(); ++i)
          least.one_way[peer][i].ns = std::min(least.one_way[peer][i].ns, round.one_way[peer][i].ns);
    }
    return least;
  }

  Result<LinkTimings> Round() {
    LinkTimings timings{.ranks = all_.ranks(), .nodes = all_.nodes(), .order = all_.orders().ring, .shares_memory = all_.shares_memory()};
    ASSIGN_OR_RETURN(timings.fold_ns_per_byte, FoldNsPerByte(kFoldBytes));
    ASSIGN_OR_RETURN(timings.copy_ns_per_byte, CopyNsPerByte(kFoldBytes));
    ASSIGN_OR_RETURN(timings.chain_ns, SumOfFew("ring"));
    if (all_.ranks() < 2) return timings;
    ASSIGN_OR_RETURN(timings.fan_ns, SumOfFew("direct"));
    ASSIGN_OR_RETURN(timings.doubling_ns, SumOfFew("recursive_doubling"));
    for (std::int64_t bytes : kShiftBytes) {
      ASSIGN_OR_RETURN(double ns, Shift(bytes));
      timings.shift.push_back({bytes, ns});
    }
    timings.one_way.resize(static_cast<std::size_t>(all_.ranks()));
    for (std::int32_t peer = 1; peer < all_.ranks(); ++peer)
      for (std::int64_t bytes : kOneWayBytes) {
        ASSIGN_OR_RETURN(double ns, OneWay(peer, bytes));
        timings.one_way[static_cast<std::size_t>(peer)].push_back({bytes, ns});
      }
    return timings;
  }

  // The largest of all ranks, number by number.
  Status AllMax(std::span<double> numbers) {
    return all_.AllReduce({.in = numbers.data(),
                           .out = numbers.data(),
                           .count = static_cast<std::int64_t>(numbers.size()),
                           .dtype = Dtype::kF64,
                           .op = ReduceOp::kMax,
                           .name = "calibrate"});
  }

  // `work` returns how long it took on this rank. All ranks meet before each time; of the ranks' times the largest counts, of those the
  // median. How often is decided by what all ranks know, so that all do the same.
  Result<double> Slowest(const std::function<Result<double>()>& work, double budget_ns = kOneMeasurementNs) {
    double once = 0;  // with the barrier: on a busy machine it is that which takes long
    for (int warm = 0; warm < 2; ++warm) {
      const double begin = NowNs();
      RETURN_IF_ERROR(all_.Barrier());
      RETURN_IF_ERROR(work().status());
      once = NowNs() - begin;
    }
    RETURN_IF_ERROR(AllMax({&once, 1}));
    const double fitting = budget_ns / std::max(once, 1.0);
    std::vector<double> times(static_cast<std::size_t>(std::clamp(fitting, double{kRepeatsMin}, double{kRepeatsMax})));
    for (double& time : times) {
      RETURN_IF_ERROR(all_.Barrier());
      ASSIGN_OR_RETURN(time, work());
    }
    RETURN_IF_ERROR(AllMax(times));
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }
  Result<double> SlowestCall(const CollectiveCall& call) {
    return Slowest([&]() -> Result<double> {
      const double begin = NowNs();
      RETURN_IF_ERROR(all_.Run(call));
      return NowNs() - begin;
    });
  }

  // One element a rank: messages of next to nothing.
  Result<double> SumOfFew(std::string_view algorithm) {
    return SlowestCall({.in = in_, .out = out_, .count = all_.ranks(), .name = "calibrate", .algorithm = algorithm});
  }

  // Adds what is not there yet, and makes less of what is.
  Status MeasureLong(LinkTimings* timings) {
    std::vector<LongTiming> longs;
    for (const std::int64_t bytes : kLongBytes) {
      if (bytes > room_bytes_) break;
      LongTiming& timing = longs.emplace_back();
      timing.bytes = bytes;
      ASSIGN_OR_RETURN(timing.shift_ns, Shift(bytes));
      ASSIGN_OR_RETURN(timing.fold_ns_per_byte, FoldNsPerByte(bytes));
      ASSIGN_OR_RETURN(timing.copy_ns_per_byte, CopyNsPerByte(bytes));
    }
    if (timings->longs.empty()) timings->longs = longs;
    for (std::size_t i = 0; i < longs.size(); ++i)
      for (double LongTiming::* number : {&LongTiming::shift_ns, &LongTiming::fold_ns_per_byte, &LongTiming::copy_ns_per_byte})
        timings->longs[i].*number = std::min(timings->longs[i].*number, longs[i].*number);
    return {};
  }

  // The next rank of this one's node, round it; of all, where it is alone.
  std::int32_t Next() const {
    const Nodes& nodes = all_.nodes();
    for (std::int32_t steps = 1; steps < all_.ranks(); ++steps)
      if (const std::int32_t other = (all_.rank() + steps) % all_.ranks(); !nodes.empty() && nodes[other] == nodes[all_.rank()])
        return other;
    return (all_.rank() + 1) % all_.ranks();
  }

  // Everybody has `bytes` for the next rank: those that came the last time, since what was written a moment ago is what programs send. It
  // is in the caches of who wrote it, from where it is slower to get than what has been read before.
  Result<double> Shift(std::int64_t bytes) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(all_.ranks()));
    counts[static_cast<std::size_t>(Next())] = bytes;
    CollectiveCall call{.collective = Collective::kAllToAllV,
                        .in = in_,
                        .out = out_,
                        .count = bytes,
                        .dtype = Dtype::kU8,
                        .name = "calibrate",
                        .counts = counts.data()};
    return Slowest([&]() -> Result<double> {
      const double begin = NowNs();
      RETURN_IF_ERROR(all_.Run(call));
      const double ns = NowNs() - begin;
      call.in = call.out;
      call.out = call.out == out_ ? in_ : out_;
      return ns;
    });
  }

  // From where the last one came to.
  Status SendOnce(std::int32_t from, std::int32_t to, std::int64_t bytes) {
    return all_.SendRecv({.in = in_, .out = in_, .count = bytes, .dtype = Dtype::kU8, .root = from, .peer = to, .name = "calibrate"});
  }
  // Half of there and back, as rank 0's clock has it. The others make the same calls, in which there is nothing for them to do.
  Result<double> OneWay(std::int32_t peer, std::int64_t bytes) {
    const double measurements = static_cast<double>(kOneWayBytes.size()) * (all_.ranks() - 1);
    return Slowest(
        [&]() -> Result<double> {
          double begin = 0;
          for (int trip = 0; trip <= kRoundTrips; ++trip) {
            if (trip == 1) begin = NowNs();  // the first one waits for a peer that still comes out of the barrier
            RETURN_IF_ERROR(SendOnce(0, peer, bytes));
            RETURN_IF_ERROR(SendOnce(peer, 0, bytes));
          }
          return all_.rank() == 0 ? (NowNs() - begin) / (2 * kRoundTrips) : 0;
        },
        std::min(kOneMeasurementNs, kAllLinksNs / measurements) / (2 * (kRoundTrips + 1)));
  }

  // `work` on all ranks at once, by bytes of one vector.
  Result<double> NsPerByte(std::int64_t bytes, const std::function<void()>& work) {
    ASSIGN_OR_RETURN(const double ns, Slowest([&]() -> Result<double> {
                       const double begin = NowNs();
                       work();
                       return NowNs() - begin;
                     }));
    return ns / static_cast<double>(bytes);
  }
  Result<double> FoldNsPerByte(std::int64_t bytes) {
    const std::array<Row, 2> rows = {Row{.data = in_, .dtype = dtype_}, Row{.data = out_, .dtype = dtype_}};
    const auto count = bytes / static_cast<std::int64_t>(SizeOf(dtype_));
    // In place where there is no room for a third vector.
    char* const result = out_ + (2 * bytes <= room_bytes_ ? bytes : 0);
    return NsPerByte(bytes, [&] { FoldRows(op_, AccumulatorOf(dtype_), rows, 1, dtype_, result, count); });
  }
  Result<double> CopyNsPerByte(std::int64_t bytes) {
    return NsPerByte(bytes, [&] { std::memcpy(out_, in_, static_cast<std::size_t>(bytes)); });
  }

  Communicator& all_;
  const Dtype dtype_;
  const ReduceOp op_;
  std::int64_t room_bytes_ = 0;
  char *in_ = nullptr, *out_ = nullptr;  // so long
};

// Half of there and back between two ranks, by the clock of the first, the least of all trips; others make the same calls, in which there
// is nothing for them to do.
Result<double> OfPair(Communicator* all, std::int32_t a, std::int32_t b, char* memory, const PairSize& size) {
  double least = 0;
  RETURN_IF_ERROR(all->Barrier());
  for (int trip = 0; trip < size.trips; ++trip) {
    const double begin = NowNs();
    for (auto [from, to] : {std::pair(a, b), std::pair(b, a)})
      RETURN_IF_ERROR(all->SendRecv(
          {.in = memory, .out = memory, .count = size.bytes, .dtype = Dtype::kU8, .root = from, .peer = to, .name = "calibrate"}));
    const double ns = (NowNs() - begin) / 2;
    least = trip == 0 ? ns : std::min(least, ns);
  }
  return all->rank() == a ? least : 0;
}

}  // namespace

Result<PairLines> CalibratePairs(Communicator* ranks) {
  const std::int32_t count = ranks->ranks();
  constexpr std::int64_t kLongest = kPairSizes.back().bytes;
  ASSIGN_OR_RETURN(char* memory, ranks->Allocate(kLongest));
  std::memset(memory, 0, kLongest);
  auto measure = [&]() -> Result<PairLines> {
    std::vector<double> least;  // by pair and size
    for (int round = 0; round < kPairRounds; ++round) {
      std::size_t at = 0;
      for (std::int32_t a = 0; a < count; ++a)
        for (std::int32_t b = a + 1; b < count; ++b)
          for (const PairSize& size : kPairSizes) {
            ASSIGN_OR_RETURN(const double ns, OfPair(ranks, a, b, memory, size));
            if (round == 0) least.push_back(ns);
            least[at] = std::min(least[at], ns);
            ++at;
          }
    }
    // Each is known to one rank, and zero to the others.
    if (!least.empty())
      RETURN_IF_ERROR(ranks->AllReduce({.in = least.data(),
                                        .out = least.data(),
                                        .count = static_cast<std::int64_t>(least.size()),
                                        .dtype = Dtype::kF64,
                                        .op = ReduceOp::kMax,
                                        .name = "calibrate"}));
    PairTimings timings(static_cast<std::size_t>(count), std::vector<std::vector<Timing>>(static_cast<std::size_t>(count)));
    std::size_t at = 0;
    for (std::int32_t a = 0; a < count; ++a)
      for (std::int32_t b = a + 1; b < count; ++b)
        for (const PairSize& size : kPairSizes) timings[a][b].push_back({size.bytes, least[at++]});
    return FitPairs(timings);
  };
  auto measured = measure();
  ranks->Free(memory);
  return measured;
}

Result<LinkModel> Calibrate(Communicator* ranks, Dtype dtype, ReduceOp op) {
  Calibration calibration(ranks, dtype, op);
  ASSIGN_OR_RETURN(LinkTimings timings, calibration.Measure());
  return FitLinks(timings);
}

}  // namespace ropewalk::collective
