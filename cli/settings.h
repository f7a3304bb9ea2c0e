// The command's configuration: its keys, and how flags, environment and file come together.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "cli/invocation.h"

namespace ropewalk::cli {

// SPEC01 (an unknown key, or a variable of ours that nothing reads), SPEC02 (base/config.h); IO01, IO02 for a --config that cannot be read;
// SPEC03 for a file that is no TOML.
Result<Config> LoadConfig(const Invocation& invocation);

// kInvalid SPEC02: a number of slots or an amount of memory that no worker can have; nothing where the key stands at its default.
Status CheckSlots(const Config& config, const std::string& key);
Status CheckMemory(const Config& config, const std::string& key);

// What is left empty means: below the home folder.
std::string TokenFile(const Config& config, const std::string& section);
std::string StateFolder(const Config& config, const std::string& section);

// Every key with its value and origin, and what defaults come to on this machine.
std::vector<ConfigEntry> ShownConfig(const Config& config);

// The [job] keys that are set, as the variables by which a job is told them.
std::vector<std::pair<std::string, std::string>> JobVariables(const Config& config);

}  // namespace ropewalk::cli
