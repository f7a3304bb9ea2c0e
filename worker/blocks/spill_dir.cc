#include "worker/blocks/spill_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/job_name.h"

namespace ropewalk::blocks {
namespace {

namespace fs = std::filesystem;
constexpr char kPrefix[] = "blocks-";
constexpr char kLockName[] = "/owner.lock";

Status CannotUse(const std::string& path, const std::string& why) {
  return Status(Code::kResourceExhausted, "BLK09", "cannot use the spill folder " + path, why, "name a writable folder with free space");
}

// The lock of a folder whose owner lives cannot be taken. A folder without a lock file is being made or removed: left alone.
void SweepDeadOwners(const std::string& parent, const std::string& own, std::vector<std::string>* leftovers) {
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    std::string path = at->path().string();
    if (at->path().filename().string().rfind(kPrefix, 0) != 0) continue;
    UniqueFd lock(::open((path + kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code ignored;  // the next start tries again
    if (leftovers != nullptr) {
      for (fs::directory_iterator file(path, ignored), last; !ignored && file != last; file.increment(ignored)) {
        if (file->path().extension() != ".run") continue;
        // "segment-7.j-005.run" keeps what says whose it is.
        std::string job = file->path().stem().extension().string();
        std::string moved = own + "/left-" + std::to_string(leftovers->size()) + job + ".run";
        if (::rename(file->path().c_str(), moved.c_str()) == 0) leftovers->push_back(std::move(moved));
      }
    }
    fs::remove_all(path, ignored);
  }
}

}  // namespace

JobId JobOfRunFile(const std::string& path) {
  std::string name = fs::path(path).stem().extension().string();
  return ParseJobName(std::string_view(name).substr(name.empty() ? 0 : 1)).value_or(JobId{});
}

Result<std::unique_ptr<SpillDir>> SpillDir::Open(const std::string& parent, std::vector<std::string>* leftovers) {
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) return CannotUse(parent, error.message());
  std::string path = parent + "/" + kPrefix + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return CannotUse(parent, std::strerror(errno));  // 0700
  // Locked before it has its name: a sweeper never sees an unlocked lock file of a living owner.
  std::string unnamed = path + "/owner.new";
  UniqueFd lock(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || ::rename(unnamed.c_str(), (path + kLockName).c_str()) != 0)
    return CannotUse(path, std::strerror(errno));
  SweepDeadOwners(parent, path, leftovers);
  return std::unique_ptr<SpillDir>(new SpillDir(std::move(path), std::move(lock), leftovers != nullptr));
}

SpillDir::~SpillDir() {
  if (keep_ || !home_.here()) return;
  std::error_code ignored;  // the next owner sweeps what is left
  fs::remove_all(path_, ignored);
}

}  // namespace ropewalk::blocks
