// What must be refused before a job does any work.
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "storage/io_error.h"
#include "storage/output_paths.h"

namespace ropewalk::storage {
namespace {

// Absolute, with links resolved as far as the path exists. Comparable by components.
std::string Canonical(const std::string& path) {
  std::error_code error;
  auto canonical = std::filesystem::weakly_canonical(path, error);
  std::string text = error ? path : canonical.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

bool IsOrHolds(const std::string& outer, const std::string& inner) {
  return inner == outer || outer == "/" || (inner.size() > outer.size() && inner.starts_with(outer) && inner[outer.size()] == '/');
}

bool IsSame(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// The same by what the folders are and not by what they are called: one folder has several names where it is mounted twice (mount --bind).
// Of `inner` and the folders above it, those that exist are looked at.
bool IsOrHoldsNode(const std::string& outer, const std::string& inner) {
  struct stat holder;
  if (stat(outer.c_str(), &holder) != 0) return false;
  for (std::string at = inner;;) {
    struct stat info;
    if (stat(at.c_str(), &info) == 0 && IsSame(info, holder)) return true;
    const std::size_t slash = at.rfind('/');
    if (slash == std::string::npos || at == "/") return false;
    at.resize(std::max<std::size_t>(slash, 1));
  }
}

Status Refused(std::string tag, std::string what, std::string why, std::string fix) {
  return Status(Code::kUserError, std::move(tag), std::move(what), std::move(why), std::move(fix));
}

// "" where the entry has none: the line "+" of a machine that asks a directory service.
std::string HomeOf(const passwd& entry) { return entry.pw_dir == nullptr ? "" : entry.pw_dir; }

std::string HomeOf(uid_t user) {
  char buffer[16 << 10];
  passwd entry, *found = nullptr;
  if (getpwuid_r(user, &entry, buffer, sizeof buffer, &found) != 0 || found == nullptr) return {};
  return HomeOf(*found);
}

// Whether `output` is or holds the home of somebody. $HOME alone says little: for an executor it is a scratch folder. So whoever runs this
// is asked for, the owner of `output` (who may be known to a directory service only), and everybody whom this machine knows.
bool IsOrHoldsAHome(const std::string& output) {
  std::vector<std::string> homes = {HomeOf(geteuid())};
  if (const char* home = std::getenv("HOME"); home != nullptr) homes.emplace_back(home);
  struct stat info;
  if (stat(output.c_str(), &info) == 0) homes.push_back(HomeOf(info.st_uid));
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/etc/passwd", "re"), std::fclose);
  char buffer[16 << 10];
  passwd entry, *found = nullptr;
  while (file != nullptr && fgetpwent_r(file.get(), &entry, buffer, sizeof buffer, &found) == 0) homes.push_back(HomeOf(*found));
  return std::any_of(homes.begin(), homes.end(),
                     [&](const std::string& home) { return home.starts_with('/') && IsOrHolds(output, Canonical(home)); });
}

// Whether something is mounted there. One file system may be mounted on itself: then only the kernel can tell, where it is new enough to.
bool IsMountPoint(const std::string& folder, const struct stat& info, const struct stat& parent) {
  struct statx more;
  if (statx(AT_FDCWD, folder.c_str(), AT_SYMLINK_NOFOLLOW, STATX_INO, &more) == 0 &&
      (more.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0)
    return (more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  return info.st_dev != parent.st_dev;
}

// What would make rename(2) refuse to move `folder` away, when all the work is done.
Status CheckCanBeMoved(const std::string& folder, const struct stat& parent, const std::string& shown) {
  struct stat info;
  if (lstat(folder.c_str(), &info) != 0) {
    Status why = IoError(errno, "", "");
    return Refused("OUT02", shown + " cannot be replaced", why.why(), why.fix());
  }
  if (IsMountPoint(folder, info, parent))
    return Refused("OUT02", shown + " cannot be replaced", "a file system is mounted there", "choose a folder below it");
  const uid_t self = geteuid();
  if ((parent.st_mode & S_ISVTX) != 0 && self != 0 && info.st_uid != self && parent.st_uid != self)
    return Refused("OUT02", shown + " cannot be replaced",
                   "it is another user's, and in the folder that holds it (with the sticky bit, as /tmp) each may move only what is theirs",
                   "choose another folder");
  if (faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) != 0) {  // its ".." changes
    Status why = IoError(errno, "", "");
    return Refused("OUT02", shown + " cannot be replaced: it is not writable itself", why.why(),
                   "make it writable (chmod u+w), or choose another folder");
  }
  return {};
}

}  // namespace

Status CheckOutput(const OutputSpec& spec, std::span<const std::string> input_paths) {
  if (spec.folder.empty() || spec.folder.find('\0') != std::string::npos)
    return Status(Code::kInvalid, "OUT02", "output " + QuotedPath(spec.folder) + " is no path", "it is empty, or holds a NUL",
                  "name a folder");
  OutputPaths paths = PathsOf(spec);
  const std::string output = Canonical(paths.final_folder);
  const std::string shown = "output " + QuotedPath(paths.final_folder);
  for (const std::string& input_path : input_paths) {
    const std::string input = Canonical(input_path);
    if (IsOrHolds(input, output) || IsOrHolds(output, input) || IsOrHoldsNode(input, output) || IsOrHoldsNode(output, input)) {
      return Refused("OUT03", shown + " is, holds or lies in the input " + QuotedPath(input_path),
                     "the job would read or delete its own data", "choose another output folder");
    }
  }
  std::error_code no_cwd;
  std::string cwd = std::filesystem::current_path(no_cwd).string();
  if (spec.overwrite && (output == "/" || (!no_cwd && IsOrHolds(output, cwd)) || IsOrHoldsAHome(output))) {
    return Refused("OUT03", shown + " is not overwritten", "it is or holds somebody's home or the working folder",
                   "choose a folder of its own for the output");
  }

  const std::string name = paths.final_folder.substr(paths.final_folder.rfind('/') + 1);
  if (name == "." || name == "..")
    return Refused("OUT02", shown + " cannot be made", "nothing can be renamed to \"" + name + "\"", "name the folder itself");

  OutputFiles files(spec);
  FileFacts facts;
  int error = files->Look(paths.final_folder, &facts);
  const bool exists = error == 0;
  if (error == 0 && facts.kind != FileKind::kFolder) {
    return Refused("OUT04", shown + " is no folder", "a file or link of that name stands there", "remove it, or choose another name");
  }
  if (error == 0 && !spec.overwrite)
    return Refused("OUT01", shown + " exists", "a job never mixes its output with what is there",
                   "choose another folder, or replace it: --overwrite, in a program WriteText(folder, {.overwrite = true})");
  if (error != 0 && error != ENOENT) return Refused("OUT02", shown + " cannot be made", IoError(error, "", "").why(), "check the path");

  struct stat info;
  if (stat(paths.parent.c_str(), &info) != 0) {
    Status why = IoError(errno, "", "");
    return Refused("OUT02", shown + " cannot be made: the folder " + QuotedPath(paths.parent) + " cannot be reached", why.why(),
                   "make it first (mkdir -p), or choose another");
  }
  if (!S_ISDIR(info.st_mode)) {
    return Refused("OUT02", shown + " cannot be made: " + QuotedPath(paths.parent) + " is a file", "only a folder can hold another",
                   "choose a path below a folder");
  }
  if (faccessat(AT_FDCWD, paths.parent.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    Status why = IoError(errno, "", "");
    return Refused("OUT02", shown + " cannot be made: the folder " + QuotedPath(paths.parent) + " is not writable", why.why(), why.fix());
  }
  return exists ? CheckCanBeMoved(paths.final_folder, info, shown) : Status();
}

}  // namespace ropewalk::storage
