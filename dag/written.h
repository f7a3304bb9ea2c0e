// What an action that writes an output folder has published. It is counted by the action's own tasks, so it stays true when another job
// overwrites the folder a moment later.
//
// Thread rule: a value.
#pragma once

#include <cstdint>

namespace ropewalk::dag {

struct Written {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;  // of all parts; the manifest is not counted
  std::uint32_t parts = 0;  // part-00000 and those after it, empty ones too
  friend bool operator==(const Written&, const Written&) = default;
};

}  // namespace ropewalk::dag
