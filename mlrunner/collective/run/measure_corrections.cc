#include "mlrunner/collective/run/measure_corrections.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "mlrunner/collective/run/chooser.h"

namespace ropewalk::collective {
namespace {

// Of allreduces in f32: each fourfold of the one before, and twofold where vectors begin to be cut into segments. Beyond the longest the
// model has lengths of its own.
constexpr std::array<std::int64_t, 10> kLengths = {768,       3 << 10,   12 << 10,  48 << 10, 96 << 10,
                                                   192 << 10, 384 << 10, 768 << 10, 3 << 20,  12 << 20};
constexpr int kPasses = 12, kPassesOfAll = 2;
constexpr std::int64_t kScratchOfVector = 8;  // times its length, at most
constexpr double kFar = 1.5;                  // times the best one
constexpr double kBlockNs = 300e3;            // calls of one way at one length in one pass
constexpr int kCallsMax = 15;
constexpr double kAllNs = 1.5e9;  // then no further pass begins, and after half as much again no further call

double NowNs() { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Ways that are the same calls at this length: segments that are longer than it make no difference.
struct Contender {
  std::int64_t bytes = 0;
  std::vector<Choice> ways;
  double model_ns = 0;
  std::size_t calls = 0;          // in the longest pass
  std::vector<double> passes_ns;  // ascending; of one call of the first pass, only until there are several

  bool HasRun() const { return !passes_ns.empty(); }
  // Other work only adds; but the least of a few single calls is the luckiest.
  double Ns() const { return passes_ns[(passes_ns.size() - 1) / 3]; }
};

class Passes {
 public:
  Passes(Communicator* ranks, const LinkModel& model, const Ground& ground) : all_(*ranks), model_(model), ground_(ground) {}
  ~Passes() {
    all_.Free(in_);
    all_.Free(out_);
  }

  Result<Corrections> Measure() {
    RETURN_IF_ERROR(MakeRoom());
    if (in_ == nullptr) return Corrections();
    std::vector<std::vector<Contender>> by_length = Contenders();
    begin_ns_ = NowNs();
    for (int pass = 0; pass < kPasses && passed_ns_ < kAllNs; ++pass)
      for (std::vector<Contender>& contenders : by_length) {
        double best_ns = 0;
        for (const Contender& one : contenders)
          if (one.HasRun() && (best_ns == 0 || one.Ns() < best_ns)) best_ns = one.Ns();
        for (std::size_t i = 0; i < contenders.size() && passed_ns_ < 1.5 * kAllNs; ++i) {
          Contender& one = contenders[pass % 2 == 0 ? i : contenders.size() - 1 - i];
          if (pass >= kPassesOfAll && one.HasRun() && one.Ns() > kFar * best_ns) continue;
          RETURN_IF_ERROR(Block(&one));
        }
      }
    Corrections corrections;
    for (const std::vector<Contender>& contenders : by_length)
      for (const Contender& one : contenders)
        if (one.HasRun())
          for (const Choice& way : one.ways) corrections.Add(way, one.bytes, one.Ns() / one.model_ns);
    return corrections;
  }

 private:
  // For the longest vectors that fit on all ranks, with the scratch that a way may need for them: calibration must not fail for want of it.
  Status MakeRoom() {
    for (std::size_t i = kLengths.size(); i-- > 0;) {
      room_bytes_ = kLengths[i];
      auto in = all_.Allocate(static_cast<std::size_t>(room_bytes_)), out = all_.Allocate(static_cast<std::size_t>(room_bytes_));
      auto spare = all_.Allocate(static_cast<std::size_t>(std::min(kScratchOfVector * room_bytes_, kChosenScratchBytesMax)));
      std::vector<double> lacking = {in.ok() && out.ok() && spare.ok() ? 0.0 : 1.0};
      if (spare.ok()) all_.Free(*spare);
      const Status status = AllMax(&lacking);
      if (status.ok() && lacking[0] == 0) {
        in_ = *in;
        out_ = *out;
        std::memset(in_, 0x3f, static_cast<std::size_t>(room_bytes_));  // numbers of no unusual speed
        std::memset(out_, 0x3f, static_cast<std::size_t>(room_bytes_));
        return {};
      }
      if (in.ok()) all_.Free(*in);
      if (out.ok()) all_.Free(*out);
      RETURN_IF_ERROR(status);
    }
    return {};
  }

  std::vector<std::vector<Contender>> Contenders() const {
    const std::vector<Candidate> candidates = CandidatesFor({.collective = Collective::kAllreduce, .dtype = Dtype::kF32}, ground_);
    std::vector<std::vector<Contender>> by_length;
    for (const std::int64_t bytes : kLengths) {
      if (bytes > room_bytes_) break;
      std::vector<Contender>& contenders = by_length.emplace_back();
      for (const Candidate& candidate : candidates) {
        const Choice& way = candidate.choice;
        const auto same = std::find_if(contenders.begin(), contenders.end(), [&](const Contender& one) {
          const Choice& other = one.ways.front();
          return other.algorithm == way.algorithm && other.channels == way.channels && other.segment_bytes >= bytes &&
                 way.segment_bytes >= bytes;
        });
        if (same != contenders.end()) {
          same->ways.push_back(way);
          continue;
        }
        // What takes too much scratch is not chosen at this length, nor run.
        const auto ns = NsOf(model_, candidate, bytes / static_cast<std::int64_t>(sizeof(float)));
        if (ns.ok() && *ns > 0) contenders.push_back({.bytes = bytes, .ways = {way}, .model_ns = *ns});
      }
    }
    return by_length;
  }

  Result<double> OnceNs(const Contender& one) {
    const Choice& way = one.ways.front();
    RETURN_IF_ERROR(all_.Barrier());
    const double begin = NowNs();
    RETURN_IF_ERROR(all_.Run({.in = in_,
                              .out = out_,
                              .count = one.bytes / static_cast<std::int64_t>(sizeof(float)),
                              .name = "calibrate",
                              .algorithm = way.algorithm,
                              .segment_bytes = way.segment_bytes,
                              .channels = way.channels}));
    return NowNs() - begin;
  }

  // Several calls where they are short, and then the first one after another's is not counted. What is known of the first call of all,
  // which also builds a plan and maps what its peers have, makes way for what comes of several.
  Status Block(Contender* one) {
    const auto calls = one->HasRun() ? static_cast<std::size_t>(std::clamp(kBlockNs / one->Ns(), 1.0, double{kCallsMax})) : 1;
    if (calls > 1) RETURN_IF_ERROR(OnceNs(*one).status());
    std::vector<double> times(calls);
    for (double& time : times) {
      ASSIGN_OR_RETURN(time, OnceNs(*one));
    }
    ASSIGN_OR_RETURN(const double ns, MedianOfSlowest(std::move(times)));
    if (calls > 2 * one->calls) one->passes_ns.clear();
    one->passes_ns.insert(std::upper_bound(one->passes_ns.begin(), one->passes_ns.end(), ns), ns);
    one->calls = std::max(one->calls, calls);
    return {};
  }

  // Of each call the slowest rank counts. The ranks also learn how late it is.
  Result<double> MedianOfSlowest(std::vector<double> times) {
    times.push_back(NowNs() - begin_ns_);
    RETURN_IF_ERROR(AllMax(&times));
    passed_ns_ = times.back();
    times.pop_back();
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return std::max(*middle, 1.0);
  }

  // The largest of all ranks, number by number.
  Status AllMax(std::vector<double>* numbers) {
    return all_.AllReduce({.in = numbers->data(),
                           .out = numbers->data(),
                           .count = static_cast<std::int64_t>(numbers->size()),
                           .dtype = Dtype::kF64,
                           .op = ReduceOp::kMax,
                           .name = "calibrate"});
  }

  Communicator& all_;
  const LinkModel& model_;
  const Ground& ground_;
  std::int64_t room_bytes_ = 0;
  char *in_ = nullptr, *out_ = nullptr;  // so long
  double begin_ns_ = 0, passed_ns_ = 0;  // passed_ns_: as all ranks know it
};

}  // namespace

Result<Corrections> MeasureCorrections(Communicator* ranks, const LinkModel& model, const Ground& ground) {
  if (ground.ranks < 2 || ground.ranks > kPredictedRanksMax) return Corrections();
  return Passes(ranks, model, ground).Measure();
}

}  // namespace ropewalk::collective
