// What must be refused before a job does any work.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

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

// A pattern's files lie below its folders without wildcards.
std::string WithoutPattern(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  std::size_t wild = path.find_first_of("*?[");
  if (wild == std::string::npos) return path;
  std::size_t slash = path.rfind('/', wild);
  return slash == std::string::npos || slash == 0 ? path : path.substr(0, slash);
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
    std::string input = Canonical(WithoutPattern(input_path));
    // A pattern may match files beside the output, as `*.txt` does with `out`; only a folder that is read as a whole holds it.
    bool inside = input_path == WithoutPattern(input_path) && IsOrHolds(input, output);
    inside = inside || (input_path == WithoutPattern(input_path) && IsOrHoldsNode(input, output));
    if (inside || IsOrHolds(output, input) || IsOrHoldsNode(output, input)) {
      return Refused("OUT03", shown + " is, holds or lies in the input " + QuotedPath(input_path),
                     "the job would read or delete its own data", "choose another output folder");
    }
  }
  std::error_code no_cwd;
  std::string cwd = std::filesystem::current_path(no_cwd).string();
  const char* home = std::getenv("HOME");
  if (spec.overwrite &&
      (output == "/" || (!no_cwd && IsOrHolds(output, cwd)) || (home != nullptr && *home != '\0' && IsOrHolds(output, Canonical(home))))) {
    return Refused("OUT03", shown + " is not overwritten", "it is or holds the home or the working folder",
                   "choose a folder of its own for the output");
  }

  OutputFiles files(spec);
  FileFacts facts;
  int error = files->Look(paths.final_folder, &facts);
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
  return {};
}

}  // namespace ropewalk::storage
