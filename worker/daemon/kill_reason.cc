#include "worker/daemon/kill_reason.h"

#include "dag/failure_tags.h"

namespace ropewalk::worker {

Status ReasonOfKill(const std::string& who, const KillEvidence& evidence) {
  constexpr const char* kMachineFix = "give the worker less memory, or the job more partitions";
  if (evidence.group_kills.value_or(0) > 0 && evidence.group_was_full)
    return {Code::kResourceExhausted, "WORKER35", who,
            "the job used more than the " + std::to_string(evidence.memory_bytes_max >> 20) + " MiB that an executor has here",
            "use less memory in the job's own code, or give the worker more (--memory)"};
  if (evidence.group_kills.value_or(0) > 0)
    return {Code::kResourceExhausted, "WORKER29", who, "the machine ran out of memory, and its kernel ended this process for it",
            kMachineFix};
  if (evidence.group_kills.has_value() || evidence.machine_kills == 0)
    return {Code::kUnavailable, "WORKER30", who, "somebody killed it", "none needed: the job goes on"};
  const std::string others = evidence.machine_kills == 1 ? "a process" : std::to_string(evidence.machine_kills) + " processes";
  return {Code::kResourceExhausted, dag::kPerhapsOutOfMemoryTag, who,
          "perhaps the machine ran out of memory: its kernel ended " + others +
              " for that lately, and without control groups nothing tells which; or somebody killed it",
          std::string("if nobody did: ") + kMachineFix};
}

}  // namespace ropewalk::worker
