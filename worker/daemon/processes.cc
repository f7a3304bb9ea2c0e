#include "worker/daemon/processes.h"

#include <dirent.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace ropewalk::worker {
namespace {

// The number behind `name` at the start of a line of `path`; 0 when there is none.
std::uint64_t NumberIn(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, name.size(), name) == 0) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  return 0;
}

}  // namespace

std::vector<Process> ListProcesses() {
  std::vector<Process> all;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return all;
  while (const dirent* entry = ::readdir(proc)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    std::ifstream file(std::string("/proc/") + entry->d_name + "/stat");
    std::string text;
    if (!std::getline(file, text, '\0')) continue;  // ended meanwhile
    // The name in parentheses may itself hold parentheses and spaces: what counts is behind the last one.
    std::size_t at = text.rfind(')');
    char state = 0;
    int parent = 0, group = 0, session = 0;
    if (at == std::string::npos || std::sscanf(text.c_str() + at + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4) continue;
    all.push_back({static_cast<pid_t>(std::atoi(entry->d_name)), parent, session, state == 'Z' || state == 'X'});
  }
  ::closedir(proc);
  return all;
}

std::uint64_t PssBytes(pid_t pid) { return NumberIn("/proc/" + std::to_string(pid) + "/smaps_rollup", "Pss:") << 10; }

std::uint64_t OutOfMemoryKills() { return NumberIn("/proc/vmstat", "oom_kill "); }

}  // namespace ropewalk::worker
