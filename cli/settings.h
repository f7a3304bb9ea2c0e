// The command's configuration: its keys, and how flags, environment and file come together.
#pragma once

#include <string>

#include "base/config.h"
#include "cli/invocation.h"

namespace ropewalk::cli {

// SPEC01, SPEC02 (base/config.h); IO01, IO02 for a --config that cannot be read; SPEC03 for a file that is no TOML.
Result<Config> LoadConfig(const Invocation& invocation);

// What is left empty means: below the home folder.
std::string TokenFile(const Config& config, const std::string& section);
std::string StateFolder(const Config& config, const std::string& section);

}  // namespace ropewalk::cli
