// What this machine offers, as it is told to the master, and the limits that a daemon needs.
//
// Thread rule: pure functions; RaiseFileLimit changes the process.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace ropewalk::worker {

std::string GlibcVersion();  // "2.36"
std::string CpuLevel();      // "x86-64-v3"; "" on other machines
std::uint64_t MachineMemoryBytes();
struct JobUser {
  std::int64_t uid = -1, gid = -1;  // -1: the worker's own
};
Result<JobUser> FindUser(const std::string& name);  // kUserError WORKER34
std::string HostName();
void RaiseFileLimit();  // to what is allowed: segments hold a descriptor each

}  // namespace ropewalk::worker
