#include "storage/folder.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "storage/io_error.h"

namespace ropewalk::storage {

Result<std::vector<std::string>> FolderNames(const std::string& folder) {
  std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(folder.c_str()), closedir);
  if (stream == nullptr) return IoError(errno, "IO02", "cannot read the folder " + QuotedPath(folder));
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr) break;
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return IoError(errno, "IO02", "cannot read the folder " + QuotedPath(folder));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ropewalk::storage
