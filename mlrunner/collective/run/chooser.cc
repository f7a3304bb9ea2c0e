#include "mlrunner/collective/run/chooser.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <optional>
#include <utility>

namespace ropewalk::collective {
namespace {

// Beyond the longest all that differs between plans is what a byte costs, which stays as it is; below the shortest the rounds alone count.
// Corrections bend from length to length, so these stand closer than what was measured.
constexpr std::int64_t kShortestBytes = 256, kLongestBytes = 16 << 20, kTimes = 2;
// Where one is the best at one length and another at the next, the border is sought so often: to a twentieth of an octave.
constexpr int kHalvings = 5;
// What predictions cannot tell apart: then what was chosen for shorter vectors stays, or what comes first.
constexpr double kAlike = 1.02;

Request AskedBy(const CollectiveCall& call) {
  return {.collective = call.collective, .dtype = call.dtype, .op = call.op, .root = call.root, .deterministic = call.deterministic};
}

std::string Us(double ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f us", ns / 1000);
  return text;
}

// "2026-11-30", everywhere the same.
std::string DateOf(std::int64_t s) {
  const auto time = static_cast<std::time_t>(s);
  std::tm parts{};
  char text[32];
  if (gmtime_r(&time, &parts) == nullptr || std::strftime(text, sizeof(text), "%Y-%m-%d", &parts) == 0) return "an unknown day";
  return text;
}

}  // namespace

Result<double> NsOf(const Costs& costs, const Candidate& candidate, std::int64_t count) {
  ASSIGN_OR_RETURN(const double ns, NsOf(costs.model, candidate, count));
  return ns * costs.corrections.FactorOf(candidate.plan.header, count);
}

std::string Explain(const Decision& decision) {
  std::string text = Describe(decision.choice);
  if (decision.ns <= 0) return text + ": by " + decision.by;
  text += ": " + Us(decision.ns) + " predicted by " + decision.by;
  if (decision.factor > 0) {
    char times[32];
    std::snprintf(times, sizeof(times), "%.2f", decision.factor);
    text += " (" + Us(decision.ns / decision.factor) + " by the model, " + times + " times that as measured)";
  }
  if (!decision.next.algorithm.empty()) text += "; next " + Describe(decision.next) + ": " + Us(decision.next_ns);
  return text;
}

Chooser::Chooser(Ground ground, Costs costs) : ground_(std::move(ground)), costs_(std::move(costs)) {}

bool Chooser::IsPredicted(const CollectiveCall& call) const {
  return costs_.from != CostsFrom::kNowhere && ground_.ranks > 1 && ground_.ranks <= kPredictedRanksMax && call.algorithm.empty() &&
         call.codec == nullptr && IsNumber(call.dtype) && static_cast<std::size_t>(call.dtype) < kDtypes &&
         !LearnsCounts(call.collective) && call.collective != Collective::kMix && call.collective != Collective::kNeighborExchange &&
         call.root >= 0 && call.root < ground_.ranks;
}

Chosen Chooser::For(const CollectiveCall& call) const {
  if (IsPredicted(call))
    if (const Table& table = TableOf(call); !table.empty()) {
      const std::int64_t bytes = call.count * static_cast<std::int64_t>(SizeOf(call.dtype));
      const Break* chosen = &table[0];
      for (const Break& next : table)
        if (next.from_bytes <= bytes) chosen = &next;
      return ChosenFor(call, ground_.ranks, chosen->choice);
    }
  return ChooseFor(call, ground_.ranks, ground_.shares_memory, ground_.segment_bytes);
}

const Chooser::Table& Chooser::TableOf(const CollectiveCall& call) const {
  const std::size_t kind = (static_cast<std::size_t>(call.collective) * kDtypes + static_cast<std::size_t>(call.dtype)) * 2 +
                           static_cast<std::size_t>(call.deterministic);
  if (const Table* table = by_kind_[kind].load(std::memory_order_acquire); table != nullptr) return *table;
  std::lock_guard lock(mutex_);
  if (const Table* table = by_kind_[kind].load(std::memory_order_relaxed); table != nullptr) return *table;
  tables_.push_back(std::make_unique<const Table>(MakeTable(call)));
  by_kind_[kind].store(tables_.back().get(), std::memory_order_release);
  return *tables_.back();
}

// Of any root: the links are taken as equal, or equal within and between nodes, whose sizes are equal where it matters.
Chooser::Table Chooser::MakeTable(const CollectiveCall& call) const {
  Request asked = AskedBy(call);
  asked.op = ReduceOp::kSum;
  asked.root = 0;
  const std::vector<Candidate> candidates = CandidatesFor(asked, ground_);
  const auto element = static_cast<std::int64_t>(SizeOf(call.dtype));
  auto ns_at = [&](std::size_t candidate, std::int64_t bytes) -> std::optional<double> {
    auto ns = NsOf(costs_, candidates[candidate], std::max<std::int64_t>(1, bytes / element));
    return ns.ok() ? std::optional(*ns) : std::nullopt;
  };
  Table table;
  std::optional<std::size_t> last;
  for (std::int64_t bytes = kShortestBytes; bytes <= kLongestBytes; bytes *= kTimes) {
    std::vector<std::optional<double>> ns;
    std::optional<double> least;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      ns.push_back(candidates.size() > 1 ? ns_at(i, bytes) : std::optional(0.0));
      if (ns[i] && (!least || *ns[i] < *least)) least = ns[i];
    }
    if (!least) continue;
    auto is_best = [&](std::size_t i) { return ns[i] && *ns[i] <= kAlike * *least; };
    if (last && is_best(*last)) continue;
    std::size_t best = 0;
    while (!is_best(best)) ++best;
    std::int64_t from_bytes = 0;
    if (last) {
      double low = std::log2(static_cast<double>(bytes / kTimes)), high = std::log2(static_cast<double>(bytes));
      for (int halving = 0; halving < kHalvings; ++halving) {
        const double middle = (low + high) / 2;
        const auto at = static_cast<std::int64_t>(std::exp2(middle));
        const std::optional<double> before = ns_at(*last, at), after = ns_at(best, at);
        (after && (!before || *after < *before) ? high : low) = middle;
      }
      from_bytes = static_cast<std::int64_t>(std::exp2(high));
    }
    table.push_back({from_bytes, candidates[best].choice});
    last = best;
  }
  return table;
}

Decision Chooser::Explain(const CollectiveCall& call) const {
  const Chosen chosen = For(call);
  Decision decision{
      .choice = {.algorithm = chosen.algorithm, .segment_bytes = chosen.request.segment_bytes, .channels = chosen.request.channels}};
  if (!IsPredicted(call)) {
    decision.by = !call.algorithm.empty()              ? "the call"
                  : costs_.from == CostsFrom::kNowhere ? "fixed sizes: costs of messages are not known"
                  : ground_.ranks > kPredictedRanksMax ? "fixed sizes: there are too many ranks to predict"
                                                       : "fixed sizes: nothing else does it";
    return decision;
  }
  decision.by = costs_.from == CostsFrom::kFile ? "costs of an earlier run" : "measured costs";
  if (costs_.from == CostsFrom::kFile && costs_.measured_at_s > 0) decision.by += " of " + DateOf(costs_.measured_at_s);
  for (const Candidate& candidate : CandidatesFor(AskedBy(call), ground_)) {
    const auto ns = NsOf(costs_, candidate, call.count);
    if (!ns.ok()) continue;
    if (candidate.choice == decision.choice) {
      decision.ns = *ns;
      if (call.collective == Collective::kAllreduce && !costs_.corrections.empty())
        decision.factor = costs_.corrections.FactorOf(candidate.plan.header, call.count);
    }
    if (candidate.choice.algorithm == decision.choice.algorithm) continue;
    if (decision.next.algorithm.empty() || *ns < decision.next_ns) {
      decision.next = candidate.choice;
      decision.next_ns = *ns;
    }
  }
  return decision;
}

}  // namespace ropewalk::collective
