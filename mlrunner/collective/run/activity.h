// What a rank is doing, as it says itself to one that waits for it: enough to tell one whose calls get on, however slowly, from one that
// stands still.
//
// Thread rule: a value.
#pragma once

#include <cstdint>

namespace ropewalk::collective {

// Calls that ranks need not make equally often (relaxed windows) do not count: they may go on for ever while somebody waits for their rank.
struct Activity {
  bool waits = false;       // its program waits in a call
  bool is_in_step = false;  // a step is being done at this moment, such as a long copy or sum
  std::uint64_t looks = 0;  // how often it has looked whether a step can be done
  std::uint64_t moved = 0;  // grows with each step that is done and each byte of a message that moves
  // How long ago its program last said that it gets on, in a call or not.
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::uint64_t worked_ms_ago = kNever;
};

// Whether something has got on in between, or one step is being done that began before. Also where the program computes: what it submitted
// goes on meanwhile.
inline bool GetsOn(const Activity& before, const Activity& now) {
  return now.moved != before.moved || (before.is_in_step && now.is_in_step && now.looks == before.looks);
}

}  // namespace ropewalk::collective
