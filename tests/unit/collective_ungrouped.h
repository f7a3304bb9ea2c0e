// Rounds as somebody writes them who does not know of groups: the control.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>

#include "mlrunner/collective/rounds.h"

namespace ropewalk::collective::testing {

// Each transfer is a group of its own, in the same order.
inline Rounds Ungrouped(Rounds rounds) {
  std::size_t longest = 0;
  for (RankRounds& rank : rounds.ranks) {
    std::vector<Round> alone;
    for (const Round& round : rank.rounds) {
      alone.push_back({.first_fold = round.first_fold, .fold_count = round.fold_count});
      for (std::int32_t t = round.first_transfer; t < round.first_transfer + round.transfer_count; ++t)
        alone.push_back({.first_transfer = t, .transfer_count = 1});
    }
    rank.rounds = std::move(alone);
    longest = std::max(longest, rank.rounds.size());
  }
  for (RankRounds& rank : rounds.ranks) rank.rounds.resize(longest);
  return rounds;
}

}  // namespace ropewalk::collective::testing
