#include "worker/daemon/cgroup.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/unique_fd.h"

namespace ropewalk::worker {
namespace {

const char* const kControllers[] = {"cpu", "memory", "pids"};
constexpr char kFolder[] = "ropewalk-";

// errno.
int WriteFile(const std::string& path, const std::string& text) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return errno;
  return ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
}

std::string ReadLine(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, name.size(), name) == 0) return line.substr(name.size());
  return {};
}

bool Holds(const std::string& list, const std::string& word, char separator) {
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, separator);)
    if (item == word) return true;
  return false;
}

// Mount points of the trees: controller -> (mount point, what of the tree is mounted there). "": version 2.
std::map<std::string, std::pair<std::string, std::string>> Mounts() {
  std::map<std::string, std::pair<std::string, std::string>> mounts;
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::stringstream fields(line);
    std::string skip, root, point, word, type, source, options;
    fields >> skip >> skip >> skip >> root >> point;
    while (fields >> word && word != "-") {
    }
    fields >> type >> source >> options;
    if (type == "cgroup2") mounts.emplace("", std::pair(point, root));
    if (type != "cgroup") continue;
    for (const char* controller : kControllers)
      if (Holds(options, controller, ',')) mounts.emplace(controller, std::pair(point, root));
  }
  return mounts;
}

// The folder of our own group in a tree.
std::string OwnFolder(const std::pair<std::string, std::string>& mount, const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controller.empty() ? !controllers.empty() : !Holds(controllers, controller, ',')) continue;
    // In a container the tree may be mounted from our group on.
    if (mount.second != "/" && path.compare(0, mount.second.size(), mount.second) == 0) path = path.substr(mount.second.size());
    return path == "/" ? mount.first : mount.first + path;
  }
  return mount.first;
}

}  // namespace

std::unique_ptr<ExecutorGroups> ExecutorGroups::Open() {
  std::unique_ptr<ExecutorGroups> groups(new ExecutorGroups);
  groups->FindTrees();
  return groups;
}

ExecutorGroups::~ExecutorGroups() {
  RemoveEmpty();
  for (const auto& [controller, folder] : controllers_)
    ::rmdir(folder.c_str());  // fails while a group in it is left: the next daemon does it
}

void ExecutorGroups::FindTrees() {
  std::string why = "none is mounted";
  const auto mounts = Mounts();
  for (const char* controller : kControllers) {
    auto mount = mounts.find(controller);
    if (mount == mounts.end()) continue;
    std::string error = Try(controller, OwnFolder(mount->second, controller));
    if (!error.empty()) why = error;
  }
  if (auto mount = mounts.find(""); controllers_.empty() && mount != mounts.end()) {
    std::string own = OwnFolder(mount->second, "");
    const std::string offered = ReadLine(own + "/cgroup.controllers", "");
    if (!Holds(offered, "memory", ' ')) {
      why = "the tree of version 2 offers no memory controller at " + own;
    } else {
      version_ = 2;
      // A group with processes hands no controllers on (the root excepted): we step into a leaf beside those of the executors.
      std::string wanted;
      for (const char* controller : kControllers)
        if (Holds(offered, controller, ' ')) wanted += std::string(wanted.empty() ? "+" : " +") + controller;
      int error = WriteFile(own + "/cgroup.subtree_control", wanted);
      if (error == EBUSY) {
        const std::string leaf = own + "/ropewalk-daemon";
        if (::mkdir(leaf.c_str(), 0755) == 0 || errno == EEXIST) {
          std::ifstream procs(own + "/cgroup.procs");  // ours and the spawner's; those of others stay, and then the next line says so
          for (std::string pid; std::getline(procs, pid);) (void)WriteFile(leaf + "/cgroup.procs", pid);
        }
        error = WriteFile(own + "/cgroup.subtree_control", wanted);
      }
      if (error != 0) {
        why = std::string(std::strerror(error)) + " at " + own + "/cgroup.subtree_control";
      } else {
        for (const char* controller : kControllers) {
          if (!Holds(offered, controller, ' ')) continue;
          std::string failed = Try(controller, own);
          if (!failed.empty()) why = failed;
        }
        for (const auto& [controller, folder] : controllers_)
          if (int again = WriteFile(folder + "/cgroup.subtree_control", "+" + controller); again != 0) why = std::strerror(again);
      }
    }
  }
  if (controllers_.empty()) {
    description_ = "no cgroups: " + why;
    return;
  }
  description_ = "cgroup v" + std::to_string(version_) + ":";
  for (const auto& [controller, folder] : controllers_) description_ += " " + controller;
}

// Makes the daemon's folder below `parent`. What went wrong, or "".
std::string ExecutorGroups::Try(const std::string& controller, const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kFolder)) continue;
    const int pid = std::atoi(name.c_str() + std::strlen(kFolder));
    if (pid <= 0 || pid == ::getpid() || ::kill(pid, 0) == 0 || errno != ESRCH) continue;
    for (const auto& group : std::filesystem::directory_iterator(entry.path(), ignored))
      if (group.is_directory(ignored)) ::rmdir(group.path().c_str());
    ::rmdir(entry.path().c_str());
  }
  const std::string folder = parent + "/" + kFolder + std::to_string(::getpid());
  if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return std::string(std::strerror(errno)) + " at " + parent;
  controllers_[controller] = folder;
  return {};
}

std::string ExecutorGroups::Path(const std::string& controller, std::uint64_t id) const {
  return controllers_.at(controller) + "/executor-" + std::to_string(id);
}

Result<ExecutorGroups::Entry> ExecutorGroups::Make(std::uint64_t id, const GroupLimits& limits) {
  RemoveEmpty();
  Entry entry;
  std::set<std::string> made;
  for (const auto& [controller, folder] : controllers_) {
    const std::string path = Path(controller, id);
    int error = made.contains(path) || ::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST ? 0 : errno;
    auto set = [&](const std::string& file, const std::string& value, bool must) {
      if (int failed = WriteFile(path + "/" + file, value); failed != 0 && must && error == 0) error = failed;
    };
    if (controller == "memory" && version_ == 1) {
      set("memory.limit_in_bytes", std::to_string(limits.memory_bytes), true);
      set("memory.memsw.limit_in_bytes", std::to_string(limits.memory_bytes), false);  // where swap is counted
    } else if (controller == "memory") {
      set("memory.max", std::to_string(limits.memory_bytes), true);
      set("memory.swap.max", "0", false);
      set("memory.oom.group", "1", false);  // half an executor is of no use
    } else if (controller == "pids") {
      set("pids.max", std::to_string(limits.processes_max), true);
      entry.processes_max = path + "/pids.max";
    } else if (version_ == 1) {
      set("cpu.shares", std::to_string(1024 * limits.cpu_percent / 100), false);
    } else {
      set("cpu.weight", std::to_string(limits.cpu_percent), false);
    }
    if (error != 0) {
      Remove(id);
      return Status(Code::kUnavailable, "WORKER33", "cannot make a control group for an executor", path + ": " + std::strerror(error),
                    "look at the machine's cgroups");
    }
    if (made.insert(path).second) entry.procs.push_back(path + "/cgroup.procs");
  }
  return entry;
}

std::optional<std::uint64_t> ExecutorGroups::MemoryKills(std::uint64_t id) const {
  if (!limits_memory()) return std::nullopt;
  const std::string file = Path("memory", id) + (version_ == 1 ? "/memory.oom_control" : "/memory.events");
  const std::string count = ReadLine(file, "oom_kill ");
  if (count.empty()) return std::nullopt;
  return std::strtoull(count.c_str(), nullptr, 10);
}

bool ExecutorGroups::WasFull(std::uint64_t id) const {
  if (!limits_memory()) return false;
  const std::string path = Path("memory", id) + "/memory.";
  const auto number = [](const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); };
  if (version_ == 2) return number(ReadLine(path + "events", "oom ")) > 0;
  // The count of refusals (failcnt) stays 0 on newer kernels. What is refused is a page more than there is room for, and that may be a huge
  // one. Where swap is counted too, that limit is the same and may be met first.
  constexpr std::uint64_t kHugePageBytes = 2u << 20;
  for (const std::string kind : {"", "memsw."}) {
    const std::uint64_t limit = number(ReadLine(path + kind + "limit_in_bytes", ""));
    if (limit > 0 && number(ReadLine(path + kind + "max_usage_in_bytes", "")) + kHugePageBytes > limit) return true;
  }
  return false;
}

void ExecutorGroups::Remove(std::uint64_t id) {
  for (const auto& [controller, folder] : controllers_) old_.push_back(Path(controller, id));
  RemoveEmpty();
}

void ExecutorGroups::RemoveEmpty() {
  std::erase_if(old_, [](const std::string& path) { return ::rmdir(path.c_str()) == 0 || errno == ENOENT; });
}

}  // namespace ropewalk::worker
