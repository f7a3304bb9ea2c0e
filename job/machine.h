// What this process may use of the machine, for embedded jobs and for those who show it.
//
// Thread rule: pure reads of /proc and /sys.
#pragma once

#include <cstdint>

namespace ropewalk::job {

std::uint32_t Cores();  // of its affinity; at least 1
// Half of the machine's memory, or of the container's where that is less; at least 64 MiB.
std::uint64_t HalfOfMemory();

}  // namespace ropewalk::job
