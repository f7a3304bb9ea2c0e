// What lies in a folder. Internal to storage/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ropewalk::storage {

// All names but "." and "..", in byte order, so that no listing depends on the file system or the process.
// kNotFound: missing or no folder; IO02: cannot be read.
Result<std::vector<std::string>> FolderNames(const std::string& folder);

// Hidden files and the markers of batch jobs (_SUCCESS, _temporary) are no data.
inline bool IsHiddenName(std::string_view name) { return !name.empty() && (name[0] == '.' || name[0] == '_'); }

}  // namespace ropewalk::storage
