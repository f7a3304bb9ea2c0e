#include "storage/folder.h"

#include "storage/file_system.h"
#include "storage/io_error.h"

namespace ropewalk::storage {

Result<std::vector<std::string>> FolderNames(const std::string& folder) {
  std::vector<std::string> names;
  int error = LocalFileSystem().List(folder, &names);
  if (error != 0) return IoError(error, "IO02", "cannot read the folder " + QuotedPath(folder));
  return names;
}

}  // namespace ropewalk::storage
