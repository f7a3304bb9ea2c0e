// What ranks say to each other when they form a communicator anew, and what follows from it: who is gone, who goes, who comes, and who has
// which number then. All ranks have the same words (run/agreement.h), so each works it out for itself.
//
// Pure. Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::collective {

// Somebody who wants to be a rank.
struct Newcomer {
  std::int32_t wish = -1;  // the number that it is to have; -1: any
  std::string place;       // where it listens
};

// The first word of a rank.
struct Intent {
  bool leaves = false;
  bool shrinks = false;             // it calls Shrink(), not Reform()
  std::vector<bool> over;           // by rank: whose links are over for it
  std::string place;                // where it listens; empty where it leaves, or has no means to go on
  std::vector<Newcomer> newcomers;  // who have come to its door
};
std::string Encode(const Intent& intent);
std::optional<Intent> DecodeIntent(std::string_view bytes, std::int32_t ranks);

struct Forming {
  // A rank of the new communicator: one that stays, or a newcomer.
  struct Place {
    std::int32_t member = -1;               // its rank until now; -1: it comes
    std::int32_t door = -1, newcomer = -1;  // at whose door, and the how many-th there
    std::string word;                       // where it listens
  };
  std::vector<Place> ranks;    // by new rank
  std::vector<Place> refused;  // newcomers whose wish cannot be met
  std::vector<bool> gone;      // by old rank; nobody waits for these any more
  std::int32_t newcomers = 0;  // among the ranks
  // By new rank.
  std::vector<std::string> words() const;
};
// `said`: the first words by old rank, nothing of those that are gone. Who is taken for gone by any is gone, though it may have said a
// word. Newcomers have the numbers that they wish for; a wish for one that there is not, or that an earlier newcomer has, is refused; the
// others follow in their old order, then the newcomers without a wish. kInternal (COLL25) for words that are none, kInvalid (COLL21) when
// the ranks call different things.
Result<Forming> Form(std::span<const std::optional<std::string>> said);

// The second word: how it went.
struct Formed {
  bool is_well = false;       // it is connected with all, and so are the newcomers at its door
  bool has_lost_one = false;  // a newcomer at its door is gone
  std::string why;            // where it is not well
};
std::string Encode(const Formed& formed);
std::optional<Formed> DecodeFormed(std::string_view bytes);

}  // namespace ropewalk::collective
