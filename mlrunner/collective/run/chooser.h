// Which algorithm a communicator's calls run by, when they do not say: the one of the least predicted time, if what messages cost is known
// (link_costs.h); else by fixed sizes (choose.h). Predicted is what the link model says, of allreduces times what was measured beside it
// (corrections.h).
//
// A choice is a function of what all ranks know (call, communicator, costs), so all choose the same without asking. At the first call of a
// kind (collective, type, deterministic mode) all candidates are put into virtual time at a few lengths, and the lengths found from which
// on another one is the best; from then on a choice is a search among these few numbers.
//
// What is not predicted is chosen by fixed sizes: calls with codecs, windows, neighbours or counts that are learned, for which there is one
// algorithm; and communicators of more than kPredictedRanksMax ranks: a direct plan has 2P(P-1) messages, so that the tables of 16 ranks
// take tenths of a second, and those of 64 would take ten.
//
// Owner: a communicator. Thread rule: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/link_model.h"
#include "mlrunner/collective/run/candidates.h"
#include "mlrunner/collective/run/choose.h"
#include "mlrunner/collective/run/corrections.h"

namespace ropewalk::collective {

inline constexpr std::int32_t kPredictedRanksMax = 16;

enum class CostsFrom : std::uint8_t { kNowhere, kMeasured, kFile };

// What messages cost between the ranks of a communicator, the same on all of them.
struct Costs {
  LinkModel model;
  Corrections corrections;
  std::int64_t measured_at_s = 0;  // of the calendar, by rank 0's clock; 0: not known. Nothing is decided by it
  CostsFrom from = CostsFrom::kNowhere;
  std::string not_kept;  // why they will be measured again the next time; empty: they are in a file
};
// The model's time and the correction. Fails as the one of candidates.h.
Result<double> NsOf(const Costs& costs, const Candidate& candidate, std::int64_t count);

// For people.
struct Decision {
  Choice choice;
  std::string by;     // "measured costs", "costs of an earlier run of 2026-11-30", "fixed sizes: ...", "the call"
  double ns = 0;      // predicted; 0: nothing was
  double factor = 0;  // what of it is the correction of the model's time; 0: there is none
  Choice next;        // the best of any other algorithm; none where there is no other
  double next_ns = 0;
};
// "direct, segments of 262144 bytes: 12.3 us predicted by measured costs (10.7 us by the model, 1.15 times that as measured); next ring:
// 14.0 us".
std::string Explain(const Decision& decision);

class Chooser {
 public:
  // By fixed sizes.
  explicit Chooser(Ground ground) : Chooser(std::move(ground), Costs{}) {}
  Chooser(Ground ground, Costs costs);
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;

  const Costs& costs() const { return costs_; }

  // What `call` runs by. Allocates at the first call of a kind only.
  Chosen For(const CollectiveCall& call) const;

  // The same with the times, which are predicted anew: milliseconds.
  Decision Explain(const CollectiveCall& call) const;

 private:
  // From so many bytes on.
  struct Break {
    std::int64_t from_bytes = 0;
    Choice choice;
  };
  using Table = std::vector<Break>;  // ascending, the first from 0 on; empty: fixed sizes

  bool IsPredicted(const CollectiveCall& call) const;
  const Table& TableOf(const CollectiveCall& call) const;
  Table MakeTable(const CollectiveCall& call) const;

  static constexpr std::size_t kDtypes = 8;
  static constexpr std::size_t kKinds = (static_cast<std::size_t>(kLastCollective) + 1) * kDtypes * 2;

  const Ground ground_;
  const Costs costs_;
  // What is there stays; who finds nothing takes the mutex, and looks again.
  mutable std::array<std::atomic<const Table*>, kKinds> by_kind_{};
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<const Table>> tables_;
};

}  // namespace ropewalk::collective
