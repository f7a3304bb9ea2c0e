#include "mlrunner/collective/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "mlrunner/collective/run/kernels.h"

namespace ropewalk::collective {
namespace {

// One segment of either wire at most, so that no pipeline is measured.
constexpr std::array<std::int64_t, 4> kOneWayBytes = {8, 4 << 10, 32 << 10, 256 << 10};
// Up to what no cache of one core holds: collectives of large vectors stream through memory.
constexpr std::array<std::int64_t, 3> kShiftBytes = {64 << 10, 512 << 10, 4 << 20};
constexpr std::int64_t kBytesMax = 4 << 20, kFoldBytes = 256 << 10;
constexpr double kOneMeasurementNs = 3e6, kAllLinksNs = 100e6;
constexpr int kRepeatsMin = 3, kRepeatsMax = 31;
constexpr int kRoundTrips = 3;
// All is measured so often, and of each number the median counts: it takes a while until the system has given each rank a processor of its
// own, and on a busy machine a round or two may have none.
constexpr int kRounds = 5;
constexpr double kWarmNs = 30e6;

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
    ASSIGN_OR_RETURN(in_, all_.Allocate(kBytesMax));
    ASSIGN_OR_RETURN(out_, all_.Allocate(kBytesMax));
    // Written, so that its pages are there; of these bytes every type makes numbers with which it is at its usual speed, products too.
    std::memset(in_, 0x3f, kBytesMax);
    std::memset(out_, 0x3f, kBytesMax);
    for (double begin = NowNs(), passed = 0; passed < kWarmNs;) {
      RETURN_IF_ERROR(all_.Barrier());
      passed = NowNs() - begin;
      RETURN_IF_ERROR(AllMax({&passed, 1}));
    }
    std::vector<LinkTimings> rounds;
    for (int round = 0; round < kRounds; ++round) {
      ASSIGN_OR_RETURN(LinkTimings timings, Round());
      rounds.push_back(std::move(timings));
    }
    return MedianOf(rounds);
  }

 private:
  // Number by number.
  static LinkTimings MedianOf(const std::vector<LinkTimings>& rounds) {
    LinkTimings median = rounds[0];
    auto median_of = [&](auto number) {
      std::vector<double> numbers;
      for (const LinkTimings& round : rounds) numbers.push_back(number(round));
      std::sort(numbers.begin(), numbers.end());
      return numbers[numbers.size() / 2];
    };
    for (double LinkTimings::* number :
         {&LinkTimings::chain_ns, &LinkTimings::fan_ns, &LinkTimings::fold_ns_per_byte, &LinkTimings::copy_ns_per_byte})
      median.*number = median_of([&](const LinkTimings& round) { return round.*number; });
    for (std::size_t i = 0; i < median.shift.size(); ++i)
      median.shift[i].ns = median_of([&](const LinkTimings& round) { return round.shift[i].ns; });
    for (std::size_t peer = 0; peer < median.one_way.size(); ++peer)
      for (std::size_t i = 0; i < median.one_way[peer].size(); ++i)
        median.one_way[peer][i].ns = median_of([&](const LinkTimings& round) { return round.one_way[peer][i].ns; });
    return median;
  }

  Result<LinkTimings> Round() {
    LinkTimings timings{.ranks = all_.ranks(), .shares_memory = all_.shares_memory()};
    RETURN_IF_ERROR(MeasureProcessor(&timings));
    ASSIGN_OR_RETURN(timings.chain_ns, SumOfFew("ring"));
    if (all_.ranks() < 2) return timings;
    ASSIGN_OR_RETURN(timings.fan_ns, SumOfFew("direct"));
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
    double once = 0;
    for (int warm = 0; warm < 2; ++warm) {
      RETURN_IF_ERROR(all_.Barrier());
      ASSIGN_OR_RETURN(once, work());
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

  // Everybody has `bytes` for the next rank: those that came the last time, since what was written a moment ago is what programs send. It
  // is in the caches of who wrote it, from where it is slower to get than what has been read before.
  Result<double> Shift(std::int64_t bytes) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(all_.ranks()));
    counts[static_cast<std::size_t>((all_.rank() + 1) % all_.ranks())] = bytes;
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

  Status MeasureProcessor(LinkTimings* timings) {
    const std::array<Row, 2> rows = {Row{.data = in_, .dtype = dtype_}, Row{.data = out_, .dtype = dtype_}};
    char* const result = out_ + kBytesMax / 2;
    auto time = [&](const std::function<void()>& work) {
      return Slowest([&]() -> Result<double> {
        const double begin = NowNs();
        work();
        return NowNs() - begin;
      });
    };
    const auto count = kFoldBytes / static_cast<std::int64_t>(SizeOf(dtype_));
    ASSIGN_OR_RETURN(double fold_ns, time([&] { FoldRows(op_, AccumulatorOf(dtype_), rows, 1, dtype_, result, count); }));
    ASSIGN_OR_RETURN(double copy_ns, time([&] { std::memcpy(result, in_, kFoldBytes); }));
    timings->fold_ns_per_byte = fold_ns / kFoldBytes;
    timings->copy_ns_per_byte = copy_ns / kFoldBytes;
    return {};
  }

  Communicator& all_;
  const Dtype dtype_;
  const ReduceOp op_;
  char *in_ = nullptr, *out_ = nullptr;
};

}  // namespace

Result<LinkModel> Calibrate(Communicator* ranks, Dtype dtype, ReduceOp op) {
  Calibration calibration(ranks, dtype, op);
  ASSIGN_OR_RETURN(LinkTimings timings, calibration.Measure());
  return FitLinks(timings);
}

}  // namespace ropewalk::collective
