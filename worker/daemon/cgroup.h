// Control groups of executors: memory, number of processes, share of the processors. Version 2 where the machine has it, version 1 (also in
// the hybrid layout, where each controller has a tree of its own) otherwise.
//
//   <our own group>/ropewalk-<pid of the daemon>/executor-<id>
//
// The daemon makes and removes the groups, the spawner's child enters them before it becomes the executor. What cannot be limited here
// (no writable tree, a container without delegation) is said by description(), and rlimits have to do.
//
// Thread rule: one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace ropewalk::worker {

struct GroupLimits {
  std::uint64_t memory_bytes = 0;
  std::uint64_t processes_max = 0;  // threads count
  std::uint32_t cpu_percent = 50;   // of the share that a group has by default: daemons come first when processors are short
};

class ExecutorGroups {
 public:
  // Never fails; groups that a daemon left which is gone are removed.
  static std::unique_ptr<ExecutorGroups> Open();
  ~ExecutorGroups();  // removes what is empty

  // "cgroup v1: cpu memory pids", or "no cgroups: permission denied at /sys/fs/cgroup/memory".
  const std::string& description() const { return description_; }
  bool limits_memory() const { return controllers_.contains("memory"); }

  struct Entry {
    std::vector<std::string> procs;  // files that the executor writes its pid to
    std::string processes_max;       // file; writing 0 ends all forking. Empty: none
  };
  // kUnavailable WORKER33: a group cannot be made although the tree could be written before.
  Result<Entry> Make(std::uint64_t id, const GroupLimits& limits);
  // How often the kernel has ended a process of the group for lack of memory, be it the group's or the machine's. Not set where nothing
  // counts that: no memory controller, or a kernel before 4.13.
  std::optional<std::uint64_t> MemoryKills(std::uint64_t id) const;
  // Whether the group has ever used all that it may.
  bool WasFull(std::uint64_t id) const;
  void Remove(std::uint64_t id);  // its processes are gone, or will be: tried again later

 private:
  ExecutorGroups() = default;
  void FindTrees();
  std::string Try(const std::string& controller, const std::string& parent);
  std::string Path(const std::string& controller, std::uint64_t id) const;
  void RemoveEmpty();

  int version_ = 1;
  std::map<std::string, std::string> controllers_;  // name -> the daemon's folder in its tree
  std::string description_;
  std::vector<std::string> old_;  // folders that could not be removed yet
};

}  // namespace ropewalk::worker
