// Who owns the hidden sibling of an output folder. On a cluster it is the job, which outlives every process. An embedded job is one
// process: when that is killed, nobody tidies up, so its keys name it, and the next job that writes the same output removes what it left.
//
//   .out.ropewalk-<job>-<action>-<machine>-<boot>-<namespace>-<pid>-<start>
//
// An owner is dead only when that is certain: its machine is this one, and this one has been started anew since, or there is no process of
// that number and start time in the same process namespace. A live owner, another machine's (NFS) and another container's are left alone.
//
// Thread rule: pure functions of /proc and the folder.
#pragma once

#include <string>
#include <string_view>

#include "storage/output_folder.h"

namespace ropewalk::storage {

inline constexpr const char* kGoneSuffix = ".gone";  // of a key whose hidden folder is being removed

// This process. Empty when /proc does not tell: then nobody will call it dead.
std::string ProcessOwner();

// The key "<job>-<action>" with its owner; `owner` "": as it is.
std::string OwnedKey(const std::string& key, const std::string& owner);

// False also for what is no owner.
bool OwnerIsDead(std::string_view owner);

// Removes the hidden folders beside spec.folder whose owners are dead, of this output and of others (but for names so long that they were
// cut); a former output that one of them had moved away is given back. Best
// effort: what cannot be removed is hidden and read by nobody.
void RemoveStaleOutputs(const OutputSpec& spec);

}  // namespace ropewalk::storage
