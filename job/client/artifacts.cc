#include "job/client/artifacts.h"

#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/escape.h"
#include "job/client/elf_needs.h"
#include "storage/artifacts.h"

namespace ropewalk::job {
namespace {

constexpr const char* kSelf = "/proc/self/exe";

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Parts of glibc and the kernel's own object: each machine has its own, and mixing two glibcs ends in crashes.
bool BelongsToMachine(std::string_view name) {
  static constexpr std::string_view kPrefixes[] = {
      "ld-linux",     "libc.so",   "libm.so",   "libmvec.so", "libpthread.so",   "libdl.so",           "librt.so",   "libutil.so",
      "libresolv.so", "libnsl.so", "libanl.so", "libnss_",    "libthread_db.so", "libBrokenLocale.so", "linux-vdso", "linux-gate"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](std::string_view prefix) { return name.starts_with(prefix); });
}

int CollectLibrary(dl_phdr_info* info, std::size_t, void* out) {
  std::string_view path = info->dlpi_name;
  if (path.find('/') == std::string_view::npos) return 0;  // the executable itself ("") and the vdso
  if (!BelongsToMachine(BaseName(path))) static_cast<std::vector<std::string>*>(out)->emplace_back(path);
  return 0;
}

std::string CacheFolder() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/ropewalk";
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') return std::string(home) + "/.cache/ropewalk";
  return {};
}

// The one file of the cache that speaks about this inode; its content proves that the inode has not changed.
struct CacheEntry {
  std::string path, stamp;
};

CacheEntry EntryOf(const struct stat& info) {
  std::string folder = CacheFolder();
  if (folder.empty()) return {};
  auto number = [](auto n) { return std::to_string(static_cast<long long>(n)); };
  return {folder + "/sha256-" + number(info.st_dev) + "-" + number(info.st_ino),
          number(info.st_size) + " " + number(info.st_mtim.tv_sec) + "." + number(info.st_mtim.tv_nsec) + " " +
              number(info.st_ctim.tv_sec) + "." + number(info.st_ctim.tv_nsec) + " "};
}

Result<std::string> CachedSha256(const std::string& path, const struct stat& info) {
  CacheEntry entry = EntryOf(info);
  if (!entry.path.empty()) {
    std::ifstream file(entry.path);
    std::string line, sha256;
    if (std::getline(file, line) && line.starts_with(entry.stamp) && line.size() == entry.stamp.size() + 64 &&
        ParseHex(std::string_view(line).substr(entry.stamp.size()), &sha256)) {
      return sha256;
    }
  }
  ASSIGN_OR_RETURN(std::string sha256, storage::Sha256OfFile(path));
  if (!entry.path.empty()) {
    // By rename, since two submits may write it at once. A cache that cannot be written costs time, not the submit.
    std::error_code ignored;
    std::filesystem::create_directories(CacheFolder(), ignored);
    std::string temporary = entry.path + "." + std::to_string(getpid());
    std::ofstream(temporary) << entry.stamp << HexString(sha256) << "\n";
    std::filesystem::rename(temporary, entry.path, ignored);
  }
  return sha256;
}

Result<Artifact> Describe(const std::string& path, std::string name) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return Status(Code::kInvalid, "SUB01", "cannot read " + path + ", which this job needs on the workers", std::strerror(errno),
                  "make it readable for you");
  }
  Artifact artifact{path, std::move(name), "", static_cast<std::uint64_t>(info.st_size)};
  ASSIGN_OR_RETURN(artifact.sha256, CachedSha256(path, info));
  return artifact;
}

}  // namespace

Result<OwnBinary> DescribeOwnBinary() {
  char target[4096];
  ssize_t length = readlink(kSelf, target, sizeof target);
  std::string_view own = length > 0 ? std::string_view(target, static_cast<std::size_t>(length)) : "job";
  if (own.ends_with(" (deleted)")) own.remove_suffix(10);  // rebuilt while it runs: /proc/self/exe still reads what runs

  OwnBinary binary;
  ASSIGN_OR_RETURN(Artifact executable, Describe(kSelf, std::string(BaseName(own))));
  binary.artifacts.push_back(std::move(executable));

  std::vector<std::string> libraries;
  dl_iterate_phdr(CollectLibrary, &libraries);
  std::sort(libraries.begin(), libraries.end(), [](const std::string& a, const std::string& b) { return BaseName(a) < BaseName(b); });
  for (const std::string& path : libraries) {
    ASSIGN_OR_RETURN(Artifact library, Describe(path, std::string(BaseName(path))));
    binary.artifacts.push_back(std::move(library));
  }
  for (const Artifact& artifact : binary.artifacts) {
    ASSIGN_OR_RETURN(std::uint32_t glibc, HighestGlibc(artifact.path));
    binary.glibc_min = std::max(binary.glibc_min, glibc);
  }
  return binary;
}

}  // namespace ropewalk::job
