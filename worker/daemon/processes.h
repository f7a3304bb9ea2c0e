// What /proc says of the processes of this machine.
//
// Thread rule: pure functions of the moment.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace ropewalk::worker {

struct Process {
  pid_t pid = 0, parent = 0, session = 0;
  bool zombie = false;
};
std::vector<Process> ListProcesses();

// Proportional set size in bytes; 0 when it cannot be read.
std::uint64_t PssBytes(pid_t pid);
// How often this machine has run out of memory and ended a process, since it started.
std::uint64_t OutOfMemoryKills();

}  // namespace ropewalk::worker
