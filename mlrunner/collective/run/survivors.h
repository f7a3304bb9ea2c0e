// How the ranks that are left after a failure agree: on sets of ranks, over the links on which they watch each other.
//
// Who sees the end of a link knows that its rank is gone; but ranks see that at different times, and more may go meanwhile. So what is
// decided is not what a rank sees but what it has agreed on, by flooding: all give all their set, as often as there are ranks, and add up
// what they get. Among so many rounds is one in which nobody went, and after that all who are left have the same.
//
// Owner: a communicator, for one Shrink(). Thread rule: one thread; the ranks make the same calls in the same order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/run/links.h"

namespace ropewalk::collective {

class Survivors {
 public:
  using Ranks = std::vector<bool>;  // by rank

  // `meetings` counts over the life of the links.
  Survivors(Links* links, std::int32_t rank, std::int32_t ranks, std::int64_t ms_max, std::uint64_t* meetings)
      : links_(links), rank_(rank), ranks_(ranks), ms_max_(ms_max), meetings_(meetings), gone_(ranks) {}

  // Agrees on who is gone: who was seen to be so by any. From then on nobody waits for these. kUnavailable (COLL20) for a rank that the
  // others take for gone.
  Status AgreeOnGone();
  const Ranks& gone() const { return gone_; }
  // The union of what those who are left give; the same on all of them. kDeadlineExceeded (COLL28) for a rank that neither comes nor goes.
  Result<Ranks> Agree(Ranks mine);
  // What each gave; nothing of those who are gone.
  Result<std::vector<std::optional<std::string>>> Tell(const std::string& word);

 private:
  Links* const links_;
  const std::int32_t rank_, ranks_;
  const std::int64_t ms_max_;
  std::uint64_t* const meetings_;
  Ranks gone_;
};

}  // namespace ropewalk::collective
