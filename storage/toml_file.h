// A TOML file as configuration entries. The only file that includes toml++ is toml_file.cc.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"

namespace ropewalk::storage {

// One entry a key, "section.key", with "FILE:LINE:COLUMN" as its origin. IO01, IO02: cannot be read. SPEC03: no TOML, or a value that is no
// text, number, switch or list of whole numbers.
Result<std::vector<ConfigEntry>> ReadTomlFile(const std::string& path);

}  // namespace ropewalk::storage
