// A listing for who must know more of the input than its files.
//
// Thread rule: pure functions of the file system.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "storage/input.h"

namespace ropewalk::storage {

// ListInputs() of storage/input.h, which also says in `folders` of which folders all files are input: what appears there is input of the
// next run. Absolute paths as they were walked; of folders below one another only those that may lie elsewhere, behind a link or a mount.
Result<InputListing> ListInputs(std::span<const std::string> patterns, const std::string& work_dir, std::vector<std::string>* folders);

}  // namespace ropewalk::storage
